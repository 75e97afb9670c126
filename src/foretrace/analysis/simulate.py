"""From a program to an answer: fold, run, and read off what a person wants to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.answer import Bottleneck, PeakMemory, Provenance, Simulation
from foretrace.analysis.breakdown import breakdown
from foretrace.analysis.chain import Chain
from foretrace.analysis.critical import critical_path
from foretrace.analysis.families import families, select
from foretrace.analysis.lanes import lane_use
from foretrace.analysis.memory import MemoryTrack, growth_notes, memory_tracks
from foretrace.analysis.sensitivity import FASTER, band, sensitivities
from foretrace.cost.prices import Prices, as_written
from foretrace.engine.run import FixedRun
from foretrace.engine.shared_run import SharedRun
from foretrace.errors import Diagnostic, InputError
from foretrace.program.columns import Kind
from foretrace.program.expand import Ops, expand
from foretrace.program.fold import fold, unfold
from foretrace.program.graph import Graph
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline

Floats = NDArray[np.float64]
Executor = Literal["auto", "fixed", "shared"]

ENDLESS = 1e9
"""So much of a resource that it never holds anything up."""

MOST_EXPLAINED = {"fixed": 2_000_000, "shared": 20_000}
"""Beyond this many nodes, running the job again for every family would take longer than a person waits."""


def simulate(
    program: Program,
    *,
    what_if: Mapping[str, float] | None = None,
    stragglers: Mapping[int, float] | None = None,
    slow_links: Mapping[tuple[int, str], float] | None = None,
    executor: Executor = "auto",
    folded: bool = True,
    explain: bool = True,
) -> Simulation:
    """Runs a program at the prices it carries.

    `what_if` makes families of ops or resources so many times as fast (`{"compute": 1.1, "name:attention*": 2}`);
    `stragglers` makes ranks compute so many times as slowly (`{5: 1.2}`); `slow_links` does so to what a rank
    communicates over an axis, with whom it may be (`{(5, "dp"): 2}`). `executor` says whether ops that draw on one
    resource at once divide it (`shared`, chosen by itself where the program has such draws) or not (`fixed`).
    `explain=False` leaves out what takes further runs: the gains and the band.
    """
    ops = expand(program)
    prices = changed(ops, as_written(ops), what_if or {}, stragglers or {}, slow_links or {})
    shares = bool(prices.draws) if executor == "auto" else executor == "shared"
    graph = fold(ops, prices.profile_of, sharing=shares) if folded else unfold(ops)
    runner = _Runner(graph, prices, shares)
    timeline = runner.timeline()
    return _read_off(program, prices, runner, timeline, explain)


def changed(
    ops: Ops,
    prices: Prices,
    what_if: Mapping[str, float],
    stragglers: Mapping[int, float],
    slow_links: Mapping[tuple[int, str], float],
) -> Prices:
    """Prices with what-ifs, stragglers and slow links applied."""
    resources = {resource.name for resource in ops.program.resources}
    for text, factor in what_if.items():
        _positive(text, factor)
        if text in resources:
            prices = prices.widened(text, factor)
        else:
            prices = prices.scaled(np.where(select(ops, text), 1 / factor, 1.0))
    for rank, factor in stragglers.items():
        _positive(f"rank {rank}", factor)
        prices = prices.slowed([rank], factor, ops.ints("kind") == Kind.COMPUTE)
    for (rank, axis), factor in slow_links.items():
        _positive(f"rank {rank} {axis}", factor)
        prices = _slow_link(ops, prices, rank, select(ops, axis), factor)
    return prices


def _slow_link(ops: Ops, prices: Prices, rank: int, chosen: NDArray[np.bool_], factor: float) -> Prices:
    """Slows the chosen communication of a rank, for all who take part in it: members of a group end together."""
    program, communicator = ops.program, ops.ints("communicator")
    if not 0 <= rank < program.world:
        raise InputError(f"there is no rank {rank}; the job has ranks 0 to {program.world - 1}")
    for number in np.unique(communicator[chosen & (communicator >= 0)]):
        group = program.communicators[number].group_of(program.mesh, program.world)
        if group[rank] >= 0:
            partners = np.flatnonzero(group == group[rank]).tolist()
            prices = prices.slowed(partners, factor, chosen & (communicator == number))
    return prices


def _positive(text: str, factor: float) -> None:
    if not (np.isfinite(factor) and factor > 0):
        raise InputError(f'"{text}" cannot be {factor:g} times as fast or slow; factors are above zero')


class _Runner:
    """A graph with its prices, run by whichever executor fits."""

    def __init__(self, graph: Graph, prices: Prices, shares: bool) -> None:
        self.graph = graph
        self.prices = prices
        self.shares = shares
        self.durations = prices.durations(graph)
        self._fixed = None if shares else FixedRun(graph)

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
            gains.append(Bottleneck(resource.name, None, max(step - wider, 0.0), max(step - endless, 0.0)))
        return gains

    def _shared(self, prices: Prices) -> Timeline:
        run = SharedRun(self.graph, prices.latencies(self.graph), prices.draws)
        return run.timeline(prices.durations(self.graph))


def _read_off(program: Program, prices: Prices, runner: _Runner, timeline: Timeline, explain: bool) -> Simulation:
    graph, step = timeline.graph, timeline.step_time_s
    chain = Chain(timeline)
    parts = breakdown(timeline, chain)
    tracks = memory_tracks(timeline)
    notes = [*timeline.diagnostics, *growth_notes(timeline, tracks)]
    kind = "shared" if runner.shares else "fixed"
    limits: tuple[float, float] = (step, step)
    bottlenecks: list[Bottleneck] = []
    if explain and len(graph) > MOST_EXPLAINED[kind]:
        notes.append(Diagnostic("note", f"gains and band left out: {len(graph):,} ops take too long to run again"))
    elif explain:
        bands = [(one.low, one.high) for one in prices.sources]
        limits = band(prices.source, bands, step, runner.step_times)
        bottlenecks = _bottlenecks(runner, step, parts.mean_s)
    tokens = program.tokens_per_step
    return Simulation(
        title=program.title,
        world_size=program.world,
        mesh=str(program.mesh),
        executor=kind,
        step_time_s=step,
        step_time_band_s=limits,
        repeats=program.repeats,
        steps_run=timeline.steps_run,
        tokens_per_s_per_gpu=tokens / step / program.world if tokens and step > 0 else None,
        breakdown=parts,
        critical_path=critical_path(chain),
        bottlenecks=tuple(bottlenecks),
        lanes=tuple(lane_use(timeline)),
        memory=tuple(tracks),
        peak_memory=_peak(timeline, tracks),
        provenance=tuple(_provenance(prices, runner)),
        diagnostics=tuple(notes),
        timeline=timeline,
    )


def _bottlenecks(runner: _Runner, step: float, parts: dict[str, float]) -> list[Bottleneck]:
    found = sensitivities(runner.graph, runner.durations, step, runner.step_times, families(runner.graph.ops))
    gains = [Bottleneck(one.family, one.busy_s, one.gain_10_percent_s, one.gain_if_free_s) for one in found]
    gains += runner.resource_gains(step)
    if "bubble" in parts:
        gains.append(Bottleneck("bubble", parts["bubble"], None, parts["bubble"]))
    return sorted(gains, key=lambda one: -one.gain_if_free_s)


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
