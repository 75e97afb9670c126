"""Software stacks: which kernels a framework runs, what it fuses, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Stack:
    """How a framework turns a transformer into kernels.

    What differs between frameworks is a field here; code asks the field, never the name.
    """

    name: str
    title: str
    attention: Literal["unfused", "flash1", "flash2", "flash3", "cudnn"]
    """unfused: products, scale-mask-softmax and dropout as kernels of their own."""
    norm: Literal["fused", "eager", "compiled"]
    """fused: one kernel each way; eager: as many as PyTorch's own operators; compiled: fused with its neighbours."""
    pointwise: Literal["fused", "eager", "compiled"]
    """Bias, activation, gate, dropout and residual: fused kernels, one per operator, or as few as compiled."""
    rope: Literal["fused", "eager", "compiled"]
    loss: Literal["fused", "eager", "compiled"]
    """Cross-entropy: eager copies the logits to fp32 and keeps the log-probabilities."""
    master_weights: bool
    """Whether an fp32 copy of parameters lives with the optimizer (Megatron); else it works on parameters."""
    parameter_dtype: Literal["fp32", "bf16", "fp16"]
    """In which parameters rest between steps."""
    gradient_dtype: Literal["fp32", "bf16", "fp16"]
    """In which gradients are accumulated and reduced."""
    optimizer_state_dtype: Literal["fp32", "bf16"]
    fused_gradient_accumulation: bool
    """Whether weight-gradient products add into the accumulated gradient themselves."""
    sequence_parallel: bool
    """Whether tp > 1 means sequence parallelism unless the plan says otherwise."""
    zero: Literal[0, 1, 2, 3]
    grad_overlap: bool
    param_overlap: bool
    hides_tp_backward: bool
    """Whether the input gradient's tp collective runs beside the weight gradient."""
    launch_s: float
    """Host time for one kernel launch, framework included."""
    padded_vocab: int
    """The vocabulary is padded to a multiple of this times tp (1: not at all)."""
    sources: tuple[str, ...] = ()
    """Where these facts come from."""
