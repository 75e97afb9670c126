"""A change that a person can make to a job, and the step that it would have."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    option: str
    before_s: float
    after_s: float
    microbatches: float = 1.0
    part: str = ""
    part_before_s: float = 0.0
    part_after_s: float = 0.0
    memory_bytes: int | None = None

    @property
    def change(self) -> float:
        """By which share a microbatch takes longer (below zero: less long)."""
        return self.after_s / self.microbatches / self.before_s - 1 if self.before_s > 0 else 0.0
