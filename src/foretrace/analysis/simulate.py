"""From a program to an answer: fold, run, and read off what a person wants to know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.answer import Bottleneck, PeakMemory, Provenance, Simulation
from foretrace.analysis.families import families
from foretrace.analysis.memory import MemoryTrack, memory_notes, memory_tracks
from foretrace.analysis.scenario import Scenario
from foretrace.analysis.sensitivity import FASTER, band, gain, sensitivities
from foretrace.cost.network import network_of
from foretrace.cost.price import price
from foretrace.cost.prices import Prices
from foretrace.engine.run import FixedRun
from foretrace.errors import Diagnostic, InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.placement import Placement
from foretrace.program.collector import collector_paused
from foretrace.program.expand import Ops, expand
from foretrace.program.fold import fold, unfold
from foretrace.program.graph import Graph
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline

Floats = NDArray[np.float64]
Executor = Literal["auto", "fixed", "shared"]

ENDLESS = 1e9
"""So much of a resource that it never holds anything up."""

MOST_EXPLAINED = {"fixed": 2_000_000, "shared": 4_000}
"""Beyond this many nodes, running the job again for every family would take longer than a person waits."""


def simulate(
    program: Program,
    *,
    cluster: Cluster | str | Path | None = None,
    placement: Placement | None = None,
    what_if: Mapping[str, float] | None = None,
    stragglers: Mapping[int, float] | None = None,
    slow_links: Mapping[tuple[int, str], float] | None = None,
    executor: Executor = "auto",
    folded: bool = True,
    explain: bool = True,
) -> Simulation:
    """Runs a program: at the prices it carries, and where it carries none, at those of a cluster's network.

    `cluster` is a preset's name, a file or a `Cluster`; ranks fill its nodes in order unless a `placement` says
    otherwise. `what_if` makes families of ops or resources so many times as fast (`{"compute": 1.1, "name:attention*":
    2}`); `stragglers` makes ranks compute so many times as slowly (`{5: 1.2}`); `slow_links` does so to what a rank
    communicates over an axis, with whom it may be (`{(5, "dp"): 2}`). `executor` says whether ops that draw on one
    resource at once divide it (`shared`, chosen by itself where the program has such draws) or not (`fixed`).
    `explain=False` leaves out what takes further runs: the gains and the band.
    """
    if executor not in ("auto", "fixed", "shared"):
        raise InputError(f'executor "{executor}" is not known', hint="known: auto, fixed, shared")
    with collector_paused():
        ops = expand(program)
        if cluster is not None and not isinstance(cluster, Cluster):
            cluster = load_cluster(str(cluster))
        if cluster is None and placement is not None:
            raise InputError("a placement says where ranks sit on a cluster, but there is none", hint="name a cluster")
        network = None if cluster is None else network_of(cluster, program.world, placement)
        as_is = price(ops, network)
        if network is not None and not set(network.sources) & set(as_is.sources):
            cluster = None  # the job carries all its prices
        scenario = Scenario(dict(what_if or {}), dict(stragglers or {}), dict(slow_links or {}))
        shares = bool(as_is.draws) if executor == "auto" else executor == "shared"
        runner = _Runner.of(ops, scenario.applied_to(ops, as_is), shares, folded)
        unchanged = _Runner.of(ops, as_is, shares, folded).timeline().step_time_s if scenario else None
        return _read_off(runner, scenario, cluster, unchanged, explain)


class _Runner:
    """A graph with its prices, run by whichever executor fits."""

    def __init__(self, graph: Graph, prices: Prices, shares: bool) -> None:
        self.graph = graph
        self.prices = prices
        self.shares = shares
        self.durations = prices.durations(graph)
        self._fixed = None if shares else FixedRun(graph)

    @classmethod
    def of(cls, ops: Ops, prices: Prices, shares: bool, folded: bool) -> _Runner:
        """The program at these prices, with ranks that behave alike folded or not."""
        return cls(fold(ops, prices.profile_of, sharing=shares) if folded else unfold(ops), prices, shares)

    def timeline(self) -> Timeline:
        """The settled step."""
        return self._shared(self.prices) if self._fixed is None else self._fixed.timeline(self.durations)

    def step_times(self, factors: Floats) -> Floats:
        """The step times of scenarios, in which each op's price is multiplied by a factor: [ops, scenarios]."""
        if self._fixed is None:
            return np.array([self._shared(self.prices.scaled(factor)).step_time_s for factor in factors.T])
        at_once = self._fixed.scenarios_at_once
        parts = [
            self._fixed.step_times(self.durations[:, None] * factors[:, low : low + at_once][self.graph.op])
            for low in range(0, factors.shape[1], at_once)
        ]
        return np.concatenate(parts)

    def resource_gains(self, step: float) -> list[Bottleneck]:
        """What more of each resource would gain, where resources are shared."""
        gains = []
        for resource in self.prices.draws.resources if self.shares else ():
            wider = self._shared(self.prices.widened(resource.name, FASTER)).step_time_s
            endless = self._shared(self.prices.widened(resource.name, ENDLESS)).step_time_s
            gains.append(Bottleneck(resource.name, None, gain(step, wider), gain(step, endless)))
        return gains

    def _shared(self, prices: Prices) -> Timeline:
        from foretrace.engine.shared_run import SharedRun  # most jobs do without, and start faster

        run = SharedRun(self.graph, prices.latencies(self.graph), prices.draws)
        return run.timeline(prices.durations(self.graph))


def _read_off(
    runner: _Runner, scenario: Scenario, cluster: Cluster | None, unchanged: float | None, explain: bool
) -> Simulation:
    timeline, prices, program = runner.timeline(), runner.prices, runner.graph.program
    graph, step = timeline.graph, timeline.step_time_s
    tracks = memory_tracks(timeline)
    notes = [*program.diagnostics, *timeline.diagnostics, *memory_notes(timeline, tracks)]
    kind = "shared" if runner.shares else "fixed"
    certain = all(one.low == 1.0 == one.high for one in prices.sources)
    limits: tuple[float, float] | None = (step, step) if certain else None
    gains: tuple[Bottleneck, ...] | None = None
    if prices.draws and not runner.shares:
        notes.append(Diagnostic("note", "ops of this job share resources; the fixed executor runs each as if alone"))
    if explain and len(graph) > MOST_EXPLAINED[kind]:
        notes.append(Diagnostic("note", f"gains and band left out: {len(graph):,} ops take too long to run again"))
    elif explain:
        bands = [(one.low, one.high) for one in prices.sources]
        limits = band(prices.source, bands, step, runner.step_times)
        found = sensitivities(graph, runner.durations, step, runner.step_times, families(graph.ops))
        gains = (*found, *runner.resource_gains(step))
    tokens = program.tokens_per_step
    return Simulation(
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
        memory=tuple(tracks),
        peak_memory=_peak(timeline, tracks),
        provenance=tuple(_provenance(prices, runner)),
        diagnostics=tuple(notes),
        timeline=timeline,
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
    graph = runner.graph
    time = np.bincount(prices.source[graph.op], weights=runner.durations * graph.weight, minlength=len(prices.sources))
    total = float(time.sum())
    return [
        Provenance(source.name, float(seconds) / total if total else 0.0, source.low, source.high)
        for source, seconds in zip(prices.sources, time.tolist(), strict=True)
        if seconds > 0 or total == 0
    ]
