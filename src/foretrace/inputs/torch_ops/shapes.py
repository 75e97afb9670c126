"""Finds the kernel that an op runs, from the shapes of its inputs."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.fused_attention import SIGNATURES, attention
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.products import CONVOLUTIONS, FACTORS, convolution, product
from foretrace.inputs.torch_ops.streams import contiguous_first, is_stream, stream, stream_to, zeroed_first
from foretrace.inputs.torch_ops.tensors import Tensor, tensors
from foretrace.program.kernels import Kernel

_GROUPED: Final = ("grouped_mm", "scaled_grouped_mm")
_MAX_BYTES: Final = 1e15


@lru_cache(maxsize=65536)
def kernel_of(op_name: str, inputs: Inputs, gpu_kernel: str = "", assumed: str = "c10::BFloat16") -> Kernel | None:
    """Returns what an op computes or moves, by its name and inputs; None where they do not tell.

    `gpu_kernel` is the name of the kernel it launched, which tells layouts and versions that inputs do not; `assumed`
    is the type of tensors whose types were not recorded (a profiler's table has none). Autograd nodes and other ops
    that run ops have none of their own: ask for those they run.
    """
    if "Backward" in op_name or "evaluate_function" in op_name:
        return None
    op = plain_name(op_name)
    kernel: Kernel | None
    if op in FACTORS or op in _GROUPED:
        kernel = product(op, inputs, gpu_kernel, assumed)
    elif op in SIGNATURES:
        kernel = attention(op, inputs, gpu_kernel, assumed)
    else:
        kernel = stream(op, _is_in_place(op_name), inputs, assumed)
    # Nothing is computed of empty tensors (an expert without tokens), nor of more bytes than any memory has.
    possible = kernel is not None and 0 < kernel.moved_bytes < _MAX_BYTES and kernel.launches > 0
    return kernel if possible else None


@lru_cache(maxsize=65536)
def kernels_of(op_name: str, inputs: Inputs, outputs: tuple[Tensor, ...]) -> tuple[Kernel, ...]:
    """Returns what an op of known inputs and outputs computes or moves, kernel by kernel; () where all are empty.

    An op that is not known (`is_known`) reads its inputs once and writes its outputs once.
    """
    op, in_place = plain_name(op_name), _is_in_place(op_name)
    if outputs and not any(output.count for output in outputs):
        return ()
    if op in CONVOLUTIONS:
        products = convolution(op, inputs, outputs)
        if products:
            return products
    if op in FACTORS or op in _GROUPED or op in SIGNATURES:
        kernel = kernel_of(op_name, inputs)
        if kernel is not None and kernel.flops:
            return (kernel,)
    if zeroed := zeroed_first(op, inputs, outputs):
        return zeroed
    moved = stream_to(op, in_place, inputs, outputs or _changed(in_place, inputs))
    if copied := contiguous_first(op, inputs):
        return (*copied, moved)
    return (moved,) if 0 < moved.moved_bytes < _MAX_BYTES and moved.launches else ()


def is_known(op_name: str) -> bool:
    """Whether an op has a rule, rather than being taken as one pass over its tensors."""
    op = plain_name(op_name)
    return op in FACTORS or op in _GROUPED or op in SIGNATURES or op in CONVOLUTIONS or is_stream(op)


def is_product(op_name: str) -> bool:
    """Whether an op multiplies matrices."""
    op = plain_name(op_name)
    return op in FACTORS or op in _GROUPED


def _is_in_place(op_name: str) -> bool:
    return op_name.partition(".")[0].endswith("_")


def _changed(in_place: bool, inputs: Inputs) -> tuple[Tensor, ...]:
    """Returns the tensors that an op without results changes: its first one."""
    given = [tensor for tensor in tensors(inputs) if tensor is not None]
    return tuple(given[:1]) if in_place else ()
