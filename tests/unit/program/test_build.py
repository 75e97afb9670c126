"""Builders of programs refuse mistakes with a code, not with an error of Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foretrace import Mesh, Placement, ProgramBuilder, Transfer, network, pipeline, schedule, simulate
from foretrace.basics.errors import ForetraceError
from foretrace.cost.machine import Machine
from foretrace.models.load import load_model
from foretrace.models.model import Model
from foretrace.program.block import OpRef, PlacedOp


def two() -> ProgramBuilder:
    return ProgramBuilder(Mesh(dp=2))


WRONG_OPS: dict[str, Callable[[Any], object]] = {
    "a number as name": lambda block: block.compute(5, 1e-3),
    "a list as name": lambda block: block.compute([], 1e-3),
    "no lane": lambda block: block.compute("a", 1e-3, lane=5),
    "sizes that are a number": lambda block: block.compute("a", 1e-3, alloc=5),
    "an op that is a number": lambda block: block.compute("a", 1e-3, after=5),
    "a kernel that is a number": lambda block: block.compute("a", 1e-3, kernel=5),
    "a communicator that is a number": lambda block: block.collective("all_reduce", 5, 1e-3),
}


@pytest.mark.parametrize("name", WRONG_OPS)
def test_ops_of_wrong_types(name: str) -> None:
    build = two()
    block = build.block("work")
    with pytest.raises(ForetraceError, match=r"\[(bad-value|invalid-program)\]"):
        WRONG_OPS[name](block)
        build.role("all", [0, 1]).place(block)
        build.program()


RANKS: tuple[Any, ...] = ("01", [0.5, 1], [True, False], [10**30], np.array([math.nan, 0.0]), [None], 5)


@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_ranks_that_are_not_whole_numbers(ranks: Any) -> None:
    code = r"\[(bad-value|out-of-range)\]"
    with pytest.raises(ForetraceError, match=code):
        two().role("all", ranks)
    with pytest.raises(ForetraceError, match=code):
        two().groups("g", [ranks])
    with pytest.raises(ForetraceError, match=code):
        two().resource("r", 1.0, shared_by=[ranks])


def test_plain_and_numpy_ranks_are_the_same() -> None:
    for ranks in ([0, 1], range(2), np.arange(2), [np.int64(0), np.int32(1)], np.arange(2, dtype=np.uint8)):
        assert two().role("all", ranks).ranks.tolist() == [0, 1]


def test_a_block_of_another_program_is_refused() -> None:
    other = two().block("other")
    other.compute("a", 1e-3)
    with pytest.raises(ForetraceError, match="invalid-program"):
        two().role("all", [0, 1]).place(other)


@pytest.mark.parametrize(
    ("microbatch", "code"),
    [(10**20, "out-of-range"), (-(10**20), "out-of-range"), ("0", "bad-value"), (None, "bad-value")],
)
def test_microbatches_that_cannot_be_meant(microbatch: Any, code: str) -> None:
    build = two()
    block = build.block("work")
    with pytest.raises(ForetraceError, match=code):
        build.role("all", [0, 1]).place(block, microbatch=microbatch)


@pytest.mark.parametrize("size", [math.nan, math.inf, "5", None, True, 10**30])
def test_resident_memory_is_a_number_of_bytes(size: Any) -> None:
    with pytest.raises(ForetraceError, match="bad-value"):
        two().role("all", [0, 1]).resident(weights=size)


@pytest.mark.parametrize("block", [None, 5, "block"])
def test_a_pipeline_of_no_blocks(block: Any) -> None:
    build = ProgramBuilder(Mesh(pp=2))
    with pytest.raises(ForetraceError, match="bad-value"):
        pipeline(build, schedule("1f1b", 2, 4), lambda _stage, _action: block, Transfer(1024, 1e-5))


def test_two_ranks_on_one_gpu() -> None:
    placement = Placement(np.array([0, 1, 0]), np.array([0, 0, 0]))
    with pytest.raises(ForetraceError, match="bad-placement"):
        network("all_reduce", "1MiB", Machine("h100-dgx", placement=placement), ranks=3)


@pytest.mark.parametrize("field", [{"hidden": -1}, {"vocab": -5}, {"mtp": 10**9}, {"mtp": -1}, {"positions": -1}])
def test_sizes_of_a_model_that_cannot_be_meant(field: dict[str, int]) -> None:
    sizes = {"hidden": 64, "vocab": 100} | field
    with pytest.raises(ForetraceError, match="out-of-range"):
        Model("m", layers=load_model("gpt2").layers, norm="rmsnorm", tied=False, **sizes)  # type: ignore[arg-type]


WRONG_FACTS: dict[str, dict[str, Any]] = {
    "a half position": {"sends": {0.5: 8}},
    "a position that is text": {"sends": {"x": 8}},
    "a large position": {"sends": {10**30: 8}},
    "a source that is text": {"source": "x"},
    "a draw that is text": {"draws": {"link": "x"}},
    "a huge draw": {"draws": {"link": 10**400}},
    "a chunk that no pipeline has": {"chunk": 10**9},
    "a layer that no model has": {"layer": 2**31},
    "a collective that is a list": {"collective": []},
    "a communicator that is text": {"communicator": "x"},
    "a category that is not known": {"alloc": {"x": 1}},
    "an object to wait for": {"after": object()},
    "an op of another role": {"after": [PlacedOp(7, 0, 0)]},
    "no microbatch": {"microbatch": None},
}


@pytest.mark.parametrize("facts", WRONG_FACTS.values(), ids=WRONG_FACTS.keys())
def test_a_refused_op_leaves_its_role_as_it_was(facts: dict[str, Any]) -> None:
    build = two()
    build.resource("link", 1e9)
    role = build.role("all", [0, 1])
    with pytest.raises(ForetraceError):
        role.compute("refused", 1.0, **facts)
    role.compute("kept", 1e-3)
    assert simulate(build.program()).step_time_s == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "how",
    [
        {"override": {0: {"duration_s": "1"}}},
        {"override": {0: {"duration_s": None}}},
        {"override": {0: {"duration_s": 10**400}}},
        {"override": {0.5: {"duration_s": 1.0}}},
        {"override": {(0, 0): {"duration_s": 1.0}}},
        {"override": {0: {"none": 1.0}}},
        {"after": {0.5: PlacedOp(0, 0, 0)}},
        {"after": OpRef(0, 0)},
        {"microbatch": 2**40},
    ],
)
def test_a_refused_block_leaves_its_role_as_it_was(how: dict[str, Any]) -> None:
    build = two()
    block, role = build.block("layer"), build.role("all", [0, 1])
    block.compute("layer", 1e-3)
    role.place(block)
    with pytest.raises(ForetraceError):
        role.place(block, **how)
    assert simulate(build.program()).step_time_s == pytest.approx(1e-3)


def test_a_port_names_an_op_of_its_own_block() -> None:
    build = two()
    first, second = build.block("first"), build.block("second")
    op = first.compute("a", 1e-3)
    with pytest.raises(ForetraceError):
        second.port("out", op)


@pytest.mark.parametrize("capacities", [[None], ["x"], {"x": 1}, np.array(3), iter(["x"]), iter([10**400])])
def test_capacities_are_numbers(capacities: Any) -> None:
    with pytest.raises(ForetraceError):
        two().resource("link", 1e9, shared_by=[[0, 1]], capacities=capacities)


def test_a_resource_may_have_any_name() -> None:
    build = two()
    build.resource("name", 1e9)
    role = build.role("all", [0, 1])
    role.compute("x", 1e-3, draws={"name": 1e6})
    with pytest.raises(ForetraceError, match=r"\[bad-value\]"):
        role.compute("x", 1e-3, draws={"name": "much"})


def test_a_refused_op_leaves_no_lane() -> None:
    build = two()
    role = build.role("all", [0, 1])
    with pytest.raises(ForetraceError):
        role.compute("x", 1e-3, lane="ghost", phase="nonsense")
    role.compute("x", 1e-3)
    assert [lane.name for lane in build.program().lanes] == ["compute"]
