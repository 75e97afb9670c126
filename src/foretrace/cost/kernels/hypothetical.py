"""Prices kernels on a hypothetical GPU, which changes some figures of a preset, and of hypothetical kernels.

A kernel takes what it takes on the preset, from the best source that knows it, times the ratio of the model's times on
the two GPUs. So a kernel that the changed figures do not concern keeps its measured price, and a changed figure acts as
far as it limits the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.elementary import exp, log
from foretrace.basics.errors import Diagnostic
from foretrace.cost.kernels.interface import KernelPricer, KernelPrices, KnownPrices
from foretrace.cost.kernels.model import EfficiencyModel, floor_s
from foretrace.cost.kernels.parameters import efficiency
from foretrace.hardware.cluster import Gpu
from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_work
from foretrace.program.kernels import GroupedGemm, Kernel
from foretrace.program.program import Source

SCALING_ERROR: Final = (0.1, 1.1)
"""How far a converted price may be off, faster and slower, as a share of the logarithm by which it was converted. The
share of the peak that sustained bf16 products reach fell as the power 0.1 of the peak from an A100 to an H100, and as
0.68 from an H100 to a B200 (data/fitted.yaml); nothing suggests that a share rises with the peak. Of a kernel's error
0.6 is common to all (`COMMON` of cost/pricing.py): 1.1 makes 0.68 of the error of the step."""

FAR: Final = 1.5
"""The factor between a figure and that of the preset beyond which a price is called extrapolated."""

SAME_PRICE: Final = 1e-3
"""Below this difference a price counts as that of the preset."""


class HypotheticalPricer:
    """Prices of a preset, converted to a GPU that changes some of its figures; remembers what it has priced.

    `sources` are those of the preset, for kernels that the changes do not concern, then the same as converted.
    """

    def __init__(self, pricer: KernelPricer, base: Gpu, gpu: Gpu) -> None:
        self._pricer = pricer
        self._gpu = gpu
        self._known = KnownPrices(self._priced)
        self._before = EfficiencyModel(base, efficiency(base))
        self._after = EfficiencyModel(gpu, efficiency(gpu))
        converted = (Source(_scaled_name(source.name, base, gpu), source.low, source.high) for source in pricer.sources)
        self.sources: tuple[Source, ...] = (*pricer.sources, *converted)
        self.notes: tuple[Diagnostic, ...] = (*pricer.notes, *_notes(base, gpu))

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel; see `KernelPricer`."""
        return self._known.of(kernels)

    def _priced(self, kernels: list[Kernel]) -> KernelPrices:
        usual = self._pricer.price(kernels)
        ratio = self._after.seconds(kernels) / self._before.seconds(kernels)
        # A measured price may lie below the datasheet's bound of the preset, and then as far below that of this GPU.
        bound_s, bound_before_s = floor_s(self._gpu, kernels), floor_s(self._before.gpu, kernels)
        lowest_s = np.minimum(bound_s, usual.duration_s * bound_s / np.maximum(bound_before_s, 1e-300))
        seconds = np.maximum(usual.duration_s * ratio, lowest_s)
        is_converted = np.abs(ratio - 1) > SAME_PRICE
        faster, slower = (share * np.abs(log(ratio)) for share in SCALING_ERROR)
        return KernelPrices(
            seconds,
            usual.source + np.where(is_converted, len(self._pricer.sources), 0),
            exp(-np.hypot(log(usual.low), faster)),
            exp(np.hypot(log(usual.high), slower)),
        )


def _scaled_name(name: str, base: Gpu, gpu: Gpu) -> str:
    """Returns the name of a source whose prices were converted from one GPU to another."""
    if name.endswith(f"scaled to {base.name}"):
        return f"{name.removesuffix(base.name)}{gpu.name}"
    return f"{name}, scaled to {gpu.name}"


def _notes(base: Gpu, gpu: Gpu) -> list[Diagnostic]:
    """Returns a warning where figures are far from those of the preset, and a note where more power changes nothing."""
    figures = {
        "bf16 peak": (gpu.peak_flops.get("bf16", 0.0), base.peak_flops.get("bf16", 0.0)),
        "memory bandwidth": (gpu.memory_bytes_per_s, base.memory_bytes_per_s),
        "number of SMs": (float(gpu.compute_units), float(base.compute_units)),
    }
    notes = []
    far = [
        f"{name} {after / before:.3g}×"
        for name, (after, before) in figures.items()
        if after and before and not 1 / FAR <= after / before <= FAR
    ]
    if far:
        text = (
            f"{gpu.name} has {' and '.join(far)} that of {base.name}, whose efficiencies are assumed: later GPUs "
            "reached a smaller share of higher peaks, which the band allows for"
        )
        notes.append(Diagnostic("warning", "extrapolated", text))
    if base.power_w and gpu.power_w > base.power_w and efficiency(gpu).sustained.get("bf16", 0.0) >= 1.0:
        text = f"{gpu.power_w:,.0f} W sustain the highest frequency: more power would change nothing"
        notes.append(Diagnostic("note", "power-clock", text))
    return notes


@dataclass(frozen=True, slots=True)
class FasterKernels:
    """Prices of another source, divided by the speed of each kind of kernel in `speeds`.

    `gemm` is every product, those of experts too.
    """

    pricer: KernelPricer
    speeds: Mapping[str, float]

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those of the other."""
        return self.pricer.sources

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Those of the other."""
        return self.pricer.notes

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        """Prices each kernel; see `KernelPricer`."""
        prices = self.pricer.price(kernels)
        speed = np.ones(len(kernels))
        for i, kernel in enumerate(kernels):
            words = {str(kind_of_work(kernel)), *([str(WorkKind.GEMM)] if isinstance(kernel, GroupedGemm) else [])}
            for word in words:
                speed[i] *= self.speeds.get(word, 1.0)
        return replace(prices, duration_s=prices.duration_s / speed)
