"""Turns a program into an answer: folds it, runs it, and reads off what a person wants to know."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from foretrace.basics.arrays import Floats, ranges
from foretrace.basics.collector import collector_paused
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.machine import JOB_MODES, Machine, NetworkMode
from foretrace.cost.prices import Prices
from foretrace.engine.fixed_run import FixedRun
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Kind
from foretrace.program.expand import Ops
from foretrace.program.fold import fold, unfold
from foretrace.program.graph import Graph
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline
from foretrace.readings.answer.answer import Answer, Bottleneck, PeakMemory, Provenance
from foretrace.readings.families import families
from foretrace.readings.jitter import Waits
from foretrace.readings.memory import MemoryTrack, memory_notes, memory_tracks
from foretrace.readings.scenario import Scenario
from foretrace.readings.sensitivity import FASTER, band, band_factors, family_gains, gain, gain_factors
from foretrace.readings.sharing import NetworkUse, network_use
from foretrace.simulation.limits import axis_limits, idle_changes, kernel_limits, moved_limits
from foretrace.simulation.overlap_cost import OverlapCost

Executor = Literal["auto", "fixed", "shared"]

Explain = bool | Literal["band"]

ENDLESS = 1e9
"""The factor by which a resource is widened so that it never holds anything up."""

MIN_REPORTED_OVERLAP = 0.01
"""The share of the step from which on a note reports the cost of overlap."""

ROUNDS = 2
"""How often a job is run to find where its calls start; the cost of the first run moves them a little."""

CLOSE_ENOUGH = 1e-2
"""Share of its own time by which no op differs if a run confirms a cost. A share of the step would be reached sooner in
a step of more microbatches, and equal microbatches would take different times."""

MAX_EXPLAINED = {"fixed": 2_000_000, "shared": 4_000}
"""Beyond this many nodes, running the job again for every family would take longer than a person waits."""

MAX_EVENTS = 100_000
"""Events of a run that did not settle, beyond which the job is not run again either."""


def simulate_program(
    program: Program,
    machine: Machine,
    scenario: Scenario,
    *,
    executor: Executor = "auto",
    folded: bool = True,
    explain: Explain = True,
) -> Answer:
    """Runs a program at the prices it carries and, where it carries none, at those of the machine.

    Args:
        program: What to run.
        machine: What it runs on; a machine without a cluster prices nothing.
        scenario: What is different from normal.
        executor: Whether ops that draw on one resource at once divide it (`shared`), or run as if alone (`fixed`);
            `auto` chooses `shared` where there are such draws.
        folded: Whether ranks that behave identically are run once.
        explain: Whether to find the band and what each family of ops would gain, which takes further runs; "band"
            leaves the families out.
    """
    if executor not in ("auto", "fixed", "shared"):
        raise InputError("unknown-name", f'executor "{executor}" is not known', hint="known: auto, fixed, shared")
    if machine.network not in JOB_MODES:
        problem = f'network "{machine.network}" runs single collectives, not jobs'
        raise InputError("conflicting-options", problem, hint=f"for jobs: {', '.join(JOB_MODES)}")
    if machine.network == "flow" and executor == "fixed":
        problem = "the fixed executor runs each op as if alone"
        raise InputError("conflicting-options", problem, hint="leave it out, or network flow")
    if scenario.steady not in (None, program.repeats):
        program = replace(program, repeats=bool(scenario.steady))
    with collector_paused():
        changed = scenario.machine_for(program, machine)
        priced = changed.price(program)
        ops, cluster = priced.ops, priced.cluster
        shares = bool(priced.prices.draws) if executor == "auto" else executor == "shared"
        runner = _Runner.of(ops, scenario.applied_to(ops, priced.prices), shares, folded, scenario.jitter)
        unchanged, notes = None, priced.notes
        if scenario.changes_times:
            as_is = machine.price(program)
            unchanged = _Runner.of(as_is.ops, as_is.prices, shares, folded).timeline().step_time_s
            notes = (*notes, *idle_changes(scenario, priced, machine))
        used = _network_use(runner, machine.network) if cluster is not None else None
        if used is not None and explain:
            used = replace(used, limits=axis_limits(runner.prices, runner.graph, runner.op_s()))
            if scenario.changes_times:
                before = axis_limits(as_is.prices, runner.graph, runner.op_s())
                notes = (*notes, *moved_limits(before, used.limits, scenario))
        answer = _read_off(runner, scenario, cluster, unchanged, notes, explain, used)
        limits = kernel_limits(changed, priced, runner.graph) if explain else None
        return replace(answer, kernel_limits_s=limits, domains=priced.domains, placement=priced.placement)


def _network_use(runner: _Runner, mode: NetworkMode) -> NetworkUse:
    """Returns how communications shared links; in flow mode the job is run once more with each of them as if alone."""
    if mode == "analytic":
        return NetworkUse(mode, runner.timeline().step_time_s)
    return network_use(runner.alone().timeline(), runner.timeline(), runner.prices.draws)


class _Runner:
    """A graph with its prices, and the executor that runs it.

    `waits_s` is what jitter adds to each node. `overlap_s` is what concurrent communication adds; `durations` include
    it. `events` is what the last run took, where resources are shared.
    """

    def __init__(self, graph: Graph, prices: Prices, shares: bool) -> None:
        self.graph = graph
        self.prices = prices
        self.shares = shares
        self.durations = prices.durations(graph)
        self.waits_s: Floats | None = None
        self.overlap_s = np.zeros(len(graph))
        self.events = 0
        self._settled: Timeline | None = None
        self._alone: _Runner | None = None
        self._fixed = None if shares else FixedRun(graph)

    @classmethod
    def of(cls, ops: Ops, prices: Prices, shares: bool, folded: bool, jitter: float = 0.0) -> _Runner:
        """Returns a program at these prices; if `folded`, ranks that behave identically are run once."""
        if not folded and not jitter:
            return cls(unfold(ops), prices, shares)._overlapped()
        resources = prices.draws.resources if shares else ()
        runner = cls(fold(ops, prices.kinds_of_ranks(shares), resources=resources), prices, shares)._overlapped()
        if jitter:
            runner._jitter(jitter)
        return runner if folded else runner._unfolded()

    def _overlapped(self) -> _Runner:
        """Adds what concurrent ops cost each other. A run tells where calls start that their blocks do not place.

        Where communications share links, it first tries the cost found with every communication as if alone, and keeps
        it if a run with it confirms it.
        """
        overlaps = self.prices.overlaps
        if overlaps is None or not (overlaps.slowdown > 1).any():
            return self
        alone_s = self.durations
        cost = OverlapCost(self.graph, alone_s, overlaps)

        def set_cost(cost_s: Floats) -> None:
            self.durations, self.overlap_s, self._settled = alone_s + cost_s, cost_s, None

        if self._meets:
            set_cost(self.alone().overlap_s)
            if cost.confirms(self.timeline(), self.overlap_s):
                return self
        set_cost(cost.fixed_s)
        for number in range(ROUNDS if self.shares or cost.needs_run else 0):
            run = self.timeline() if self._fixed is None else self._fixed.step(self.durations)
            observed_s = cost.cost_s(run, run.end_s - run.start_s if self.shares else None)
            close = CLOSE_ENOUGH * alone_s if number else 0.0
            if (np.abs(observed_s - self.overlap_s) <= close).all():
                self._settled = run if isinstance(run, Timeline) else run.timeline()
                break
            set_cost(observed_s)
        return self

    @property
    def _meets(self) -> bool:
        """Whether communications draw on what others draw on."""
        draws = self.prices.draws
        return self.shares and bool((self.graph.ops.ints("communicator")[draws.op] >= 0).any())

    def _jitter(self, jitter: float) -> None:
        """Finds what ops wait for the slowest; where resources are shared, ops run as long as without jitter."""
        elapsed = self.durations
        if self.shares:
            timeline = self.timeline()
            elapsed = timeline.end_s - timeline.start_s
        self.waits_s = Waits(self.graph, jitter).of(elapsed, self.durations)
        self._settled = None

    def _unfolded(self) -> _Runner:
        """Returns the same with every rank on its own; ranks of one class wait equally long."""
        whole, graph = _Runner(unfold(self.graph.ops), self.prices, self.shares), self.graph
        node = ranges(graph.start[graph.classes.of_rank], np.diff(whole.graph.start))
        whole.durations, whole.overlap_s = self.durations[node], self.overlap_s[node]
        if self.waits_s is not None:
            whole.waits_s = self.waits_s[node]
        return whole

    def op_s(self) -> Floats:
        """Returns the seconds of each op, over all ranks."""
        weights = self.durations * self.graph.weight
        return np.bincount(self.graph.op, weights=weights, minlength=len(self.graph.ops)).astype(np.float64)

    def timeline(self) -> Timeline:
        """Returns the settled step."""
        if self._settled is None:
            self._settled = self._run()
        return self._settled

    def _run(self) -> Timeline:
        if self._fixed is None:
            return self._shared(self.prices)
        return self._fixed.timeline(self.durations if self.waits_s is None else self.durations + self.waits_s)

    def alone(self) -> _Runner:
        """Returns the same with every communication as if alone; draws of the program itself are divided as before."""
        if self._alone is None:
            kept = self.prices.draws.of_ops(self.graph.ops.ints("communicator") < 0)
            self._alone = _Runner(self.graph, replace(self.prices, draws=kept), bool(kept))._overlapped()
        if self._alone.waits_s is not self.waits_s:
            self._alone.waits_s, self._alone._settled = self.waits_s, None
        return self._alone

    def step_times(self, factors: Floats) -> Floats:
        """Returns the step times of scenarios; `factors` [ops, scenarios] multiplies the price of each op."""
        if not factors.shape[1]:
            return np.empty(0)
        varies = self._waits_factor(factors)
        if self._fixed is None:
            scaled = zip(factors.T, varies.tolist(), strict=True)
            return np.array([self._shared(self.prices.scaled(factor), wait).step_time_s for factor, wait in scaled])
        at_once = self._fixed.scenarios_at_once
        parts = []
        for low in range(0, factors.shape[1], at_once):
            durations = self.durations[:, None] * factors[:, low : low + at_once][self.graph.op]
            if self.waits_s is not None:
                durations += self.waits_s[:, None] * varies[low : low + at_once]
            parts.append(self._fixed.step_times(durations))
        return np.concatenate(parts)

    def _waits_factor(self, factors: Floats) -> Floats:
        """Returns the factor of jitter's waits in each scenario: that of all computation, since computation varies."""
        if self.waits_s is None:
            return np.ones(factors.shape[1])
        op = self.graph.op
        compute_s = np.bincount(op, weights=self.durations * self.graph.weight, minlength=len(factors))
        compute_s *= self.graph.ops.ints("kind") == Kind.COMPUTE
        return np.asarray(compute_s @ factors / max(float(compute_s.sum()), 1e-300))

    def resource_gains(self, step: float) -> list[Bottleneck]:
        """Returns what more of each resource would gain, where resources are shared."""
        gains = []
        for resource in self.prices.draws.resources if self.shares else ():
            wider = self._shared(self.prices.widened(resource.name, FASTER)).step_time_s
            endless = self._shared(self.prices.widened(resource.name, ENDLESS)).step_time_s
            gains.append(Bottleneck(resource.name, None, gain(step, wider), gain(step, endless)))
        return gains

    def _shared(self, prices: Prices, wait: float = 1.0) -> Timeline:
        from foretrace.engine.shared_run import SharedRun  # most jobs do without, and start faster

        latencies, durations = (
            seconds + self.overlap_s for seconds in (prices.latencies(self.graph), prices.durations(self.graph))
        )
        if self.waits_s is not None:
            latencies, durations = latencies + wait * self.waits_s, durations + wait * self.waits_s
        run = SharedRun(self.graph, latencies, prices.draws)
        timeline = run.timeline(durations)
        self.events = run.events
        return timeline


