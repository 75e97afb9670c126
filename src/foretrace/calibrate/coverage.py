"""Describes what a calibration covers: by itself, and of the kernels of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from foretrace.calibrate.fit import family_name
from foretrace.cost.calibration import Calibration
from foretrace.cost.kernels.corrections import FARTHEST, family
from foretrace.cost.kernels.interface import PriceSource
from foretrace.cost.mix import mix_of
from foretrace.cost.sources import calibrated_pricer
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.program.expand import expand
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, kernel_text
from foretrace.program.program import Program

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CoveredFamily:
    """A family of kernels, how many were measured, and the least and most of each of their sizes."""

    name: str
    kernels: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class CoveredCalls:
    """A collective in a group of `gpus` GPUs on `nodes` nodes, and between which sizes it was measured."""

    collective: str
    gpus: int
    nodes: int
    sizes: int
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class KernelCoverage:
    """A kernel of a job: how often a step of all ranks runs it, its share of the time of all kernels, and how far the
    nearest measured kernel of its family is, in octaves of its shape (0: measured; infinite: no such family)."""

    kernel: str
    family: str
    calls: float
    share: float
    distance: float

    @property
    def how(self) -> str:
        """In a word."""
        if self.distance == 0:
            return "measured"
        if self.distance <= FARTHEST:
            return "interpolated"
        return "corrected" if np.isfinite(self.distance) else "not covered"


@dataclass(frozen=True, slots=True)
class JobCoverage:
    """The kernels of a job, those with most time first."""

    title: str
    kernels: tuple[KernelCoverage, ...]

    def share(self, how: str) -> float:
        """The share of the time of kernels that are priced so."""
        return sum(kernel.share for kernel in self.kernels if kernel.how == how)


def covered_families(calibration: Calibration) -> tuple[CoveredFamily, ...]:
    """The families of kernels that were measured, in the order of the calibration's fits."""
    if calibration.kernels is None:
        return ()
    members: dict[str, list[Kernel]] = {}
    for kernel in calibration.kernels.kernels:
        members.setdefault(family_name(family(kernel)), []).append(kernel)
    fitted = [fit.name for fit in calibration.families if fit.name in members]
    order = [*fitted, *(name for name in members if name not in fitted)]
    return tuple(CoveredFamily(name, len(members[name]), _ranges(members[name])) for name in order)


def _ranges(kernels: list[Kernel]) -> dict[str, tuple[int, int]]:
    sizes = [_sizes(kernel) for kernel in kernels]
    return {name: (min(size[name] for size in sizes), max(size[name] for size in sizes)) for name in sizes[0]}


def _sizes(kernel: Kernel) -> dict[str, int]:
    if isinstance(kernel, Gemm):
        return {"m": kernel.m, "n": kernel.n, "k": kernel.k}
    if isinstance(kernel, GroupedGemm):
        return {"groups": kernel.groups, "m": kernel.m, "n": kernel.n, "k": kernel.k}
    if isinstance(kernel, Attention):
        return {"sequences": kernel.batch * kernel.heads, "q": kernel.q, "head": kernel.head_dim}
    if isinstance(kernel, Copy):
        return {"bytes": kernel.bytes}
    return {"bytes": kernel.read + kernel.write}


def covered_calls(calibration: Calibration) -> tuple[CoveredCalls, ...]:
    """The collectives that were measured."""
    tables = () if calibration.collectives is None else calibration.collectives.tables
    return tuple(
        CoveredCalls(
            table.collective.name.lower().replace("_", "-"),
            table.gpus,
            table.nodes,
            len(table.size_bytes),
            int(table.size_bytes[0]),
            int(table.size_bytes[-1]),
        )
        for table in tables
    )


def job_coverage(
    calibration: Calibration, program: Program, prices: PriceSource = "best", silicon: bool | None = None
) -> JobCoverage:
    """Which kernels of a job a calibration knows."""
    pricer = calibrated_pricer(gpu_preset(calibration.gpu), calibration, prices, silicon)
    mix = mix_of(expand(program))
    kernels = list(mix.calls)
    calls = np.array([mix.calls[kernel] for kernel in kernels])
    spent = pricer.price(kernels).duration_s * calls
    distance = pricer.covers(kernels)
    order = np.argsort(-spent, kind="stable")
    total = float(spent.sum()) or 1.0
    rows = (
        KernelCoverage(
            kernel_text(kernels[i]),
            family_name(family(kernels[i])),
            float(calls[i]),
            float(spent[i]) / total,
            float(distance[i]),
        )
        for i in order.tolist()
    )
    return JobCoverage(program.title, tuple(rows))
