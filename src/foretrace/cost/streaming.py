"""What a compute op takes that only streams memory: optimizer updates, copies, casts, zeroing of buffers.

This is for jobs that say bytes and no kernels, as workload files do; what names its kernels is priced by
`foretrace.cost.kernels`, each at its own rate. Such an op computes so little on each byte that the memory's rate alone
decides. Ops with flops are priced elsewhere, or not at all: bytes alone would make a GEMM far too fast.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Mask
from foretrace.hardware.cluster import Gpu
from foretrace.program.columns import Kind
from foretrace.program.program import Source

STREAM_SHARE: Final = 0.88
"""What a long stream of reads and writes reaches of the memory rate in the datasheet: an H200 scales a buffer of 1 to 8
GB in place at 4.20 of its 4.8 TB/s (benchmarks/gpu/placeholder_data.py)."""

STREAM_BAND: Final = (0.9, 1.1)
"""How far that may be off on another GPU, as factors of the time: a judgement, one GPU having been measured."""


def streams(kind: NDArray[np.integer], flops: Floats, moved_bytes: Floats, duration_s: Floats) -> Mask:
    """Which ops only stream memory and have no duration of their own."""
    return np.asarray((kind == Kind.COMPUTE) & (flops == 0) & (moved_bytes > 0) & np.isnan(duration_s))


def stream_s(moved_bytes: Floats, gpu: Gpu) -> Floats:
    """Seconds to read and write so many bytes in all."""
    return np.asarray(moved_bytes / (gpu.memory_bytes_per_s * STREAM_SHARE))


def stream_source(gpu: Gpu) -> Source:
    """Where such a price comes from."""
    return Source(f"memory bandwidth of {gpu.name}", *STREAM_BAND)
