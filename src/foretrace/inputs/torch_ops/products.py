"""Reads matrix products: which inputs of an op are multiplied, in which layout, in which dtype."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.tensors import Tensor, tensors, value, whole_numbers
from foretrace.program.kernels import Gemm, GroupedGemm, Kernel, Stream

FACTORS: Final = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "addmm_activation": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "matmul": (0, 1),
    "scaled_mm": (0, 1),
    "int_mm": (0, 1),
    "linear": (0, 1),
}
"""Which inputs of an op are the factors."""

CONVOLUTIONS: Final = ("convolution", "convolution_overrideable", "cudnn_convolution", "convolution_backward")
"""Ops that multiply as products do, over windows of their input."""

_TRUE: Final = ("True", "true", "1")
_MASKED: Final = 3
"""Gradients that the backward of a convolution may compute: of the input, the weight and the bias."""

_NVJET: Final = re.compile(r"_([NT])([NT])[NT]$")
_CUTLASS: Final = re.compile(r"_([nt])([nt])(?:_|$|>|n?_align)")
_TENSILE: Final = {"Ailk_Bljk": "nn", "Alik_Bljk": "tn", "Ailk_Bjlk": "nt", "Alik_Bjlk": "tt"}
_SCALED_4BIT: Final = 2
"""4-bit elements that PyTorch packs into one."""


def product(op: str, inputs: Inputs, gpu_kernel: str, assumed: str) -> Gemm | GroupedGemm | None:
    """The product of an op (its plain name); None where its inputs are not those of one."""
    operands = tensors(inputs, assumed)
    if op in ("grouped_mm", "scaled_grouped_mm"):
        return _grouped(operands)
    left, right = FACTORS[op]
    if max(left, right) >= len(operands):
        return None
    a, b = operands[left], operands[right]
    if a is None or b is None or not a.dims or not b.dims:
        return None
    if op == "linear":
        return _linear(a, b)
    if op == "matmul" and len(b.dims) == 2 and len(a.dims) > 2:
        a = Tensor((prod(a.dims[:-1]), a.dims[-1]), a.type)
    if len(a.dims) < 2 or len(b.dims) < 2 or a.dims[-1] != b.dims[-2] or not a.dtype:
        return None
    batch = max(prod(a.dims[:-2]), prod(b.dims[:-2]))
    plain = Gemm(a.dims[-2], b.dims[-1], a.dims[-1], _recipe(a, gpu_kernel), batch=batch, out=a.dtype)
    layout = _by_strides(a, b) or kernel_layout(gpu_kernel) or ("nn" if batch > 1 else "tn")
    own = replace(plain, layout=layout)
    if op == "scaled_mm":
        return _scaled(own, a, operands, inputs)
    # Where the result is added to, it is read as well; a bias is a row and counts for nothing.
    added = operands[0] if op in ("addmm", "baddbmm") else None
    return replace(own, accumulate=added is not None and added.count == plain.batch * plain.m * plain.n)


def _linear(x: Tensor, weight: Tensor) -> Gemm | None:
    if len(weight.dims) != 2 or x.dims[-1] != weight.dims[1] or not x.dtype:
        return None
    return Gemm(prod(x.dims[:-1]), weight.dims[0], weight.dims[1], x.dtype, "tn", out=x.dtype)


def _scaled(plain: Gemm, a: Tensor, operands: list[Tensor | None], inputs: Inputs) -> Gemm:
    """8- and 4-bit products: scales of whole tensors or rows, of blocks, or of 32 elements as powers of two."""
    scale = next((operand for operand in operands[2:] if operand is not None), None)
    dtype, k = "fp8", plain.k
    if a.dtype == "nvfp4":
        dtype, k = "nvfp4", plain.k * _SCALED_4BIT
    elif scale is not None and "e8m0" in scale.type:
        dtype = "mxfp8"
    elif scale is not None and scale.count > plain.m:
        dtype = "fp8_block"
    out = {"15": "bf16", "5": "fp16", "6": "fp32"}.get(value(inputs, 6), "bf16")  # c10::ScalarType's numbers
    return replace(plain, dtype=dtype, k=k, out=out)


def _grouped(operands: list[Tensor | None]) -> GroupedGemm | None:
    """torch._grouped_mm: rows of one matrix to matrices of a batch, or (weight gradients) both cut along their sum."""
    given = [operand for operand in operands if operand is not None]
    if len(given) < 2:
        return None
    a, b = given[0], given[1]
    ends = next(
        (operand for operand in given[2:] if len(operand.dims) == 1 and operand.type in ("int", "long int")), None
    )
    dtype = a.dtype or "bf16"
    if len(a.dims) == 2 and len(b.dims) == 3:
        layout = "tn" if b.is_transposed else "nn"
        return GroupedGemm(b.dims[0], a.dims[0], b.dims[2], a.dims[1], dtype, layout, out=_wide(dtype))
    if len(a.dims) == 2 and len(b.dims) == 2 and ends is not None:
        return GroupedGemm(ends.dims[0], a.dims[0], b.dims[1], a.dims[1], dtype, "nt", out=_wide(dtype))
    if len(a.dims) == 3 and len(b.dims) == 3:
        groups, rows, k = a.dims
        return GroupedGemm(groups, groups * rows, b.dims[2], k, dtype, "tn" if b.is_transposed else "nn")
    return None


def convolution(op: str, inputs: Inputs, outputs: Sequence[Tensor]) -> tuple[Kernel, ...]:
    """Returns the kernels of a convolution (its plain name) as implicit GEMMs; () if its tensors are not those of one.

    The rows of its product are the places of the output, and the columns are the output channels. The sum runs over a
    window of all input channels of a group. The backward has a product for the gradient of the input and one for that
    of the weight, as its output mask states. A depthwise convolution is bound by memory.
    """
    backward = op == "convolution_backward"
    operands = [*tensors(inputs)[:3], *([] if backward else outputs[:1])]
    y, x, weight = operands[:3] if backward else (operands[-1], *operands[:2])
    if y is None or x is None or weight is None or not 3 <= len(y.dims) == len(x.dims) == len(weight.dims):
        return ()
    window = _window(x, y, weight, inputs, backward)
    if not backward:
        # cuDNN's result is in memory when PyTorch adds the bias to it.
        bias = (Stream("add", y.bytes, y.full_bytes),) if operands[2] is not None else ()
        return (*window.products(x, ("nn" if window.transposed else "tn",)), *bias)
    mask = [word.strip(" []()") in _TRUE for word in value(inputs, 10).split(",")]
    mask = mask if len(mask) == _MASKED else [True] * _MASKED
    layouts = [layout for layout, asked in zip(("nn", "nt"), mask, strict=False) if asked]
    bias = (Stream("reduce", y.bytes, y.dims[1] * y.size),) if mask[-1] else ()
    return (*window.products(x, layouts), *bias)


@dataclass(frozen=True, slots=True)
class _Windows:
    """The sizes of a convolution as products: `places` of the smaller image, and of each group the channels there and
    the channels of the other image times the places of a window."""

    places: int
    channels: int
    length: int
    groups: int
    transposed: bool

    def products(self, x: Tensor, layouts: Sequence[str]) -> tuple[Kernel, ...]:
        """Returns a product for each layout: `tn` of the output, `nn` of the input's, `nt` of the weight's gradient."""
        if self.groups > 1 and x.dims[1] == self.groups:
            written = self.places * self.groups * self.channels * x.size
            return tuple(Stream("depthwise", x.bytes, written) for _ in layouts)
        dtype = "tf32" if x.dtype == "fp32" else x.dtype  # cuDNN's default, unlike that of matrix products
        shapes = {
            "tn": (self.places, self.channels, self.length),
            "nn": (self.places, self.length, self.channels),
            "nt": (self.channels, self.length, self.places),
        }
        out = _wide(x.dtype)
        return tuple(Gemm(*shapes[layout], dtype, layout, self.groups, out) for layout in layouts if dtype)


def _window(x: Tensor, y: Tensor, weight: Tensor, inputs: Inputs, backward: bool) -> _Windows:
    """Returns the sizes of a convolution from x to y. A transposed one is the input gradient of one from y to x."""
    transposed = value(inputs, 7 if backward else 6) in _TRUE
    groups = max([*whole_numbers(value(inputs, 9 if backward else 8)), 1])
    places = x.dims[0] * prod((x if transposed else y).dims[2:])
    return _Windows(places, weight.dims[0] // groups, prod(weight.dims[1:]), groups, transposed)


def _wide(dtype: str) -> str:
    return dtype if dtype in ("bf16", "fp16", "fp32") else "bf16"


def _by_strides(a: Tensor, b: Tensor) -> str:
    """cuBLAS's name of the layout of a row-major product: it computes the transposed one, so that our right factor
    comes first."""
    first, second = b.is_transposed, a.is_transposed
    if first is None or second is None:
        return ""
    return ("t" if first else "n") + ("t" if second else "n")


def _recipe(a: Tensor, gpu_kernel: str) -> str:
    """Whether fp32 operands are rounded to tf32 is only in the kernel's name; PyTorch's default is that they are
    not."""
    rounded = "tf32" in gpu_kernel or "s1688" in gpu_kernel or "_16x8x8" in gpu_kernel
    return "tf32" if a.dtype == "fp32" and rounded else a.dtype


@lru_cache(maxsize=4096)
def kernel_layout(gpu_kernel: str) -> str:
    """The layout that a GEMM kernel's name says: nvjet_..._TNT, cutlass_..._tn_align8, ampere_sgemm_128x64_nn,
    Cijk_Alik_Bljk; "" where it says none."""
    match = _NVJET.search(gpu_kernel) or _CUTLASS.search(gpu_kernel)
    if match:
        return "".join(match.groups()).lower()
    return next((layout for word, layout in _TENSILE.items() if word in gpu_kernel), "")
