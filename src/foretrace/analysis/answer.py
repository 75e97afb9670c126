"""What every answer contains, as one object; screens, JSON and files are readings of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foretrace.analysis.breakdown import Breakdown
from foretrace.analysis.breakdown import breakdown as find_breakdown
from foretrace.analysis.chain import Chain
from foretrace.analysis.critical import CriticalPath
from foretrace.analysis.critical import critical_path as find_critical_path
from foretrace.analysis.lanes import LaneUse, lane_use
from foretrace.analysis.memory import Floats, Longs, MemoryTrack
from foretrace.analysis.scenario import Scenario
from foretrace.analysis.sharing import NetworkUse
from foretrace.errors import Diagnostic
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Phase
from foretrace.program.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Something that takes time: how much per rank (None for a resource), and how much shorter the step is with it
    10 % faster (None where that means nothing), and with it gone."""

    name: str
    busy_s: float | None
    gain_10_percent_s: float | None
    gain_if_free_s: float


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most memory any rank holds, and what for."""

    bytes: int
    rank: int
    role: str
    by_category: dict[str, int]


@dataclass(frozen=True, slots=True)
class Provenance:
    """A source of prices, the share of all op time that rests on it, and its band as factors."""

    source: str
    share: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)  # without slots: what takes long to read off is read off when it is asked for
class Simulation:
    """The answer to a simulation.

    `step_time_s` is the steady period where the job `repeats`, otherwise the makespan of the one step there is. Where a
    scenario changes the job, `unchanged_step_time_s` is what it takes without. The band is None where it was not
    worked out.
    """

    title: str
    world_size: int
    mesh: str
    cluster: Cluster | None
    executor: str
    scenario: Scenario
    unchanged_step_time_s: float | None
    step_time_s: float
    step_time_band_s: tuple[float, float] | None
    repeats: bool
    steps_run: int
    tokens_per_s_per_gpu: float | None
    gains: tuple[Bottleneck, ...] | None
    """What each family of ops and each resource would gain; None where it was not worked out."""
    memory: tuple[MemoryTrack, ...]
    peak_memory: PeakMemory | None
    provenance: tuple[Provenance, ...]
    diagnostics: tuple[Diagnostic, ...]
    timeline: Timeline
    network: NetworkUse | None = None
    """How communications shared links; None where the job carries the prices of all of them."""
    step_time_unprofiled_s: float | None = None
    """Of a profiler's trace: what the step takes without what profiling cost its host."""
    step_time_unprofiled_band_s: tuple[float, float] | None = None
    unchanged_step_time_unprofiled_s: float | None = None
    """The same without the changes of the scenario; None where there are none."""
    overlap_cost_s: float = 0.0
    """By how much longer a rank computes, on average, for collectives that run at the same time."""

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of every rank goes."""
        return find_breakdown(self.timeline, self._chain)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The ops that make the step as long as it is."""
        return find_critical_path(self._chain)

    @cached_property
    def until_optimizer_s(self) -> float | None:
        """When the last rank begins to update its parameters: its gradients are reduced by then. None where no op is an
        optimizer's."""
        timeline = self.timeline
        graph = timeline.graph
        updates = np.flatnonzero(graph.ops.ints("phase")[graph.op] == Phase.OPTIMIZER)
        if not len(updates):
            return None
        first = np.full(len(graph.classes), -np.inf)
        # Going backwards, the first update of each class is written last.
        first[graph.rank_class[updates[::-1]]] = timeline.start_s[updates[::-1]]
        return float(first.max())

    @cached_property
    def lanes(self) -> tuple[LaneUse, ...]:
        """How busy each lane is."""
        return tuple(lane_use(self.timeline))

    @cached_property
    def bottlenecks(self) -> tuple[Bottleneck, ...]:
        """The gains and the bubble, the largest first; nothing where gains were not worked out."""
        if self.gains is None:
            return ()
        bubble = self.breakdown.mean_s.get("bubble")
        lost = () if bubble is None else (Bottleneck("bubble", bubble, None, bubble),)
        return tuple(sorted((*self.gains, *lost), key=lambda one: -one.gain_if_free_s))

    @cached_property
    def _chain(self) -> Chain:
        return Chain(self.timeline)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.6g}" for name, seconds in self.breakdown.mean_s.items())
        return f"<Simulation: step {self.step_time_s:.6g} s on {self.world_size:,} ranks; seconds by part: {parts}>"

    def memory_by_rank(self) -> dict[int, tuple[Floats, dict[str, Longs]]]:
        """The memory of every rank over the step: moments, and bytes by category from each on."""
        of_rank = self.timeline.graph.classes.of_rank
        tracks = [(track.time_s, track.by_category()) for track in self.memory]
        return {rank: tracks[number] for rank, number in enumerate(of_rank.tolist())} if tracks else {}
