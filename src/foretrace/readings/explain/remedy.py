"""A change to a job, and the step that it would have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change, the step before and after it in seconds, and how many times the microbatches it does."""

    name: str
    before_s: float
    after_s: float
    microbatches: float = 1.0

    @property
    def change(self) -> float:
        """By which share a microbatch takes longer (below zero: less long)."""
        return self.after_s / self.microbatches / self.before_s - 1 if self.before_s > 0 else 0.0
