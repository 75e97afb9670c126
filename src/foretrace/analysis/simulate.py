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
from foretrace.analysis.sensitivity import band, sensitivities
from foretrace.cost.prices import Prices, as_written
from foretrace.engine.run import FixedRun
from foretrace.engine.shared_run import SharedRun
from foretrace.errors import Diagnostic, InputError
from foretrace.program.expand import Ops, expand
from foretrace.program.fold import fold, unfold
from foretrace.program.graph import Graph
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline

Floats = NDArray[np.float64]
Executor = Literal["auto", "fixed", "shared"]

MOST_SHARED_NODES = 20_000
"""Beyond this, running a shared program again for every family would take longer than a person waits."""


def simulate(
    program: Program,
    *,
    what_if: Mapping[str, float] | None = None,
    stragglers: Mapping[int, float] | None = None,
    executor: Executor = "auto",
    folded: bool = True,
    explain: bool = True,
) -> Simulation:
    """Runs a program at the prices it carries.

    `what_if` makes families of ops or resources so many times as fast (`{"compute": 1.1, "name:attention*": 2}`);
    `stragglers` makes ranks so many times as slow. `executor` says whether ops that draw on one resource at once divide
    it (`shared`, chosen by itself where the program has such draws) or not (`fixed`). `explain=False` leaves out what
    takes further runs: the gains and the band.
    """
    ops = expand(program)
    prices = changed(ops, as_written(ops), what_if or {}, stragglers or {})
    shares = bool(prices.draws) if executor == "auto" else executor == "shared"
    graph = fold(ops, prices.profile_of, sharing=shares) if folded else unfold(ops)
    runner = _Runner(graph, prices, shares)
    timeline = runner.timeline()
    return _read_off(program, prices, runner, timeline, explain)


def changed(ops: Ops, prices: Prices, what_if: Mapping[str, float], stragglers: Mapping[int, float]) -> Prices:
    """Prices with what-ifs and stragglers applied."""
    resources = {resource.name for resource in ops.program.resources}
    for text, factor in what_if.items():
        _positive(text, factor)
        prices = (
            prices.widened(text, factor)
            if text in resources
            else prices.scaled(np.where(select(ops, text), 1 / factor, 1.0))
        )
    for rank, factor in stragglers.items():
        _positive(f"rank {rank}", factor)
        prices = prices.slowed([rank], factor)
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
        if self._fixed is not None:
            return self._fixed.step_times(self.durations[:, None] * factors[self.graph.op])
        return np.array([self._shared(self.prices.scaled(factor)).step_time_s for factor in factors.T])

    def _shared(self, prices: Prices) -> Timeline:
        run = SharedRun(self.graph, prices.latencies(self.graph), prices.draws)
        return run.timeline(prices.durations(self.graph))


def _read_off(program: Program, prices: Prices, runner: _Runner, timeline: Timeline, explain: bool) -> Simulation:
    graph, step = timeline.graph, timeline.step_time_s
    chain = Chain(timeline)
    parts = breakdown(timeline, chain)
    tracks = memory_tracks(timeline)
    notes = [*timeline.diagnostics, *growth_notes(timeline, tracks)]
    explained = explain
    if explain and runner.shares and len(graph) > MOST_SHARED_NODES:
        explained = False
        notes.append(
            Diagnostic(
                "note", f"gains and band left out: {len(graph):,} ops that share resources take too long to rerun"
            )
        )
    limits, bottlenecks = (step, step), []
    if explained:
        bands = [(one.low, one.high) for one in prices.sources]
        limits = band(prices.source, bands, step, runner.step_times)
        bottlenecks = _bottlenecks(runner, step, parts.mean_s)
    tokens = program.tokens_per_step
    return Simulation(
        title=program.title,
        world_size=program.world,
        mesh=str(program.mesh),
        executor="shared" if runner.shares else "fixed",
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
