"""Ranks in the names of trace files."""

from __future__ import annotations

import re
from typing import Final

_RANK: Final = re.compile(r"rank[-_. ]?(\d{1,6})", re.IGNORECASE)
_LAST: Final = re.compile(r"(?:^|[-_.])(\d{1,5})(?:[-_.]trace)?(?:\.pt\.trace)?\.(?:json|json\.gz|sqlite|nsys-rep)$")


def rank_in_name(name: str) -> int | None:
    """Returns the rank that a file's name gives: after the word, or else a short number that ends it (trace_3.json)."""
    match = _RANK.search(name) or _LAST.search(name)
    return int(match[1]) if match else None
