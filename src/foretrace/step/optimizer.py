"""Describes the optimizer's work and memory: AdamW over the parameters that a rank updates."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.program.kernels import Copy, Kernel, Stream

MASTER_BYTES, MOMENTS = 4, 2
"""Bytes of the fp32 copy of a parameter; states of Adam per parameter."""

Kernels = tuple[tuple[int, Kernel], ...]


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


@dataclass(frozen=True, slots=True)
class Adam:
    """AdamW as a framework runs it.

    Attributes:
        parameter_bytes: The size of a parameter between steps.
        gradient_bytes: The size of a gradient as it is accumulated and reduced.
        state_bytes: The size of each of the two moments.
        master_weights: Whether an fp32 copy of parameters lives with the optimizer; else it updates parameters.
        zero: The ZeRO stage: data-parallel ranks split states from 1 on, gradients from 2, parameters from 3.
        ranks: Ranks among which state is split.
        expert_ranks: The same for parameters of experts.
        clips_gradients: Whether the norm of all gradients is taken before the update.
        loss_scaling: Whether a loss scale is taken out of gradients before the update (fp16).
        keeps_gradients: Whether gradients have buffers all the time, which are set to zero after the update.
        offloaded: Whether the host updates.
    """

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    master_weights: bool
    zero: int = 0
    ranks: int = 1
    expert_ranks: int = 1
    clips_gradients: bool = True
    loss_scaling: bool = False
    keeps_gradients: bool = False
    offloaded: bool = False

    def share(self, parameters: int, expert_parameters: int) -> Share:
        """Returns what a rank updates of a stage's parameters: all, or its part under ZeRO."""
        owned = parameters + expert_parameters
        if self.zero:
            owned = -(-parameters // self.ranks) - (-expert_parameters // self.expert_ranks)
        return Share(parameters, expert_parameters, owned)

    def norm_kernels(self, share: Share) -> Kernels:
        """Returns the sum of squares of the gradients that a rank has."""
        name = "grad_norm" if self.gradient_bytes == MASTER_BYTES else "grad_norm_bf16"
        return ((1, Stream(name, self.gradient_bytes * share.owned, 0)),) if share.owned else ()

    def update_kernels(self, share: Share) -> Kernels:
        """Returns the kernels of an update: gradients clipped and unscaled where that is done, then AdamW.

        AdamW moves every byte of parameters, states and gradients. With an fp32 copy, parameters are written from it.
        """
        count, gradient = share.owned, self.gradient_bytes
        if not count:
            return ()
        if self.offloaded:
            return ((1, Copy(gradient * count, "host")), (1, Copy(self.parameter_bytes * count, "gpu")))
        weight, state = MASTER_BYTES if self.master_weights else self.parameter_bytes, MOMENTS * self.state_bytes
        # Its arithmetic is per element, so that 16-bit states take longer per byte.
        name = "adam" if weight == MASTER_BYTES else "adam_bf16"
        adam = Stream(name, (weight + state + gradient) * count, (weight + state) * count)
        # torch.nn.utils.clip_grad_norm_ multiplies whether or not the norm is too large; Megatron only if it is, which
        # it always is early in a run. A loss scale is taken out by a pass of its own.
        passes = int(self.clips_gradients) + int(self.loss_scaling)
        scale = ((passes, Stream("scale", gradient * count, gradient * count)),) if passes else ()
        if not self.master_weights:
            return (*scale, (1, adam))
        return (*scale, (1, adam), (1, Stream("cast", MASTER_BYTES * count, self.parameter_bytes * count)))

    def zero_kernels(self, share: Share) -> Kernels:
        """Returns the kernel that sets gradient buffers to zero for the next step, where they stay."""
        if not self.keeps_gradients or not share.total:
            return ()
        return ((1, Stream("zero", 0, self.held_gradient_bytes(share))),)

    def host_bytes(self, share: Share) -> int:
        """Returns what an update by the host moves through its memory.

        The fp32 copy and the states are read and written, the gradient is read, the parameter written.
        """
        state = MASTER_BYTES + MOMENTS * self.state_bytes
        return (2 * state + self.gradient_bytes + self.parameter_bytes) * share.owned

    def held_weight_bytes(self, share: Share) -> int:
        """Returns the memory of parameters between steps."""
        return self.parameter_bytes * (share.owned if self.zero == 3 else share.total)

    def held_gradient_bytes(self, share: Share) -> int:
        """Returns the memory of accumulated gradients; under ZeRO-2 and -3 that of a rank's part."""
        return self.gradient_bytes * (share.owned if self.zero >= 2 else share.total)

    def held_state_bytes(self, share: Share) -> int:
        """Returns the memory of states on the GPU, with the fp32 copy of parameters."""
        if self.offloaded:
            return 0
        return (MOMENTS * self.state_bytes + (MASTER_BYTES if self.master_weights else 0)) * share.owned
