"""Answers as JSON and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace import Answer, ForetraceError, Input, Machine, Mesh, Placement, Plan, ProgramBuilder, Scenario
from foretrace.api import measured_or_simulated
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.answer import BandPart
from foretrace.readings.answer.memory_fit import MemoryPart
from shared_files import ROOT

RECORDED = json.loads((Path(__file__).parent / "answer_keys.json").read_text())
"""The schemas and keys of version 0.6, which stay."""

FREE = ("breakdown_s", "parts_s", "by_category_bytes", "what_if", "stragglers", "slow_links")
"""Objects whose keys depend on the job."""


def keys(value: Any, place: str = "") -> set[str]:
    """Returns the places of all keys; elements of a list have the same places."""
    places: set[str] = set()
    if isinstance(value, dict):
        for name, inner in value.items():
            here = f"{place}.{name}" if place else name
            places.add(here)
            places |= set() if name in FREE else keys(inner, here)
    elif isinstance(value, list):
        places = places.union(*(keys(inner, f"{place}[]") for inner in value))
    return places


@pytest.fixture(scope="module")
def workload() -> Answer:
    job = foretrace.open(ROOT / "examples" / "moe_128gpu.txt")
    machine = Machine("h100-dgx", network="flow")
    return foretrace.simulate(job, machine, Scenario(stragglers={3: 1.2}))


@pytest.fixture(scope="module")
def prediction() -> Answer:
    job = foretrace.model("llama3-8b", Plan(gpus=32, tp=2, pp=4, gbs=32))
    return foretrace.simulate(job, Machine("h100-dgx"), Scenario(what_if={"compute": 1.1}))


@pytest.fixture(params=["simulation", "prediction"])
def case(request: pytest.FixtureRequest) -> tuple[str, Answer]:
    fixture = {"simulation": "workload", "prediction": "prediction"}[request.param]
    return request.param, request.getfixturevalue(fixture)


def test_no_key_of_version_0_6_is_missing(case: tuple[str, Answer]) -> None:
    name, answer = case
    values = answer.to_dict()
    assert values["schema"] == RECORDED[name]["schema"]
    assert set(RECORDED[name]["keys"]) <= keys(values)


def test_json_can_hold_it(case: tuple[str, Answer]) -> None:
    values = case[1].to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_it_opens_again_as_it_was_saved(case: tuple[str, Answer], tmp_path: Path) -> None:
    answer, path = case[1], tmp_path / "x.answer"
    answer.save(path)
    opened = foretrace.open(path)
    assert isinstance(opened, Answer)
    assert opened.to_dict() == answer.to_dict()
    assert opened.cluster == answer.cluster
    for name in ("ready_s", "start_s", "end_s", "end_before_s"):
        assert np.array_equal(getattr(opened.timeline, name), getattr(answer.timeline, name))


def test_a_saved_prediction_keeps_the_parts_outside_the_allocator(prediction: Answer, tmp_path: Path) -> None:
    assert prediction.model is not None
    parts = (MemoryPart("CUDA context", 500, "measured"), MemoryPart("NCCL", 77, "its source"))
    process = replace(prediction.model.memory.process, outside=parts)
    memory = replace(prediction.model.memory, process=process)
    replace(prediction, model=replace(prediction.model, memory=memory)).save(tmp_path / "x.answer")
    opened = foretrace.open(tmp_path / "x.answer")
    assert isinstance(opened, Answer) and opened.memory is not None
    assert opened.memory.outside == parts
    assert opened.memory.needed_band_bytes == memory.needed_band_bytes


def test_a_saved_answer_is_an_input(prediction: Answer, tmp_path: Path) -> None:
    prediction.save(tmp_path / "x.answer")
    assert foretrace.simulate(tmp_path / "x.answer").step_time_s == prediction.step_time_s


def test_a_scenario_whose_names_have_colons_opens_again(tmp_path: Path) -> None:
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    build.role("rank", [0, 1]).collective("all_reduce", build.communicator("dp"), 1e-3, name="gradients")
    scenario = Scenario(slow_links={(1, "name:grad*"): 2.0})
    foretrace.simulate(build.program(), scenario=scenario).save(tmp_path / "x.answer")
    assert foretrace.simulate(tmp_path / "x.answer").scenario == scenario


def test_a_saved_measurement_stays_one_on_any_machine(tmp_path: Path) -> None:
    trace = foretrace.open(ROOT / "examples/traces/gpt13b_real_rank0.txt")
    assert isinstance(trace, Input)
    measured = measured_or_simulated(trace, Machine())
    measured.save(tmp_path / "x.answer")
    again = measured_or_simulated(open_input([tmp_path / "x.answer"]), Machine("h100-dgx"))
    assert again.executor == "recorded" and again.step_time_s == measured.step_time_s


def test_a_damaged_file_is_refused(prediction: Answer, tmp_path: Path) -> None:
    path = tmp_path / "x.answer"
    prediction.save(path)
    data = path.read_bytes()
    for cut in (b"", data[:3], data[:100], data[: len(data) // 2], data[:-1], b"junk" + data, data[:500] + b"\0" * 500):
        path.write_bytes(cut)
        with pytest.raises(ForetraceError):
            foretrace.open(path)


@pytest.fixture(scope="module")
def placed() -> Answer:
    """A job whose ranks sit on the nodes in turn."""
    rank = np.arange(32, dtype=np.int32)
    machine = Machine("h100-dgx", placement=Placement(rank % 4, rank // 4, ("a", "b", "c", "d")))
    return foretrace.simulate(foretrace.model("llama3-8b", Plan(gpus=32, tp=2, gbs=32)), machine, explain=False)


def test_a_given_placement_is_saved(placed: Answer, prediction: Answer, tmp_path: Path) -> None:
    assert prediction.placement is None
    placed.save(tmp_path / "x.answer")
    opened = foretrace.open(tmp_path / "x.answer")
    assert isinstance(opened, Answer) and opened.placement is not None and placed.placement is not None
    for name in ("host", "slot"):
        assert np.array_equal(getattr(opened.placement, name), getattr(placed.placement, name))
    assert opened.placement.names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("host", "slot", "code"),
    [
        ([0], [0], "damaged-file"),
        ([0] * 32, range(32), "bad-placement"),
        ([1 << 30] * 32, [0] * 32, "too-large"),
        ([*range(31), 900], [0] * 32, "cluster-too-small"),
        ([*range(31), 0], [0] * 32, "bad-placement"),
    ],
)
def test_a_saved_placement_that_does_not_fit_is_refused(
    host: list[int], slot: Sequence[int], code: str, placed: Answer, tmp_path: Path
) -> None:
    assert placed.cluster is not None
    cluster = replace(placed.cluster, nodes=64)
    placement = Placement(host, list(slot))  # type: ignore[arg-type]
    replace(placed, cluster=cluster, placement=placement).save(tmp_path / "x.answer")
    with pytest.raises(ForetraceError) as caught:
        foretrace.open(tmp_path / "x.answer")
    assert caught.value.code == code
    assert "x.answer" in str(caught.value.where)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.1), (1.1, 1.2), (0.9, 0.99), (float("nan"), 1.1)])
def test_a_part_of_a_band_that_is_no_band_is_refused(
    low: float, high: float, prediction: Answer, tmp_path: Path
) -> None:
    replace(prediction, band_parts=(BandPart("prices", low, high),)).save(tmp_path / "x.answer")
    with pytest.raises(ForetraceError):
        foretrace.open(tmp_path / "x.answer")


def test_its_name_says_what_it_is(prediction: Answer, tmp_path: Path) -> None:
    with pytest.raises(ForetraceError) as caught:
        prediction.save(tmp_path / "x.json")
    assert caught.value.code == "bad-value"


def test_it_replaces_a_file_as_a_whole(prediction: Answer, tmp_path: Path) -> None:
    (tmp_path / "x.answer").write_text("before")
    prediction.save(tmp_path / "x.answer")
    assert [path.name for path in tmp_path.iterdir()] == ["x.answer"]
    with pytest.raises(ForetraceError) as caught:
        prediction.save(tmp_path / "missing" / "x.answer")
    assert caught.value.code == "unwritable-file"