def _read_off(
    runner: _Runner,
    scenario: Scenario,
    cluster: Cluster | None,
    unchanged: float | None,
    network_notes: tuple[Diagnostic, ...],
    explain: Explain,
    network: NetworkUse | None,
) -> Answer:
    timeline, prices, program = runner.timeline(), runner.prices, runner.graph.program
    graph, step = timeline.graph, timeline.step_time_s
    tracks = memory_tracks(timeline)
    notes = [*program.diagnostics, *network_notes, *timeline.diagnostics, *memory_notes(timeline, tracks)]
    kind = "shared" if runner.shares else "fixed"
    certain = bool((prices.low == 1.0).all() and (prices.high == 1.0).all())
    limits: tuple[float, float] | None = (step, step) if certain else None
    gains: tuple[Bottleneck, ...] | None = None
    if scenario.jitter:
        notes.append(_jitter_note(scenario.jitter))
    if prices.draws and not runner.shares:
        notes.append(
            Diagnostic("note", "left-out", "ops of this job share resources; the fixed executor runs each as if alone")
        )
    unsettled = any(note.code == "steps-not-settled" for note in timeline.diagnostics)
    quick = len(graph) <= MAX_EXPLAINED[kind] and not (unsettled and runner.events > MAX_EVENTS)
    if explain and quick:
        limits, gains = _explained(runner, explain)
        gains = None if gains is None else (*gains, *runner.resource_gains(step))
    elif explain and network is not None and network.mode == "flow" and len(graph) <= MAX_EXPLAINED["fixed"]:
        notes.append(
            Diagnostic(
                "note", "left-out", "gains and band are those of communications as if alone: quicker to run again"
            )
        )
        (low, high), gains = _explained(runner.alone(), explain)
        longer = step - network.analytic_step_time_s
        limits = (low + longer, high + longer)
    elif explain:
        notes.append(
            Diagnostic("note", "left-out", f"gains and band left out: {len(graph):,} ops take too long to run again")
        )
    # A dot product would wake BLAS's threads, which then spin for longer than all of this takes.
    overlapped = float((runner.overlap_s * runner.graph.weight).sum()) / max(program.world, 1)
    if overlapped > MIN_REPORTED_OVERLAP * step:
        notes.append(_overlap_note(overlapped / step))
    tokens = program.tokens_per_step
    return Answer(
        title=program.title,
        world_size=program.world,
        mesh=str(program.mesh),
        cluster=cluster,
        executor=kind,
        scenario=scenario,
        unchanged_step_time_s=unchanged,
        step_time_s=step,
        step_time_band_s=limits,
        repeats=program.repeats,
        steps_run=timeline.steps_run,
        tokens_per_s_per_gpu=tokens / step / program.world if tokens and step > 0 else None,
        gains=gains,
        memory_tracks=tuple(tracks),
        peak_memory=_peak(timeline, tracks),
        provenance=tuple(_provenance(prices, runner)),
        diagnostics=tuple(notes),
        timeline=timeline,
        network=network,
        overlap_cost_s=overlapped,
    )


