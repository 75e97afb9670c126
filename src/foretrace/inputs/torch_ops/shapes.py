"""Finds the kernel that an op runs, from the shapes of its inputs."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.torch_ops.fused_attention import SIGNATURES, attention
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.products import FACTORS, product
from foretrace.inputs.torch_ops.streams import stream
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
        kernel = stream(op, op_name.partition(".")[0].endswith("_"), inputs, assumed)
    # Nothing is computed of empty tensors (an expert without tokens), nor of more bytes than any memory has.
    possible = kernel is not None and 0 < kernel.moved_bytes < _MAX_BYTES and kernel.launches > 0
    return kernel if possible else None
