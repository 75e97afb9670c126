"""Ops that launch several kernels: which part of the op's work each of them does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from foretrace.program.kernels import DTYPE_BYTES, Attention, Gemm, Kernel, Stream

WIDE: Final = 4
"""Bytes of an fp32 element: in what parts of sums are kept."""

MIN_PARTS: Final = 2
"""Into how many K is cut at least where it is cut; the name does not say into how many."""


def parts(kernel: Kernel, names: Sequence[str], seconds: Sequence[float]) -> list[Kernel | None]:
    """What each of an op's launches does, by its name; a stream's bytes are shared out by the time each takes, and
    otherwise the longest does what the op is for. None where a name tells nothing."""
    if len(names) == 1:
        return [kernel]
    if isinstance(kernel, Stream):
        total = sum(seconds) or 1.0
        return [_share(kernel, second / total) for second in seconds]
    main = max(range(len(names)), key=lambda i: seconds[i])
    return [kernel if i == main else _beside(kernel, name) for i, name in enumerate(names)]


def _share(kernel: Stream, share: float) -> Stream:
    read, write, fixed = (round(size * share) for size in (kernel.read, kernel.write, kernel.fixed))
    return replace(kernel, read=read, write=write, launches=1, fixed=min(fixed, read + write))


def _beside(kernel: Kernel, name: str) -> Kernel | None:
    if isinstance(kernel, Gemm) and "splitK" in name:
        result = kernel.batch * kernel.m * kernel.n
        return Stream("gemm_split_k", MIN_PARTS * WIDE * result, int(DTYPE_BYTES[kernel.out] * result))
    if not isinstance(kernel, Attention):
        return None
    size = DTYPE_BYTES[kernel.dtype]
    rows = kernel.batch * kernel.heads * kernel.q
    if "dot_do_o" in name:
        return Stream("attention_dot", int(2 * size * rows * kernel.v_dim), WIDE * rows)
    if "convert_dq" in name or "convert_dkv" in name:
        return Stream("attention_convert", WIDE * rows * kernel.head_dim, int(size * rows * kernel.head_dim))
    if "reduce_head" in name:
        keys = kernel.batch * kernel.kv * kernel.head_dim * size
        return Stream("attention_reduce", int(keys * kernel.heads), int(keys * kernel.kv_heads))
    return None
