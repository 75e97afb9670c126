"""Writes the recorded step of a rank as ops of a role: the host and every stream as a lane, waits as dependencies.

The host runs its ops one after the other. An op on a stream waits for its launch and for the *frontier* of the stream:
the last op of the stream, and what the stream was made to wait for since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from foretrace.inputs.script.groups import JobGroups
from foretrace.inputs.script.host_costs import HOST_TIMES, HostCosts, host_s
from foretrace.inputs.script.memory import host_memory
from foretrace.inputs.script.recording import (
    CallWait,
    Event,
    HostCopy,
    HostWait,
    IssuedCall,
    KernelLaunch,
    Place,
    RankRecording,
    StreamWait,
)
from foretrace.inputs.script.window import StepWindow
from foretrace.inputs.torch_ops.kinds import layer_number
from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import Collective
from foretrace.program.kernels import Copy, Stream, kernel_text
from foretrace.program.program import Communicator
from foretrace.program.role import RoleBuilder

HOST: Final = "host"
END: Final = "end of step"
ALLOCATION: Final = "allocation"
"""The op of the host for memory that it allocates before a wait, without a launch."""

MAX_QUEUED: Final = 1024
"""The most launches that wait on a device. With more, CUDA holds up the host."""

Queue: TypeAlias = "tuple[str, int]"
"""A stream, a group's own stream, or a single call, by its number."""


class _Earlier(NamedTuple):
    """What was issued to a queue before an event of the round before this one."""

    queue: Queue
    until: int


_Ref: TypeAlias = "OpRef | _Earlier"
_Frontier: TypeAlias = "tuple[_Ref, ...]"


@dataclass(slots=True)
class _History:
    """The frontiers of a queue, each with the event from which on it holds."""

    events: list[int] = field(default_factory=list)
    frontiers: list[_Frontier] = field(default_factory=list)

    def set(self, event: int, frontier: _Frontier) -> None:
        self.events.append(event)
        self.frontiers.append(frontier)

    def before(self, event: int) -> _Frontier:
        """Returns the frontier of what was issued before an event."""
        at = bisect_left(self.events, event)
        return self.frontiers[at - 1] if at else ()


@dataclass(frozen=True, slots=True)
class RecordedRole:
    """A recording that is written as a role, and how.

    Attributes:
        number: The number of the recording among those of the job.
        rank: A rank of the role, which decides the other ends of its transfers.
        window: The events to write.
        kernels: The kernels of each signature as text.
        launches: How many kernels the host launches for each signature.
        costs: The seconds of the host.
        pace: The factor on the seconds of the host.
    """

    number: int
    rank: int
    window: StepWindow
    kernels: Sequence[str]
    launches: Sequence[int]
    costs: HostCosts
    pace: float


