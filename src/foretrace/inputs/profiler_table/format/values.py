"""Reads the cells of a profiler table as numbers: times, shares, sizes, counts.

A `NumberError` says what is wrong with a cell. Counts, totals and averages are 0 or more. Self times can be below 0,
where PyTorch subtracts what other threads did meanwhile, and so can memory that is freed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from foretrace.basics.numbers import MAX_REAL, NumberError, leading_number, real_number, whole_number

MISSING: Final = ("--", "-", "NaN", "nan", "None", "")
"""Cells in which there is no number on purpose."""

MAX_SECONDS: Final = 1e7
"""The longest time of a row: 4 months, which no profile lasts."""

_PER_SECOND: Final = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1, "": 10**6}
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_MAX_SHARE: Final = 1e6
_MAX_BYTES: Final = float(2**60)


@lru_cache(maxsize=65536)
def read_time(cell: str, *, signed: bool = False) -> tuple[float | None, bool]:
    """Returns seconds, and whether a unit was written: without one it is microseconds, which PyTorch counts in.

    A negative time is an error unless the time is `signed`.
    """
    if cell in MISSING[:-1]:
        return None, True
    value, _, rest = leading_number(cell)
    unit = rest.strip().replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u")
    if unit not in _PER_SECOND:
        raise NumberError("bad-value", "is not a time such as 13.980ms, 140.000us or 3.916s")
    # Dividing rounds once, where multiplying by 1e-6 would round twice.
    least = -MAX_SECONDS if signed else 0.0
    return real_number(float(value) / _PER_SECOND[unit], least=least, most=MAX_SECONDS), unit != "" or value == 0


@lru_cache(maxsize=65536)
def read_share(cell: str, *, signed: bool = False) -> tuple[float | None, bool]:
    """Returns a fraction of one, and whether it is a bare 0 instead of a percentage.

    A negative share is an error unless it is `signed`.
    """
    if cell in MISSING[:-1]:
        return None, False
    if cell == "0":
        return 0.0, True
    if not cell.endswith("%"):
        raise NumberError("bad-value", "is not a share such as 47.17%, a bare 0 or NaN")
    least = -_MAX_SHARE if signed else 0.0
    return real_number(cell.removesuffix("%"), least=least, most=_MAX_SHARE) / 100, False


def read_memory(cell: str) -> int | None:
    """Returns bytes; KB and Kb are both 1024."""
    if cell in MISSING[:-1]:
        return None
    value, _, rest = leading_number(cell)
    unit = rest.strip().upper().removesuffix("B").removesuffix("I")
    if unit not in _POWER:
        raise NumberError("bad-value", "is not a size such as 768.00 KB, -12.03 Mb or 240 b")
    return round(real_number(float(value) * 1024.0 ** _POWER[unit], least=-_MAX_BYTES, most=_MAX_BYTES))


def read_count(cell: str, *, least: int = 0) -> int:
    """Returns a whole number."""
    return whole_number(cell, least=least)


def read_flops(cell: str, scale: float) -> float | None:
    """Returns FLOPs, or FLOPs per second, written in units of `scale`."""
    if cell in MISSING[:-1]:
        return None
    return real_number(cell, most=MAX_REAL / scale) * scale
