"""Cuts an op of a trace into pieces: computation, and the communication between it.

A piece is a stretch of computation and the call that ends it. What the tracer wrote as one op is cut at its
sub-operations, whose own durations are kept apart: in a real run they include waiting, ex situ they mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.calls import SubKind, sub_call
from foretrace.inputs.megatron_trace.format import TraceOp
from foretrace.step.spec import Call

MS: Final = 1e-3

CUT_OPS: Final = ("forward_step", "loss_func", "backward_step")
"""Ops that are cut at their communication."""

PieceKey = tuple[object, ...]
"""Pieces with the same key do the same work."""


@dataclass(frozen=True, slots=True)
class TracePiece:
    """Computation, then a call (none at the end of an op). Recorded times are seconds from the start of the op.

    `key` says what work the computation is, `layer` which of the op's layers it is of, as they come (-1: none); `rows`
    is how many tokens it works on, where an all-to-all brought them to experts.
    """

    compute_s: float
    call: Call | None
    call_start_s: float
    call_end_s: float
    key: PieceKey
    layer: int = -1
    rows: int | None = None


def pieces_of(
    op: TraceOp, mesh: Mesh | None, where: str, layers: int | None, place: str, ex_situ: bool
) -> list[TracePiece]:
    """Returns the pieces of an op, in order.

    `layers` is how many layers the op runs through, where that is known: layers are identical, so pieces at the same
    place in a layer have the same key. `place` separates first, middle and last stages, whose first and last pieces
    differ.
    """
    start = op.start_ms
    assert start is not None and op.duration_ms is not None
    kinds = tuple([SubKind.of(sub) for sub in op.subs])
    try:
        cuts, last_key = _cuts(op.op, kinds, mesh, layers, place, ex_situ and op.op == "backward_step")
    except InputError as error:
        raise InputError(error.code, error.message, where=where, hint=error.hint) from None
    pieces: list[TracePiece] = []
    cursor = start
    for cut in cuts:
        sub = op.subs[cut.number]
        begin = max(sub.start_ms, cursor)
        end = max(sub.timestamp_ms, begin)
        times = ((begin - cursor) * MS, (begin - start) * MS, (end - start) * MS)
        pieces.append(TracePiece(times[0], cut.call, *times[1:], cut.key, cut.layer, cut.rows))
        # The span of a call that runs beside computation is computation too.
        cursor = begin if cut.call.concurrent else end
    last = max(op.duration_ms - (cursor - start), 0.0)
    end = op.duration_ms * MS
    pieces.append(TracePiece(last * MS, None, end, end, last_key))
    return pieces


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where an op is cut: at which sub-operation, the call it is, and what the computation before it works on."""

    number: int
    call: Call
    key: PieceKey
    layer: int
    rows: int | None


@lru_cache(maxsize=1024)
def _cuts(
    op: str, kinds: tuple[SubKind, ...], mesh: Mesh | None, layers: int | None, place: str, hidden: bool
) -> tuple[tuple[_Cut, ...], PieceKey]:
    """Where an op with these sub-operations is cut, and the key of its last piece; ranks and campaigns repeat them."""
    calls = [(number, call) for number, kind in enumerate(kinds) if (call := sub_call(kind, mesh, hidden=hidden))]
    subs = [kinds[number] for number, _ in calls]
    places = _places_in_layer([(sub.source, sub.name, sub.group, sub.comm) for sub in subs], layers)
    gives_back = _all_to_all_outputs(subs)
    combines = set(list(gives_back)[1::2])
    cuts: list[_Cut] = []
    before: PieceKey | None = None
    for index, ((number, call), sub, (layer, within)) in enumerate(zip(calls, subs, places, strict=True)):
        what = (sub.name, sub.group, sub.comm, within)
        # Experts compute between the all-to-all that brings them their tokens and the one that takes them back.
        rows = sub.shape[0] if index in combines and sub.shape else None
        key = (op, place if before is None else None, before, (*what, sub.shape))
        cuts.append(_Cut(number, call, key, layer, rows))
        before = (*what, gives_back.get(index, sub.shape))
    return tuple(cuts), (op, place, before, None)


def _all_to_all_outputs(subs: Sequence[SubKind]) -> dict[int, tuple[int, ...] | None]:
    """Returns what each all-to-all brings.

    Experts send back what they were sent, so the outputs of a dispatch and of its combine are each other's inputs.
    """
    numbers = [number for number, sub in enumerate(subs) if sub.comm == "all_to_all" and sub.group == "exp"]
    if len(numbers) % 2:
        return {}
    return {number: subs[numbers[place ^ 1]].shape for place, number in enumerate(numbers)}


def _places_in_layer(kinds: Sequence[tuple[object, ...]], layers: int | None) -> list[tuple[int, int | None]]:
    """For each sub-operation its layer and its place within it; (-1, None) for those that are not of a layer, such as
    the embedding's. Where layers are not known, every sub-operation has a place of its own."""
    if not layers:
        return [(-1, number) for number in range(len(kinds))]
    counts = Counter(kinds)
    of_layers = {kind for kind, count in counts.items() if count % layers == 0}
    period = sum(counts[kind] for kind in of_layers) // layers
    places: list[tuple[int, int | None]] = []
    seen = 0
    for kind in kinds:
        if kind in of_layers:
            places.append(divmod(seen, period))
            seen += 1
        else:
            places.append((-1, None))
    return places
