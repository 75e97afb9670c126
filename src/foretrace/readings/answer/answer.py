"""The answer to a question about a job, as one object; screens, JSON and files are readings of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace.basics.arguments import checked_methods
from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.origin import Origin
from foretrace.basics.placement import Placement
from foretrace.basics.viewable import Viewable
from foretrace.cost.network.domains import DomainUse
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Phase
from foretrace.program.timeline import Timeline
from foretrace.readings.breakdown import IMBALANCE, STRAGGLER, Breakdown, Stretches
from foretrace.readings.breakdown import breakdown as find_breakdown
from foretrace.readings.breakdown import stretches as find_stretches
from foretrace.readings.chain import Chain
from foretrace.readings.critical_path import CriticalPath
from foretrace.readings.critical_path import critical_path as find_critical_path
from foretrace.readings.lanes import LaneUse, lane_use
from foretrace.readings.memory import MemoryTrack
from foretrace.readings.scenario import Scenario
from foretrace.readings.sharing import NetworkUse

if TYPE_CHECKING:
    from foretrace.readings.answer.memory_fit import MemoryFit
    from foretrace.readings.answer.model_figures import ModelFigures, StepParts


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Something that takes time: how much per rank (None for a resource), and how much shorter the step is with it
    10 % faster (None where that means nothing), and with it gone."""

    name: str
    busy_s: float | None
    gain_10_percent_s: float | None
    gain_if_free_s: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that was simulated.

    Attributes:
        option: The option that makes it, as a command line has it: `--vpp 5`, `--what-if nic=2x`.
        before_s: The step without it.
        after_s: The step with it.
        microbatches: How many times the microbatches the step then has.
        part: The part of the breakdown that it shortens most: `bubble`, `tp exposed`, …
        part_before_s: That part of a step without it, on average over ranks.
        part_after_s: The same with it.
        memory_bytes: By how much more a GPU holds at its peak; None where the job does not state memory.
        why: The problem that it remedies, in words, where the part does not say that.
    """

    option: str
    before_s: float
    after_s: float
    microbatches: float = 1.0
    part: str = ""
    part_before_s: float = 0.0
    part_after_s: float = 0.0
    memory_bytes: int | None = None
    why: str = ""

    @property
    def change(self) -> float:
        """By which share a microbatch takes longer (below zero: less long)."""
        return self.after_s / self.microbatches / self.before_s - 1 if self.before_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most memory any rank holds, and what for."""

    bytes: int
    rank: int
    role: str
    by_category: dict[str, int]


@dataclass(frozen=True, slots=True)
class Provenance:
    """A source of prices, the share of all op time that it priced, and its band as factors."""

    source: str
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BandPart:
    """A reason why a step may take longer or shorter than predicted, and the ends of its own band as factors."""

    name: str
    low: float
    high: float


