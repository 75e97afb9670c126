"""Describes the optimizer's work and memory: AdamW over the parameters that a rank updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.program.kernels import Copy, Kernel, Stream

WIDE_BYTES, MOMENTS = 4, 2
"""Bytes of fp32; states of Adam per parameter."""

Kernels = tuple[tuple[int, Kernel], ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The parameters of one rank, dense and experts', and how many of them it updates.

    `narrow` and `owned_narrow` are those of them whose products are in 8 bits or fewer. A search of many plans gives
    int64 columns in the place of each number; all that `Adam` says of memory then is a column, too.
    """

    parameters: int
    expert_parameters: int
    owned: int
    narrow: int = 0
    owned_narrow: int = 0

    @property
    def total(self) -> int:
        """All parameters on this rank, before they are split."""
        return self.parameters + self.expert_parameters


@dataclass(frozen=True, slots=True)
class Adam:
    """AdamW as a framework runs it.

    Attributes:
        parameter_bytes: The size of a parameter between steps.
        gradient_bytes: The size of a gradient as it is accumulated, and reduced once a step.
        state_bytes: The size of each of the two moments.
        master_bytes: The size of the optimizer's own copy of a parameter; 0 where it updates parameters.
        zero: The ZeRO stage: data-parallel ranks split states from 1 on, gradients from 2, parameters from 3.
        ranks: Ranks among which state is split.
        expert_ranks: The same for parameters of experts.
        clips_gradients: Whether the norm of all gradients is taken before the update.
        loss_scaling: Whether a loss scale is taken out of gradients before the update (fp16).
        keeps_gradients: Whether gradients have buffers all the time, which are set to zero after the update.
        offloaded: Whether the host updates.
        copies_gradients: Whether the gradients that a rank updates with are copied to fp32 first.
        narrow_held_bytes: The memory of a parameter whose products are in 8 bits or fewer; None: `parameter_bytes`.
        narrow_gathered_bytes: Its size when it is gathered after the update; None: `parameter_bytes`.
    """

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    master_bytes: int
    zero: int = 0
    ranks: int = 1
    expert_ranks: int = 1
    clips_gradients: bool = True
    loss_scaling: bool = False
    keeps_gradients: bool = False
    offloaded: bool = False
    copies_gradients: bool = False
    narrow_held_bytes: float | None = None
    narrow_gathered_bytes: float | None = None

    def share(self, parameters: int, expert_parameters: int, narrow: tuple[int, int] = (0, 0)) -> Share:
        """Returns what a rank updates of a stage's parameters: all, or its part under ZeRO.

        Args:
            parameters: Dense parameters of a rank.
            expert_parameters: Parameters of experts of a rank.
            narrow: Those of either kind whose products are in 8 bits or fewer.
        """
        owned, owned_narrow = (self._owned(*counts) for counts in ((parameters, expert_parameters), narrow))
        return Share(parameters, expert_parameters, owned, sum(narrow), owned_narrow)

    def _owned(self, dense: int, expert: int) -> int:
        return -(-dense // self.ranks) - (-expert // self.expert_ranks) if self.zero else dense + expert

    def norm_kernels(self, share: Share) -> Kernels:
        """Returns the sum of squares of the gradients that a rank has, after their copy to fp32 where there is one."""
        if not share.owned:
            return ()
        size = self._updating_bytes
        name = "grad_norm" if size == WIDE_BYTES else "grad_norm_bf16"
        return (*self._copy_kernels(share), (1, Stream(name, size * share.owned, 0)))

    @property
    def _updating_bytes(self) -> int:
        """The size of a gradient that an update reads."""
        return WIDE_BYTES if self.copies_gradients else self.gradient_bytes

    def _copy_kernels(self, share: Share) -> Kernels:
        if not self.copies_gradients:
            return ()
        return ((1, Stream("cast", self.gradient_bytes * share.owned, WIDE_BYTES * share.owned)),)

    def update_kernels(self, share: Share) -> Kernels:
        """Returns the kernels of an update: gradients clipped and unscaled where that is done, then AdamW.

        AdamW moves every byte of parameters, states and gradients. Parameters are written from the optimizer's copy of
        them, where it has one.
        """
        count, gradient = share.owned, self._updating_bytes
        if not count:
            return ()
        if self.offloaded:
            return ((1, Copy(gradient * count, "host")), (1, Copy(self.parameter_bytes * count, "gpu")))
        weight, state = self.master_bytes or self.parameter_bytes, MOMENTS * self.state_bytes
        # Its arithmetic is per element, so that 16-bit states take longer per byte.
        name = "adam" if weight == self.state_bytes == WIDE_BYTES else "adam_bf16"
        adam = Stream(name, (weight + state + gradient) * count, (weight + state) * count)
        # torch.nn.utils.clip_grad_norm_ multiplies whether or not the norm is too large; Megatron only if it is, which
        # it always is early in a run. A loss scale is taken out by a pass of its own.
        passes = int(self.clips_gradients) + int(self.loss_scaling)
        scale = ((passes, Stream("scale", gradient * count, gradient * count)),) if passes else ()
        before = (*(() if self.clips_gradients else self._copy_kernels(share)), *scale)
        if not self.master_bytes:
            return (*before, (1, adam))
        written = self.gathered_bytes(count, share.owned_narrow)
        return (*before, (1, adam), (1, Stream("cast", self.master_bytes * count, written)))

    def zero_kernels(self, share: Share) -> Kernels:
        """Returns the kernel that sets gradient buffers to zero for the next step, where they stay."""
        if not self.keeps_gradients or not share.total:
            return ()
        return ((1, Stream("zero", 0, self.held_gradient_bytes(share))),)

    def host_bytes(self, share: Share) -> int:
        """Returns what an update by the host moves through its memory.

        The copy of parameters and the states are read and written, the gradient is read, the parameter written.
        """
        state = (self.master_bytes or WIDE_BYTES) + MOMENTS * self.state_bytes
        return (2 * state + self.gradient_bytes + self.parameter_bytes) * share.owned

    def held_weight_bytes(self, share: Share) -> int:
        """Returns the memory of parameters between steps, with the quantized copies of them that are kept."""
        count, narrow = (share.owned, share.owned_narrow) if self.zero == 3 else (share.total, share.narrow)
        size = self.parameter_bytes if self.narrow_held_bytes is None else self.narrow_held_bytes
        return self.parameter_bytes * (count - narrow) + _rounded(size * narrow)

    def gathered_bytes(self, count: int, narrow: int) -> int:
        """Returns the size of `count` parameters as they are gathered, `narrow` of which compute in 8 bits or fewer."""
        size = self.parameter_bytes if self.narrow_gathered_bytes is None else self.narrow_gathered_bytes
        return self.parameter_bytes * (count - narrow) + _rounded(size * narrow)

    def held_gradient_bytes(self, share: Share) -> int:
        """Returns the memory of accumulated gradients; under ZeRO-2 and -3 that of a rank's part."""
        return self.gradient_bytes * (share.owned if self.zero >= 2 else share.total)

    def copied_gradient_bytes(self, share: Share) -> int:
        """Returns the memory of the fp32 copy of gradients, from their norm to the end of the update."""
        return WIDE_BYTES * share.owned if self.copies_gradients else 0

    def held_state_bytes(self, share: Share) -> int:
        """Returns the memory of states on the GPU, with the optimizer's copy of parameters."""
        return 0 if self.offloaded else (MOMENTS * self.state_bytes + self.master_bytes) * share.owned


def _rounded(size: float) -> int:
    """Returns a whole number of bytes, or a column of them for a column; halves go to even numbers in both."""
    return np.rint(size).astype(np.int64) if isinstance(size, np.ndarray) else round(size)
