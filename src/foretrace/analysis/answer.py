"""What every answer contains, as one object; screens, JSON and files are readings of it."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.analysis.breakdown import Breakdown
from foretrace.analysis.critical import CriticalPath
from foretrace.analysis.lanes import LaneUse
from foretrace.analysis.memory import Floats, Longs, MemoryTrack
from foretrace.analysis.scenario import Scenario
from foretrace.errors import Diagnostic
from foretrace.hardware.cluster import Cluster
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


@dataclass(frozen=True, slots=True, repr=False)
class Simulation:
    """The answer to a simulation.

    `step_time_s` is the steady period where the job `repeats`, otherwise the makespan of the one step recorded. Where a
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
    breakdown: Breakdown
    critical_path: CriticalPath
    bottlenecks: tuple[Bottleneck, ...]
    lanes: tuple[LaneUse, ...]
    memory: tuple[MemoryTrack, ...]
    peak_memory: PeakMemory | None
    provenance: tuple[Provenance, ...]
    diagnostics: tuple[Diagnostic, ...]
    timeline: Timeline

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.6g}" for name, seconds in self.breakdown.mean_s.items())
        return f"<Simulation: step {self.step_time_s:.6g} s on {self.world_size:,} ranks; seconds by part: {parts}>"

    def memory_by_rank(self) -> dict[int, tuple[Floats, dict[str, Longs]]]:
        """The memory of every rank over the step: moments, and bytes by category from each on."""
        of_rank = self.timeline.graph.classes.of_rank
        tracks = [(track.time_s, track.by_category()) for track in self.memory]
        return {rank: tracks[number] for rank, number in enumerate(of_rank.tolist())} if tracks else {}
