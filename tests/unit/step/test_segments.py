from __future__ import annotations

import pytest

from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import GroupedGemm, Kernel, Stream
from foretrace.step.segments import COLLECTIVE_LAUNCHES, Segment, count_launches, parts_of
from foretrace.step.spec import Call, Compute, HostWork, Item
from hand_written_work import call, compute

F, B, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT


def shown(items: list[Item]) -> list[str]:
    return [f"{part.name}/{part.concurrent}" if isinstance(part, Call) else part.name for part in parts_of(items)]


def test_adjacent_computations_are_one_segment_with_equal_kernels_counted() -> None:
    same = ((2, Stream("norm", 10, 5)),)
    items: list[Item] = [Compute("a", F, same, temporary_bytes=3), Compute("b", F, same, temporary_bytes=9)]
    (part,) = parts_of(items)
    assert isinstance(part, Segment)
    assert (part.name, part.kernels, part.temporary_bytes) == ("a … b", ((4, Stream("norm", 10, 5)),), 9)


def test_input_and_weight_gradients_that_run_together_are_one_phase_and_recompute_is_not() -> None:
    items: list[Item] = [compute("again", Phase.RECOMPUTE, 1), compute("input", B, 1), compute("weight", W, 1)]
    parts = parts_of(items)
    assert [part.phase for part in parts if isinstance(part, Segment)] == [Phase.RECOMPUTE, Phase.BACKWARD]


def test_a_hidden_collective_runs_beside_one_computation_alone() -> None:
    items: list[Item] = [
        compute("before", B, 1),
        call("reduce", B, Collective.ALL_REDUCE, concurrent="next"),
        compute("beside", W, 1),
        compute("after", B, 1),
    ]
    assert shown(items) == ["before", "reduce/next", "beside", "after"]


def test_a_collective_next_to_the_computation_before_it_leaves_that_alone_too() -> None:
    items: list[Item] = [
        compute("act", F, 1),
        compute("down", F, 1),
        call("scatter", F, Collective.REDUCE_SCATTER, concurrent="previous"),
        compute("add", F, 1),
    ]
    assert shown(items) == ["act", "down", "scatter/previous", "add"]


def test_measured_computations_and_the_host_are_not_joined() -> None:
    items: list[Item] = [Compute("a", F, seconds=1.0), Compute("b", F, seconds=2.0), HostWork("gap", 1.0)]
    items += [Compute("scale", F, moved_bytes=8.0), compute("c", F, 1), compute("d", F, 1)]
    assert shown(items) == ["a", "b", "gap", "scale", "c … d"]


def test_a_segment_ends_where_the_host_waits() -> None:
    items: list[Item] = [compute("route", F, 1, syncs_host=True), compute("up", F, 1)]
    first, second = parts_of(items)
    assert (first.name, second.name) == ("route", "up")


@pytest.mark.parametrize(
    ("phase", "weight"), [(F, 0.855), (B, 1.1), (W, 1.1), (Phase.BACKWARD, 1.1), (Phase.RECOMPUTE, 1.1)]
)
def test_a_launch_of_the_forward_takes_the_host_less_than_others(phase: Phase, weight: float) -> None:
    items: list[Item] = [Compute("norms", phase, ((3, Stream("norm", 10, 5)),)), HostWork("gap", 1.0)]
    assert count_launches(items, "none") == pytest.approx(3 * weight)
    assert count_launches([call("reduce", phase, Collective.ALL_REDUCE)], "none") == weight * COLLECTIVE_LAUNCHES


@pytest.mark.parametrize(
    ("kernel", "launches"),
    [
        (Stream("sort", 10, 5, launches=5), 5),
        (Stream("quantize", 10, 5, launches=5, looped=True), 1 + 4 * 0.25),
        (GroupedGemm(5, 64, 8, 8), 1),
        (GroupedGemm(5, 64, 8, 8, separate=True), 1 + 4 * 0.5),
    ],
)
def test_further_kernels_of_a_loop_take_the_host_less(kernel: Kernel, launches: float) -> None:
    """Loops in C++: a quarter of a launch from Python, or half where cuBLAS looks for its algorithm."""
    assert count_launches([Compute("once", F, ((1, kernel),))], "none") == pytest.approx(0.855 * launches)
    assert count_launches([Compute("twice", F, ((2, kernel),))], "none") == pytest.approx(0.855 * 2 * launches)


def test_tensors_that_the_host_handles_count_as_kernels_of_a_loop() -> None:
    products = Compute("experts", B, ((1, GroupedGemm(8, 64, 8, 8)),), handled=8)
    assert count_launches([products], "none") == pytest.approx(1.1 * (1 + 8 * 0.25))


def test_launches_under_cuda_graphs() -> None:
    experts = Compute("experts", F, ((1, GroupedGemm(4, 64, 8, 8, separate=True)),))
    items: list[Item] = [
        compute("norm", F, 1, scope="attention"),
        compute("attention", F, 2, scope="attention"),
        call("gather", F, Collective.ALL_GATHER, scope="attention"),
        compute("router", F, 1, scope="router"),
        call("counts", F, Collective.ALL_GATHER, "ep", scope="router"),
        call("dispatch", F, Collective.ALL_TO_ALL, "ep"),
        experts,
        compute("add", F, 1),
    ]
    attention, router, rest = 2 + COLLECTIVE_LAUNCHES, 1 + COLLECTIVE_LAUNCHES, COLLECTIVE_LAUNCHES + 1 + 3 * 0.5 + 1
    assert count_launches(items, "none") == pytest.approx(0.855 * (attention + router + rest))
    assert count_launches(items, "router") == pytest.approx(0.855 * (attention + rest) + 1)
    assert count_launches(items, "partial") == pytest.approx(1 + 0.855 * rest), "attention and router are one graph"
    assert count_launches(items, "full") == 0


def test_what_comes_between_splits_a_graph_in_two() -> None:
    items: list[Item] = [
        compute("router", F, 1, scope="router"),
        compute("experts", F, 1),
        compute("next router", F, 1, scope="router"),
    ]
    assert count_launches(items, "partial") == count_launches(items, "router") == pytest.approx(2 + 0.855)


def test_calls_keep_their_order() -> None:
    items: list[Item] = [call("one", F, Collective.ALL_REDUCE), call("two", F, Collective.ALL_REDUCE)]
    assert shown(items) == ["one/None", "two/None"]
