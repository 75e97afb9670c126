"""Where the time of a device goes: computing, communicating, copying, nothing, and which of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.readings.profiler_views.intervals import occupancy_s
from foretrace.readings.profiler_views.rank import Rank, WorkType

_NAMES: Final = {type_: type_.name.lower() for type_ in WorkType}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How long a rank's device did what while the steps that count lasted. The times of `states_s` sum to the span."""

    rank: int
    span_s: float
    states_s: dict[str, float]
    """"compute", "communication", "memory", any of them together as "compute + communication", and "idle"."""

    def _sum(self, *, having: str, without: str = "") -> float:
        return sum(
            seconds
            for state, seconds in self.states_s.items()
            if having in state.split(" + ") and without not in state.split(" + ")
        )

    @property
    def idle_s(self) -> float:
        """Nothing ran on any stream."""
        return self.states_s["idle"]

    @property
    def compute_s(self) -> float:
        """Time in which a kernel that computes ran, whatever ran next to it."""
        return self._sum(having="compute")

    @property
    def non_compute_s(self) -> float:
        """Only communication or copies ran."""
        return max(self.span_s - self.idle_s - self.compute_s, 0.0)  # a sum of parts may be off by a rounding

    @property
    def communication_s(self) -> float:
        """Time in which a kernel that communicates ran, whatever ran next to it."""
        return self._sum(having="communication")

    @property
    def overlapped_s(self) -> float:
        """Time in which communication ran concurrently with computation."""
        return max(self._sum(having="communication") - self.exposed_communication_s, 0.0)

    @property
    def exposed_communication_s(self) -> float:
        """Time in which communication ran and no computation."""
        return self._sum(having="communication", without="compute")

    @property
    def overlap(self) -> float | None:
        """The share of communication that ran concurrently with computation; None without communication."""
        return self.overlapped_s / self.communication_s if self.communication_s > 0 else None


def occupancy(rank: Rank) -> Occupancy:
    """Returns the time of a rank's device by what it did."""
    low_s, high_s = rank.windows
    sets = [rank.seen.of(type_) for type_ in WorkType]
    states = occupancy_s([*sets, (low_s, high_s)], float(low_s[0]), float(high_s[-1]))[1 << len(sets) :]
    named = {_name(number): float(seconds) for number, seconds in enumerate(states)}
    return Occupancy(rank.number, rank.span_s, named)


def _name(state: int) -> str:
    return " + ".join(name for type_, name in _NAMES.items() if state >> type_ & 1) or "idle"


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The temporal breakdown of one rank."""

    rank: int
    span_s: float
    idle_s: float
    compute_s: float
    non_compute_s: float


@dataclass(frozen=True, slots=True)
class TemporalBreakdown:
    """Idle, computing or neither, rank by rank; the three sum to the span."""

    ranks: tuple[DeviceTimes, ...]

    @property
    def mean(self) -> DeviceTimes:
        """The mean over ranks; its rank is -1."""
        count = len(self.ranks)
        fields = ("span_s", "idle_s", "compute_s", "non_compute_s")
        return DeviceTimes(-1, *(sum(getattr(rank, field) for rank in self.ranks) / count for field in fields))

    @property
    def worst(self) -> DeviceTimes:
        """The rank that idles the largest part of its span."""
        return max(self.ranks, key=lambda rank: rank.idle_s / rank.span_s if rank.span_s > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class RankOverlap:
    """Communication of one rank, and how much of it computation hides."""

    rank: int
    span_s: float
    communication_s: float
    overlapped_s: float
    exposed_s: float
    overlap: float | None
    """Overlapped by all; None where nothing was communicated."""


@dataclass(frozen=True, slots=True)
class JobOverlap:
    """The share of communication that ran concurrently with computation, rank by rank."""

    ranks: tuple[RankOverlap, ...]

    @property
    def worst(self) -> RankOverlap:
        """The rank with the most exposed communication."""
        return max(self.ranks, key=lambda rank: rank.exposed_s)

    @property
    def mean_exposed_s(self) -> float:
        """Exposed communication, the mean over ranks."""
        return sum(rank.exposed_s for rank in self.ranks) / len(self.ranks)


def temporal(occupancies: Sequence[Occupancy]) -> TemporalBreakdown:
    """Returns the temporal breakdown of all ranks."""
    return TemporalBreakdown(
        tuple(
            DeviceTimes(
                occupancy.rank, occupancy.span_s, occupancy.idle_s, occupancy.compute_s, occupancy.non_compute_s
            )
            for occupancy in occupancies
        )
    )


def overlap(occupancies: Sequence[Occupancy]) -> JobOverlap:
    """Returns the overlap of communication of all ranks."""
    return JobOverlap(
        tuple(
            RankOverlap(
                occupancy.rank,
                occupancy.span_s,
                occupancy.communication_s,
                occupancy.overlapped_s,
                occupancy.exposed_communication_s,
                occupancy.overlap,
            )
            for occupancy in occupancies
        )
    )
