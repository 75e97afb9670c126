"""Matches the communications of several ranks' traces, and finds what each takes without waiting.

Communications meet as in NCCL: the n-th of every member of a process group, transfers by sender and receiver. A trace
records waiting and transfer together. The last member to come does not wait, so the shortest of all recorded times is
the transfer. If a member has no trace, the recorded time stays, waiting included.

Each trace counts from an origin of its own. The ends of communications that meet bring all to the clock of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from statistics import median
from typing import Any, Final, NamedTuple

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.basics.units import format_time
from foretrace.inputs.matching import Meeting, align_clocks, match_calls
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.job.axes import axis_word
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication, communications
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import UNPRICED, Collective, label
from foretrace.program.program import Communicator, Source

RECORDED: Final = Source("recorded")


@dataclass(frozen=True, slots=True)
class MatchedCall:
    """A communication as the program has it; `to` is the position a transfer goes to, None at its receiver."""

    collective: Collective
    communicator: Communicator
    bytes: int
    duration_s: float
    name: str
    dtype: str = ""
    sends: tuple[int, ...] = ()
    to: int | None = None

    def add(self, block: BlockBuilder, *, lane: str, **facts: Any) -> OpRef:
        """Appends it to a block, on a lane of the rank; `facts` are those of `BlockBuilder.add`."""
        if not isnan(self.duration_s):
            facts.setdefault("source", RECORDED)
        if self.collective is Collective.TRANSFER:
            return block.transfer(
                self.name, self.communicator, self.duration_s, to=self.to, bytes=self.bytes, lane=lane, **facts
            )
        sends = dict(enumerate(self.sends)) if self.sends else None
        facts |= {"dtype": self.dtype or None, "sends": sends, "bytes": self.bytes, "name": self.name, "lane": lane}
        return block.collective(self.collective, self.communicator, self.duration_s, **facts)


@dataclass(frozen=True, slots=True)
class Meetings:
    """The communications of a job's traces. `ranks` are those of the mesh that each trace stands for, perhaps none;
    `calls` what each trace's communication kernels are, by event; `offsets_s` what to take off each trace's times to
    bring it to the clock of the first."""

    mesh: Mesh
    ranks: tuple[tuple[int, ...], ...]
    calls: tuple[Mapping[int, MatchedCall], ...]
    offsets_s: tuple[float, ...]
    notes: tuple[Diagnostic, ...] = ()


class _Channel(NamedTuple):
    """The key by which communications meet, next to their order; a transfer's `ranks` are sender and receiver."""

    group: str
    ranks: tuple[int, ...]
    transfer: bool


class _Issued(NamedTuple):
    """A communication that a trace issues, how long it was recorded to take, and when it ended there."""

    event: int
    what: RecordedCommunication
    recorded_s: float
    end_s: float


def meet(
    traces: Sequence[RankProfile], links: Sequence[EventLinks], device: Sequence[Longs], *, priced: bool = False
) -> Meetings:
    """Brings the communications of all traces together.

    Args:
        traces: The trace of each rank.
        links: The links of each trace.
        device: The device events of each trace that the program holds, of the same steps, in the order of launches.
        priced: Whether communications whose members all have traces are left to a cluster's prices.
    """
    job = _Job(traces, links, device)
    calls: list[dict[int, MatchedCall]] = [{} for _ in traces]
    meetings: list[dict[int, float]] = []
    alone = 0
    for channel, issued in job.channels.items():
        members = job.members(channel)
        if members is None:
            for at, those in issued.items():
                calls[at] |= {call.event: _alone(call, channel, len(traces), at) for call in those}
                alone += len(those) if len(channel.ranks) != 1 else 0
            continue
        rows = _match(job, channel, {at: issued.get(at, ()) for at in members})
        communicator = _communicator(channel, members, issued[members[0]][0].what)
        for together in rows:
            matched = _matched_call(channel, communicator, together, priced)
            for at, call in zip(members, together, strict=True):
                calls[at][call.event] = _own_part(matched, call.what, channel)
            if len(members) > 1:
                meetings.append({at: call.end_s for at, call in zip(members, together, strict=True)})
    offsets, notes = clock_offsets([trace.origin_ns for trace in traces], meetings)
    world = len(traces)
    return Meetings(
        Mesh(dp=world),
        tuple((rank,) for rank in range(world)),
        tuple(calls),
        offsets,
        (*_notes(job, len(meetings), alone), *notes),
    )


