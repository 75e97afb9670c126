"""Brings the traces of several ranks together: which calls meet, and one clock for all hosts.

Calls meet as in NCCL: the n-th call of every member of a group. Calls that meet end for all members at nearly the same
time, so their ends also tell how far the clocks of two hosts are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from foretrace.basics.errors import InputError

Issued = TypeVar("Issued")

Meeting = Mapping[int, float]
"""When a rendezvous ended, by rank, trace or host, each on its own clock."""


def match_calls(
    issued: Mapping[int, Sequence[Issued]],
    count_error: Callable[[int, int], InputError],
    call_error: Callable[[int, Issued, int, Issued], InputError | None],
) -> Iterator[tuple[Issued, ...]]:
    """Matches the calls that the members of a group issue, each in its own order.

    Args:
        issued: The calls of every member; the others are compared with the first.
        count_error: Makes the error of the first member and another that do not issue as many calls.
        call_error: Makes the error of the first member, its call, and another member and its call; None if they make
            the same call.

    Raises:
        InputError: The members did not issue the same calls.
    """
    first, *others = issued
    for member in others:
        if len(issued[member]) != len(issued[first]):
            raise count_error(first, member)
        for mine, theirs in zip(issued[first], issued[member], strict=True):
            error = call_error(first, mine, member, theirs)
            if error is not None:
                raise error
    return zip(*issued.values(), strict=True)


@dataclass(frozen=True, slots=True)
class Alignment:
    """The offset to subtract from each clock, and the clocks that no meeting joins to the first."""

    offset: tuple[float, ...]
    apart: tuple[int, ...]


def align_clocks(own_offset: Sequence[float], meetings: Sequence[Meeting]) -> Alignment:
    """Brings clocks together.

    Two clocks differ by the median of what one says more than the other at the ends of their meetings. Pairs that met
    most often are joined first.

    Args:
        own_offset: The offset of every clock if it is the first, or meets no other.
        meetings: When each rendezvous ended, by the number of the clock.
    """
    ahead: dict[tuple[int, int], list[float]] = {}
    for meeting in meetings:
        first, *others = sorted(meeting)
        for clock in others:
            ahead.setdefault((first, clock), []).append(meeting[clock] - meeting[first])
    offset: dict[int, float] = {0: own_offset[0]} if own_offset else {}
    apart: list[int] = []
    while len(offset) < len(own_offset):
        known = [pair for pair in ahead if (pair[0] in offset) != (pair[1] in offset)]
        if not known:
            clock = min(set(range(len(own_offset))) - set(offset))
            offset[clock] = own_offset[clock]
            apart.append(clock)
            continue
        low, high = max(known, key=lambda pair: len(ahead[pair]))
        difference = median(ahead[low, high])
        if low in offset:
            offset[high] = offset[low] + difference
        else:
            offset[low] = offset[high] - difference
    return Alignment(tuple(offset[clock] for clock in range(len(own_offset))), tuple(apart))
