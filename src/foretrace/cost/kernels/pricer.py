"""Prices kernels from a stack of sources, best first: a kernel profile, NVIDIA's tables, the model, the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, get_args

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.elementary import exp
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.kernels.corrections import FARTHEST, MeasuredCorrections
from foretrace.cost.kernels.interface import KernelPricer, KernelPrices, KnownPrices, PriceSource
from foretrace.cost.kernels.model import EfficiencyModel, floor_s
from foretrace.cost.kernels.parameters import DATA, efficiency, nearest
from foretrace.cost.kernels.silicon_kernels import KERNEL_SYSTEMS, gemm_table
from foretrace.cost.silicon import installed
from foretrace.hardware.cluster import Gpu
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.program.kernels import GroupedGemm, Kernel, Stream
from foretrace.program.program import Source

PROFILE_SPREAD: Final = 0.05
"""The spread between two modules of one kind, and of a step's frequency around that of the profile's mix: a
judgement."""

SILICON_SPREAD: Final = 0.10
"""The spread between measurements of one GPU by different frameworks: up to 0.10 to 0.13 for nine products in ten."""

SIBLING_SPREAD: Final = 0.08
"""The same for another module with the same chip: NVIDIA's tables of H100 and H200 differ by 2 to 3 %."""

SILICON_SAME: Final = 0.3
"""Squared octaves within which the tables' rows are averaged: of 0.0001 to 1, about this predicts another framework's
table of the same GPU best."""

HOT_S: Final = 1e-3
"""From here on a product, repeated, heats the GPU: the tables' rates fall. Rows that long are neither a burst nor
sustained, and are left out, but for GPUs whose clocks hold (the A100)."""

HOLDS: Final = 0.95
"""The share of a burst's clock from which on clocks count as holding."""

SCARCE_DTYPES: Final = frozenset({"fp16", "tf32"})
"""Left out of profiles, which have only a few forward products of them: fp16 is priced by bf16's measurements (an H200
is 4 to 7 % faster in it), tf32 by the model."""

POWER_LAW_ERROR: Final = 0.5
"""The error of a frequency that was computed from a module's power, as a share of its own logarithm: the cube root may
be a square root where the voltage is at its least."""

GROUPED_ERROR: Final = 0.2
"""The error of grouped products: p90 of the model over the B200's published ones is 17 %, over those of our
profile that are a launch per group 12 %."""

FUSED_ERROR: Final = 0.3
"""The error of memory-bound kernels of frameworks that were not measured, and are assumed to be like good ones that
were."""

ONE_LAUNCH_ERROR: Final = 0.3
"""The error of one kernel for all groups in 8 bits: PyTorch's own takes 1.36 times what is modelled in the median, and
nobody has published those of libraries."""

MODEL_ERROR: Final = 0.17
"""A single kernel's 90 % error of the model: p90 over the tables it was fitted on is 11 to 17 % (fitted.yaml); of
published rows it was not fitted on, 3 to 8 % where products are long, and 13 to 20 % where short."""

UNLIKE_ERROR: Final = 0.3
"""The error where the GPU's architecture was not measured: a judgement."""

SCARCELY_MEASURED: Final = frozenset({"mi300x"})
"""GPUs whose constants rest on a single published figure."""

ROOFLINE_BAND: Final = (0.95, 2.5)
"""GEMMs reach 0.4 to 0.85 of a peak and streams 0.4 to 0.95 of the memory's rate; nothing beats either."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One measured source: what it corrects the model by, how far it may be off besides, and its name."""

    measured: MeasuredCorrections
    spread: float
    name: str


