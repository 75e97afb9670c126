"""Prices kernels by a calibration, and corrects the usual sources by it elsewhere.

A measured kernel has its measured time. Any other kernel has the usual price times the ratio of measured to usual price
on the measured kernels of its family, the nearer ones weighted more. One mechanism (`MeasuredCorrections`) serves
inside and outside the measured range, so no seam jumps. Families that were not measured are priced as without a
calibration.

The error of the usual sources belongs partly to the family and partly to each shape. Away from the measured shapes only
the family's part holds. The number of measured shapes decides how large that part is (partial pooling).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.elementary import exp, power
from foretrace.basics.errors import Diagnostic
from foretrace.cost.calibration import Calibration
from foretrace.cost.kernels.corrections import FARTHEST, Family, MeasuredCorrections, family
from foretrace.cost.kernels.interface import KernelPricer, KernelPrices, KnownPrices
from foretrace.cost.kernels.model import floor_s
from foretrace.cost.kernels.plausible import plausible_kernels
from foretrace.cost.kernels.pricer import PROFILE_SPREAD
from foretrace.cost.kernels.streams import row_length
from foretrace.hardware.cluster import Gpu
from foretrace.program.kernels import Kernel, Stream
from foretrace.program.program import Source

EXACT_SPREAD: Final = 0.03
"""The spread of a kernel's time between two steps of one machine: the frequency moves by 2 to 3 % either way as the GPU
keeps to its power (an H200's trace of two steps has one product at 492 to 519 us)."""

FAMILY_SPREAD: Final = 0.08
"""The spread between families of the error of the usual sources, one standard deviation as a logarithm; that of single
shapes within a family is the next. Judgements that together make up the model's error of single kernels."""
SHAPE_SPREAD: Final = 0.05
STRIDED_SPREAD: Final = 0.15
"""The same for kernels that read or write slices: how long these are is not in their key, and decides (an H200 joins
halves of 64 bytes at half the rate of halves of 128)."""
NEAR: Final = 0.5
"""Octaves over which what is a shape's own fades."""


class CalibratedPricer:
    """The prices of other sources, corrected by a calibration; remembers what it has priced.

    `sources` are the calibration, then the others' as they are corrected by it, then the others' as they were.
    """

    def __init__(self, base: KernelPricer, calibration: Calibration, gpu: Gpu) -> None:
        self._base = base
        self._gpu = gpu
        self._factor = 1.0 if calibration.steps is None else calibration.steps.factor
        profile = calibration.kernels
        kernels: tuple[Kernel, ...] = () if profile is None else profile.kernels
        seconds = np.empty(0) if profile is None else profile.sustained_s
        usual = base.price(kernels).duration_s
        usable, odd = plausible_kernels(gpu, kernels, seconds, usual, calibration.path)
        kernels = tuple(kernel for kernel, is_usable in zip(kernels, usable.tolist(), strict=True) if is_usable)
        seconds, usual = seconds[usable], usual[usable]
        self._exact = {_same(kernel): measured_s for kernel, measured_s in zip(kernels, seconds.tolist(), strict=True)}
        self._measured = MeasuredCorrections(kernels, seconds, usual)
        self._shapes: dict[Family, int] = dict(Counter(family(kernel) for kernel in kernels))
        self._known = KnownPrices(self._priced)
        spread = PROFILE_SPREAD
        own = Source(calibration.source, math.exp(-spread), math.exp(spread))
        held = (
            Source(f"{source.name}, corrected by {calibration.name}", source.low, source.high)
            for source in base.sources
        )
        self.sources: tuple[Source, ...] = (own, *held, *base.sources)
        self.notes: tuple[Diagnostic, ...] = (*base.notes, *calibration.notes, *odd, *_step_note(calibration))

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel; see `KernelPricer`."""
        return self._known.of(kernels)

    def _priced(self, kernels: list[Kernel]) -> KernelPrices:
        usual = self._base.price(kernels)
        correction = self._measured.correction(kernels)
        known, near = np.isfinite(correction.distance), correction.distance <= FARTHEST
        factor = power(correction.factor, self._held(kernels, correction.distance))
        seconds = np.where(known, np.maximum(usual.duration_s * factor, floor_s(self._gpu, kernels)), usual.duration_s)
        own = np.hypot(correction.error, PROFILE_SPREAD)
        own_low, own_high = exp(-own), exp(own)
        low = np.where(near, own_low, np.where(known, np.minimum(own_low, usual.low), usual.low))
        high = np.where(near, own_high, np.where(known, np.maximum(own_high, usual.high), usual.high))
        source = self._sources_of(usual.source, known, near)
        for i, kernel in enumerate(kernels):
            measured_s = self._exact.get(_same(kernel))
            if measured_s is not None:
                seconds[i], source[i] = measured_s, 0
                low[i], high[i] = math.exp(-EXACT_SPREAD), math.exp(EXACT_SPREAD)
        return KernelPrices(self._factor * seconds, source, low, high)

    def _held(self, kernels: list[Kernel], distance: Floats) -> Floats:
        """Returns the part of a measured ratio that holds at this distance: all of it at a measured kernel, and the
        family's own part far away."""
        shapes = np.array([self._shapes.get(family(kernel), 1) for kernel in kernels])
        strided = np.array([isinstance(kernel, Stream) and "strided" in kernel.name for kernel in kernels], dtype=bool)
        noise = np.where(strided, STRIDED_SPREAD, SHAPE_SPREAD) ** 2 / shapes
        pooled = FAMILY_SPREAD**2 / (FAMILY_SPREAD**2 + noise)
        return np.asarray(pooled + (1 - pooled) * exp(-np.where(np.isfinite(distance), distance, 0.0) / NEAR))

    def _sources_of(self, usual: Longs, known: Mask, near: Mask) -> Longs:
        count = len(self._base.sources)
        return np.asarray(np.where(near, 0, np.where(known, 1 + usual, 1 + count + usual)))

    def covers(self, kernels: Sequence[Kernel]) -> Floats:
        """Returns the distance of each kernel from the nearest measured one of its family, in octaves of its shape: 0
        where it was measured itself, infinite where its family was not."""
        distance = self._measured.correction(kernels).distance
        return np.array(
            [0.0 if _same(kernel) in self._exact else at for kernel, at in zip(kernels, distance, strict=True)]
        )


def _same(kernel: Kernel) -> Kernel:
    """A kernel without what does not change its time."""
    if not isinstance(kernel, Stream):
        return kernel
    return Stream(kernel.name, kernel.read, kernel.write, rows=row_length(kernel), element=kernel.element)


def _step_note(calibration: Calibration) -> tuple[Diagnostic, ...]:
    """Returns the note that a factor from whole steps is applied."""
    fit = calibration.steps
    if fit is None:
        return ()
    text = (
        f"{calibration.name}: all kernels take {fit.factor:.3f} times as long, as {fit.rows} whole steps call for "
        f"(which leaves {100 * fit.error:.1f} % of {100 * fit.before:.1f} % mean error of them)"
    )
    return (Diagnostic("note", "price-source", text),)
