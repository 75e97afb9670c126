"""Writes the step of a rank as ops of a role: host threads and streams as lanes, launches and waits as dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan
from typing import Any, Final, Literal

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.inputs.profiler_trace.job.ranks import MatchedCall
from foretrace.inputs.profiler_trace.rank.concurrency import BEGINS_S
from foretrace.inputs.profiler_trace.rank.device import Wait
from foretrace.inputs.profiler_trace.rank.phases import phases
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep
from foretrace.inputs.torch_ops.kinds import layer_number
from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import Kind, LaneKind, Phase
from foretrace.program.program import Source
from foretrace.program.role import RoleBuilder

GPU: Final = "GPU"
"""The resource that kernels of several streams share; a GPU gives one second of work a second. Of a process with
several GPUs it is the first; the others have their number too."""

IDLE: Final = "idle, cause not recorded"
BETWEEN_KERNELS: Final = "gap between kernels"
LAUNCHING: Final = "launch latency"
"""Names of gaps on a stream. The second is part of computing: the device needs it to go on to the next kernel."""

WrittenAs = Literal["call", "wait", "gap", "work"]


@dataclass(frozen=True, slots=True)
class Times:
    """The durations of a step's ops in seconds, by column.

    They are the work and own time of calls, and work on devices with the gap after it and the idle time before it.
    `shares` is the part of the GPU that work draws next to other streams (None: the recorded times already include it).
    `graph_s` is not None where the step is one graph, launched in that time. `gaps` names the idle time before each
    work; where it is empty, its cause was not recorded.
    """

    work_s: Floats
    own_s: Floats
    busy_s: Floats
    gap_s: Floats
    idle_s: Floats
    shares: Floats | None = None
    graph_s: float | None = None
    gaps: tuple[str, ...] = ()


class StepWriter:
    """Writes one rank's step into a block, and what reaches into the next step as links.

    `written` says what each op of the block is, with its column: a call up to its launch, the wait of a call, a gap on
    a stream, or work. The ops at the end of a step, which take no time, are not in it.
    """

    def __init__(
        self, rank: RankStep, times: Times, calls: Mapping[int, MatchedCall], kernels: Mapping[int, str], source: Source
    ) -> None:
        self.rank, self.times, self.calls, self.kernels, self.source = rank, times, calls, kernels, source
        self.written: list[tuple[WrittenAs, int]] = []
        self._phase = phases(rank.trace, rank.links)
        self._layer = _layers(rank)
        self._work: dict[int, OpRef] = {}
        self._first: dict[int, OpRef] = {}
        self._last: dict[int, int] = {}
        self._call: dict[int, OpRef] = {}
        self._ends: list[OpRef] = []
        self._queue: list[OpRef] = []
        self._waits: list[tuple[OpRef, int]] = []

    def write(self, role: RoleBuilder, block: BlockBuilder, *, held_by_queue: bool = True) -> None:
        """Writes the step as the one instance of a role.

        With `held_by_queue`, a host that runs ahead waits for room in the launch queue. A recorded step, whose times
        are known, needs no such rule.
        """
        device = self.rank.device
        launched: dict[int, list[int]] = {}
        for column, call in enumerate(device.call.tolist()):
            launched.setdefault(-1 if self.times.graph_s is not None else call, []).append(column)
        holds: dict[int, list[int]] = {}
        for wait in device.waits:
            if not wait.steps:
                holds.setdefault(wait.after, []).append(wait.before)
        graph = self._graph(block)
        for column in launched.pop(-1, []):
            self._device(block, column, graph, holds.get(column, []))
        if graph is None:
            for call in range(self.rank.steady.calls.shape[1]):
                self._host(block, call, launched.get(call, []), holds)
        self._end(block, graph, held_by_queue)
        placement = role.place(block)
        for before, after in self._between_steps(graph):
            role.link(placement[after], after=placement[before], steps=1)

    def _graph(self, block: BlockBuilder) -> OpRef | None:
        if self.times.graph_s is None:
            return None
        return block.host("graph launch", self.times.graph_s, source=self.source)

    def _host(self, block: BlockBuilder, call: int, launches: list[int], holds: Mapping[int, list[int]]) -> None:
        """Writes a call: the host's time up to it, its wait, and what it launches."""
        host, times = self.rank.host, self.times
        event = int(self.rank.steady.calls[0, call])
        facts = self._facts(event) | {"lane": f"host thread {host.thread[call]}"}
        before = self._before(call)
        name = self._call_name(event)
        waits = bool(host.targets[call]) or times.own_s[call] > 0
        done = block.host(name, float(times.work_s[call]), after=before, **facts)
        self.written.append(("call", call))
        self._first.setdefault(int(host.sequence[call]), done)
        if not (waits and host.queue[call]):
            self._launch(block, launches, done, holds)
        if waits:
            wait_name = self.rank.trace.strings[self.rank.trace.events.name[event]]
            needed = [
                self._work[target.work]
                for target in host.targets[call]
                if not target.steps and target.work in self._work
            ]
            done = block.host(wait_name, float(times.own_s[call]), after=needed, **facts)
            self.written.append(("wait", call))
            self._waits += [(done, target.work) for target in host.targets[call] if target.steps]
            if host.queue[call]:
                self._launch(block, launches, done, holds)
        self._call[call] = done

    def _end(self, block: BlockBuilder, graph: OpRef | None, held_by_queue: bool) -> None:
        """Writes ops that take no time: the end of the step on each thread, where a host that runs ahead is held.

        The places of the queue by which it runs ahead are such ops too.
        """
        rank = self.rank
        if not held_by_queue:
            return
        lanes = [f"host thread {thread}" for thread in dict.fromkeys(rank.host.thread.tolist())]
        for lane in lanes if graph is None else ["host"]:
            self._ends.append(block.host("end of step", 0.0, lane=lane, source=self.source))
        places = _chained(rank.device.stream, rank.device.waits) - 1 if graph is None else 0
        for place in range(places):
            name = f"launch queue {place + 1}"
            self._queue.append(block.host(name, 0.0, lane=name, source=self.source))

    def _before(self, call: int) -> list[OpRef]:
        """Returns the call before in its sequence if that is on another thread, and the op that ends a pause."""
        host = self.rank.host
        before: list[OpRef] = []
        sequence = int(host.sequence[call])
        last = self._last.get(sequence)
        self._last[sequence] = call
        if last is not None and host.thread[last] != host.thread[call]:
            before.append(self._call[last])
        resumed = int(host.resumes[call])
        return [*before, self._call[resumed]] if resumed in self._call else before

    def _launch(self, block: BlockBuilder, columns: list[int], by: OpRef, holds: Mapping[int, list[int]]) -> None:
        for column in columns:
            self._device(block, column, by, holds.get(column, []))

    def _device(self, block: BlockBuilder, column: int, by: OpRef | None, holds: list[int]) -> None:
        """Writes work on a stream, after its launch and the work of other streams that it waits for."""
        rank, times = self.rank, self.times
        event = int(rank.steady.device[0, column])
        after = [*([by] if by is not None else []), *(self._work[hold] for hold in holds if hold in self._work)]
        lane = _lane(int(rank.device.stream[column]))
        call = self.calls.get(event)
        lane_kind: LaneKind = "communication" if call is not None else "compute"
        if times.idle_s[column] > 0:
            text = times.gaps[column] if times.gaps else IDLE
            kind = Kind.COMPUTE if text == BETWEEN_KERNELS and call is None else Kind.HOST
            block.add(kind, text, float(times.idle_s[column]), lane, lane_kind, after=after, source=self.source)
            self.written.append(("gap", column))
        self.written.append(("work", column))
        facts = self._facts(event)
        busy_s = max(float(times.busy_s[column] + times.gap_s[column]), 0.0)
        if call is not None:
            takes = self._call_s(column)
            self._work[column] = replace(call, duration_s=takes).add(block, lane=lane, after=after, **facts)
            return
        name = rank.trace.strings[rank.trace.events.name[event]]
        kernel = self.kernels.get(event)
        if times.shares is not None and times.shares[column] > 0:
            gpu = _gpu(rank, column)
            begins_s = min(max(float(times.gap_s[column]), 0.0) + BEGINS_S, busy_s)
            facts |= {"latency_s": begins_s, "draws": {gpu: float(times.shares[column]) * (busy_s - begins_s)}}
        self._work[column] = block.compute(name, busy_s, lane=lane, after=after, kernel=kernel, **facts)

    def _call_s(self, column: int) -> float:
        """Returns the time of a communication: the mean over the steps; NaN where a cluster prices it."""
        events = self.rank.steady.device[:, column].tolist()
        times = [self.calls[event].duration_s for event in events if event in self.calls]
        if any(map(isnan, times)):
            return float("nan")
        # The gap is negative if the next work begins earlier than this ends. It may then lie in the wait for partners,
        # which is not part of the time.
        return max(float(np.mean(times)) + float(self.times.gap_s[column]), 0.0)

    def _between_steps(self, graph: OpRef | None) -> list[tuple[OpRef, OpRef]]:
        """Returns the dependencies of the next step: (before, after) of this step's ops and its own."""
        rank = self.rank
        pairs = [
            (self._work[wait.before], self._work[wait.after])
            for wait in rank.device.waits
            if wait.steps and graph is None
        ]
        pairs += [(self._work[work], op) for op, work in self._waits]
        if not self._work:
            return pairs
        firsts, lasts = _ends(rank.device.stream.tolist())
        if graph is not None:
            # A graph begins when the one before it has ended, on all of its streams.
            pairs += [(self._work[last], self._work[first]) for first in firsts for last in lasts]
            return [*pairs, *((self._work[min(self._work)], end) for end in self._ends)]
        for number, first in self._first.items():
            last = self._last[number]
            if rank.host.thread[np.argmax(rank.host.sequence == number)] != rank.host.thread[last]:
                pairs.append((self._call[last], first))
        # However far it could run ahead, a queue holds a host back: at the end of a step until the first work of each
        # stream of the step before is done, and of one more before for each stream that waits for another. A step may
        # be under way on each of these at once: a shorter queue would hold up what a real one does not.
        launched = [self._work[column] for column in firsts if rank.device.call[column] >= 0]
        held = [launched, *([place] for place in self._queue), self._ends] if self._ends else []
        return pairs + [(work, by) for some, later in pairwise(held) for work in some for by in later]

    def _facts(self, event: int) -> dict[str, Any]:
        return {"phase": Phase(int(self._phase[event])), "layer": self._layer.get(event, -1), "source": self.source}

    def _call_name(self, event: int) -> str:
        op = int(self.rank.links.op[event])
        return self.rank.trace.strings[int(self.rank.trace.events.name[op if op >= 0 else event])]


