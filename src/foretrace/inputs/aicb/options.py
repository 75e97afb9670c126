"""The options of a workload file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foretrace.inputs.option_values import (
    MAX_BYTES,
    Overlap,
    check_layers,
    check_schedule,
    check_whole,
    check_word,
    read_overlap,
)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """How to run a workload file; what is None is read off the file.

    Attributes:
        gpus: Another number of GPUs; dp follows.
        schedule: The name of a pipeline schedule.
        vpp: Whether the header's vpp counts layers per stage (as AICB writes it) or chunks per stage (as SimAI reads
            it), or the number of chunks itself.
        overlap: What runs concurrently with computation.
        microbatches: Microbatches of a step.
        pp_comm_bytes: What crosses a stage boundary per microbatch.
        stage_layers: Layers of every chunk in the order of the model; None: each stage has those that the file lists.
        ends: Whether embedding, head and loss are on the outer stages, or on every stage as SimAI has it.
    """

    gpus: int | None = None
    schedule: str | None = None
    vpp: Literal["auto", "layers", "chunks"] | int = "auto"
    overlap: frozenset[Overlap] = frozenset()
    microbatches: int | None = None
    pp_comm_bytes: int | None = None
    ends: Literal["first-last", "every-stage"] = "first-last"
    stage_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "overlap", read_overlap(self.overlap))
        object.__setattr__(self, "stage_layers", check_layers(self.stage_layers))
        check_whole("gpus", self.gpus, 1)
        check_whole("microbatches", self.microbatches, 1)
        check_whole("pp_comm_bytes", self.pp_comm_bytes, 0, MAX_BYTES)
        if not isinstance(self.vpp, str) or self.vpp not in ("auto", "layers", "chunks"):
            check_whole("vpp", self.vpp, 1)
        check_word("ends", self.ends, ("first-last", "every-stage"))
        check_schedule(self.schedule)
