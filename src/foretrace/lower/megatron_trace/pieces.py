"""An op of a trace in pieces: computation, and the communication between it.

A piece is a stretch of computation and the call that ends it. What the tracer wrote as one op is cut at its
sub-operations, whose own durations are kept apart: in a real run they include waiting, ex situ they mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from foretrace.formats.megatron_trace import SubOp, TraceOp
from foretrace.lower.megatron_trace.calls import Call, sub_call
from foretrace.mesh import Mesh

MS = 1e-3

PieceKey = tuple[object, ...]
"""Pieces with the same key do the same work."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Computation, then a call (none at the end of an op). Recorded times are seconds from the start of the op.

    `key` says what work the computation is, `layer` which of the op's layers it is of, as they come (-1: none); `rows`
    is how many tokens it works on, where an all-to-all brought them to experts.
    """

    compute_s: float
    call: Call | None
    sub: SubOp | None
    call_start_s: float
    call_end_s: float
    key: PieceKey
    layer: int = -1
    rows: int | None = None


def pieces_of(op: TraceOp, mesh: Mesh | None, where: str, layers: int | None, place: str, ex_situ: bool) -> list[Piece]:
    """The pieces of an op, in order. `layers` is how many layers the op runs through, where that is known: layers are
    alike, so pieces at the same place in a layer have the same key. `place` tells first, middle and last stages apart,
    whose first and last pieces differ."""
    start = op.start_ms
    assert start is not None and op.duration_ms is not None
    subs, calls = [], []
    for sub in op.subs:
        call = sub_call(sub, mesh, where, hidden=ex_situ and op.op == "backward_step")
        if call is not None:
            subs.append(sub)
            calls.append(call)
    descriptions = _descriptions(tuple(subs), layers)
    pieces: list[Piece] = []
    cursor, before = start, None
    for sub, call, described in zip(subs, calls, descriptions, strict=True):
        begin = max(sub.start_ms, cursor)
        end = max(sub.timestamp_ms, begin)
        key = (op.op, place if before is None else None, before, described.before)
        times = ((begin - cursor) * MS, (begin - start) * MS, (end - start) * MS)
        pieces.append(Piece(times[0], call, sub, *times[1:], key, described.layer, described.rows))
        # The span of a call that runs beside computation is computation too.
        cursor, before = begin if call.beside else end, described.after
    last = max(op.duration_ms - (cursor - start), 0.0)
    end = op.duration_ms * MS
    pieces.append(Piece(last * MS, None, None, end, end, (op.op, place, before, None)))
    return pieces


@dataclass(frozen=True, slots=True)
class _Described:
    """What a sub-operation says of the computation before it and after it, the layer it is of, and the tokens of
    experts that compute before it."""

    before: PieceKey
    after: PieceKey
    layer: int
    rows: int | None


def _descriptions(subs: tuple[SubOp, ...], layers: int | None) -> list[_Described]:
    places = _places_in_layer(tuple((sub.source, sub.name, sub.group, sub.comm) for sub in subs), layers)
    gives_back = _all_to_all_outputs(subs)
    combines = set(list(gives_back)[1::2])
    described = []
    for number, (sub, (layer, place)) in enumerate(zip(subs, places, strict=True)):
        what = (sub.name, sub.group, sub.comm, place)
        after = gives_back.get(number, sub.shape)
        # Experts compute between the all-to-all that brings them their tokens and the one that takes them back.
        rows = sub.shape[0] if number in combines and sub.shape else None
        described.append(_Described((*what, sub.shape), (*what, after), layer, rows))
    return described


def _all_to_all_outputs(subs: tuple[SubOp, ...]) -> dict[int, tuple[int, ...] | None]:
    """What each all-to-all brings: experts send back what they were sent, so the outputs of a dispatch and of its
    combine are each other's inputs."""
    numbers = [number for number, sub in enumerate(subs) if sub.comm == "all_to_all" and sub.group == "exp"]
    if len(numbers) % 2:
        return {}
    return {number: subs[numbers[place ^ 1]].shape for place, number in enumerate(numbers)}


@lru_cache(maxsize=256)
def _places_in_layer(kinds: tuple[tuple[object, ...], ...], layers: int | None) -> tuple[tuple[int, int | None], ...]:
    """For each sub-operation its layer and its place within it; (-1, None) for those that are not of a layer, such as
    the embedding's. Where layers are not known, every sub-operation has a place of its own."""
    if not layers:
        return tuple((-1, number) for number in range(len(kinds)))
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
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
    return tuple(places)