def _chained(streams: Longs, waits: Iterable[Wait]) -> int:
    """Returns the largest number of streams that are joined by waits."""
    group = {int(stream): {int(stream)} for stream in np.unique(streams)}
    for wait in waits:
        first, second = group[int(streams[wait.before])], group[int(streams[wait.after])]
        if first is not second:
            first |= second
            group.update(dict.fromkeys(second, first))
    return max(map(len, group.values()), default=1)


def shared_gpus(rank: RankStep, times: Times) -> set[str]:
    """Returns the resources that a step written with these times draws on."""
    drawing = np.flatnonzero(times.shares > 0) if times.shares is not None else ()
    return {_gpu(rank, int(column)) for column in drawing}


def _gpu(rank: RankStep, column: int) -> str:
    number, first = int(rank.device.stream[column]) >> 32, int(rank.device.stream.min()) >> 32
    return GPU if number == first else f"{GPU} {number}"


def _lane(key: int) -> str:
    device, stream = divmod(key, 1 << 32)
    return f"stream {stream}" if device <= 0 else f"GPU {device} stream {stream}"


def _ends(streams: list[int]) -> tuple[list[int], list[int]]:
    """Returns the first and the last column of each stream."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for column, stream in enumerate(streams):
        first.setdefault(stream, column)
        last[stream] = column
    return list(first.values()), list(last.values())


def _layers(rank: RankStep) -> dict[int, int]:
    """Returns the layer of calls and device work whose annotations number one."""
    trace = rank.trace
    layers_of_names = map(layer_number, trace.strings)
    number = {at: layer for at, layer in enumerate(layers_of_names) if layer is not None}
    if not number:
        return {}
    layers: dict[int, int] = {}
    for event in (*rank.steady.device[0].tolist(), *rank.steady.calls[0].tolist()):
        names = (int(trace.events.name[at]) for at in rank.links.chain(event))
        layer = next((number[name] for name in names if name in number), None)
        if layer is not None:
            layers[event] = layer
    return layers
