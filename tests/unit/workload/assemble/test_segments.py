from __future__ import annotations

from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import GroupedGemm, Stream
from foretrace.workload.assemble.segments import COLLECTIVE_LAUNCHES, Call, Rules, Segment, parts_of
from foretrace.workload.work import Compute, Item
from hand_written_work import call, compute

F, B, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT


def shown(items: list[Item], rules: Rules = Rules()) -> list[str]:  # noqa: B008
    return [
        part.name if isinstance(part, Segment) else f"{part.item.name}/{part.beside}" for part in parts_of(items, rules)
    ]


def test_adjacent_computations_are_one_segment_with_equal_kernels_counted() -> None:
    same = ((2, Stream("norm", 10, 5)),)
    items: list[Item] = [Compute("a", F, same, temporary_bytes=3), Compute("b", F, same, temporary_bytes=9)]
    (part,) = parts_of(items, Rules())
    assert isinstance(part, Segment)
    assert (part.name, part.kernels, part.temporary_bytes) == ("a … b", ((4, Stream("norm", 10, 5)),), 9)
    assert part.launches == 4


def test_input_and_weight_gradients_that_run_together_are_one_phase_and_recompute_is_not() -> None:
    items: list[Item] = [compute("again", Phase.RECOMPUTE, 1), compute("input", B, 1), compute("weight", W, 1)]
    parts = parts_of(items, Rules())
    assert [part.phase for part in parts if isinstance(part, Segment)] == [Phase.RECOMPUTE, Phase.BACKWARD]


def test_a_hidden_collective_runs_beside_one_computation_alone() -> None:
    items: list[Item] = [
        compute("before", B, 1),
        call("reduce", B, Collective.ALL_REDUCE, hidden=True),
        compute("beside", W, 1),
        compute("after", B, 1),
    ]
    assert shown(items) == ["before", "reduce/next", "beside", "after"]


def test_tp_overlap_pairs_a_gather_with_the_product_after_it_and_a_scatter_with_the_one_before() -> None:
    items: list[Item] = [
        compute("norm", F, 1),
        call("gather", F, Collective.ALL_GATHER),
        compute("up", F, 1),
        compute("act", F, 1),
        compute("down", F, 1),
        call("scatter", F, Collective.REDUCE_SCATTER),
        compute("add", F, 1),
    ]
    assert shown(items) == ["norm", "gather/nothing", "up … down", "scatter/nothing", "add"]
    assert shown(items, Rules(tp_overlap=True)) == [
        "norm", "gather/next", "up", "act", "down", "scatter/previous", "add",
    ]  # fmt: skip


def test_moe_overlap_frees_all_to_alls_from_what_follows() -> None:
    items: list[Item] = [compute("route", F, 1), call("dispatch", F, Collective.ALL_TO_ALL, "ep"), compute("up", F, 1)]
    assert shown(items, Rules(moe_overlap=True)) == ["route", "dispatch/all", "up"]


def test_a_segment_ends_where_the_host_waits() -> None:
    items: list[Item] = [compute("route", F, 1, syncs_host=True), compute("up", F, 1)]
    first, second = parts_of(items, Rules())
    assert isinstance(first, Segment) and first.syncs_host
    assert isinstance(second, Segment) and not second.syncs_host


def test_launches_under_cuda_graphs() -> None:
    experts = Compute("experts", F, ((1, GroupedGemm(4, 64, 8, 8, separate=True)),))
    items: list[Item] = [
        compute("norm", F, 1),
        compute("attention", F, 1),
        call("dispatch", F, Collective.ALL_TO_ALL, "ep"),
        experts,
        compute("add", F, 1),
    ]

    def launches(graphs: str) -> int:
        return sum(part.launches for part in parts_of(items, Rules(graphs=graphs)))  # type: ignore[arg-type]

    assert launches("none") == 2 + COLLECTIVE_LAUNCHES + 4 + 1
    assert launches("partial") == 1 + COLLECTIVE_LAUNCHES + 4 + 1, "norm and attention are replayed as one"
    assert launches("full") == 0


def test_calls_keep_their_order() -> None:
    items: list[Item] = [call("one", F, Collective.ALL_REDUCE), call("two", F, Collective.ALL_REDUCE)]
    assert [part.item.name for part in parts_of(items, Rules()) if isinstance(part, Call)] == ["one", "two"]
