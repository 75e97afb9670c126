"""Builds the binary trees over nodes along which NCCL reduces and broadcasts."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs


def binary_tree(n: int, second: bool = False) -> Longs:
    """Parents of NCCL's binary tree over n places, -1 at the root, or of its twin, in which the leaves of the first are
    inner: mirrored for an even n, shifted by one for an odd one (NCCL, src/graph/trees.cc)."""
    place = np.arange(n)
    if second:
        moved = n - 1 - place if n % 2 == 0 else (place - 1) % n
        back = n - 1 - place if n % 2 == 0 else (place + 1) % n
        above = binary_tree(n)[moved]
        return np.where(above >= 0, back[above], -1)
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    above = np.where(above >= n, place ^ bit, above)
    return np.where(place == 0, -1, above)
