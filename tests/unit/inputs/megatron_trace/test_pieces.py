"""An op cut at its communication: what is computed where, and which stretches do the same work."""

from __future__ import annotations

from foretrace import Mesh
from foretrace.inputs.megatron_trace.pieces import TracePiece, pieces_of
from unit.inputs.megatron_trace.rank_files import Rank, Sub, all_to_all, sub

MESH = Mesh(tp=2, dp=4, ep=4)


def pieces(
    *subs: Sub, op: str = "forward_step", ms: float = 100, layers: int | None = None, place: str = "only"
) -> list[TracePiece]:
    (made,) = Rank(0).op(op, ms, subs=subs).ops
    return pieces_of(made, MESH, "x", layers, place, ex_situ=False)


def computed_ms(found: list[TracePiece]) -> list[float]:
    return [round(one.compute_s * 1e3, 6) for one in found]


def test_computation_lies_between_calls() -> None:
    found = pieces(sub(10, 5), sub(40, 20))
    assert computed_ms(found) == [10, 25, 40]
    assert [one.call is not None for one in found] == [True, True, False]
    assert [(round(one.call_start_s * 1e3), round(one.call_end_s * 1e3)) for one in found] == [
        (10, 15),
        (40, 60),
        (100, 100),
    ]


def test_without_calls_all_is_computation() -> None:
    assert computed_ms(pieces()) == [100]
    assert computed_ms(pieces(sub(10, 5, group="cp"))) == [100]  # a group of one: its time is the op's own


def test_the_span_of_an_asynchronous_call_is_computation() -> None:
    """Launched at 10 and waited for at 60, with a plain call from 30 to 40 within."""
    found = pieces(sub(10, 50, source="x_async"), sub(30, 10))
    assert computed_ms(found) == [10, 20, 60]


def test_calls_that_overlap_or_come_in_disorder_never_make_time_negative() -> None:
    found = pieces(sub(50, 10), sub(20, 10), sub(0, 100), sub(90, 50))
    assert min(computed_ms(found)) >= 0
    assert sum(computed_ms(found)) <= 100


def dense(layer_starts: list[float]) -> list[Sub]:
    """Layers of attention 4 and MLP 6, a reduction of 1 after each."""
    return [sub(start + at, 1, name="linear_fwd") for start in layer_starts for at in (4, 11)]


def test_attention_and_mlp_are_told_apart() -> None:
    """Both end with the same all-reduce: only its place in the layer tells what was computed."""
    found = pieces(*dense([0, 12, 24]), layers=3, ms=37)
    keys = [one.key for one in found]
    assert computed_ms(found) == [4, 6, 4, 6, 4, 6, 1]
    assert [one.layer for one in found] == [0, 0, 1, 1, 2, 2, -1]
    assert keys[1] == keys[3] == keys[5]
    assert keys[2] == keys[4]
    # The first also holds what comes before the layers.
    assert len({keys[0], keys[1], keys[2], keys[6]}) == 4


def test_where_layers_are_not_known_nothing_is_pooled_within_an_op() -> None:
    keys = [one.key for one in pieces(*dense([0, 12, 24]), layers=None, ms=37)]
    assert len(set(keys)) == len(keys)


def test_what_is_not_of_a_layer_does_not_shift_the_places() -> None:
    with_embedding = pieces(sub(0.5, 0.1, name="embedding_fwd"), *dense([1, 13]), layers=2, ms=26)
    assert [one.layer for one in with_embedding] == [-1, 0, 0, 1, 1, -1]


def test_ends_of_stages_differ_and_their_middle_does_not() -> None:
    first, last = (pieces(*dense([0, 12]), layers=2, ms=25, place=place) for place in ("first", "last"))
    same = [one.key == two.key for one, two in zip(first, last, strict=True)]
    assert same == [False, True, True, True, False]


def test_experts_compute_between_the_all_to_alls_of_a_pair() -> None:
    """A dispatch of 800 rows brings 1600, which the combine takes back. In forward a gather lies between pairs."""
    gather = {"comm": "allgather", "group": "exp", "shape": [4], "dtype": "torch.int64"}
    found = pieces(
        sub(3, 0, **gather), all_to_all(4, 800), all_to_all(8, 1600), sub(11, 0, **gather), all_to_all(12, 800),
        all_to_all(16, 1600), layers=2, ms=20,
    )  # fmt: skip
    assert [one.rows for one in found] == [None, None, 1600, None, None, 1600, None]


def test_what_comes_before_a_dispatch_is_not_of_experts() -> None:
    """A backward has all-to-alls only: between the combine of a layer and the dispatch of the next is attention."""
    subs = [all_to_all(1, 800), all_to_all(9, 1600), all_to_all(11, 800), all_to_all(19, 1600)]
    found = pieces(*subs, op="backward_step", layers=2, ms=21)
    assert computed_ms(found) == [1, 8, 2, 8, 2]
    assert [one.rows for one in found] == [None, 1600, None, 1600, None]
    assert [one.layer for one in found] == [0, 0, 1, 1, -1]


def test_other_tokens_are_other_work() -> None:
    """Experts with other numbers of tokens do not share a pool, all else does."""
    busy, idle = (pieces(all_to_all(4, 800), all_to_all(8, rows), ms=10, layers=1) for rows in (1600, 400))
    assert [one.key == two.key for one, two in zip(busy, idle, strict=True)] == [True, False, True]
