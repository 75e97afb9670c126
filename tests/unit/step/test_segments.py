from __future__ import annotations

from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import GroupedGemm, Stream
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
    assert count_launches(items, "none") == 4


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


def test_launches_under_cuda_graphs() -> None:
    experts = Compute("experts", F, ((1, GroupedGemm(4, 64, 8, 8, separate=True)),))
    items: list[Item] = [
        compute("norm", F, 1),
        compute("attention", F, 1),
        call("dispatch", F, Collective.ALL_TO_ALL, "ep"),
        experts,
        compute("add", F, 1),
    ]

    assert count_launches(items, "none") == 2 + COLLECTIVE_LAUNCHES + 4 + 1
    assert count_launches(items, "partial") == 1 + COLLECTIVE_LAUNCHES + 4 + 1, "norm and attention are replayed as one"
    assert count_launches(items, "full") == 0


def test_calls_keep_their_order() -> None:
    items: list[Item] = [call("one", F, Collective.ALL_REDUCE), call("two", F, Collective.ALL_REDUCE)]
    assert shown(items) == ["one/None", "two/None"]
