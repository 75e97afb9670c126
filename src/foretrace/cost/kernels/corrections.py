"""Corrects the efficiency model by measured kernels nearby.

One mechanism serves inside and outside the measured range. For a kernel, the ratios of measured to modelled time of all
points of its family are averaged, each weighted by the eighth power of its nearness in the logarithm of the shape
(Shepard's interpolation). At a measured point the result is the measurement, between points it changes smoothly, and
beyond them it stays as at the edge, so no seam jumps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.elementary import exp, log
from foretrace.cost.kernels.streams import row_length, stream_kind
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel

Family = tuple[object, ...]
Singles = NDArray[np.float32]

SAME: Final = 1e-3
"""The squared distance, in octaves, below which shapes count as the same where single measurements can be trusted."""

FARTHEST: Final = 1.5
"""Octaves from the nearest measured shape beyond which a price is the model's, anchored; a judgement."""

MAX_CORRECTION: Final = 4.0
"""A measurement farther from the model than this factor counts as this far: it is of something else."""

TESTED: Final = 64
"""Points of a family left out one at a time to see how far its prices are off."""

BLOCK: Final = 1 << 16
"""Distances between kernels and points that are computed at a time: they stay in a core's cache."""

Z90: Final = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Correction:
    """For each kernel a factor on its modelled price, the distance to the nearest measured shape in octaves (infinite
    where none of its kind was measured), and how far the factor may be off, as a logarithm."""

    factor: Floats
    distance: Floats
    error: Floats


@dataclass(frozen=True, slots=True)
class _Points:
    """Measured kernels of one family: their places, the logarithms of their ratios, and what leaving each out shows:
    the error, at which distance.

    Coordinates, [dimensions, points], are relative to the middle of the points. So single precision tells apart what is
    a hundredth of an octave apart, in half the time of double precision.
    """

    middle: Floats
    coordinates: Singles
    log_ratio: Singles
    same: float
    error: float
    spacing: float

    @property
    def count(self) -> int:
        """The number of points."""
        return len(self.log_ratio)


class MeasuredCorrections:
    """Corrections of the model by measured kernels. Shapes whose squared distance in octaves is below `same` are
    averaged: so measurements that scatter speak together."""

    def __init__(self, kernels: Sequence[Kernel], seconds: Floats, modelled: Floats, same: float = SAME) -> None:
        usable = np.isfinite(seconds) & (seconds > 0) & (modelled > 0)
        limit = math.log(MAX_CORRECTION)
        safe = np.where(usable, seconds, 1.0) / np.where(usable, modelled, 1.0)
        log_ratio = np.clip(log(safe), -limit, limit)
        members: dict[Family, list[int]] = {}
        for i in np.flatnonzero(usable).tolist():
            members.setdefault(family(kernels[i]), []).append(i)
        self._points = {
            name: _points(np.array([_place(kernels[i]) for i in rows]), log_ratio[rows], same)
            for name, rows in members.items()
        }

    def correction(self, kernels: Sequence[Kernel]) -> Correction:
        """Returns the factor on the modelled price of each kernel."""
        factor, distance, error = np.ones(len(kernels)), np.full(len(kernels), np.inf), np.zeros(len(kernels))
        groups: dict[Family, list[int]] = {}
        for i, kernel in enumerate(kernels):
            groups.setdefault(self._known(kernel), []).append(i)
        for name, rows in groups.items():
            points = self._points.get(name)
            if points is None:
                continue
            log_ratio, squared = _interpolated(np.array([_place(kernels[i]) for i in rows]), points)
            factor[rows], distance[rows] = exp(log_ratio), np.sqrt(squared)
            error[rows] = points.error * np.minimum(np.sqrt(squared) / points.spacing, 3.0)
        return Correction(factor, distance, error)

    def _known(self, kernel: Kernel) -> Family:
        """The family whose measurements speak for a kernel: its own; of a product in a layout or dtype that was not
        measured, that of `tn`, since the model knows the difference; of a stream, the plain one."""
        own = family(kernel)
        if own in self._points:
            return own
        if own[0] == "gemm":
            dtype = "bf16" if kernel.dtype == "fp16" else kernel.dtype  # type: ignore[union-attr]
            return ("gemm", dtype, "tn")
        if own[0] == "stream" and str(own[1]).endswith("_strided"):
            return ("stream", "mul_strided")
        return own


