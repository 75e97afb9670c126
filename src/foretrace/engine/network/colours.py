"""Colours of things that may turn out to be alike: 64-bit hashes. Sums of them wrap, so the order of adding is no
matter."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.hardware.fabric.hashing import Hashes


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