class StackedPricer:
    """Prices each kernel by the first source that covers it; remembers what it has priced."""

    def __init__(self, model: EfficiencyModel, layers: Sequence[_Layer], notes: tuple[Diagnostic, ...]) -> None:
        self._model = model
        self._layers = layers
        self._known = KnownPrices(self._priced)
        self.notes = notes
        measured = [Source(layer.name, *_factors(layer.spread)) for layer in layers]
        # One more for kernels beyond what a source measured: the model, anchored to its nearest points.
        anchored = [Source(f"kernel model, anchored to {layer.name}", *_factors(MODEL_ERROR)) for layer in layers]
        like = model.constants.like
        known = model.gpu.architecture == gpu_preset(like).architecture and like not in SCARCELY_MEASURED
        self._error = MODEL_ERROR if known else UNLIKE_ERROR
        self.sources: tuple[Source, ...] = (
            *measured,
            *anchored,
            Source(f"kernel model of {model.gpu.name}", *_factors(self._error)),
        )

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel; see `KernelPricer`."""
        return self._known.of(kernels)

    def _priced(self, kernels: list[Kernel]) -> KernelPrices:
        count, layers = len(kernels), len(self._layers)
        modelled = self._model.seconds(kernels)
        factor, error = np.ones(count), self._model_errors(kernels)
        source = np.full(count, 2 * layers)
        for number, layer in enumerate(self._layers):
            rows = np.flatnonzero(source >= layers)
            correction = layer.measured.correction([kernels[i] for i in rows])
            inside = correction.distance <= FARTHEST
            # Beyond what any source measured, the first that has the kind anchors the model.
            beyond = ~inside & np.isfinite(correction.distance) & (source[rows] == 2 * layers)
            for some, its in ((inside, number), (beyond, layers + number)):
                factor[rows[some]], source[rows[some]] = correction.factor[some], its
            error[rows[inside]] = np.hypot(correction.error, layer.spread)[inside]
            error[rows[beyond]] = np.maximum(correction.error[beyond], error[rows[beyond]])
        seconds = np.maximum(modelled * factor, floor_s(self._model.gpu, kernels))
        return KernelPrices(seconds, source, exp(-error), exp(error))

    def _model_errors(self, kernels: list[Kernel]) -> Floats:
        """Returns the error of the model for each kernel, as a logarithm."""
        errors = np.full(len(kernels), self._error)
        for i, kernel in enumerate(kernels):
            if isinstance(kernel, GroupedGemm):
                is_known = kernel.separate or kernel.dtype in ("bf16", "fp16")
                errors[i] = max(GROUPED_ERROR if is_known else ONE_LAUNCH_ERROR, self._error)
            elif isinstance(kernel, Stream) and "_fused" in kernel.name:
                errors[i] = max(FUSED_ERROR, self._error)
        return errors


class RooflinePricer:
    """The datasheet alone: peak or memory rate, whichever takes longer."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.sources: tuple[Source, ...] = (Source(f"datasheet roofline of {gpu.name}", *ROOFLINE_BAND),)
        self.notes: tuple[Diagnostic, ...] = ()

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Returns the roofline of each kernel; see `KernelPricer`."""
        seconds, count = floor_s(self._gpu, kernels), len(kernels)
        low, high = (np.full(count, bound) for bound in ROOFLINE_BAND)
        return KernelPrices(seconds, np.zeros(count, dtype=np.int64), low, high)


def kernel_pricer(
    gpu: Gpu, prices: PriceSource = "best", silicon: bool | None = None, profile: Path | None = None
) -> KernelPricer:
    """Prices of kernels on a GPU: from the best sources there are, from the model alone, or from the datasheet alone.

    `silicon` says whether NVIDIA's tables are used (None: if they are installed); `profile` names a kernel profile of
    this GPU, used instead of the one that ships for it.
    """
    if prices not in get_args(PriceSource):
        raise InputError(
            "unknown-name", f'prices "{prices}" are not known', hint=f"known: {', '.join(get_args(PriceSource))}"
        )
    if silicon and not installed():
        raise InputError(
            "missing-package",
            "NVIDIA's kernel tables are not installed",
            hint="pip install foretrace[silicon], or leave silicon out",
        )
    if prices == "roofline":
        return RooflinePricer(gpu)
    use = installed() if silicon is None else silicon
    if prices == "model":
        use, profile = False, None
    if gpu.name and _is_preset(gpu):
        return _shared(gpu.name, prices, use, profile)
    return _stacked(gpu, prices, use, profile)


def _is_preset(gpu: Gpu) -> bool:
    try:
        return gpu_preset(gpu.name) == gpu
    except InputError:
        return False


@lru_cache(maxsize=16)
def _shared(name: str, prices: PriceSource, silicon: bool, profile: Path | None) -> KernelPricer:
    """One pricer per preset and process: tables are read and kernels priced once."""
    return _stacked(gpu_preset(name), prices, silicon, profile)


def _stacked(gpu: Gpu, prices: PriceSource, silicon: bool, profile: Path | None) -> KernelPricer:
    model = EfficiencyModel(gpu, efficiency(gpu))
    layers: list[_Layer] = []
    notes: list[Diagnostic] = []
    reference = gpu_preset(model.constants.like)
    if reference.name != gpu.name:
        notes.append(
            Diagnostic(
                "note", "price-source", f"kernels of {gpu.name} are priced with the efficiencies of {reference.name}"
            )
        )
    if reference.architecture != gpu.architecture:
        measured_on = gpu.architecture or "such a GPU"
        text = f"no kernel was measured on {measured_on}: efficiencies of {reference.name} are assumed"
        notes.append(Diagnostic("warning", "extrapolated", text))
    if prices == "best":
        own = profile or _shipped(gpu.name)
        if own is not None:
            layers.append(_Layer(_profiled(own, model), PROFILE_SPREAD, f"kernel profile {own.name.split('.')[0]}"))
        # A sibling's profile is sustained and has all layouts; tables are short measurements of forward products.
        sibling = None if own is not None else _sibling(gpu)
        if sibling is not None:
            name, path = sibling
            its = gpu_preset(name)
            measured = _profiled(path, EfficiencyModel(its, efficiency(its)))
            worked_out = abs(math.log(model.constants.clock_hz / efficiency(its).clock_hz))
            spread = SIBLING_SPREAD + POWER_LAW_ERROR * worked_out
            layers.append(_Layer(measured, spread, f"kernel profile {name}, scaled to {gpu.name}"))
        system = KERNEL_SYSTEMS.get(gpu.name)
        if silicon and system is not None:
            name = f"NVIDIA's kernel tables of {system}"
            layers.append(_Layer(_silicon(system, model), SILICON_SPREAD, name))
    return StackedPricer(model, layers, tuple(notes))


def _silicon(system: str, model: EfficiencyModel) -> MeasuredCorrections:
    """The tables of products in bf16: those in fp8 and fp4 time the quantisation of the activations too."""
    kernels, seconds = gemm_table(system, "bf16")
    holds = model.constants.sustained["bf16"] >= HOLDS
    short = np.flatnonzero((seconds < HOT_S) | holds)
    own = [kernels[i] for i in short]
    return MeasuredCorrections(own, seconds[short], model.seconds(own, sustained=False), SILICON_SAME)


def _profiled(path: Path, model: EfficiencyModel) -> MeasuredCorrections:
    from foretrace.cost.kernels.kernel_profile import read_profile

    profile = read_profile(path)
    rows = [i for i, kernel in enumerate(profile.kernels) if getattr(kernel, "dtype", "") not in SCARCE_DTYPES]
    kernels = [profile.kernels[i] for i in rows]
    return MeasuredCorrections(kernels, profile.sustained_s[rows], model.seconds(kernels))


def _shipped(name: str) -> Path | None:
    """The kernel profile that comes with the package for a GPU."""
    paths = (DATA / f"{name}{suffix}" for suffix in (".profile", ".profile.gz"))
    return next((path for path in paths if path.exists()), None)


def _sibling(gpu: Gpu) -> tuple[str, Path] | None:
    """Returns the shipped profile of the most similar GPU of the same architecture."""
    names = [nearest(gpu), *sorted(path.name.split(".profile")[0] for path in DATA.glob("*.profile*"))]
    for name in names:
        path = _shipped(name)
        if path is not None and name != gpu.name and gpu_preset(name).architecture == gpu.architecture:
            return name, path
    return None


def _factors(error: float) -> tuple[float, float]:
    return math.exp(-error), math.exp(error)
