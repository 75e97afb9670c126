"""A real run: what every rank did, when, and which calls met.

Every rank did one thing after the other, for the tracer waits for the GPU after each op. So a rank's trace is a list
of items: gaps in which the host prepared the next op, computation, and calls. A call's recorded time includes waiting
for its partners; the least of its members' times is what it takes (the last to come did not wait).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.megatron_trace import RankTrace, TraceOp
from foretrace.lower.megatron_trace.calls import GRADIENT_OPS, Call, gradient_call, group_size, tensor_bytes
from foretrace.lower.megatron_trace.clocks import Meeting, clock_offsets
from foretrace.lower.megatron_trace.gradients import BUCKET_OP, reduces_gradients
from foretrace.lower.megatron_trace.layout import TRANSFERS, TraceJob
from foretrace.lower.megatron_trace.pieces import MS, pieces_of
from foretrace.lower.megatron_trace.work import CUT_OPS
from foretrace.program.columns import Collective

ItemKind = Literal["host", "compute", "call"]


@dataclass(slots=True)
class Item:
    """Something a rank did: seconds on its own clock, and, once matched, what a call takes without waiting.

    `peer` is the stage at the other end of a transfer; `sends` says which ways an exchange or transfer goes from here.
    """

    kind: ItemKind
    name: str
    op: TraceOp
    start_s: float
    end_s: float
    call: Call | None = None
    peer: int | None = None
    sends: bool = False
    net_s: float = 0.0
    layer: int = -1

    @property
    def taken_s(self) -> float:
        """What it took, waiting included."""
        return self.end_s - self.start_s


@dataclass(slots=True)
class Recording:
    """The items of every rank of a job, with all clocks set to one that starts with the first op."""

    job: TraceJob
    ranks: list[list[Item]]
    notes: list[Diagnostic] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        """The time of the step: the longest that any rank took from its first op to the end of its last."""
        return max(items[-1].end_s - items[0].start_s for items in self.ranks)


def make_recording(job: TraceJob) -> Recording:
    """Reads the traces of a real run; ranks without one are taken to be as another of their kind."""
    ranks: list[list[Item]] = []
    filled: list[tuple[int, int]] = []
    for rank in range(job.mesh.world):
        source = rank
        if rank not in job.present:
            source, _ = job.standing_in(job.stage(rank), job.expert_rank(rank))
            filled.append((rank, source))
            if job.stage(source) != job.stage(rank):
                raise InputError(
                    f"no rank of stage {job.stage(rank)} was traced: a real run is replayed where every stage was",
                    where=job.runs[0].path,
                    hint="without --mesh, one rank is looked at alone",
                )
        trace = next(job.traces(source))
        items = list(_items(job, trace)) or _no_time(trace)
        if not items:
            raise InputError(f"nothing that rank {source} did has a time", where=trace.path, hint="trace an iteration")
        ranks.append(items)
    recording = Recording(job, ranks)
    if filled and not job.alone:
        rank, source = filled[0]
        text = (
            f"{len(filled)} of {job.mesh.world} ranks have no trace: rank {rank} is taken to be as {source}, and so on"
        )
        recording.notes.append(Diagnostic("warning", text))
    buckets = sum(op.op == BUCKET_OP for run in job.runs for trace in run.ranks.values() for op in trace.ops)
    if buckets:
        text = f"{buckets} gradient buckets, of which only the launch was traced: waits for them are as recorded"
        recording.notes.append(Diagnostic("warning", text))
    if any(len(last_iteration(trace)) < len(trace.ops) for run in job.runs for trace in run.ranks.values()):
        recording.notes.append(Diagnostic("note", "several iterations were traced: the last is taken"))
    meetings = _match(recording)
    _set_clocks(recording, meetings)
    return recording


def _items(job: TraceJob, trace: RankTrace) -> Iterator[Item]:
    """What a rank did, in order, with the gaps between."""
    cursor: float | None = None
    for op, fused in _fused(trace):
        start = op.start_ms
        if start is None or op.timestamp_ms is None:
            continue  # a mark without a time
        if cursor is not None and start > cursor:
            yield Item("host", "gap", op, cursor * MS, start * MS)
        begin = start if cursor is None else max(start, cursor)
        if op.timestamp_ms > begin or op.op in TRANSFERS or op.op in GRADIENT_OPS or op.subs:
            yield from _op_items(job, trace, op, fused, begin)
        cursor = max(op.timestamp_ms, begin)


def _no_time(trace: RankTrace) -> list[Item]:
    """An iteration in which everything took 0.00 ms, as one item; nothing where nothing has a time."""
    op = next((op for op in trace.ops if op.start_ms is not None), None)
    if op is None or op.timestamp_ms is None:
        return []
    return [Item("compute", op.op, op, op.timestamp_ms * MS, op.timestamp_ms * MS)]


def last_iteration(trace: RankTrace) -> list[TraceOp]:
    """The ops of the last iteration in a file; batch ids begin again with each."""
    seen: set[tuple[str, int | None]] = set()
    first = 0
    for number, op in enumerate(trace.ops):
        key = (op.op, op.batch)
        if op.op != BUCKET_OP and key in seen:
            seen, first = set(), number
        seen.add(key)
    return list(trace.ops[first:])


def _fused(trace: RankTrace) -> Iterator[tuple[TraceOp, TraceOp | None]]:
    """Ops, with the second line of a call that both sends and receives beside its first: they have the same duration
    and timestamp, and are counted once."""
    ops = [op for op in last_iteration(trace) if op.duration_ms is not None]
    skip = False
    for number, op in enumerate(ops):
        if skip:
            skip = False
            continue
        after = ops[number + 1] if number + 1 < len(ops) else None
        same = (
            after is not None
            and op.op in TRANSFERS
            and after.op in TRANSFERS
            and (op.duration_ms, op.timestamp_ms) == (after.duration_ms, after.timestamp_ms)
            and op.op.startswith("send") != after.op.startswith("send")
        )
        yield op, after if same else None
        skip = same


def _op_items(job: TraceJob, trace: RankTrace, op: TraceOp, fused: TraceOp | None, begin_ms: float) -> Iterator[Item]:
    where, start, end = trace.at(op.line), begin_ms * MS, (op.timestamp_ms or 0.0) * MS
    if op.op in CUT_OPS or op.op == "get_batch":
        kind: ItemKind = "host" if op.op == "get_batch" else "compute"
        place = job.place(job.stage(trace.rank))
        origin, cursor, waits = (op.start_ms or 0.0) * MS, start, start
        for piece in pieces_of(op, job.known_mesh, where, job.layers_per_stage, place, ex_situ=False):
            until = max(origin + piece.call_start_s, cursor)
            # What was computed while a call ran beside it, and what after the rank had waited for that.
            for begin, end_ in ((cursor, min(waits, until)), (max(cursor, min(waits, until)), until)):
                if end_ > begin:
                    yield Item(kind, op.op, op, begin, end_, layer=piece.layer)
            cursor = until
            if piece.call is not None:
                done = max(origin + piece.call_end_s, until)
                yield Item("call", piece.call.name, op, until, done, piece.call, layer=piece.layer)
                cursor, waits = (until, done) if piece.call.beside else (done, done)
    elif op.op in TRANSFERS:
        yield _transfer(job, trace, op, fused, start, end)
    elif reduces_gradients(op):
        call = gradient_call(op, where)
        if job.alone or group_size(job.mesh, call.axis) > 1:
            yield Item("call", op.op, op, start, end, call)
        else:
            yield Item("compute", f"scale {op.op}", op, start, end)
    elif op.op in GRADIENT_OPS:
        yield Item("host", f"wait for buckets of {op.op}", op, start, end)
    else:
        yield Item("compute", op.op, op, start, end)


def _transfer(job: TraceJob, trace: RankTrace, op: TraceOp, fused: TraceOp | None, start: float, end: float) -> Item:
    stage = job.stage(trace.rank)
    towards = 1 if op.op in ("send_forward", "recv_backward") else -1
    if not job.alone and not 0 <= stage + towards < job.mesh.pp:
        raise InputError(f"{op.op} on stage {stage} of {job.mesh.pp}", where=trace.at(op.line))
    size = tensor_bytes(op.shape, op.dtype, trace.at(op.line))
    what = Collective.TRANSFER if fused is None else Collective.EXCHANGE
    name = op.op if fused is None else f"{op.op}, {fused.op}"
    sends = op.op.startswith("send") or (fused is not None and fused.op.startswith("send"))
    return Item("call", name, op, start, end, Call(what, "pp", size, op.op), stage + towards, sends)


def channel(job: TraceJob, rank: int, item: Item) -> tuple[str, int, int]:
    """What a call meets others by, apart from their order: the communicator, and the stages of a transfer (0, 0
    elsewhere)."""
    call = item.call
    assert call is not None
    if call.axis != "pp" or item.peer is None:
        return call.axis, 0, 0
    here = job.stage(rank)
    low, high = sorted((here, item.peer))
    if call.collective == Collective.EXCHANGE:
        return "exchange", low, high
    return ("forward" if item.op.op.endswith("forward") else "backward"), low, high


def _match(recording: Recording) -> list[Meeting]:
    """Brings calls together by group and order, gives each what it takes, and returns when each ended where."""
    job = recording.job
    met: dict[tuple[object, ...], list[tuple[int, Item]]] = {}
    for rank, items in enumerate(recording.ranks):
        counts: dict[tuple[object, ...], int] = {}
        for item in items:
            if item.call is None:
                continue
            key = (*channel(job, rank, item), _group(job, rank, item))
            order = counts[key] = counts.get(key, -1) + 1
            met.setdefault((*key, order), []).append((rank, item))
    shortest: dict[tuple[object, ...], float] = {}
    for members in met.values():
        _check_met(job, members)
        least = min(item.taken_s for _, item in members)
        call = members[0][1].call
        assert call is not None
        for _, item in members:
            item.net_s = least
        if not call.beside:
            alike = (call.collective, call.axis, call.bytes)
            shortest[alike] = min(least, shortest.get(alike, least))
    for members in met.values():
        call = members[0][1].call
        if call is not None and call.beside:
            # Its span is computation; what the call itself takes is known where the same was made without overlap.
            for _, item in members:
                item.net_s = min(item.net_s, shortest.get((call.collective, call.axis, call.bytes), item.net_s))
    return [{rank: item.end_s for rank, item in members} for members in met.values() if len(members) > 1]


def _group(job: TraceJob, rank: int, item: Item) -> int:
    """The number of a rank's group."""
    assert item.call is not None
    if job.alone:
        return 0
    axis = item.call.axis
    return int(job.mesh.group_of("pp" if axis in ("pp", "embd") else axis)[rank])


