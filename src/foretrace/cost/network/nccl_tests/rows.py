"""One row of a log or a table: its words checked, so that nothing but sensible numbers goes further."""

from __future__ import annotations

import math
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_tests.records import Measurement
from foretrace.program.columns import Collective

US: Final = 1e-6
LARGEST_BYTES: Final = 2**60
MAX_US: Final = 1e12
"""A day is 8.64e10 µs; what is longer is no time of a collective."""


def whole(word: str, what: str, where: str) -> int:
    """A whole number of at least 0."""
    value = positive(word, what, where, zero=True)
    if value != int(value) or value > LARGEST_BYTES:
        raise InputError("bad-value", f'{what} "{word[:40]}" is not a whole number of bearable size', where=where)
    return int(value)


def positive(word: str, what: str, where: str, *, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on."""
    try:
        value = float(word)
    except ValueError:
        raise InputError("bad-value", f'{what} "{word[:40]}" is not a number', where=where) from None
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        needed = "at least 0" if zero else "above 0"
        raise InputError("bad-value", f'{what} "{word[:40]}" is not a finite number {needed}', where=where)
    return value


def measurement(
    collective: Collective, ranks: tuple[int, int], size_bytes: int, time_us: float, place: tuple[str, int]
) -> Measurement:
    """A row among (gpus, nodes) in (file, line), once these can be meant."""
    gpus, nodes = ranks
    file, line = place
    where = f"{file}:{line}"
    if not 1 <= nodes <= gpus:
        raise InputError(
            "conflicting-values",
            f"{gpus} GPUs cannot be on {nodes} nodes",
            where=where,
            hint="each node has at least one",
        )
    if time_us > MAX_US:
        raise InputError(
            "out-of-range", f"a time of {time_us:g} µs cannot be meant", where=where, hint="times are microseconds"
        )
    return Measurement(collective, gpus, nodes, size_bytes, time_us * US, file, line)
