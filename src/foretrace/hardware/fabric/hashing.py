"""A hash of pairs of numbers that is the same on every machine.

The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), applied
to the first number times an odd constant plus the second.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.hardware.fabric.fabric import Longs

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def mixed(first: Longs, second: Longs | int) -> NDArray[np.uint64]:
    """64 well-mixed bits for each pair."""
    other = np.asarray(second, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        bits = first.astype(np.uint64) * _GOLDEN + other + _GOLDEN
        bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
        bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def picked(bits: NDArray[np.uint64], count: Longs) -> Longs:
    """For each hash a number from 0 to count - 1, all equally likely."""
    # The upper 32 bits times the count, shifted down: no division, and no bias that matters below 2^16 choices.
    high = (bits >> np.uint64(32)) * count.astype(np.uint64)
    return np.asarray(high >> np.uint64(32)).astype(np.int64)
