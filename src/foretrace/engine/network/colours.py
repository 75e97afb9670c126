"""Colours of things that may turn out to be alike: 64-bit hashes. Sums of them wrap, so the order of adding is no
matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.hardware.fabric.fabric import Floats, Longs

Hashes = NDArray[np.uint64]


def sums(values: Hashes, bounds: Longs) -> Hashes:
    """Sums, which wrap, of the values from one bound to the next."""
    running = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values, out=running[1:])
    return running[bounds[1:]] - running[bounds[:-1]]


def number_of(colour: Hashes) -> int:
    """How many colours there are."""
    ordered = np.sort(colour)
    return int((ordered[1:] != ordered[:-1]).sum()) + min(len(ordered), 1)


def bits(values: Floats) -> Hashes:
    """The bits of floats, zero without its sign."""
    return (np.asarray(values, dtype=np.float64) + 0.0).view(np.uint64)


def mixed(values: Hashes) -> Hashes:
    """Hashes in which every bit depends on every bit (the finaliser of SplitMix64, Steele et al. 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
