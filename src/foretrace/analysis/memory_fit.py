"""Whether a job fits into the memory of its GPUs, by stage, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from foretrace.errors import ForetraceError

if TYPE_CHECKING:
    from foretrace.analysis.answer import Simulation
    from foretrace.analysis.memory import MemoryTrack
    from foretrace.hardware.cluster import Cluster
    from foretrace.workload.plan import Plan
    from foretrace.workload.setting import Setting

OVERHEAD_BYTES: Final = 3 << 29
"""What a training process holds outside the framework's allocator: the CUDA context with its loaded kernels (about half
a GiB on recent GPUs) and NCCL's buffers (some MiB per channel, peer and communicator); 1.5 GiB is usual."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What ranks of one role hold: most at any moment, and of what kind at that moment, in bytes."""

    role: str
    ranks: int
    peak_bytes: int
    by_category: dict[str, int]
    track: MemoryTrack


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of a job beside that of its GPUs. `peak_bytes` is what is allocated on the worst rank; context and
    communication buffers come on top."""

    stages: tuple[StageMemory, ...]
    capacity_bytes: int
    overhead_bytes: int = OVERHEAD_BYTES

    @property
    def worst(self) -> StageMemory | None:
        """The stage that holds most; None where the program says nothing of memory."""
        return max(self.stages, key=lambda stage: stage.peak_bytes, default=None)

    @property
    def peak_bytes(self) -> int:
        """The most that any rank allocates."""
        return 0 if self.worst is None else self.worst.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the worst rank's allocations and what every process needs besides fit."""
        return self.peak_bytes + self.overhead_bytes <= self.capacity_bytes


def memory_fit(simulation: Simulation, cluster: Cluster) -> MemoryFit:
    """The memory of a simulated job, one entry per role in the program's order: its worst class of ranks."""
    graph = simulation.timeline.graph
    program, classes = graph.program, graph.classes
    worst: dict[str, MemoryTrack] = {}
    ranks: dict[str, int] = {}
    for track in simulation.memory:
        role = program.roles[int(program.role_of[int(classes.representative[track.rank_class])])]
        ranks[role] = ranks.get(role, 0) + int(classes.count[track.rank_class])
        if role not in worst or track.peak_bytes > worst[role].peak_bytes:
            worst[role] = track
    stages = tuple(
        StageMemory(role, ranks[role], track.peak_bytes, track.at_peak(), track) for role, track in worst.items()
    )
    return MemoryFit(stages, int(cluster.gpu.memory_bytes))


@dataclass(frozen=True, slots=True)
class Relief:
    """A change of the plan in words, and the peak it would have."""

    words: str
    plan: Plan
    peak_bytes: int


def relief(setting: Setting, cluster: Cluster, measure: Callable[[Plan], MemoryFit]) -> Relief | None:
    """The first change of a short list that makes the job fit; None where none does. `measure` finds a plan's memory;
    plans that make no sense are left out."""
    for words, plan in _changes(setting, cluster):
        try:
            found = measure(plan)
        except ForetraceError:
            continue
        if found.fits:
            return Relief(words, plan, found.peak_bytes)
    return None


def _changes(setting: Setting, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """Changes, what costs least time first: state split further, smaller microbatches, recomputation, more model
    parallelism; then the last two together."""
    plan = replace(setting.plan, gbs=setting.gbs, seq_len=setting.seq_len)
    if setting.zero == 0 and setting.dp > 1:
        yield "--zero 1", replace(plan, zero=1)
    if plan.mbs > 1:
        yield f"--mbs {plan.mbs // 2}", replace(plan, mbs=plan.mbs // 2)
    layers = None if plan.recompute_layers is None else len(setting.model.layers)
    full = replace(plan, recompute="full", recompute_layers=layers)
    fully = "--recompute full" + ("" if layers is None else f" --recompute-layers {layers}")
    if plan.recompute == "none":
        yield "--recompute selective", replace(plan, recompute="selective")
    if plan.recompute != "full" or plan.recompute_layers is not None:
        yield fully, full
    for base, words in ((plan, ""), (full, f"{fully} ")):
        for factor in (2, 4, 8):
            if plan.tp * factor <= cluster.node.domain_gpus:
                yield f"{words}--tp {plan.tp * factor}", replace(base, tp=plan.tp * factor)
            yield f"{words}--pp {plan.pp * factor}", replace(base, pp=plan.pp * factor)
    if setting.zero != 3 and setting.dp > 1:
        yield "--zero 3", replace(plan, zero=3)
        yield f"--zero 3 {fully}", replace(full, zero=3)