class RoleWriter:
    """Writes the events of one recording into a block, and waits for the round before as links.

    Args:
        recorded: The recording and how to write it.
        groups: The communicators of the job.
    """

    def __init__(self, recorded: RecordedRole, groups: JobGroups) -> None:
        self.recorded, self.groups = recorded, groups
        self.recording: RankRecording = groups.recordings[recorded.number]
        self.window = recorded.window
        self._queues: dict[Queue, _History] = {}
        self._calls: dict[int, _Frontier] = {}
        self._host: _Frontier = ()
        self._resumes_s = 0.0
        self._queued: deque[tuple[int, OpRef]] = deque()
        self._launched = 0
        self._links: list[tuple[_Earlier, OpRef]] = []
        self._first_on: dict[str, OpRef] = {}
        self._layers = [layer_number(path) for path in self.recording.modules]
        self._memory = host_memory(self.recording, self.window, self._op_after())

    def write(self, role: RoleBuilder, block: BlockBuilder) -> None:
        """Writes the window as the one instance of a role."""
        role.resident(**self._memory.resident)
        for number in range(self.window.first, self.window.end):
            self._event(block, number, self.recording.events[number])
        ends = self._end(block)
        instance = role.place(block)
        for before, after in (*self._between_rounds(), *ends):
            role.link(instance[after], after=instance[before], steps=1)

    def _event(self, block: BlockBuilder, number: int, event: Event) -> None:
        if not isinstance(event, KernelLaunch | HostCopy | IssuedCall) and (memory := self._memory_of(number)):
            after, self._host = self._host, ()
            self._add(after, lambda refs: block.host(ALLOCATION, 0.0, after=refs, source=HOST_TIMES, **memory))
        if isinstance(event, StreamWait):
            self._hold(number, event.stream, self._issued(("stream", event.other), event.until))
        elif isinstance(event, CallWait):
            ended = self._ended(event.call)
            if event.by_host:
                self._host = _joined(self._host, ended)
            else:
                self._hold(number, event.stream, ended)
        elif isinstance(event, HostWait):
            self._resumes_s += host_s(event, None, self.recorded.costs) * self.recorded.pace
            self._host = _joined(self._host, *(self._issued(queue, event.until) for queue in self._awaited(event)))
        else:
            launch = self._host_op(block, number, event)
            if isinstance(event, IssuedCall):
                self._call(block, number, event, launch)
            else:
                self._work(block, number, event, launch)

    def _host_op(
        self, block: BlockBuilder, number: int, event: KernelLaunch | HostCopy | IssuedCall
    ) -> tuple[OpRef, ...]:
        """Writes the host's part of an event; () where it neither takes time nor waits nor changes memory."""
        signature = self.recording.signatures[event.signature] if isinstance(event, KernelLaunch) else None
        launches = self.recorded.launches[event.signature] if isinstance(event, KernelLaunch) else 1
        takes = host_s(event, signature, self.recorded.costs, launches) * self.recorded.pace + self._resumes_s
        self._resumes_s = 0.0
        name = signature.op if signature is not None else _name(event)
        self._make_room()
        memory = self._memory_of(number)
        if not takes and not self._host and not memory:
            return ()
        after, self._host = self._host, ()
        return (
            self._add(
                after,
                lambda refs: block.host(
                    name, takes, after=refs, source=HOST_TIMES, **memory, **self._facts(event.place)
                ),
            ),
        )

    def _work(
        self, block: BlockBuilder, number: int, event: KernelLaunch | HostCopy, launch: tuple[OpRef, ...]
    ) -> None:
        """Writes the work of a launch or a copy on its stream."""
        if isinstance(event, HostCopy):
            name, kernel = _name(event), kernel_text(Copy(event.bytes, "host" if event.to_host else "gpu"))
        else:
            name = self.recording.signatures[event.signature].op
            kernel = self.recorded.kernels[event.signature]
        if not kernel:
            return
        done = self._on_stream(
            number,
            event.stream,
            launch,
            lambda refs, lane: block.compute(name, lane=lane, after=refs, kernel=kernel, **self._facts(event.place)),
        )
        self._launched += self.recorded.launches[event.signature] if isinstance(event, KernelLaunch) else 1
        self._queued.append((self._launched, done))
        if isinstance(event, HostCopy) and event.blocking:
            self._host = _joined(self._host, (done,))

    def _make_room(self) -> None:
        """Makes the host wait until the queue of launches has room for another one."""
        done: OpRef | None = None
        while self._queued and self._queued[0][0] <= self._launched + 1 - MAX_QUEUED:
            done = self._queued.popleft()[1]
        if done is not None:
            self._host = _joined(self._host, (done,))

    def _call(self, block: BlockBuilder, number: int, call: IssuedCall, launch: tuple[OpRef, ...]) -> None:
        """Writes a collective or a transfer on its group's own lane or on its stream."""
        group = self.recording.groups[call.group]
        if len(group.ranks) == 1:
            self._calls[number] = self._alone(block, number, call, launch)
        elif call.collective is Collective.EXCHANGE:
            self._calls[number] = self._exchange(block, number, call, launch)
        elif call.own_stream:
            self._calls[number] = (self._on_own_lane(block, number, call, launch),)
        else:
            add = self._adder(block, call)
            self._calls[number] = (self._on_stream(number, call.stream, launch, add),)

    def _on_own_lane(self, block: BlockBuilder, number: int, call: IssuedCall, launch: tuple[OpRef, ...]) -> OpRef:
        """Writes a call that starts after the work issued so far on the stream that issued it."""
        lane = self._lane(call.group)
        if call.collective is Collective.TRANSFER:
            lane = self._pair(call.group, call.peer, call.to_peer).name
        add = self._adder(block, call)
        issued = self._history(("stream", call.stream)).before(number)
        done = self._add(_joined(issued, launch), lambda refs: add(refs, lane))
        self._first_on.setdefault(lane, done)
        history = self._history(("group", call.group))
        transfer = call.collective is Collective.TRANSFER
        history.set(number, _joined(history.before(number), (done,)) if transfer else (done,))
        return done

    def _exchange(
        self, block: BlockBuilder, number: int, call: IssuedCall, launch: tuple[OpRef, ...]
    ) -> tuple[OpRef, ...]:
        """Writes a batch of transfers. It begins after the batch before in its group and ends with its last transfer.

        Ranks may batch the two ways between them differently, and NCCL matches each way by itself; so each is a
        transfer on a lane of its own.
        """
        ranks = self.recording.groups[call.group].ranks
        usual = call.bytes // max(len(call.sends) or len(call.receives_from), 1)
        known = {ranks[position]: size for position, size in call.receives}
        ways = [(ranks[position], size, True) for position, size in call.sends]
        ways += [(peer, known.get(peer, usual), False) for peer in call.receives_from]
        history = self._history(("group", call.group))
        issued = self._history(("stream", call.stream)).before(number)
        after = _joined(issued, history.before(number), launch)
        ops = tuple(self._transfer(block, call, way, after) for way in ways)
        history.set(number, ops)
        if not call.own_stream:
            self._hold(number, call.stream, ops)
        return ops

    def _transfer(self, block: BlockBuilder, call: IssuedCall, way: tuple[int, int, bool], after: _Frontier) -> OpRef:
        """Writes one transfer of an exchange: its other end, its bytes, and whether it is sent."""
        peer, size, sends = way
        pair = self._pair(call.group, peer, sends)
        facts = self._facts(call.place) | {"bytes": size, "dtype": call.dtype or None, "lane": pair.name}
        to = 1 if sends else None
        done = self._add(after, lambda refs: block.transfer(call.name, pair, to=to, after=refs, **facts))
        self._first_on.setdefault(pair.name, done)
        return done

    def _alone(
        self, block: BlockBuilder, number: int, call: IssuedCall, launch: tuple[OpRef, ...]
    ) -> tuple[OpRef, ...]:
        """Writes a call in a group of one rank, which copies its bytes where input and output are different buffers."""
        if call.collective not in _COPIES_ALONE or not call.bytes:
            return ()
        kernel, facts = kernel_text(Stream("copy", call.bytes, call.bytes)), self._facts(call.place)

        def add(refs: list[OpRef], lane: str) -> OpRef:
            return block.compute(call.name, lane=lane, after=refs, kernel=kernel, **facts)

        return (self._on_stream(number, call.stream, launch, add),)

    def _adder(self, block: BlockBuilder, call: IssuedCall) -> Callable[[list[OpRef], str], OpRef]:
        """Returns a function that writes a call after other ops on a lane."""
        facts = self._facts(call.place) | {"bytes": call.bytes, "dtype": call.dtype or None}
        if call.collective is Collective.TRANSFER:
            pair = self._pair(call.group, call.peer, call.to_peer)
            to = 1 if call.to_peer else None
            return lambda refs, lane: block.transfer(call.name, pair, to=to, lane=lane, after=refs, **facts)
        communicator = self.groups.communicator(self.recorded.number, call.group, call.collective)
        sends = dict(call.sends) or None
        return lambda refs, lane: block.collective(
            call.collective, communicator, name=call.name, lane=lane, sends=sends, after=refs, **facts
        )

    def _pair(self, group: int, peer: int, sends: bool) -> Communicator:
        return self.groups.pair(self.recorded.number, self.recorded.rank, group, peer, sends=sends)

    def _lane(self, group: int) -> str:
        return self.groups.lane(self.recorded.number, group)

    def _on_stream(
        self, number: int, stream: int, launch: tuple[OpRef, ...], add: Callable[[list[OpRef], str], OpRef]
    ) -> OpRef:
        """Writes an op on a stream, after what holds up the stream and after its launch."""
        lane, history = f"stream {stream}", self._history(("stream", stream))
        done = self._add(_joined(history.before(number), launch), lambda refs: add(refs, lane))
        self._first_on.setdefault(lane, done)
        history.set(number, (done,))
        return done

    def _add(self, after: _Frontier, write: Callable[[list[OpRef]], OpRef]) -> OpRef:
        """Writes an op after others; what it waits for of the round before becomes a link."""
        done = write([ref for ref in after if isinstance(ref, OpRef)])
        self._links += [(ref, done) for ref in after if isinstance(ref, _Earlier)]
        return done

    def _history(self, queue: Queue) -> _History:
        """Returns the frontiers of a queue. It begins with what the round before left on it."""
        if queue not in self._queues:
            self._queues[queue] = _History([self.window.first - 1], [(_Earlier(queue, self.window.end),)])
        return self._queues[queue]

    def _hold(self, number: int, stream: int, refs: _Frontier) -> None:
        """Makes what is issued to a stream from now on wait for others."""
        history = self._history(("stream", stream))
        if refs:
            history.set(number, _joined(history.before(number), refs))

    def _issued(self, queue: Queue, until: int) -> _Frontier:
        """Returns what was issued to a queue before an event, perhaps one of the round before."""
        if until > self.window.first:
            return self._history(queue).before(until)
        image = until + self.window.period
        return (_Earlier(queue, image),) if image > self.window.first else ()

    def _ended(self, call: int) -> _Frontier:
        """Returns the ops with which a call ends, perhaps one of the round before."""
        if call in self.window:
            return self._calls.get(call, ())
        image = call + self.window.period
        if image not in self.window or not _same_call(self.recording.events, call, image):
            return ()
        return (_Earlier(("call", image), self.window.end),)

    def _awaited(self, wait: HostWait) -> Iterable[Queue]:
        if wait.streams:
            return [("stream", stream) for stream in wait.streams]
        return [*(("stream", stream) for stream in range(len(self.recording.streams))), *_group_queues(self._queues)]

    def _between_rounds(self) -> Iterator[tuple[OpRef, OpRef]]:
        """Yields what ops of the next round wait for: (op of this round, op of the next)."""
        for earlier, after in dict.fromkeys(self._links):
            kind, number = earlier.queue
            if kind == "call":
                refs = self._calls.get(number, ())
            else:
                refs = self._queues[earlier.queue].before(earlier.until) if earlier.queue in self._queues else ()
            yield from ((ref, after) for ref in refs if isinstance(ref, OpRef))

    def _end(self, block: BlockBuilder) -> list[tuple[OpRef, OpRef]]:
        """Writes the end of the step on the host, and returns what holds it up in the next round.

        The queue of launches bounds how far the host runs ahead. It waits until the first op of the round before has
        ended on each lane, one round more for each lane that another may wait for.
        """
        after, self._host = self._host, ()
        end = self._add(
            after,
            lambda refs: block.host(
                END, self._resumes_s, after=refs, source=HOST_TIMES, **self._memory_of(self.window.end)
            ),
        )
        first = list(self._first_on.values())
        names = [f"launch queue {place}" for place in range(1, len(first))]
        places = [block.host(name, 0.0, lane=name, source=HOST_TIMES) for name in names]
        held = [first, *([place] for place in places), [end]]
        return [(before, later) for these, those in pairwise(held) for before in these for later in those]

    def _memory_of(self, number: int) -> dict[str, Any]:
        changes = {"alloc": self._memory.allocated.get(number), "free": self._memory.released.get(number)}
        return {name: sizes for name, sizes in changes.items() if sizes}

    def _op_after(self) -> Callable[[int], int]:
        """Returns a function that finds the first event at or after another that the host has an op for."""
        events = self.recording.events
        allocated = {storage.allocated for storage in self.recording.storages}
        after = [self.window.end] * (self.window.end - self.window.first + 1)
        for number in range(self.window.end - 1, self.window.first - 1, -1):
            at = number - self.window.first
            has_op = isinstance(events[number], KernelLaunch | HostCopy | IssuedCall) or number in allocated
            after[at] = number if has_op else after[at + 1]
        return lambda event: after[event - self.window.first]

    def _facts(self, place: Place) -> dict[str, Any]:
        layer = self._layers[place.module] if place.module >= 0 else None
        return {"phase": place.phase, "layer": -1 if layer is None else layer}


_COPIES_ALONE: Final = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.GATHER,
    Collective.SCATTER,
)


def _name(event: KernelLaunch | HostCopy | IssuedCall) -> str:
    """Returns the name of an event that is not the launch of an op."""
    if isinstance(event, IssuedCall):
        return event.name
    return "copy to host" if isinstance(event, HostCopy) and event.to_host else "copy to GPU"


def _joined(*frontiers: _Frontier) -> _Frontier:
    return tuple(dict.fromkeys(ref for frontier in frontiers for ref in frontier))


def _group_queues(queues: Iterable[Queue]) -> list[Queue]:
    return [queue for queue in queues if queue[0] == "group"]


def _same_call(events: Sequence[Event], first: int, second: int) -> bool:
    """Whether two events are calls of the same collective in the same group; the first may not have been recorded."""
    ours = events[second]
    theirs = events[first] if first >= 0 else ours
    if not isinstance(ours, IssuedCall) or not isinstance(theirs, IssuedCall):
        return False
    return (ours.collective, ours.group) == (theirs.collective, theirs.group)
