"""Runs ops that divide the resources they share, event by event.

Between events every running flow advances at the rate that the set of running flows gives it. An event changes the set,
and with it the rates of the flows that are connected to it through resources, and of no others.

The loop is a set of functions over sequences, run on lists as they are or compiled.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

from foretrace.basics.arrays import Floats
from foretrace.engine.bounded import MAX_TIME_S, held_events, take_events
from foretrace.engine.maxmin import Filling, fill

NODE_ENDS, FLOW_BEGINS, FLOW_ARRIVES = 0, 1, 2


ORDER, EVENTS, TOUCHED, STAMP, RESOURCES, WORK = range(6)
"""Positions in `counters`."""


class SharedState(NamedTuple):
    """The graph and its flows as the loop needs them (fixed), and the state of the run.

    Nodes and units of step k are numbered from k × nodes and k × units. A unit runs at most once at a time, since its
    lane is in order, so the state of a flow is kept per unit. `running` links the uses of running flows per resource.
    """

    nodes: int
    units: int
    steps: int
    member_start: Any
    member: Any
    successor_start: Any
    successor: Any
    later_start: Any
    later: Any
    waits: Any
    waits_later: Any
    duration: Any
    latency: Any
    threshold: Any
    shares: Any
    use_start: Any
    use_held: Any
    use_unit: Any
    filling: Filling
    waiting: Any
    start: Any
    end: Any
    step_of: Any
    reached: Any
    done: Any
    speed: Any
    since: Any
    version: Any
    free: Any
    running: Any
    behind: Any
    ahead: Any
    touched: Any
    is_touched: Any
    seen: Any
    flow_seen: Any
    component: Any
    counters: Any
    """Order of the next event, events done, resources touched, stamp of the component, resources in it, work done."""


def simulate(w: SharedState, waiting: Floats, max_work: int) -> Floats:
    """Runs the steps until all ops have ended or `max_work` is done; returns the events that wait then.

    A time beyond `MAX_TIME_S`, or that is not a number, ends the run with events that nothing waits for.

    Args:
        w: The ops, and the state of the run so far.
        waiting: The events that the run so far has left, as `held_events` returns them.
        max_work: The work at which to return: events, and rates computed.
    """
    heap = [(0.0, 0, -1, 0, 0)]  # time, tie-break by order of scheduling, kind, number, version
    heappop(heap)
    if w.counters[WORK] == 0:
        for unit in range(w.units):
            if w.waits[unit] == 0:
                start_unit(w, heap, 0, unit, 0.0)
        for step in range(1, w.steps):
            for unit in range(w.units):
                if w.waits[unit] + w.waits_later[unit] == 0:
                    start_unit(w, heap, step, unit, 0.0)
    take_events(heap, waiting)
    while len(heap) > 0 and heap[0][0] <= MAX_TIME_S and w.counters[WORK] < max_work:
        now = heap[0][0]
        while len(heap) > 0 and heap[0][0] <= now:
            _, _, kind, number, version = heappop(heap)
            w.counters[WORK] += 1
            if kind == NODE_ENDS:
                w.counters[EVENTS] += 1
                end_node(w, heap, number, now)
            elif kind == FLOW_BEGINS:
                w.counters[EVENTS] += 1
                begin_flow(w, heap, number, now)
            elif w.version[number] == version:
                w.counters[EVENTS] += 1
                arrive(w, heap, number, now)
        if w.counters[TOUCHED] > 0:
            refill(w, heap, now)
    return held_events(heap)


def schedule(w: SharedState, heap: Any, time: float, kind: int, number: int, version: int) -> None:
    """Puts an event on the heap."""
    w.counters[ORDER] += 1
    heappush(heap, (time, w.counters[ORDER], kind, number, version))


def start_unit(w: SharedState, heap: Any, step: int, unit: int, now: float) -> None:
    """All that a unit waited for has ended."""
    w.start[step * w.units + unit] = now
    if w.shares[unit] > 0:
        w.step_of[unit] = step
        w.filling.use_first[unit] = w.use_start[w.member_start[unit]]
        for use in range(w.filling.use_first[unit], w.filling.use_last[unit]):
            if w.use_held[use] > 0.0:
                w.free[w.filling.use_resource[use]] -= w.use_held[use]
                touch(w, w.filling.use_resource[use])
        schedule(w, heap, now + w.latency[unit], FLOW_BEGINS, unit, 0)
    place = w.member_start[unit]
    while place < w.member_start[unit + 1] and (w.shares[unit] == 0 or w.threshold[w.member[place]] <= 0.0):
        node = w.member[place]
        schedule(w, heap, now + w.duration[node], NODE_ENDS, step * w.nodes + node, 0)
        place += 1
    w.reached[unit] = place


def end_node(w: SharedState, heap: Any, number: int, now: float) -> None:
    """An op of a step ends; units that waited for nothing else start."""
    w.end[number] = now
    step, node = number // w.nodes, number % w.nodes
    for i in range(w.successor_start[node], w.successor_start[node + 1]):
        release(w, heap, step, w.successor[i], now)
    if step + 1 < w.steps:
        for i in range(w.later_start[node], w.later_start[node + 1]):
            release(w, heap, step + 1, w.later[i], now)


def release(w: SharedState, heap: Any, step: int, unit: int, now: float) -> None:
    """One of the things a unit waits for has come."""
    place = step * w.units + unit
    w.waiting[place] -= 1
    if w.waiting[place] == 0:
        start_unit(w, heap, step, unit, now)


def touch(w: SharedState, resource: int) -> None:
    """Notes a resource whose flows need new rates."""
    if w.is_touched[resource] == 0:
        w.is_touched[resource] = 1
        w.touched[w.counters[TOUCHED]] = resource
        w.counters[TOUCHED] += 1


def begin_flow(w: SharedState, heap: Any, unit: int, now: float) -> None:
    """The latency is over: the flow joins those of its resources."""
    w.done[unit] = 0.0
    w.speed[unit] = 0.0
    w.since[unit] = now
    if w.filling.use_first[unit] == w.filling.use_last[unit]:
        w.speed[unit] = w.filling.full_rate[unit]  # it shares nothing after its latency
        aim(w, heap, unit, now)
    for use in range(w.filling.use_first[unit], w.filling.use_last[unit]):
        resource = w.filling.use_resource[use]
        first = w.running[resource]
        w.ahead[use] = first
        w.behind[use] = -1
        if first >= 0:
            w.behind[first] = use
        w.running[resource] = use
        touch(w, resource)


def arrive(w: SharedState, heap: Any, unit: int, now: float) -> None:
    """The flow has done what its next members asked for: they end, and with them what they used."""
    step = w.step_of[unit]
    last = w.member_start[unit + 1]
    place = w.reached[unit]
    done = w.threshold[w.member[place]]
    w.done[unit] = done
    w.since[unit] = now
    while place < last and w.threshold[w.member[place]] <= done:
        schedule(w, heap, now, NODE_ENDS, step * w.nodes + w.member[place], 0)
        for use in range(w.use_start[place], w.use_start[place + 1]):
            leave(w, use)
        place += 1
    w.reached[unit] = place
    w.filling.use_first[unit] = w.use_start[place]
    for use in range(w.filling.use_first[unit], w.filling.use_last[unit]):
        touch(w, w.filling.use_resource[use])  # no longer held back by what the others used
    w.version[unit] += 1
    if place < last:
        if w.filling.use_first[unit] == w.filling.use_last[unit]:
            w.speed[unit] = w.filling.full_rate[unit]  # those left share nothing with anybody
        aim(w, heap, unit, now)


def aim(w: SharedState, heap: Any, unit: int, now: float) -> None:
    """Schedules the end of the flow's next member at its present speed."""
    w.version[unit] += 1
    if w.speed[unit] > 0.0:
        left = w.threshold[w.member[w.reached[unit]]] - w.done[unit]
        schedule(w, heap, now + max(left, 0.0) / w.speed[unit], FLOW_ARRIVES, unit, w.version[unit])