def _explained(runner: _Runner, explain: Explain) -> tuple[tuple[float, float], tuple[Bottleneck, ...] | None]:
    """Returns the band of the step, and what each family of ops would gain, by running the job many times."""
    prices, graph, step = runner.prices, runner.graph, runner.timeline().step_time_s
    if explain == "band":
        return band(step, runner.step_times(band_factors(prices.group, prices.low, prices.high))), None
    known = families(graph.ops)
    ends, faster = band_factors(prices.group, prices.low, prices.high), gain_factors(len(graph.ops), known)
    times = runner.step_times(
        np.concatenate([ends, faster], axis=1)
    )  # many scenarios at once cost little more than few
    unsure = ends.shape[1]
    return band(step, times[:unsure]), family_gains(graph, runner.durations, step, times[unsure:], known)


def _overlap_note(share: float) -> Diagnostic:
    return Diagnostic(
        "note",
        "overlap-cost",
        f"collectives hold SMs and take memory bandwidth from kernels next to them: {100 * share:.1f} % of the step "
        "(--no-overlap-cost leaves that out)",
    )


def _jitter_note(jitter: float) -> Diagnostic:
    return Diagnostic(
        "note",
        "jitter",
        f"every computation varies by {100 * jitter:g} % (one standard deviation), each by itself; the wait for the "
        "slowest is its expectation, worked out for normal arrivals, and counts with the op that waits (exposed)",
    )


def _peak(timeline: Timeline, tracks: list[MemoryTrack]) -> PeakMemory | None:
    if not tracks:
        return None
    worst = max(tracks, key=lambda track: track.peak_bytes)
    classes = timeline.graph.classes
    rank = int(classes.representative[worst.rank_class])
    role = timeline.graph.program.roles[int(timeline.graph.program.role_of[rank])]
    return PeakMemory(worst.peak_bytes, rank, role, worst.at_peak())


def _provenance(prices: Prices, runner: _Runner) -> list[Provenance]:
    time = prices.seconds_by_source(runner.op_s())
    total = float(time.sum())
    return [
        Provenance(source.name, float(seconds) / total if total else 0.0, source.low, source.high)
        for source, seconds in zip(prices.sources, time.tolist(), strict=True)
        if seconds > 0 or total == 0
    ]
