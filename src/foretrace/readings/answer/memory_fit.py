"""Whether a job fits into the memory of its GPUs, by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_bytes
from foretrace.readings.memory import EMPTY_TRACK, MemoryTrack

if TYPE_CHECKING:
    from foretrace.readings.answer.answer import Answer

RESERVED_TENSORS: Final[tuple[float, float, float]] = (0.0, 1.17, 1.9)
"""Memory that the allocator reserves beyond what is allocated, in units of the largest tensor: lowest, usual, highest.

A free block is of use only for tensors that fit into it, so large tensors leave the largest gaps. Nineteen steps on an
H200 reserved 0.51 to 1.87 times their largest tensor, the fp32 logits, beyond their peak, 1.17 in the median
(`benchmarks/truth/h200_memory.jsonl`). Before PyTorch gives up, it returns free blocks to the driver, so that a job may
also run with hardly any: the lowest is none."""

RESERVED_SHARES: Final[tuple[float, float, float]] = (0.0, 0.01, 0.03)
"""The least of the same as a share of what is allocated, for jobs whose tensors are small next to it. Megatron jobs
report 1.2 to 1.6 % (Megatron-LM issue 965, ColossalAI issue 4537: 36.66 and 54.76 GB allocated)."""

EXPANDABLE_TENSORS: Final[tuple[float, float, float]] = (0.0, 0.67, 0.95)
"""The same with PyTorch's expandable segments: six of these steps reserved 0.56 to 0.91, 0.67 in the median
(`benchmarks/truth/h200_process_memory.json`)."""

Verdict = Literal["fits", "caution", "does not fit"]
"""`fits` where the highest estimate does, `does not fit` where not even the lowest does, `caution` in between."""


def reserved_gaps(peak_bytes: Longs | np.int64, largest_bytes: Longs | np.int64, *, expandable: bool) -> list[Longs]:
    """Returns what the allocator reserves beyond peaks: lowest, usual and highest, each as large as the arguments.

    Args:
        peak_bytes: The most that is allocated.
        largest_bytes: The largest tensor.
        expandable: Whether segments of the allocator grow.
    """
    tensors = EXPANDABLE_TENSORS if expandable else RESERVED_TENSORS
    return [
        np.rint(np.maximum(tensor * largest_bytes, share * peak_bytes)).astype(np.int64)
        for tensor, share in zip(tensors, RESERVED_SHARES, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of the memory that a training process holds outside the framework's allocator, and how it is known.

    `unsure_bytes` is what it may take less: the part of it that no measurement supports.
    """

    name: str
    bytes: int
    source: str
    unsure_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of a GPU that a process holds apart from the tensors of a step.

    Attributes:
        capacity_bytes: The memory that the driver gives to processes.
        outside: Parts that the allocator does not manage.
        largest_bytes: The largest tensor of each role.
        expandable_segments: Whether the software lets the allocator's segments grow.
    """

    capacity_bytes: int
    outside: tuple[MemoryPart, ...] = ()
    largest_bytes: Mapping[str, int] = field(default_factory=dict)
    expandable_segments: bool = False

    def stage(self, role: str, ranks: int, peak_bytes: int, by_category: dict[str, int]) -> StageMemory:
        """Returns the memory of a role whose peak is known."""
        largest = self.largest_bytes.get(role, 0)
        low, middle, high = reserved_gaps(np.int64(peak_bytes), np.int64(largest), expandable=self.expandable_segments)
        return StageMemory(role, ranks, peak_bytes, by_category, (int(low), int(middle), int(high)))


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The memory that ranks of one role hold: most at any moment, and of what kind at that moment, in bytes.

    `gap_bytes` is what the allocator reserves beyond that: lowest, usual and highest. `track` follows the memory over
    the step; it is empty where the peak was found without running the step.
    """

    role: str
    ranks: int
    peak_bytes: int
    by_category: dict[str, int]
    gap_bytes: tuple[int, int, int] = (0, 0, 0)
    track: MemoryTrack = EMPTY_TRACK

    @property
    def reserved_band_bytes(self) -> tuple[int, int, int]:
        """The memory that the allocator reserves at the peak: lowest, usual and highest."""
        low, middle, high = (self.peak_bytes + gap for gap in self.gap_bytes)
        return low, middle, high


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of a job, and that of its GPUs.

    A GPU has to hold three things: what is allocated on it, what the allocator reserves besides, and the memory of the
    process that the allocator does not manage.
    """

    stages: tuple[StageMemory, ...]
    process: ProcessMemory

    @property
    def capacity_bytes(self) -> int:
        """The memory of a GPU."""
        return self.process.capacity_bytes

    @property
    def outside(self) -> tuple[MemoryPart, ...]:
        """The parts outside the allocator."""
        return self.process.outside

    @property
    def worst(self) -> StageMemory | None:
        """The stage that holds most; None where the program says nothing of memory."""
        return max(self.stages, key=lambda stage: stage.peak_bytes, default=None)

    @property
    def peak_bytes(self) -> int:
        """The most that any rank allocates."""
        return 0 if self.worst is None else self.worst.peak_bytes

    @property
    def reserved_band_bytes(self) -> tuple[int, int, int]:
        """The most that the allocator of any rank reserves: lowest, usual and highest."""
        bands = [stage.reserved_band_bytes for stage in self.stages] or [(0, 0, 0)]
        low, middle, high = (max(band[estimate] for band in bands) for estimate in range(3))
        return low, middle, high

    @property
    def reserved_bytes(self) -> int:
        """The most that the allocator of any rank usually reserves."""
        return self.reserved_band_bytes[1]

    @property
    def outside_bytes(self) -> int:
        """The memory of a process outside the allocator."""
        return sum(part.bytes for part in self.outside)

    @property
    def needed_band_bytes(self) -> tuple[int, int, int]:
        """The memory that a GPU needs: lowest, usual and highest."""
        low, middle, high = (size + self.outside_bytes for size in self.reserved_band_bytes)
        return low - sum(part.unsure_bytes for part in self.outside), middle, high

    @property
    def needed_bytes(self) -> int:
        """The memory that a GPU usually needs."""
        return self.needed_band_bytes[1]

    @property
    def headroom_bytes(self) -> int:
        """The memory of a GPU that usually stays free; below zero where it lacks that much."""
        return self.capacity_bytes - self.needed_bytes

    @property
    def verdict(self) -> Verdict:
        """Whether the job fits; see `Verdict`."""
        low, _, high = self.needed_band_bytes
        if high <= self.capacity_bytes:
            return "fits"
        return "does not fit" if low > self.capacity_bytes else "caution"

    @property
    def fits(self) -> bool:
        """Whether the job may run: False only where not even the lowest estimate fits."""
        return self.verdict != "does not fit"

    @property
    def warning(self) -> Diagnostic | None:
        """The warning of a job that does not fit, or does only with little fragmentation; None where it fits."""
        if self.verdict == "fits" or self.worst is None:
            return None
        low, _, high = (format_bytes(size) for size in self.needed_band_bytes)
        if self.verdict == "does not fit":
            text = (
                f"{self.worst.role} needs at least {low}, and a GPU has {format_bytes(self.capacity_bytes)}: the step "
                "is that of GPUs with more memory (foretrace memory names changes by which it would fit)"
            )
            return Diagnostic("warning", "out-of-memory", text)
        tight = max(self.stages, key=lambda stage: stage.reserved_band_bytes[2])
        room = f"{format_bytes(self.headroom_bytes)} to spare"
        if self.headroom_bytes < 0:
            room = f"{format_bytes(-self.headroom_bytes)} too little"
        needed = f"{low} to {high} of {format_bytes(self.capacity_bytes)}"
        text = f"memory is tight on {tight.role}: {needed}, usually {room}"
        if not self.process.expandable_segments:
            text += "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves smaller gaps"
        return Diagnostic("warning", "memory-tight", text)


def memory_fit(answer: Answer, process: ProcessMemory) -> MemoryFit:
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
        replace(process.stage(role, ranks[role], track.peak_bytes, track.at_peak()), track=track)
        for role, track in worst.items()
    )
    return MemoryFit(stages, process)