def family(kernel: Kernel) -> Family:
    """Kernels whose measurements speak for each other."""
    if isinstance(kernel, Gemm):
        return ("gemm", kernel.dtype, kernel.layout)
    if isinstance(kernel, GroupedGemm):
        return ("grouped_gemm", kernel.dtype, kernel.layout, kernel.separate)
    if isinstance(kernel, Attention):
        return ("attention", kernel.dtype, kernel.backend.removesuffix("_2025"), kernel.backward)
    if isinstance(kernel, Copy):
        return ("copy", kernel.to)
    return ("stream", stream_kind(kernel))


def _place(kernel: Kernel) -> list[float]:
    """Returns the coordinates of a kernel among those of its family: logarithms of what its price depends on, in
    octaves."""
    if isinstance(kernel, Gemm):
        return [*_logs(kernel.m, kernel.n, kernel.k, kernel.batch), _result(kernel)]
    if isinstance(kernel, GroupedGemm):
        return [*_logs(kernel.m, kernel.n, kernel.k, kernel.groups), _result(kernel)]
    if isinstance(kernel, Attention):
        keys = kernel.pairs / max(kernel.q, 1)
        # Another head size runs another kernel, so it counts as far as it does.
        head = 2.0 * log2(max(kernel.head_dim + kernel.v_dim, 1))
        return [*_logs(kernel.q, keys, kernel.batch * kernel.heads), head, 0.2 * log2(max(kernel.kv_heads, 1))]
    if isinstance(kernel, Copy):
        return _logs(kernel.bytes)
    # A scattered read costs more than a write, so what is mostly read differs; beyond 64 to 1 one side alone counts.
    mix = min(max(log2((kernel.read + 1) / (kernel.write + 1)), -6.0), 6.0)
    return [*_logs(kernel.moved_bytes), 0.5 * log2(max(row_length(kernel), 1)), 0.3 * mix]


def _result(kernel: Gemm | GroupedGemm) -> float:
    """Returns what is written sets kernels apart a little: one of the same kind speaks first."""
    return 0.3 * (kernel.out == "fp32") + 0.2 * kernel.accumulate


def _logs(*values: float) -> list[float]:
    return [log2(max(value, 1.0)) for value in values]


def _interpolated(places: Floats, points: _Points, without: Longs | None = None) -> tuple[Floats, Floats]:
    """The logarithm of the ratio at each place, and the squared distance to the nearest point; `without` names a point
    for each place that must not count."""
    ratios, nearest = np.empty(len(places)), np.empty(len(places))
    here = (places - points.middle).astype(np.float32)
    rows = max(BLOCK // points.count, 1)
    for first in range(0, len(places), rows):
        some = slice(first, first + rows)
        ratios[some], nearest[some] = _of_block(here[some], points, None if without is None else without[some])
    return ratios, nearest


def _of_block(here: Singles, points: _Points, without: Longs | None) -> tuple[Singles, Singles]:
    """Interpolates at some places, which are single-precision coordinates relative to the middle of the points.

    Each result is made of operations on single values and of sums along its own row, whose order numpy chooses by the
    length of the row. So it is the same for a place alone and among others. A product of matrices would not be: BLAS
    chooses the order of its sums by the shape of the whole and by the CPU.
    """
    squared = np.zeros((len(here), points.count), dtype=np.float32)
    apart = np.empty_like(squared)
    for own, theirs in zip(here.T, points.coordinates, strict=True):
        np.subtract(own[:, None], theirs, out=apart)
        apart *= apart
        squared += apart
    if without is not None:
        squared[np.arange(len(here)), without] = np.inf
    nearest = squared.min(axis=1)
    same = np.float32(points.same)
    squared += same
    # Relative to the nearest, so that no power overflows.
    weight = np.divide((nearest + same)[:, None], squared, out=squared)
    weight *= weight
    weight *= weight
    whole = weight.sum(axis=1)
    weight *= points.log_ratio
    return np.asarray(weight.sum(axis=1) / whole), nearest


def _points(place: Floats, log_ratio: Floats, same: float) -> _Points:
    """With the error that leaving points out shows; a point alone shows none, so its own ratio is taken for one."""
    middle = place.mean(axis=0)
    coordinates = np.ascontiguousarray((place - middle).T, dtype=np.float32)
    points = _Points(middle, coordinates, log_ratio.astype(np.float32), same, 0.0, 1.0)
    if points.count < 4:
        return replace(points, error=max(0.1, float(np.abs(log_ratio).max(initial=0.0)) / 2))
    chosen = np.unique(np.linspace(0, points.count - 1, TESTED).astype(np.int64))
    guessed, squared = _interpolated(place[chosen], points, chosen)
    low, high = np.quantile(log_ratio[chosen] - guessed, Z90)
    spacing = max(float(np.median(np.sqrt(squared))), 0.25)
    return replace(points, error=float(max(-low, high, 0.0)), spacing=spacing)