def leave(w: SharedState, use: int) -> None:
    """A member gives back what it drew and held of one resource."""
    resource = w.filling.use_resource[use]
    before, after = w.behind[use], w.ahead[use]
    if before >= 0:
        w.ahead[before] = after
    else:
        w.running[resource] = after
    if after >= 0:
        w.behind[after] = before
    w.free[resource] += w.use_held[use]
    touch(w, resource)


def refill(w: SharedState, heap: Any, now: float) -> None:
    """New rates for all flows connected to a touched resource."""
    w.counters[STAMP] += 1
    stamp = w.counters[STAMP]
    n_resources = w.counters[TOUCHED]
    for i in range(n_resources):
        w.seen[w.touched[i]] = stamp
        w.is_touched[w.touched[i]] = 0
    w.counters[TOUCHED] = 0
    n_flows = connect(w, stamp, n_resources)
    w.counters[WORK] += n_flows
    fill(w.filling, w.component, n_flows, w.touched, w.counters[RESOURCES])
    for i in range(n_flows):
        unit = w.component[i]
        rate = w.filling.rate[unit]
        if rate != w.speed[unit]:
            w.done[unit] += w.speed[unit] * (now - w.since[unit])
            w.since[unit] = now
            w.speed[unit] = rate
            aim(w, heap, unit, now)


def connect(w: SharedState, stamp: int, n_resources: int) -> int:
    """Completes the touched resources to all connected ones, and lists the flows on them; returns their number."""
    n_flows = 0
    i = 0
    while i < n_resources:
        resource = w.touched[i]
        i += 1
        w.filling.residual[resource] = max(w.free[resource], 0.0)
        use = w.running[resource]
        while use >= 0:
            unit = w.use_unit[use]
            if w.flow_seen[unit] != stamp:
                w.flow_seen[unit] = stamp
                w.component[n_flows] = unit
                n_flows += 1
                for other in range(w.filling.use_first[unit], w.filling.use_last[unit]):
                    beyond = w.filling.use_resource[other]
                    if w.seen[beyond] != stamp:
                        w.seen[beyond] = stamp
                        w.touched[n_resources] = beyond
                        n_resources += 1
            use = w.ahead[use]
    w.counters[RESOURCES] = n_resources
    return n_flows