def _check_met(job: TraceJob, members: Sequence[tuple[int, Item]]) -> None:
    rank, item = members[0]
    assert item.call is not None
    expected = 1 if job.alone else 2 if item.call.axis in ("pp", "embd") else group_size(job.mesh, item.call.axis)
    if len(members) != expected:
        ranks = ", ".join(str(one) for one, _ in members)
        raise InputError(
            f"{item.name} of rank {rank} has {len(members)} of its {expected} members (ranks {ranks})",
            where=next(job.traces(rank)).at(item.op.line) if rank in job.present else job.runs[0].path,
            hint="the traces of these ranks do not belong together, or the mesh is another: give --mesh",
        )
    kinds = {(one.call.collective, None if one.call.axis == "pp" else one.name) for _, one in members if one.call}
    if len(kinds) > 1:
        raise InputError(f"ranks meet in different calls: {', '.join(sorted(str(one[1]) for one in kinds))}")


def _set_clocks(recording: Recording, meetings: Sequence[Meeting]) -> None:
    spans = {rank: (items[0].start_s, items[-1].end_s) for rank, items in enumerate(recording.ranks)}
    offsets, notes = clock_offsets(spans, meetings)
    recording.notes += notes
    for rank, items in enumerate(recording.ranks):
        for item in items:
            item.start_s -= offsets[rank]
            item.end_s -= offsets[rank]
