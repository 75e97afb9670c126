"""Checks measured kernels against what a GPU can do, and against the model.

A kernel that is faster than its GPU was measured on another one, or is not the kernel that it is called: it is not
used. A kernel that is ten times off the model may be right, and is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Mask
from foretrace.basics.errors import Diagnostic
from foretrace.cost.kernels.model import floor_s, peak_flops
from foretrace.hardware.cluster import Gpu
from foretrace.program.kernels import Gemm, Kernel, kernel_text, parse_kernels
from foretrace.program.program import Program

MIN_FLOPS_PART: Final = 0.9
"""The part of the time at the datasheet's peak that a product may take. Datasheets state the peak at the boost clock,
and the highest clock is up to 8 % above it (H100 SXM: 1,830 and 1,980 MHz)."""

MIN_BYTES_PART: Final = 0.5
"""The part of the time at the memory's rate that a kernel may take. Bytes may be in the L2 cache, and the bytes of
gathers are upper limits: real ones take down to 0.6 (a backward of an embedding on an H200)."""

MAX_OFF_MODEL: Final = 10.0
"""The factor, either way, from which on a kernel is reported to differ from the model: more than model and measurement
differ by, less than a mistaken unit. Two of 2,700 real kernels of an H200 and an A100 do, which are copies that waited.
"""

MIN_PRODUCT_S: Final = 10e-6
"""The time at its GPU's peak from which on a recorded product is checked: shorter ones are bound by latency."""

MAX_TIMES_PEAK: Final = 100.0
"""How many times its time at the peak a recorded product may take: real ones of that size take up to 3."""


def plausible_kernels(
    gpu: Gpu, kernels: Sequence[Kernel], seconds: Floats, modelled: Floats, where: str
) -> tuple[Mask, list[Diagnostic]]:
    """Returns which kernels can have been measured on a GPU, and the warnings about the others.

    Args:
        gpu: The GPU.
        kernels: The kernels.
        seconds: Their measured times.
        modelled: Their prices by the model.
        where: The file that errors name.
    """
    flops_s = np.array([kernel.flops / peak_flops(gpu, getattr(kernel, "dtype", "bf16")) for kernel in kernels])
    least = np.maximum(MIN_FLOPS_PART * flops_s, MIN_BYTES_PART * floor_s(gpu, kernels))
    usable = np.asarray(seconds >= least)
    notes = []
    if not usable.all():
        worst = int((seconds / np.maximum(least, 1e-30)).argmin())
        floor = float(floor_s(gpu, [kernels[worst]])[0])
        text = (
            f"{int((~usable).sum()):,} of {len(kernels):,} kernels are faster than a {gpu.name} can be, and not used: "
            f"{kernel_text(kernels[worst])} in {seconds[worst] / floor:.2g} of the time at its peak rates"
        )
        notes.append(Diagnostic("warning", "beats-peak", text, where))
    ratio = np.where(usable, seconds / modelled, 1.0)
    off = np.maximum(ratio, 1 / ratio)
    if len(off) and off.max() >= MAX_OFF_MODEL:
        worst = int(off.argmax())
        text = (
            f"{int((off >= MAX_OFF_MODEL).sum()):,} of {len(kernels):,} kernels are {MAX_OFF_MODEL:g} times off the "
            f"model or more: {kernel_text(kernels[worst])} takes {ratio[worst]:,.3g} times as long"
        )
        notes.append(Diagnostic("warning", "off-model", text, where))
    return usable, notes


def recorded_rates(gpu: Gpu, program: Program, where: str) -> list[Diagnostic]:
    """Returns a warning where recorded products are faster than their GPU, or a hundred times slower.

    Args:
        gpu: The GPU that the program was recorded on.
        program: A recorded program.
        where: The recording.
    """
    columns = program.templates.columns
    number, duration_s = columns["kernel"].astype(np.int64), columns["duration_s"].astype(np.float64)
    chosen = np.flatnonzero((number >= 0) & (duration_s > 0))
    floors = {at: _products_s(gpu, program.strings[at]) for at in set(number[chosen].tolist())}
    least_s = np.array([floors[at] for at in number[chosen].tolist()])
    long = least_s > MIN_PRODUCT_S
    if not long.any():
        return []
    times = float(np.median(duration_s[chosen][long] / least_s[long]))
    if MIN_FLOPS_PART <= times <= MAX_TIMES_PEAK:
        return []
    text = f"products take {times:.3g} of the time at the peak of a {gpu.name}: times, shapes or the name of the GPU"
    return [Diagnostic("warning", "implausible-rate", f"{text} may be wrong; a unit may be mistaken", where)]


def _products_s(gpu: Gpu, text: str) -> float:
    """Returns the time of the matrix products of an op at the GPU's peak; those of fp32 may use TF32."""
    wide = max(peak_flops(gpu, "fp32"), peak_flops(gpu, "tf32"))
    return sum(
        count * kernel.flops / (wide if kernel.dtype == "fp32" else peak_flops(gpu, kernel.dtype))
        for count, kernel in parse_kernels(text)
        if isinstance(kernel, Gemm)
    )
