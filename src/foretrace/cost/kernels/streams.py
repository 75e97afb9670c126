"""Times kernels that move memory: the longer of moving the bytes and issuing the instructions, after a launch.

A vectorised copy waits for memory alone. A kernel that computes a lot on each byte (an exponential, random numbers), or
that moves two bytes per access and computes an index for each, waits for its SMs, and so depends on the frequency: its
time grows by up to a quarter when a GPU at its power limit lowers it. Both rates are known by name; the first scales
with a GPU's memory, the second with its SMs and the frequency that it sustains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import log2
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.elementary import p_norm
from foretrace.cost.kernels.gemm import SHARPNESS
from foretrace.cost.kernels.parameters import StreamFit
from foretrace.program.kernels import Stream

OWN_LAUNCHES: Final = {
    **dict.fromkeys((f"{norm}_backward{own}" for norm in ("rmsnorm", "layernorm") for own in ("", "_fused")), 2),
    "router": 2,
    "embedding_backward": 22,
}
"""Kernels that one measured call launches; its fixed time is of them all. Everywhere else it is one."""

ROWED: Final = ("norm", "softmax", "cross_entropy", "quantize_rows")
"""Parts of the names of kernels whose rate depends on the length of a row."""

USUAL_ROW: Final = 4096
"""The length of a row where a kernel that has rows does not say it."""


PROFILED_ELEMENT: Final = 2
"""Bytes of an element of bf16, the type with which streams are measured. Instructions are per element, so that an SM
moves more bytes of wider elements in a clock."""

MAX_SHARE: Final = 0.93
"""The largest share of the memory's rate that a stream reaches, from the fastest kernels in the profile of the H200."""


UNVECTORISED: Final = ("mul_broadcast", "transpose", "batchnorm", "batchnorm_backward")
MAX_WARP_ROW: Final = 1024

SERIAL_S: Final = {
    "spatial_softmax": 1.11e-6,
    "spatial_softmax_backward": 0.54e-6,
    "spatial_log_softmax": 1.11e-6,
    "spatial_log_softmax_backward": 0.54e-6,
    "spatial_scan": 0.16e-6,
}
"""Seconds that a thread takes for an element where it goes through a row by itself (PyTorch's SoftMax.cu and
ScanUtils.cuh, along another dimension than the last): each load waits for memory. An H200: a loss over 32,128 words
with 1,024 tokens behind them takes 35.7 ms, its gradient 17.5 ms, sums over 1,024 tokens 0.17 ms."""
THREADS: Final = 2048
"""Threads that an SM holds."""


def serial_s(kernel: Stream, units: int) -> float:
    """Returns the seconds that the threads of a stream take for their rows, one element after another; 0 for others."""
    if kernel.name not in SERIAL_S or not kernel.rows:
        return 0.0
    threads = kernel.write / (kernel.element * kernel.rows)
    return kernel.rows * SERIAL_S[kernel.name] * max(threads / (units * THREADS), 1.0)


def is_unvectorised(kernel: Stream) -> bool:
    """Whether a thread loads its elements one by one, so that wider elements keep more bytes in flight."""
    if kernel.name in ("softmax", "softmax_backward"):  # a warp has a row of up to 1,024 elements in registers
        return 0 < kernel.rows <= MAX_WARP_ROW
    return kernel.name in UNVECTORISED or kernel.name.endswith(("_strided", "_permuted"))


def rates(kernel: Stream, fit: StreamFit) -> tuple[float, float]:
    """Returns the share of the memory's rate that a stream reaches, and the bytes that an SM moves in a clock."""
    width = kernel.element / PROFILED_ELEMENT
    share = min(fit.share * width, max(fit.share, MAX_SHARE)) if is_unvectorised(kernel) else fit.share
    return share, fit.bytes_per_clock * width


def is_bound_by_instructions(
    kernel: Stream, fits: Mapping[str, Mapping[int, StreamFit]], bytes_per_s: float, clocks_per_s: float
) -> bool:
    """Whether a stream waits longer for its instructions than for memory, so that it follows the clock."""
    share, per_clock = rates(kernel, stream_fit(fits, kernel))
    return per_clock * clocks_per_s < share * bytes_per_s


def stream_kind(kernel: Stream) -> str:
    """The name under which a stream's rates are known. PyTorch's cast to a wider dtype is another kernel than that to a
    narrower one, and goes at half its rate."""
    return "cast_up" if kernel.name == "cast" and kernel.write > kernel.read else kernel.name


def row_length(kernel: Stream) -> int:
    """The length of a row, 0 for kernels for which it does not count."""
    if "grad_norm" in kernel.name or not any(word in kernel.name for word in ROWED):
        return 0
    return kernel.rows or USUAL_ROW


def known_name(fits: Mapping[str, object], name: str) -> str:
    """The name whose constants a stream takes: its own, or else those of its kind, or else a plain elementwise's."""
    if name in fits:
        return name
    if name.endswith("_strided"):
        return "mul_strided"
    if name.startswith("spatial_"):
        return "elementwise"
    return "fused" if "_fused" in name else "elementwise"


def stream_fit(fits: Mapping[str, Mapping[int, StreamFit]], kernel: Stream) -> StreamFit:
    """The constants of a stream: between rows' lengths that are known interpolated in the logarithm, beyond them those
    of the nearest."""
    known = fits[known_name(fits, stream_kind(kernel))]
    lengths = sorted(known)
    if len(lengths) == 1:
        return known[lengths[0]]
    at, logs = log2(row_length(kernel) or USUAL_ROW), [log2(length) for length in lengths]
    rows = [known[length] for length in lengths]
    columns = ([getattr(row, field.name) for row in rows] for field in fields(StreamFit))
    return StreamFit(*(float(np.interp(at, logs, column)) for column in columns))


def streams_s(
    kernels: list[Stream],
    fits: Mapping[str, Mapping[int, StreamFit]],
    extra_launch_s: float,
    bytes_per_s: float,
    clocks_per_s: float,
    units: int,
) -> Floats:
    """Seconds of each stream at a memory rate and the clock rate of all SMs together."""
    rows = []
    for kernel in kernels:
        fit = stream_fit(fits, kernel)
        more = max(kernel.launches - OWN_LAUNCHES.get(kernel.name, 1), 0)
        moved = fit.reads * kernel.read + kernel.write
        rows.append((moved, more, *rates(kernel, fit), fit.fixed_s))
    moved, more, share, per_clock, fixed = np.array(rows, dtype=np.float64).T
    memory, issue = moved / (bytes_per_s * share), moved / (clocks_per_s * per_clock)
    walks = np.array([serial_s(kernel, units) for kernel in kernels])
    return np.asarray(fixed + more * extra_launch_s + np.maximum(p_norm(memory, issue, SHARPNESS), walks))