@checked_methods
@dataclass(
    frozen=True, repr=False, eq=False
)  # without slots: what takes long to read off is read off when it is asked for
class Answer(Viewable):
    """The answer to a simulation or a prediction.

    `step_time_s` is the steady period where the job `repeats`, otherwise the makespan of the one step there is. Where
    the scenario or the options change the job, `unchanged_step_time_s` is what it takes without. The band is None where
    it was not worked out.
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
    """The gain of each family of ops and each resource; None where it was not worked out."""
    memory_tracks: tuple[MemoryTrack, ...]
    peak_memory: PeakMemory | None
    provenance: tuple[Provenance, ...]
    diagnostics: tuple[Diagnostic, ...]
    timeline: Timeline
    network: NetworkUse | None = None
    """How communications shared links; None where the job carries the prices of all of them."""
    domains: DomainUse | None = None
    """The link domains that ranks were placed on, where a domain reaches over nodes and no placement was given."""
    placement: Placement | None = None
    """Where each rank sits, where a placement was given; None: as `place_job` places the ranks."""
    origin: Origin | None = None
    """The origin of a saved answer; None for an answer that this process made."""
    step_time_unprofiled_s: float | None = None
    """The step of a profiler trace without what profiling cost its host."""
    step_time_unprofiled_band_s: tuple[float, float] | None = None
    unchanged_step_time_unprofiled_s: float | None = None
    """The same without the changes of the scenario; None where there are none."""
    kernel_limits_s: Mapping[str, float] | None = None
    """Seconds of a rank by what limits its kernels: `flops`, `hbm`, or neither (`fixed`); None where it was not worked
    out."""
    remedies: tuple[Remedy, ...] | None = None
    """The step under each change that a person can make; None where they were not tried."""
    overlap_cost_s: float = 0.0
    """By how much longer a rank computes, on average, for collectives that run at the same time."""
    changes: tuple[str, ...] = ()
    """How the job was built otherwise than it was recorded, in words."""
    model: ModelFigures | None = None
    """Figures of a model's step beyond its timeline; None for inputs that are not a model."""
    band_parts: tuple[BandPart, ...] = ()
    """The parts of the band of a model's step, the largest first: the squares of their logarithms add up. The part
    `a warning` widens the band of an answer with a warning to 15 %. Empty for other inputs, whose bands are those of
    their prices."""

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of every rank goes."""
        late = STRAGGLER if self.scenario.stragglers or self.timeline.recorded else IMBALANCE
        return find_breakdown(self.timeline, self._chain, late)

    def stretches(self, classes: tuple[int, ...]) -> Stretches:
        """Returns when each of some rank classes was in which part of the breakdown."""
        if not classes:
            raise InputError("missing-argument", "no rank classes are named", where="stretches")
        return find_stretches(self.timeline, classes, self._chain)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The ops that make the step as long as it is."""
        return find_critical_path(self._chain)

    @cached_property
    def until_optimizer_s(self) -> float | None:
        """When the last rank begins to update its parameters, from when the first device begins the step.

        Its gradients are reduced by then. None where no op is an optimizer's.
        """
        timeline = self.timeline
        graph = timeline.graph
        updates = np.flatnonzero(timeline.on_device & (graph.ops.ints("phase")[graph.op] == Phase.OPTIMIZER))
        if not len(updates):
            return None
        first = np.full(len(graph.classes), -np.inf)
        # Going backwards, the first update of each class is written last.
        first[graph.rank_class[updates[::-1]]] = timeline.start_s[updates[::-1]]
        return float(first.max()) - timeline.device_begins_s

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
        return tuple(sorted((*self.gains, *lost), key=lambda gain: -gain.gain_if_free_s))

    @cached_property
    def parts(self) -> StepParts:
        """How long the forward, the backward after it and the optimizer after that take."""
        from foretrace.readings.answer.model_figures import step_parts

        return step_parts(self.timeline)

    @property
    def memory(self) -> MemoryFit | None:
        """The memory that every stage holds, next to what a GPU has; None for inputs that are not a model."""
        return None if self.model is None else self.model.memory

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the model's FLOPs over what the GPUs could do at their dense peak."""
        return None if self.model is None else self.model.mfu(self.step_time_s)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation: the same with everything that is computed, recomputation included."""
        return None if self.model is None else self.model.hfu(self.step_time_s)

    @cached_property
    def _chain(self) -> Chain:
        return Chain(self.timeline)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.6g}" for name, seconds in self.breakdown.mean_s.items())
        return f"<Answer: step {self.step_time_s:.6g} s on {self.world_size:,} ranks; seconds by part: {parts}>"

    def describe_changes(self) -> list[str]:
        """Returns what is different from the job as it was given, in words."""
        return [*self.changes, *self.scenario.describe()]

    def memory_by_rank(self) -> dict[int, tuple[Floats, dict[str, Longs]]]:
        """Returns the memory of every rank over the step: moments, and bytes by category from each on."""
        of_rank = self.timeline.graph.classes.of_rank
        tracks = [(track.time_s, track.by_category()) for track in self.memory_tracks]
        return {rank: tracks[number] for rank, number in enumerate(of_rank.tolist())} if tracks else {}

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole answer as plain values, SI units, keys as in `--json` (docs/json.md)."""
        from foretrace.readings.answer.answer_record import answer_dict  # runs seldom ask for it

        return answer_dict(self)

    def save(self, path: str | Path) -> None:
        """Writes the answer with its timeline and its origin to a file that `foretrace.open` reads."""
        from foretrace.readings.answer.answer_file import save_answer

        save_answer(self, path)
