"""Values that calls of the Python API take: numbers of NumPy, lists and paths; and what they refuse."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace import ForetraceError, Machine, Mesh, Placement, Plan, PlanRequest, Scenario

AICB = Path(__file__).parents[2] / "examples" / "llama405b_1024gpu.txt"


def small(**fields: Any) -> Any:
    return foretrace.model("gpt2", Plan(**{"gpus": 4, "tp": 2, "gbs": 4, "seq_len": 128, **fields}))


def test_numbers_of_numpy_are_numbers() -> None:
    plan = {"gpus": np.int64(4), "tp": np.int32(2), "pp": np.uint8(2), "stage_layers": [np.int64(6), 6]}
    plan |= {"routing": np.float32(1.5), "tp_overlap": np.bool_(False)}
    scenario = Scenario({"compute": np.float32(2)}, {np.int64(0): np.float32(1.5)}, {}, np.float32(0.125))
    answer = foretrace.simulate(small(**plan), Path("h100-dgx"), scenario, explain=False)
    plain = Scenario({"compute": 2.0}, {0: 1.5}, {}, 0.125)
    same = small(gpus=4, tp=2, pp=2, stage_layers=(6, 6), routing=1.5)
    assert answer.step_time_s == foretrace.simulate(same, "h100-dgx", plain, explain=False).step_time_s
    assert json.dumps(answer.to_dict())
    assert Mesh(dp=np.int64(4)) == Mesh(dp=4)
    assert type(Mesh(dp=np.int64(4)).dp) is int
    assert foretrace.schedule("1f1b", np.int64(2), np.int64(4)) is foretrace.schedule("1f1b", 2, 4)
    assert foretrace.open(AICB, microbatches=np.int64(32), overlap=["grad"]).options.microbatches == 32
    assert Placement([0, 0, 1], [0, 1, 0]).hosts == 2


@pytest.mark.parametrize("option", ["vpp", "ends", "overlap", "schedule", "stage_layers", "gpus"])
@pytest.mark.parametrize("value", [np.zeros(0), np.zeros(3), object(), 1.5, {1: 2}, b"x"])
def test_options_of_wrong_types_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ForetraceError):
        foretrace.open(AICB, **{option: value}).program()


@pytest.mark.parametrize("value", [None, "x", 1.5, True, np.zeros(2), -1, 2, 10**30, object()])
def test_a_schedule_is_asked_for_what_it_has(value: Any) -> None:
    schedule = foretrace.schedule("1f1b", 2, 2)
    for ask in (schedule.actions, schedule.line, schedule.route, lambda number: schedule.where(number, 0)):
        with pytest.raises(ForetraceError):
            ask(value)


@pytest.mark.parametrize(
    "hosts", [np.zeros(0, int), np.zeros(3), np.array(["a"]), np.array([1j]), np.zeros((2, 2), int)]
)
def test_host_numbers_are_whole_and_one_for_each_host(hosts: Any) -> None:
    with pytest.raises(ForetraceError):
        Placement.packed(16, 8, hosts)


@pytest.mark.parametrize("count", [True, 1.5, np.float64("nan"), "8", None])
def test_ranks_that_are_placed_are_counted_in_whole_numbers(count: Any) -> None:
    with pytest.raises(ForetraceError):
        Placement.packed(8, count)


def test_equal_scenarios_have_one_hash() -> None:
    assert len({Scenario(stragglers={0: 2.0}), Scenario(stragglers={0: 2.0}), Scenario()}) == 2


def test_answers_are_compared_copied_and_pickled() -> None:
    job = small()
    answer, other = (foretrace.simulate(job, "h100-dgx", explain=False) for _ in range(2))
    assert answer == answer
    assert answer != other
    assert len({answer, other}) == 2
    for each in (copy.copy(answer), copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
        assert each.step_time_s == answer.step_time_s


@pytest.mark.parametrize(
    "value",
    [
        *(Mesh(dp=2), Plan(gpus=4), Scenario({"compute": 2.0}), Machine("h100-dgx"), Placement.packed(4, 4)),
        *(PlanRequest(Plan(gpus=4, gbs=4)), foretrace.load_model("gpt2"), foretrace.load_cluster("h100-dgx")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_copied_and_pickled(value: Any) -> None:
    for each in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert repr(each) == repr(value)


@pytest.mark.parametrize("world", [None, "x", 1.5, np.zeros(3), object()])
def test_a_cluster_is_asked_for_whole_ranks(world: Any) -> None:
    with pytest.raises(ForetraceError):
        foretrace.load_cluster("h100-dgx").check_fits(world)
