"""A real run: what every rank did, when, and which calls met.

Every rank did one thing after the other, for the tracer waits for the GPU after each op. So a rank's trace is a list
of items: gaps in which the host prepared the next op, computation, and calls. A call's recorded time includes waiting
for its partners; the least of its members' times is what it takes (the last to come did not wait).

Timestamps count from the start of their host. Ranks whose traces overlap in time are on one host. Hosts are brought to
one host clock by events that end for all their members at once: collectives, transfers, and last the barrier before the
iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.matching import Meeting, align_clocks, match_calls
from foretrace.inputs.megatron_trace.calls import AXES, GRADIENT_OPS, gradient_call, group_size, tensor_bytes
from foretrace.inputs.megatron_trace.format import BUCKET_OP, RankTrace, TraceOp
from foretrace.inputs.megatron_trace.format.ex_situ import TRANSFERS
from foretrace.inputs.megatron_trace.gradients import reduces_gradients
from foretrace.inputs.megatron_trace.layout import TraceJob, last_iteration
from foretrace.inputs.megatron_trace.pieces import CUT_OPS, MS, pieces_of
from foretrace.program.columns import Collective, Phase
from foretrace.step.spec import Call

MIN_GAP_MS = 1e-5
"""Less than that between two ops is what numbers are rounded by."""

MAX_GAP_MS = 1e9
"""12 days, which no iteration lasts."""

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
    """What the ranks of a job did, with all clocks set to one that starts with the first op.

    `traced` has the items of each rank there is a trace of; `source_of` says for every rank of the job whose these are:
    its own, or those of another of its kind.
    """

    job: TraceJob
    traced: dict[int, list[Item]]
    source_of: list[int]
    notes: list[Diagnostic] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        """The time of the step: the longest that any rank took from its first op to the end of its last."""
        return max(items[-1].end_s - items[0].start_s for items in self.traced.values())


def make_recording(job: TraceJob) -> Recording:
    """Reads the traces of a real run; ranks without one are taken to be as another of their kind."""
    sources = _Sources(job)
    source_of = list(job.present) if job.alone else [sources.of(rank) for rank in range(job.mesh.world)]
    traced: dict[int, list[Item]] = {}
    for source in dict.fromkeys(source_of):
        trace = next(job.traces(source))
        traced[source] = list(_items(job, trace)) or _no_time(trace)
        if not traced[source]:
            raise InputError(
                "nothing-to-do",
                f"nothing that rank {source} did has a time",
                where=trace.path,
                hint="trace an iteration",
            )
    recording = Recording(job, traced, source_of, [*_fill_notes(job, source_of), *_odd_notes(job)])
    _check_whole(job)
    meetings = _match(recording)
    _set_clocks(recording, meetings)
    if not recording.step_s > 0:
        trace = next(job.traces(source_of[0]))
        raise InputError(
            "implausible-time",
            "the iteration takes no time: every op begins and ends at the same moment",
            where=trace.at(trace.ops[0].line),
            hint="durations are in milliseconds",
        )
    return recording


class _Sources:
    """Whose trace serves for a rank: its own, or that of another of its stage, with the same experts if one has."""

    def __init__(self, job: TraceJob) -> None:
        self.job = job
        self._of_kind: dict[tuple[int, int], int] = {}
        self._of_stage: dict[int, int] = {}
        for rank in job.present if not job.alone else ():
            self._of_kind.setdefault((job.stage(rank), job.expert_rank(rank)), rank)
            self._of_stage.setdefault(job.stage(rank), rank)
        self._present = frozenset(job.present)

    def of(self, rank: int) -> int:
        """The rank whose trace it is."""
        if rank in self._present:
            return rank
        job, stage = self.job, self.job.stage(rank)
        if stage not in self._of_stage:
            raise InputError(
                "missing-ranks",
                f"no rank of stage {stage} was traced: a real run is replayed where every stage was",
                where=job.runs[0].path,
                hint="a rank alone is looked at without --mesh" if len(job.present) == 1 else "find its traces",
            )
        return self._of_kind.get((stage, job.expert_rank(rank)), self._of_stage[stage])


def _fill_notes(job: TraceJob, source_of: Sequence[int]) -> list[Diagnostic]:
    filled = [(rank, source) for rank, source in enumerate(source_of) if rank != source]
    if not filled or job.alone:
        return []
    shown = ", ".join(f"{rank} as {source}" for rank, source in filled[:4]) + (", …" if len(filled) > 4 else "")
    odd = [rank for rank, source in filled if job.expert_rank(rank) != job.expert_rank(source)]
    text = f"{len(filled):,} of {len(source_of):,} ranks have no trace: taken to be as others of their stage ({shown})"
    if odd:
        text += f"; none with the experts of rank {odd[0]} was traced"
    return [Diagnostic("warning", "missing-ranks", text, job.runs[0].path)]


def _odd_notes(job: TraceJob) -> list[Diagnostic]:
    traces = [trace for run in job.runs for trace in run.ranks.values()]
    notes = []
    buckets = sum(op.op == BUCKET_OP for trace in traces for op in trace.ops)
    if buckets:
        text = f"{buckets} gradient buckets, of which only the launch was traced: waits for them are as recorded"
        notes.append(Diagnostic("warning", "as-recorded", text))
    if any(len(last_iteration(trace)) < len(trace.ops) for trace in traces):
        notes.append(Diagnostic("note", "one-of-several", "several iterations were traced: the last is taken"))
    return notes


def _check_whole(job: TraceJob) -> None:
    """Raises an error where a rank did fewer microbatches than the others: its trace is cut short."""
    counts = {
        trace.rank: (sum(op.op == "forward_step" for op in last_iteration(trace)), trace)
        for run in job.runs
        for trace in run.ranks.values()
    }
    most = max(count for count, _ in counts.values())
    for rank, (count, trace) in counts.items():
        if count < most:
            raise InputError(
                "truncated-file",
                f"rank {rank} goes forward {count} times, others {most}: its trace is cut short",
                where=trace.at(trace.ops[-1].line),
                hint="get the whole file; without it, the rank is taken to be as another of its stage",
            )


def _items(job: TraceJob, trace: RankTrace) -> Iterator[Item]:
    """What a rank did, in order, with the gaps between."""
    cursor: float | None = None
    for op, fused in _fused(trace):
        start = op.start_ms
        if start is None or op.timestamp_ms is None:
            continue  # a mark without a time
        if cursor is not None and start - cursor > MAX_GAP_MS:
            days = (start - cursor) / 8.64e7
            problem = f"{op.op} begins {days:,.0f} days after the op before it ended"
            raise InputError("out-of-range", problem, where=trace.at(op.line), hint="times are in milliseconds")
        if cursor is not None and start - cursor > MIN_GAP_MS:
            yield Item("host", "gap", op, cursor * MS, start * MS)
        begin = start if cursor is None else max(start, cursor)
        end = max(op.timestamp_ms, begin)
        if end > begin or op.op in TRANSFERS or op.op in GRADIENT_OPS or op.subs:
            yield from _op_items(job, trace, op, fused, begin)
        cursor = end


def _no_time(trace: RankTrace) -> list[Item]:
    """An iteration in which everything took 0.00 ms, as one item; nothing where nothing has a time."""
    op = next((op for op in trace.ops if op.start_ms is not None), None)
    if op is None or op.timestamp_ms is None:
        return []
    return [Item("compute", op.op, op, op.timestamp_ms * MS, op.timestamp_ms * MS)]


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
    # An op that ended before the one before it, as its time says, takes no time of its own.
    where, start, end = trace.at(op.line), begin_ms * MS, max(op.timestamp_ms or 0.0, begin_ms) * MS
    if op.op in CUT_OPS or op.op == "get_batch" or op.subs:
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
                cursor, waits = (until, done) if piece.call.concurrent else (done, done)
    elif op.op in TRANSFERS:
        yield _transfer(job, trace, op, fused, start, end)
    elif reduces_gradients(op):
        call = gradient_call(op, where)
        if job.alone or group_size(job.mesh, call.axis) > 1:
            yield Item("call", op.op, op, start, end, call)
        else:
            yield Item("compute", f"scale {op.op}", op, start, end)
    elif op.shape and op.dtype and op.op not in GRADIENT_OPS and AXES.get(op.group or "") not in (None, "pp"):
        size = tensor_bytes(op.shape, op.dtype, where)
        call = Call(op.op, Phase.NONE, Collective.ALL_REDUCE, AXES[op.group or ""], size)
        meets = job.alone or group_size(job.mesh, call.axis) > 1
        yield Item("call", op.op, op, start, end, call) if meets else Item("compute", op.op, op, start, end)
    elif op.op in GRADIENT_OPS:
        yield Item("host", f"wait for buckets of {op.op}", op, start, end)
    else:
        yield Item("compute", op.op, op, start, end)


def _transfer(job: TraceJob, trace: RankTrace, op: TraceOp, fused: TraceOp | None, start: float, end: float) -> Item:
    stage = job.stage(trace.rank)
    towards = 1 if op.op in ("send_forward", "recv_backward") else -1
    if not job.alone and not 0 <= stage + towards < job.mesh.pp:
        raise InputError("no-such-rank", f"{op.op} on stage {stage} of {job.mesh.pp}", where=trace.at(op.line))
    size = tensor_bytes(op.shape, op.dtype, trace.at(op.line))
    what = Collective.TRANSFER if fused is None else Collective.EXCHANGE
    name = op.op if fused is None else f"{op.op}, {fused.op}"
    sends = op.op.startswith("send") or (fused is not None and fused.op.startswith("send"))
    return Item("call", name, op, start, end, Call(op.op, Phase.NONE, what, "pp", size), stage + towards, sends)


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
    calls = {source: _by_channel(job, source, items) for source, items in recording.traced.items()}
    meetings: list[Meeting] = []
    beside: list[Item] = []
    shortest: dict[tuple[object, ...], float] = {}
    for source, channels in calls.items():
        for key, mine in channels.items():
            members = _members(recording, source, mine[0])
            issued = {member: calls[member].get(key, []) for member in dict.fromkeys((source, *members))}
            for item, *others in _matched(job, source, issued):
                together = [item, *others]
                item.net_s = min(call.taken_s for call in together)
                if len(members) > 1 and source == members[0]:
                    meetings.append(dict(zip(issued, [call.end_s for call in together], strict=True)))
                if item.call is not None and item.call.concurrent:
                    beside.append(item)
                elif item.call is not None:
                    kind = (item.call.collective, item.call.axis, item.call.bytes)
                    shortest[kind] = min(item.net_s, shortest.get(kind, item.net_s))
    for item in beside:
        # Its span is computation; what the call itself takes is known where the same was made without overlap.
        assert item.call is not None
        kind = (item.call.collective, item.call.axis, item.call.bytes)
        item.net_s = min(item.net_s, shortest.get(kind, item.net_s))
    return meetings


def _by_channel(job: TraceJob, rank: int, items: Sequence[Item]) -> dict[tuple[str, int, int], list[Item]]:
    """The calls of a rank by what they meet others by, each in the order of issue."""
    channels: dict[tuple[str, int, int], list[Item]] = {}
    for item in items:
        if item.call is not None:
            channels.setdefault(channel(job, rank, item), []).append(item)
    return channels


def _members(recording: Recording, rank: int, item: Item) -> list[int]:
    """Whose traces those are that meet in a call of a rank: its own first to last in its group."""
    job, call = recording.job, item.call
    assert call is not None
    if job.alone:
        return [rank]
    axis = "pp" if call.axis in ("pp", "embd") else call.axis
    groups, number = job.mesh.groups(axis), int(job.mesh.group_of(axis)[rank])
    ranks = groups[number].tolist()
    if call.axis == "embd":
        ranks = [ranks[0], ranks[-1]]
    elif call.axis == "pp" and item.peer is not None:
        ranks = [ranks[stage] for stage in sorted((job.stage(rank), item.peer))]
    return list(dict.fromkeys(recording.source_of[rank] for rank in ranks))


def _matched(job: TraceJob, rank: int, issued: Mapping[int, Sequence[Item]]) -> Iterator[tuple[Item, ...]]:
    """Matches the calls of a rank, the first of `issued`, with those of the members that it meets."""
    trace = next(job.traces(rank))
    mine = issued[rank]
    hint = "the traces of these ranks do not belong together, or the mesh is another: give --mesh"

    def count(_: int, member: int) -> InputError:
        theirs = len(issued[member])
        problem = f"{mine[0].name}: {len(mine)} such of rank {rank}, {theirs} of rank {member}, which it meets"
        return InputError("rendezvous-mismatch", problem, where=trace.at(mine[0].op.line), hint=hint)

    def mismatch(_: int, own: Item, member: int, other: Item) -> InputError | None:
        assert own.call is not None and other.call is not None
        same_name = own.call.axis == "pp" or own.name == other.name
        if own.call.collective == other.call.collective and same_name:
            return None
        problem = f"rank {rank} makes {own.name} where rank {member}, which it meets, makes {other.name}"
        return InputError("rendezvous-mismatch", problem, where=trace.at(own.op.line), hint=hint)

    return match_calls(issued, count, mismatch)


def _set_clocks(recording: Recording, meetings: Sequence[Meeting]) -> None:
    spans = {rank: (items[0].start_s, items[-1].end_s) for rank, items in recording.traced.items()}
    offsets, notes = clock_offsets(spans, meetings)
    recording.notes += notes
    for rank, items in recording.traced.items():
        for item in items:
            item.start_s -= offsets[rank]
            item.end_s -= offsets[rank]


def hosts_of(spans: Mapping[int, tuple[float, float]]) -> dict[int, int]:
    """The host of each rank, from when its trace begins and ends on its own clock."""
    hosts: dict[int, int] = {}
    last_end, host = float("-inf"), -1
    for rank in sorted(spans, key=lambda span: spans[span][0]):
        begin, end = spans[rank]
        if begin > last_end:
            host += 1
            last_end = end
        last_end = max(last_end, end)
        hosts[rank] = host
    return hosts


def clock_offsets(
    spans: Mapping[int, tuple[float, float]], meetings: Sequence[Meeting]
) -> tuple[dict[int, float], list[Diagnostic]]:
    """Returns what to subtract from each rank's clock, in the clock's unit, so that all count from the first op."""
    hosts = hosts_of(spans)
    count = max(hosts.values(), default=-1) + 1
    begins = [min(spans[rank][0] for rank in spans if hosts[rank] == host) for host in range(count)]
    alignment = align_clocks(begins, [_by_host(meeting, hosts) for meeting in meetings])
    notes = [
        Diagnostic("note", "clocks-apart", f"host {host} meets no other: its clock is set by its first op")
        for host in alignment.apart
    ]
    if count > 1:
        notes.append(
            Diagnostic("note", "clocks-aligned", f"{count} hosts, whose clocks are set by what they end together")
        )
    offset = alignment.offset
    start = min((spans[rank][0] - offset[hosts[rank]] for rank in spans), default=0.0)
    return {rank: offset[host] + start for rank, host in hosts.items()}, notes


def _by_host(meeting: Meeting, hosts: Mapping[int, int]) -> Meeting:
    """Returns when a rendezvous ended on each host: when the last of its ranks did."""
    ends: dict[int, float] = {}
    for rank, end in meeting.items():
        ends[hosts[rank]] = max(end, ends.get(hosts[rank], float("-inf")))
    return ends
