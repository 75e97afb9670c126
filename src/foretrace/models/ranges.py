"""Reads and writes sets of layers as people write them: `0-2,5` or `0-34/2` (every second), numbered from 0."""

from __future__ import annotations

import re
from collections.abc import Iterable

from foretrace.basics.errors import InputError, shortened

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?:/([0-9]{1,6}))?)?")


def parse_ranges(text: str, count: int, *, where: str | None = None) -> frozenset[int]:
    """The layers that a text names, all below `count`."""
    layers: set[int] = set()
    parts = text.split(",")
    if len(parts) > count:
        problem = f"{len(parts):,} layers and ranges are named of {count:,} layers"
        raise InputError("out-of-range", problem, where=where, hint="name every layer once")
    for part in parts:
        match = _PART.fullmatch(part.strip())
        if match is None or match[3] == "0" or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(
                "bad-value",
                f'"{shortened(part.strip())}" names no layers',
                where=where,
                hint="for example 0-2 or 1-35/2 or 3,7",
            )
        last = int(match[2] or match[1])
        if last >= count:
            raise InputError(
                "no-such-rank",
                f"there is no layer {last}",
                where=where,
                hint=f"layers are numbered from 0 to {count - 1}",
            )
        layers.update(range(int(match[1]), last + 1, int(match[3] or 1)))
    return frozenset(layers)


def format_ranges(numbers: Iterable[int]) -> str:
    """The shortest plain text for a set of layers: what `parse_ranges` reads."""
    left = sorted(numbers)
    parts = []
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        length = 1
        while length < len(left) and left[length] == left[0] + length * step:
            length += 1
        if length == 2 and step > 1:  # two that are apart are no row
            length, step = 1, 1
        first, last = left[0], left[length - 1]
        parts.append(str(first) if length == 1 else f"{first}-{last}" + (f"/{step}" if step > 1 else ""))
        left = left[length:]
    return ",".join(parts)
