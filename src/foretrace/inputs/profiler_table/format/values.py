"""Reads the cells of a profiler table as numbers: times, shares, sizes, counts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_NUMBER: Final = r"([+-]?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)"
_TIME: Final = re.compile(rf"{_NUMBER} ?(ns|us|\N{{MICRO SIGN}}s|\N{{GREEK SMALL LETTER MU}}s|ms|s)?")
_SHARE: Final = re.compile(rf"{_NUMBER} ?%")
_MEMORY: Final = re.compile(rf"{_NUMBER} ?(?:([KMGTP]?)i?B)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"[+-]?[0-9]+")

_PER_SECOND: Final = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1}
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

MISSING: Final = ("--", "-", "NaN", "nan", "None", "")
"""Cells in which there is no number on purpose."""


class NoNumberError(ValueError):
    """A cell that should hold a number and does not; says what was expected."""


@lru_cache(maxsize=65536)
def read_time(cell: str) -> tuple[float | None, bool]:
    """Seconds, and whether a unit was written: without one it is microseconds, which PyTorch counts in."""
    if cell in MISSING[:-1]:
        return None, True
    match = _TIME.fullmatch(cell)
    if match is None:
        raise NoNumberError("expected a time such as 13.980ms, 140.000us or 3.916s")
    unit = (match[2] or "us").replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u")
    # Dividing rounds once, where multiplying by 1e-6 would round twice.
    return float(match[1]) / _PER_SECOND[unit], match[2] is not None or float(match[1]) == 0.0


@lru_cache(maxsize=65536)
def read_share(cell: str) -> tuple[float | None, bool]:
    """A fraction of one, and whether it is a bare 0 instead of a percentage."""
    if cell in MISSING[:-1]:
        return None, False
    if cell == "0":
        return 0.0, True
    match = _SHARE.fullmatch(cell)
    if match is None:
        raise NoNumberError("expected a share such as 47.17%, a bare 0 or NaN")
    return float(match[1]) / 100, False


def read_memory(cell: str) -> int | None:
    """Bytes; KB and Kb are both 1024."""
    if cell in MISSING[:-1]:
        return None
    match = _MEMORY.fullmatch(cell)
    if match is None:
        raise NoNumberError("expected a size such as 768.00 KB, -12.03 Mb or 240 b")
    return round(float(match[1]) * 1024.0 ** _POWER[(match[2] or "").upper()])


def read_count(cell: str) -> int:
    """A whole number."""
    if _COUNT.fullmatch(cell) is None:
        raise NoNumberError("expected a whole number")
    return int(cell)


def read_flops(cell: str, scale: float) -> float | None:
    """FLOPs, or FLOPs per second, written in units of `scale`."""
    if cell in MISSING[:-1]:
        return None
    if re.fullmatch(_NUMBER, cell) is None:
        raise NoNumberError("expected a number or --")
    return float(cell) * scale