class _Job:
    """The communications of all traces, by channel and trace, in the order of issue."""

    def __init__(self, traces: Sequence[RankProfile], links: Sequence[EventLinks], device: Sequence[Longs]) -> None:
        self.traces = traces
        self.ranks = [at if trace.rank is None else trace.rank for at, trace in enumerate(traces)]
        self.world = max((trace.world or 0 for trace in traces), default=0) or len(traces)
        self._at = {rank: at for at, rank in enumerate(self.ranks)}
        self.channels: dict[_Channel, dict[int, list[_Issued]]] = {}
        for at, (trace, joins, events) in enumerate(zip(traces, links, device, strict=True)):
            self._add(at, trace, joins, events)

    def _add(self, at: int, trace: RankProfile, joins: EventLinks, device: Longs) -> None:
        recorded = communications(trace, joins)
        for event in device.tolist():
            if event not in recorded:
                continue
            times = float(trace.events.duration_s[event]), float(trace.events.end_s[event])
            call = _Issued(event, recorded[event], *times)
            self.channels.setdefault(self._channel(at, call.what), {}).setdefault(at, []).append(call)

    def _channel(self, at: int, what: RecordedCommunication) -> _Channel:
        group = what.group
        if what.collective is Collective.TRANSFER:
            if what.peer < 0:
                return _Channel(group.name, (), transfer=False)
            pair = (self.ranks[at], what.peer) if what.to_peer else (what.peer, self.ranks[at])
            return _Channel(group.name, pair, transfer=True)
        ranks = group.ranks
        if not ranks and (group.size == self.world or (group.size < 0 and len(self.traces) == self.world)):
            ranks = tuple(range(self.world))
        return _Channel(group.name, ranks, transfer=False)

    def members(self, channel: _Channel) -> list[int] | None:
        """Returns the traces of all members of a channel, in the order of its ranks; None if a member has no trace."""
        if not channel.ranks or any(rank not in self._at for rank in channel.ranks):
            return None
        return [self._at[rank] for rank in channel.ranks]


def _match(job: _Job, channel: _Channel, issued: Mapping[int, Sequence[_Issued]]) -> Iterator[tuple[_Issued, ...]]:
    """Matches the communications of a channel; raises an error where its members did not make the same ones."""
    group = channel.group or "not named"

    def error(other: int, problem: str) -> InputError:
        hint = "the traces are of different runs or steps (--steps chooses), or events are missing from one"
        return InputError("rendezvous-mismatch", problem, where=job.traces[other].path, hint=hint)

    def count(first: int, other: int) -> InputError:
        return error(
            other,
            f"rank {job.ranks[first]} communicates {len(issued[first])} times in group {group}, "
            f"rank {job.ranks[other]}, which it meets, {len(issued[other])} times",
        )

    def mismatch(first: int, mine: _Issued, other: int, theirs: _Issued) -> InputError | None:
        if mine.what.collective is theirs.what.collective:
            return None
        number = next(number for number, call in enumerate(issued[first]) if call is mine)
        return error(
            other,
            f"communication {number} of group {group} is {label(theirs.what.collective)} on rank "
            f"{job.ranks[other]}, {label(mine.what.collective)} on rank {job.ranks[first]}",
        )

    return match_calls(issued, count, mismatch)


def _matched_call(
    channel: _Channel, communicator: Communicator, together: Sequence[_Issued], priced: bool
) -> MatchedCall:
    """Returns the call that its members make together: the shortest of their times is the transfer."""
    what = together[0].what
    size = max(call.what.bytes for call in together)
    net_s = min(call.recorded_s for call in together)
    takes = UNPRICED if priced and size >= 0 and len(channel.ranks) > 1 else net_s
    return MatchedCall(what.collective, communicator, max(size, 0), takes, what.name, what.dtype)


