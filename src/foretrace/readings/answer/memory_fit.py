"""Whether a job fits into the memory of its GPUs, by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretrace.readings.answer.answer import Answer
    from foretrace.readings.memory import MemoryTrack

OVERHEAD_BYTES: Final = 3 << 29
"""What a training process holds outside the framework's allocator: the CUDA context with its loaded kernels (about half
a GiB on recent GPUs) and NCCL's buffers (some MiB per channel, peer and communicator); 1.5 GiB is usual."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Memory that a training process holds outside the framework's allocator, or a part of it, and how it is known."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The memory that ranks of one role hold: most at any moment, and of what kind at that moment, in bytes."""

    role: str
    ranks: int
    peak_bytes: int
    by_category: dict[str, int]
    track: MemoryTrack


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of a job, and that of its GPUs.

    `peak_bytes` is allocated on the worst rank; context and communication buffers come on top.
    """

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


def memory_fit(answer: Answer, capacity_bytes: int) -> MemoryFit:
    """Returns the memory of a simulated job, one entry per role in the program's order: its worst class of ranks."""
    graph = answer.timeline.graph
    program, classes = graph.program, graph.classes
    worst: dict[str, MemoryTrack] = {}
    ranks: dict[str, int] = {}
    for track in answer.memory_tracks:
        role = program.roles[int(program.role_of[int(classes.representative[track.rank_class])])]
        ranks[role] = ranks.get(role, 0) + int(classes.count[track.rank_class])
        if role not in worst or track.peak_bytes > worst[role].peak_bytes:
            worst[role] = track
    stages = tuple(
        StageMemory(role, ranks[role], track.peak_bytes, track.at_peak(), track) for role, track in worst.items()
    )
    return MemoryFit(stages, capacity_bytes)
