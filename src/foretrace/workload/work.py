"""What one layer (or an end of the model) does for one microbatch on one rank: kernels and collectives in order.

This is the seam of the room: `layers/` says what a part of the model does under a plan and a software stack;
`assemble/` places it: schedules, gradients, optimizer, memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Kernel


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels on the compute stream, one after the other. `temporary_bytes` is what it needs while it runs, beyond
    what it takes and leaves."""

    name: str
    phase: Phase
    kernels: tuple[tuple[int, Kernel], ...]
    temporary_bytes: int = 0
    syncs_host: bool = False
    """Whether the host waits for it before launching more (token counts of a router)."""


@dataclass(frozen=True, slots=True)
class Communicate:
    """A collective over an axis of the mesh. By default the next item waits for it.

    `hidden` says that the following Compute item does not: it runs beside it (the input gradient's all-reduce beside
    the weight gradient; tp overlap), and what comes after that one waits for both. `bytes` counts as NCCL does: the
    whole vector of an all-reduce, all that is gathered or scattered over the group, what one rank sends in an
    all-to-all.
    """

    name: str
    phase: Phase
    collective: Collective
    axis: Literal["tp", "cp", "ep", "etp"]
    bytes: int
    hidden: bool = False
    sends: tuple[int, ...] | None = None
    """All-to-all: the bytes for each member, where they differ."""
    way: str | None = None
    """All-to-all of tokens: how it goes where it is not NCCL's (`foretrace.program.dispatch`)."""


Item = Compute | Communicate


@dataclass(frozen=True, slots=True)
class Work:
    """What a part of the model does: a layer, the embedding, the head with the loss.

    `backward` lists input and weight gradients by phase, in the order in which the stack runs them. `recompute` are
    forward items run again before the backward, in that phase (empty: none). `saved_bytes` is what its forward leaves
    for its backward, with the recompute that the plan asks for; `recomputed_bytes` what is alive of it only while its
    own backward runs. Parameters are this rank's, before any data-parallel splitting; expert ones are reduced over
    another group.
    """

    name: str
    forward: tuple[Item, ...]
    recompute: tuple[Item, ...]
    backward: tuple[Item, ...]
    saved_bytes: int
    recomputed_bytes: int = 0
    parameters: int = 0
    expert_parameters: int = 0
    output_bytes: int = 0
    """What it hands on: the activation a pipeline sends (on this rank)."""
