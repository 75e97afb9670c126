"""The optimizer's own work and what is held for it: AdamW over the parameters that a rank updates."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.program.kernels import DTYPE_BYTES, Copy, Kernel, Stream
from foretrace.workload.setting import Setting

MASTER_BYTES, MOMENTS = 4, 2
"""Of the fp32 copy of a parameter; states of Adam."""


@dataclass(frozen=True, slots=True)
class Share:
    """The parameters of one rank, dense and experts', and how many of them it updates."""

    parameters: int
    expert_parameters: int
    owned: int

    @property
    def total(self) -> int:
        """All parameters on this rank, before they are split."""
        return self.parameters + self.expert_parameters


def share_of(setting: Setting, parameters: int, expert_parameters: int) -> Share:
    """What a rank updates of a stage's parameters: all, or its part under ZeRO."""
    owned = parameters + expert_parameters
    if setting.zero:
        owned = -(-parameters // setting.shard) - (-expert_parameters // setting.mesh.edp)
    return Share(parameters, expert_parameters, owned)


def norm_kernels(setting: Setting, share: Share) -> list[tuple[int, Kernel]]:
    """The sum of squares of the gradients that a rank has."""
    size = int(DTYPE_BYTES[setting.stack.gradient_dtype])
    name = "grad_norm" if size == MASTER_BYTES else "grad_norm_bf16"
    return [(1, Stream(name, size * share.owned, 0))] if share.owned else []


def update_kernels(setting: Setting, share: Share) -> list[tuple[int, Kernel]]:
    """Gradients clipped, and a loss scale taken out, where the stack does so; then AdamW with every byte it must move.
    Where an fp32 copy is kept, the parameters themselves are written from it."""
    stack, count = setting.stack, share.owned
    if not count:
        return []
    gradient = int(DTYPE_BYTES[stack.gradient_dtype])
    weight = MASTER_BYTES if stack.master_weights else int(DTYPE_BYTES[stack.parameter_dtype])
    state = MOMENTS * int(DTYPE_BYTES[stack.optimizer_state_dtype])
    if setting.plan.offload_optimizer:
        written = int(DTYPE_BYTES[stack.parameter_dtype])
        return [(1, Copy(gradient * count, "host")), (1, Copy(written * count, "gpu"))]
    # Its arithmetic is per element, so that 16-bit states take longer per byte.
    name = "adam" if weight == MASTER_BYTES else "adam_bf16"
    adam = Stream(name, (weight + state + gradient) * count, (weight + state) * count)
    # torch.nn.utils.clip_grad_norm_ multiplies whether or not the norm is too large; Megatron only if it is, which it
    # always is early in a run. A loss scale is taken out by a pass of its own.
    passes = int(stack.clips_gradients) + int(stack.loss_scaling)
    scale = [(passes, Stream("scale", gradient * count, gradient * count))] if passes else []
    if not stack.master_weights:
        return [*scale, (1, adam)]
    return [
        *scale,
        (1, adam),
        (1, Stream("cast", MASTER_BYTES * count, int(DTYPE_BYTES[stack.parameter_dtype]) * count)),
    ]


def zero_kernels(setting: Setting, share: Share) -> list[tuple[int, Kernel]]:
    """Gradient buffers set to zero for the next step, where they stay."""
    if not setting.stack.fused_gradient_accumulation or not share.total:
        return []
    return [(1, Stream("zero", 0, gradient_bytes(setting, share)))]


def host_optimizer_bytes(setting: Setting, share: Share) -> int:
    """What an optimizer on the host moves through its memory: master copy and states read and written, the gradient
    read, the parameter written."""
    stack = setting.stack
    state = MASTER_BYTES + MOMENTS * int(DTYPE_BYTES[stack.optimizer_state_dtype])
    return (2 * state + int(DTYPE_BYTES[stack.gradient_dtype] + DTYPE_BYTES[stack.parameter_dtype])) * share.owned


def weight_bytes(setting: Setting, share: Share) -> int:
    """Parameters as they rest between steps."""
    size = int(DTYPE_BYTES[setting.stack.parameter_dtype])
    return size * (share.owned if setting.zero == 3 else share.total)


def gradient_bytes(setting: Setting, share: Share) -> int:
    """Gradients as they are accumulated; ZeRO-2 and -3 keep a rank's part."""
    size = int(DTYPE_BYTES[setting.stack.gradient_dtype])
    return size * (share.owned if setting.zero >= 2 else share.total)


def state_bytes(setting: Setting, share: Share) -> int:
    """States of the optimizer on the GPU, the fp32 copy of parameters included."""
    if setting.plan.offload_optimizer:
        return 0
    stack = setting.stack
    each = MOMENTS * int(DTYPE_BYTES[stack.optimizer_state_dtype]) + (MASTER_BYTES if stack.master_weights else 0)
    return each * share.owned
