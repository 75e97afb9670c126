"""How a kernel changes when a step has more samples, or fewer."""

from __future__ import annotations

from dataclasses import replace

from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, Stream


def grown(kernel: Kernel, factor: float) -> tuple[Kernel, float]:
    """The kernel with `factor` times the samples, and what is left of the factor where sizes are whole numbers (half
    of one sequence is one sequence and a factor of a half).

    Rows of a forward product or an input gradient are tokens, and the sum of a weight gradient runs over them; a
    batch of products is of sequences' heads or of experts' tokens; sequences attend each to itself. A stream's bytes
    grow but for those that are `fixed`.
    """
    if isinstance(kernel, Gemm) and kernel.batch > 1:
        batch, left = _whole(kernel.batch, factor)
        return replace(kernel, batch=batch), left
    if isinstance(kernel, Gemm):
        if kernel.layout == "nt":
            k, left = _whole(kernel.k, factor)
            return replace(kernel, k=k), left
        m, left = _whole(kernel.m, factor)
        return replace(kernel, m=m), left
    if isinstance(kernel, GroupedGemm):
        largest = round(kernel.largest * factor)
        if kernel.layout == "nt":
            k, left = _whole(kernel.k, factor)
            return replace(kernel, k=k, largest=largest), left
        m, left = _whole(kernel.m, factor)
        return replace(kernel, m=m, largest=largest), left
    if isinstance(kernel, Attention):
        batch, left = _whole(kernel.batch, factor)
        return replace(kernel, batch=batch), left
    if isinstance(kernel, Copy):
        return replace(kernel, bytes=round(kernel.bytes * factor)), 1.0
    return _grown_stream(kernel, factor), 1.0


def _grown_stream(kernel: Stream, factor: float) -> Stream:
    total = kernel.read + kernel.write
    fixed = min(kernel.fixed, total)
    if fixed == total:
        return kernel
    times = (fixed + (total - fixed) * factor) / total
    return replace(kernel, read=round(kernel.read * times), write=round(kernel.write * times))


def _whole(size: int, factor: float) -> tuple[int, float]:
    new = max(round(size * factor), 1)
    return new, size * factor / new
