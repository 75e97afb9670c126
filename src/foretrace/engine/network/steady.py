"""Chunks that follow each other at fixed rates: after some, each comes a fixed time behind the one ahead.

When the c-th chunk ends is the largest of lines in c, one for each way that leads to a message, with the slowest hop of
that way as its slope. So the time between chunks never falls, and once it is that of the slowest hop of all, it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats

LOOK_EVERY: Final = 64
ROUNDING: Final = 1e-12


def last_chunk(chunks: int, end_s: Floats, gap_s: Floats, after: Callable[[Floats], Floats]) -> Floats:
    """When the last chunk ends, in seconds. `after` gives the ends of a chunk from those of the one ahead (`end_s` for
    the first); `gap_s` is what each message's slowest hop up to it takes for a chunk."""
    for done in range(1, chunks + 1):
        ahead, end_s = end_s, after(end_s)
        if done % LOOK_EVERY == 0 and np.all(end_s - ahead >= gap_s - ROUNDING * np.abs(end_s)):
            return end_s + (chunks - done) * gap_s
    return end_s
