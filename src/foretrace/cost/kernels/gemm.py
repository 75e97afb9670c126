"""Times a GEMM: tiles that SMs work through in waves, or the memory rate, whichever is longer.

A result of [m, n] is cut into tiles, and each SM computes one tile at a time, K deep. A library chooses among tile
shapes, and whether to split K so that a small result fills all SMs. The model takes the fastest choice, as the
heuristics of libraries try to. Every choice takes longer with larger m, n, k or batch, so the fastest does too.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from foretrace.basics.arrays import Floats, Mask
from foretrace.basics.elementary import p_norm
from foretrace.cost.kernels.parameters import GemmFit

TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the result that one SM computes at a time; cuBLAS kernels are named after these."""

SPLITS: Final = (1, 2, 4, 8)
"""Into how many parts K may be cut."""

STREAMS: Final = 4
"""Launches of separate groups that run concurrently: Transformer Engine deals the GEMMs of a grouped linear layer out
to 4 streams (transformer_engine/common/util/multi_stream.cpp)."""

SEPARATE_S: Final = 8.5e-6
"""The least time of a group's own launch, however small: published grouped products of a B200 (SimuMax's, 80 and 160
groups through Transformer Engine) end at 8.6 to 9.1 us a group where their work would take 3 to 5."""

SHARPNESS: Final = 4.0
"""The norm by which the longer of computing and loading decides."""


class DeviceRates(NamedTuple):
    """The rates of a GPU: FLOP/s of all its SMs (one number, or one for each kernel), bytes/s of its memory, and its
    number of SMs."""

    flops_per_s: Any
    bytes_per_s: float
    units: int


class Products(NamedTuple):
    """Products that one launch computes: `batch` of [m, k] times [k, n], each field an array with one entry per kernel.

    Attributes:
        m: Rows of each result.
        n: Columns of each result.
        k: The length of the sums.
        batch: How many products there are.
        moved_bytes: Operands and results of all of them.
        random_rows: Whether m is the mean of numbers that differ by chance. Such rows end anywhere in a tile, so that
            half of the last tile is empty on average.
        lost_rows: The rows of a result that the start and end of each product are worth.
    """

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    moved_bytes: Floats
    random_rows: Mask | bool = False
    lost_rows: float = 0.0


def gemm_s(products: Products, fit: GemmFit, device: DeviceRates) -> Floats:
    """Returns the seconds of products that run alone."""
    m, n, k, batch, moved_bytes, random_rows, lost_rows = products
    flops_per_s, bytes_per_s, units = device
    per_unit = flops_per_s * fit.efficiency / units
    memory = moved_bytes / (bytes_per_s * fit.memory_share)
    best = np.full(m.shape, np.inf)
    for rows, columns in TILES:
        row_tiles = np.maximum(np.ceil(m / rows), np.where(random_rows, m / rows + 0.5, 0.0)) + lost_rows / rows
        tiles = batch * row_tiles * np.ceil(n / columns)
        work = 2.0 * (rows * columns + fit.panel * (rows + columns)) / per_unit
        for splits in SPLITS:
            waves = tiles * splits / units
            waves = waves + fit.quantised * (np.ceil(waves) - waves)
            # A tile's own time is the least: one tile does not spread over SMs.
            compute = np.maximum(waves, 1.0) * work * (k / splits + fit.depth)
            # Parts of K are written in fp32 and added up.
            added = 0.0 if splits == 1 else 8.0 * splits * batch * m * n / (bytes_per_s * fit.memory_share)
            best = np.minimum(best, compute + added)
    return np.asarray(fit.fixed_s + p_norm(best, memory, SHARPNESS))


def grouped_s(mean: Products, largest: Products, separate: Floats, fit: GemmFit, device: DeviceRates) -> Floats:
    """Returns the seconds of grouped products.

    Args:
        mean: The groups, as a batch of products of their mean size.
        largest: The largest group.
        separate: 1 where each group is a launch of its own, of which `STREAMS` run concurrently; 0 where all are one.
        fit: The constants of their dtype.
        device: The rates of the GPU.
    """
    groups, of = mean.batch, partial(gemm_s, fit=fit, device=device)
    # Nothing ends before the largest does by itself.
    alone = of(largest)
    together = np.maximum(of(mean), alone)
    side = np.minimum(groups, STREAMS)
    rounds = np.ceil(groups / STREAMS)
    # A launch of its own is tiled for its own rows: random ones take 1.01 times equal ones (docs/prices.md).
    equal = mean._replace(random_rows=False)
    each = of(equal._replace(batch=side, moved_bytes=mean.moved_bytes * side / groups))
    apart = np.maximum((rounds - 1) * each + np.maximum(each, alone), groups * SEPARATE_S)
    return np.asarray(np.where(separate > 0, np.maximum(apart, of(equal)), together))
