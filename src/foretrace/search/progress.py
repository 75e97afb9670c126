"""Says how far a search has come: a line that a terminal shows while it runs, and the plans that a page shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.basics.progress import ShownWork
from foretrace.basics.units import format_count, format_number, format_time

MIN_LEFT_S: Final = 1.0
"""The shortest time left that is named."""
MAX_SECONDS: Final = 100
"""Times left below this are whole seconds."""


@dataclass(frozen=True, slots=True)
class SearchedPlan:
    """A plan that fits, as a running search knows it: its options, its step and its memory, estimated or simulated."""

    options: str
    step_time_s: float
    needed_memory_bytes: int
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class SearchedPlans:
    """Holds what a running search has found so far.

    Attributes:
        estimated: How many plans it has estimated.
        simulated: How many of these it has simulated.
        front: The first plans of the front of time and memory, the fastest first.
        others: The fastest other plans.
    """

    estimated: int
    simulated: int
    front: Sequence[SearchedPlan]
    others: Sequence[SearchedPlan]


PlansWatch = Callable[[Callable[[], SearchedPlans]], None]
"""Is offered what a search has found so far, again and again while it runs; it may ask for it or not."""


class SearchProgress:
    """Writes what a search is doing, how many of how many, the rate, the time left and the best so far.

    Args:
        work: The line that is shown.
        clock: Returns the time in seconds.
        watch: Is offered the plans that were found; None: nobody looks at them.
    """

    def __init__(
        self, work: ShownWork, clock: Callable[[], float] = time.monotonic, watch: PlansWatch | None = None
    ) -> None:
        self._work = work
        self._clock = clock
        self._watch = watch
        self._name = work.text
        self.begin("", 0)

    def begin(self, what: str, count: int) -> None:
        """Begins a part of the work, whose rate and time left are its own.

        Args:
            what: What is being done, such as `simulating`.
            count: How many there are to do; 0 where that is not known.
        """
        self._what, self._count, self._started_s = what, count, self._clock()
        self._work.text = f"{self._name}: {what}" if what else self._name

    def reach(self, done: int, place: str = "", best: str = "") -> None:
        """Says that `done` are finished.

        Args:
            done: How many of the part are finished.
            place: Which is next, in words.
            best: The best so far, in words.
        """
        words = [word for word in (self._what, place) if word]
        words.append(
            f"{format_count(done)} of {format_count(self._count)}" if self._count else f"{format_count(done)} done"
        )
        elapsed_s = self._clock() - self._started_s
        if done and elapsed_s > 0:
            words.append(f"{format_number(done / elapsed_s)}/s")
        if best:
            words.append(f"best so far {best}")
        if done and self._count > done:
            left_s = max(elapsed_s / done * (self._count - done), MIN_LEFT_S)
            words.append(f"{left_s:.0f} s left" if left_s < MAX_SECONDS else f"{format_time(left_s)} left")
        self._work.text = f"{self._name}: {', '.join(words)}"

    def show(self, plans: Callable[[], SearchedPlans]) -> None:
        """Offers the plans that were found so far to whoever watches; the line does not show them."""
        if self._watch is not None:
            self._watch(plans)