def _alone(call: _Issued, channel: _Channel, world: int, at: int) -> MatchedCall:
    """Returns a call whose other members have no trace."""
    what = call.what
    name = f"{_name(channel)} of {at}" if world > 1 else _name(channel)
    communicator = Communicator(name, axis_word(what.group, what.collective), groups=((at,),))
    collective = Collective.BARRIER if what.collective is Collective.TRANSFER else what.collective
    return MatchedCall(collective, communicator, max(what.bytes, 0), call.recorded_s, what.name, what.dtype)


def _communicator(channel: _Channel, members: Sequence[int], what: RecordedCommunication) -> Communicator:
    axis = "pp" if channel.transfer else axis_word(what.group, what.collective)
    return Communicator(_name(channel), axis, groups=(tuple(members),))


def _name(channel: _Channel) -> str:
    if channel.transfer:
        return f"group {channel.group or '?'} {channel.ranks[0]}→{channel.ranks[1]}"
    shown = ",".join(map(str, channel.ranks[:4])) + (",…" if len(channel.ranks) > 4 else "")
    return f"group {channel.group or '?'} [{shown}]"


def _own_part(call: MatchedCall, what: RecordedCommunication, channel: _Channel) -> MatchedCall:
    """Returns one member's side of a call: its bytes of an all-to-all, and whether it sends a transfer."""
    if call.collective is Collective.ALL_TO_ALL:
        call = replace(call, bytes=max(what.bytes, 0))
    sends = what.sends if len(what.sends) == len(channel.ranks) else ()
    return replace(call, sends=sends, to=1 if channel.transfer and what.to_peer else None)


def clock_offsets(origins_ns: Sequence[int], meetings: Sequence[Meeting]) -> tuple[tuple[float, ...], list[Diagnostic]]:
    """Returns what to subtract from the times of each trace, in seconds, to bring it to the clock of the first.

    Args:
        origins_ns: Where each trace counts from, by its host's clock.
        meetings: When each collective ended, by trace. A trace that meets no other keeps its own clock.
    """
    count = len(origins_ns)
    alignment = align_clocks([0.0] * count, meetings)
    offset = alignment.offset
    notes = []
    if count > 1 and meetings:
        ends = [[end - offset[trace] for trace, end in meeting.items()] for meeting in meetings]
        spread_s = median(max(moments) - min(moments) for moments in ends)
        apart_s = [offset[trace] + (origin - origins_ns[0]) * 1e-9 for trace, origin in enumerate(origins_ns)]
        text = (
            f"clocks of {count} traces are set by the ends of {len(meetings):,} communications: they are up to "
            f"{format_time(max(apart_s) - min(apart_s))} apart, the ends then {format_time(spread_s)}"
        )
        notes.append(Diagnostic("note", "clocks-aligned", text))
    if alignment.apart:
        sets = len(alignment.apart) + 1
        notes.append(Diagnostic("note", "clocks-apart", f"{sets} sets of traces never meet: their clocks stay apart"))
    return offset, notes


def _notes(job: _Job, meetings: int, alone: int) -> list[Diagnostic]:
    notes = []
    count = len(job.traces)
    if count > 1:
        text = (
            f"{count} of {job.world} ranks have traces; {meetings:,} communications meet, "
            "and take what the last to come did"
        )
        notes.append(Diagnostic("note", "traces-joined", text))
    unnamed = sum(
        len(those) for channel, issued in job.channels.items() if not channel.group for those in issued.values()
    )
    if count > 1 and meetings and unnamed:
        text = f"the groups of {unnamed:,} communications are not recorded: taken to be all ranks"
        notes.append(Diagnostic("warning", "assumed", text))
    if alone:
        text = f"{alone:,} communications with ranks that have no trace take as long as recorded, waiting included"
        notes.append(Diagnostic("warning" if count > 1 else "note", "missing-ranks", text))
    return notes
