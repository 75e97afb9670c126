"""Array types, and operations on arrays that NumPy does not have."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Mask = NDArray[np.bool_]

_DENSE: Final = 1 << 16
"""Keys for which a table with a place for each is always made; above it, up to as many as there are rows."""


def ranges(starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """The whole numbers `starts[i] .. starts[i] + lengths[i]`, one range after the other."""
    lengths = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    moved = np.asarray(starts, dtype=np.int64) - (ends - lengths)
    numbers: NDArray[np.int64] = np.repeat(moved, lengths)
    numbers += np.arange(total, dtype=np.int64)
    return numbers


def stable_order(keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """The positions of the keys, which are not negative, from the smallest key to the largest, equal keys as they came.

    Numpy sorts 16-bit keys by radix, in linear time, so larger ones are sorted 16 bits at a time.
    """
    most = int(keys.max()) if len(keys) else 0
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    shift = 16
    while most >> shift:
        digit = ((keys >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        shift += 16
    return order


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values, ascending. Asked for values alone, `np.unique` imports numpy.ma, which takes a while."""
    return np.unique(values, return_counts=True)[0]


def first_uses(codes: NDArray[np.integer]) -> tuple[Longs, Longs]:
    """Numbers codes, which are small and not negative, in the order in which they first come.

    Returns the position where each comes first, and the number of the code at each position.
    """
    count = len(codes)
    first = np.full(int(codes.max(initial=-1)) + 1, count, dtype=np.int64)
    first[codes[::-1]] = np.arange(count)[::-1]  # of equal codes the one that is written last stays
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < count)]
    number = np.empty(len(first), dtype=np.int64)
    number[order] = np.arange(len(order))
    return first[order], number[codes]


def distinct_keys(key: Longs, radix: int) -> tuple[Longs, Longs]:
    """Returns the first row of each distinct key, in the order of keys, and the number of each row's key.

    Args:
        key: A number from 0 to `radix` - 1 for each row.
        radix: How many keys are possible.
    """
    rows = len(key)
    if radix > max(_DENSE, rows):
        _, examples, numbers = np.unique(key, return_index=True, return_inverse=True)
        return examples.astype(np.int64), numbers.astype(np.int64)
    first = np.full(radix, rows, dtype=np.int64)
    # Among equal keys the last one written stays, here the first row.
    first[key[::-1]] = np.arange(rows - 1, -1, -1)
    present = first < rows
    place = np.cumsum(present) - 1
    return first[present], place[key]
