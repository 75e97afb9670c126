"""The options of a workload file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foretrace.errors import InputError
from foretrace.lower.options import MAX_BYTES, Overlap, check_schedule, check_whole, parse_overlap


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
        ends: Whether embedding, head and loss are on the outer stages, or on every stage as SimAI has it.
    """

    gpus: int | None = None
    schedule: str | None = None
    vpp: Literal["auto", "layers", "chunks"] | int = "auto"
    overlap: frozenset[Overlap] = frozenset()
    microbatches: int | None = None
    pp_comm_bytes: int | None = None
    ends: Literal["first-last", "every-stage"] = "first-last"

    def __post_init__(self) -> None:
        overlap = self.overlap if isinstance(self.overlap, str) else ",".join(map(str, self.overlap))
        object.__setattr__(self, "overlap", parse_overlap(overlap, where="overlap"))
        check_whole("gpus", self.gpus, 1)
        check_whole("microbatches", self.microbatches, 1)
        check_whole("pp_comm_bytes", self.pp_comm_bytes, 0, MAX_BYTES)
        if self.vpp not in ("auto", "layers", "chunks"):
            check_whole("vpp", self.vpp, 1)
        if self.ends not in ("first-last", "every-stage"):
            problem = f'ends "{self.ends}" are not known'
            raise InputError("unknown-name", problem, hint="known: first-last, every-stage")
        check_schedule(self.schedule)
