"""Scales the recorded time of a kernel to other samples per step, or to another GPU.

A recorded time is multiplied by the ratio of two prices of the kernel: as it would be, and as it was. An error of the
kernel's price is mostly the same factor in both and cancels, since the recorded time anchors it. Both prices hold the
pause before the next kernel, which counts where kernels are short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.program.kernels import Gemm, Kernel, Stream, grown, kernels_text, parse_kernels

if TYPE_CHECKING:
    from foretrace.cost.kernels.interface import KernelPricer
    from foretrace.hardware.cluster import Gpu

FLOOR_S: Final = 3.5e-6
"""Time that a kernel takes however little it does, with the pause before the next: the smallest in traces of an H200
take 1.5 to 2.2 us, pauses 1.3 to 1.7. It neither grows with a batch nor shrinks on a faster GPU."""

_TYPICAL: Final[dict[WorkKind, Kernel]] = {
    WorkKind.GEMM: Gemm(8192, 4096, 4096),
    WorkKind.ATTENTION: Gemm(8192, 4096, 4096),
    WorkKind.CONVOLUTION: Gemm(8192, 4096, 4096),
    WorkKind.MOE_EXPERT: Gemm(8192, 4096, 4096),
}
_MOVES_MEMORY: Final = Stream("elementwise", 1 << 28, 1 << 28)
"""Stands for kernels of unknown shapes when two GPUs are compared. For kernels that multiply, `_TYPICAL` has a large
product."""


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The kernels of an op as they would be, and by what its time beyond `floor_s` is to be multiplied."""

    text: str
    ratio: float
    floor_s: float = 0.0

    def seconds(self, recorded_s: float) -> float:
        """Returns the new seconds of an op that took `recorded_s`."""
        beyond = max(recorded_s - self.floor_s, 0.0)
        return recorded_s - beyond + beyond * self.ratio


class Rescaling:
    """Computes ratios of prices between the GPU of a recording (None: not known) and a target GPU.

    The step has `batch` times the samples that were recorded.
    """

    def __init__(self, recorded: Gpu | None, target: Gpu | None, batch: float) -> None:
        self._batch = batch
        self._before = None if recorded is None else _pricer(recorded)
        self._after = self._before if target is None else _pricer(target)

    def prepare(self, texts: Iterable[str]) -> None:
        """Prices many texts at once, which is faster than one by one."""
        kernels = [kernel for text in dict.fromkeys(texts) for _, kernel in parse_kernels(text)]
        if self._before is not None and kernels:
            self._before.price(kernels)
        if self._after is not None and kernels:
            self._after.price([*kernels, *(grown(kernel, self._batch)[0] for kernel in kernels)])

    def of_text(self, text: str, grows: bool) -> Rescaled:
        """Rescales an op whose kernels are known; `grows` says whether its work grows with samples."""
        old = parse_kernels(text)
        new = [(count, *(grown(kernel, self._batch) if grows else (kernel, 1.0))) for count, kernel in old]
        before = _total_s(self._before, [(count, kernel, 1.0) for count, kernel in old])
        after = _total_s(self._after, new)
        written = kernels_text((count, kernel) for count, kernel, _ in new)
        return Rescaled(written, after / before if before > 0 else 1.0)

    def of_kind(self, kind: WorkKind, grows: bool) -> Rescaled:
        """Rescales an op of a known kind: in proportion to samples, and to what bounds such kernels."""
        ratio = self._batch if grows else 1.0
        if self._before is not None and self._after is not None and self._after is not self._before:
            typical = [(1, _TYPICAL.get(kind, _MOVES_MEMORY), 1.0)]
            ratio *= _total_s(self._after, typical) / _total_s(self._before, typical)
        return Rescaled("", ratio, FLOOR_S)


def _total_s(pricer: KernelPricer | None, kernels: Sequence[tuple[int, Kernel, float]]) -> float:
    """Returns the seconds of kernels one after the other, each (count, kernel, factor).

    Without a pricer it returns their work, which has no unit and serves ratios only.
    """
    if pricer is None:
        return sum(count * left * (kernel.flops or kernel.moved_bytes) for count, kernel, left in kernels)
    seconds = pricer.price([kernel for _, kernel, _ in kernels]).duration_s.tolist()
    return float(sum(count * left * kernel_s for (count, _, left), kernel_s in zip(kernels, seconds, strict=True)))


def _pricer(gpu: Gpu) -> KernelPricer:
    from foretrace.cost.kernels import kernel_pricer

    return kernel_pricer(gpu)
