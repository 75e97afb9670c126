"""Runs a graph whose ops share resources: prices in, a timeline out."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats, distinct
from foretrace.basics.errors import DeadlockError, InputError
from foretrace.engine import jit
from foretrace.engine.bounded import run_in_parts
from foretrace.engine.fixed_run import StepRun
from foretrace.engine.jit import Room
from foretrace.engine.maxmin import Filling
from foretrace.engine.order import find_order, sort_by
from foretrace.engine.shared_flows import Flows, SharedDraws, make_flows
from foretrace.engine.shared_loop import EVENTS, SharedState, simulate
from foretrace.engine.steady import Settled
from foretrace.program.graph import Graph
from foretrace.program.timeline import Timeline

FIRST_STEPS, MAX_STEPS = 4, 32
EVENTS_WORTH = 60_000
"""A small job is run for more steps before it is given up as one that does not settle."""


class SharedRun:
    """A graph made ready to be run with shared resources."""

    def __init__(self, graph: Graph, latency_s: Floats, draws: SharedDraws) -> None:
        find_order(graph, False)  # a deadlock is named before anything runs
        self.graph = graph
        self.latency_s = latency_s
        self.draws = draws
        self.fast = jit.pays(16 * len(graph))  # an event costs several times what an op of the fixed executor does
        self.events = 0

    def timeline(self, durations: Floats) -> Timeline:
        """The settled step, for durations that each op would take alone, in seconds per node."""
        flows = make_flows(self.graph, durations, self.latency_s, self.draws)
        if not self.graph.program.repeats:
            start, end = self._run(flows, durations, 1)
            step = StepRun.of(self.graph, (start[0], end[0], None), float(end[0].max(initial=0.0)), 1, ())
            return step.timeline()
        steps, carried = FIRST_STEPS, distinct(self.graph.next_src)
        most = min(max(MAX_STEPS, EVENTS_WORTH // max(len(self.graph), 1)), 8 * MAX_STEPS)
        while True:
            start, end = self._run(flows, durations, steps)
            witnesses = self._witnesses(start, end)
            settled = Settled(may_drift=not len(flows.use_resource))
            last = next((step for step in range(witnesses) if settled.watch(end[step][carried])), witnesses - 1)
            done = not np.isnan(settled.period).any()
            if done or steps >= most or self._is_hopeless(start, end, most):
                break
            steps *= 2
        if not done:
            settled.give_up()
        before = (lambda: end[last - 1]) if last else None
        notes, period = settled.notes(done), float(settled.period[0])
        return StepRun.of(self.graph, (start[last], end[last], before), period, last + 1, notes).timeline()

    def _is_hopeless(self, start: Floats, end: Floats, most: int) -> bool:
        """Returns whether `most` steps would still show no third one that ran while every part had a step to run.

        Some part then runs far ahead of the others, and nothing holds it back.
        """
        last = self._first_start(start[-1])
        ahead_s = last + (last - self._first_start(start[-2])) * (most - len(start))
        return bool(end[2].max(initial=0.0) > 1.1 * ahead_s)

    def _witnesses(self, start: Floats, end: Floats) -> int:
        """Returns the number of steps that ran while every part of the job still had a step to run; later ones run
        alone."""
        horizon = self._first_start(start[-1])
        if np.isinf(horizon):
            return len(end) - 1
        return max(int((end.max(axis=1) <= horizon * (1 + 1e-12)).sum()), 2)

    def _first_start(self, start: Floats) -> float:
        """Returns when the first op of a step starts; infinity where no op takes part."""
        takes_part = self.graph.ops.column("enabled")[self.graph.op].astype(bool)
        return float(start.min(where=takes_part, initial=np.inf))

    def _run(self, flows: Flows, durations: Floats, steps: int) -> tuple[Floats, Floats]:
        """(start, end) of every node in every step: [steps, nodes]."""
        world = make_world(self.graph, flows, durations, steps, self.fast)
        loop = jit.compiled(simulate) if self.fast else simulate
        ended = run_in_parts(lambda waiting, work: loop(world, waiting, work), "running the job")
        self.events += int(world.counters[EVENTS])
        start = np.array(world.start).reshape(steps, self.graph.units)[:, self.graph.unit]
        end = np.array(world.end).reshape(steps, len(self.graph))
        if not ended:
            stuck = int(np.flatnonzero(np.isnan(end).any(axis=0))[0])
            problem = f"{self.graph.place(stuck)} never ends: its times or rates are beyond all that can be meant"
            raise InputError("out-of-range", problem)
        if np.isnan(end).any():
            stuck = int(np.flatnonzero(np.isnan(end[0]))[0]) if np.isnan(end[0]).any() else 0
            raise DeadlockError("deadlock", f"{self.graph.place(stuck)} is left nothing of a resource that others hold")
        return start, end


def make_world(graph: Graph, flows: Flows, durations: Floats, steps: int, fast: bool) -> SharedState:
    """Everything the loop reads and writes, as arrays for the compiled loop or as lists."""
    nodes, units, resources = len(graph), graph.units, len(flows.capacity)
    waiter = graph.unit[np.repeat(np.arange(nodes), np.diff(graph.pred_start))]
    by_source, successor_start = sort_by(graph.pred, nodes, False)
    by_later, later_start = sort_by(graph.next_src, nodes, False)
    use_bounds = flows.use_start[flows.member_start]
    waits = np.bincount(waiter, minlength=units)
    waits_later = np.bincount(graph.unit[graph.next_dst], minlength=units)
    uses = len(flows.use_resource)
    room = Room(fast)
    hold = room.hold
    return SharedState(
        nodes=nodes,
        units=units,
        steps=steps,
        member_start=hold(flows.member_start),
        member=hold(flows.member),
        successor_start=hold(successor_start),
        successor=hold(waiter[by_source]),
        later_start=hold(later_start),
        later=hold(graph.unit[graph.next_dst][by_later]),
        waits=hold(waits),
        waits_later=hold(waits_later),
        duration=hold(durations),
        latency=hold(flows.latency_s),
        threshold=hold(flows.threshold),
        shares=hold(flows.work > 0),
        use_start=hold(flows.use_start),
        use_held=hold(flows.use_held),
        use_unit=hold(np.repeat(np.arange(units), np.diff(use_bounds))),
        filling=Filling(
            full_rate=hold(flows.full_rate),
            use_first=hold(use_bounds[:-1]),
            use_last=hold(use_bounds[1:]),
            use_resource=hold(flows.use_resource),
            use_load=hold(flows.use_load),
            residual=room.floats(resources),
            growing=room.counts(resources),
            load=room.floats(resources),
            first=room.counts(resources, -1),
            next=room.counts(uses, -1),
            use_flow=room.counts(uses),
            rate=room.floats(units),
        ),
        waiting=hold(np.concatenate([waits] + [waits + waits_later] * (steps - 1))),
        start=room.floats(steps * units, np.nan),
        end=room.floats(steps * nodes, np.nan),
        step_of=room.counts(units),
        reached=room.counts(units),
        done=room.floats(units),
        speed=room.floats(units),
        since=room.floats(units),
        version=room.counts(units),
        free=hold(flows.capacity),
        running=room.counts(resources, -1),
        behind=room.counts(uses, -1),
        ahead=room.counts(uses, -1),
        touched=room.counts(resources),
        is_touched=room.counts(resources),
        seen=room.counts(resources),
        flow_seen=room.counts(units),
        component=room.counts(units),
        counters=room.counts(6),
    )
