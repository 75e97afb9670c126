"""Hashes numbers identically on every machine, by a step of SplitMix64.

Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Longs

Hashes = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def scattered(values: Hashes) -> Hashes:
    """64 bits for each value, of which every one depends on every bit of it."""
    with np.errstate(over="ignore"):
        bits = values + _GOLDEN
        bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
        bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def mixed(first: Longs, second: Longs | int) -> Hashes:
    """64 well-mixed bits for each pair: the first times an odd constant, plus the second, scattered."""
    other = np.asarray(second, dtype=np.int64).astype(np.uint64)
    with np.errstate(over="ignore"):
        return scattered(first.astype(np.uint64) * _GOLDEN + other)


def picked(bits: Hashes, count: Longs) -> Longs:
    """For each hash a number from 0 to count - 1, all equally likely."""
    # The upper 32 bits times the count, shifted down: no division, and no bias that matters below 2^16 choices.
    high = (bits >> np.uint64(32)) * count.astype(np.uint64)
    return np.asarray(high >> np.uint64(32)).astype(np.int64)
