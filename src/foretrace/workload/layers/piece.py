"""A module of the model (a norm, a linear layer, attention) with its work each way and the tensors it keeps.

A layer is a row of pieces: its forward runs them in order, its backward in reverse. Kept tensors have names, so that
one that two modules keep (attention's output is also the projection's input) is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Kernel, Stream
from foretrace.step.spec import Call, Compute, GraphScope, HostWork, Item

FORWARD = Phase.FORWARD
INPUT = Phase.BACKWARD_INPUT
WEIGHT = Phase.BACKWARD_WEIGHT


@dataclass(frozen=True, slots=True)
class Piece:
    """One module's part of a layer."""

    name: str
    forward: tuple[Item, ...] = ()
    backward: tuple[Item, ...] = ()
    saved: tuple[tuple[str, int], ...] = ()
    """Tensors kept for the backward, by name, in bytes."""
    inner: tuple[tuple[str, int], ...] = ()
    """Those among its kept tensors that it makes itself: recompute of this piece alone makes them again."""
    wide: tuple[tuple[str, int], ...] = ()
    """Its inputs before they are narrowed, where it keeps them narrower: what a checkpoint around it keeps."""
    core: bool = False
    """Whether it is core attention."""
    product: bool = False
    """Whether it is one matrix product, which a policy may keep the result of."""
    output_bytes: int = 0
    parameters: int = 0
    expert_parameters: int = 0
    narrow_parameters: int = 0
    """Those of its parameters, dense or experts', that are operands of products in 8 bits or fewer."""


def run(
    name: str, phase: Phase, *kernels: Kernel, temporary_bytes: int = 0, syncs_host: bool = False, handled: int = 0
) -> Compute:
    """Kernels one after the other, each once."""
    return Compute(name, phase, tuple((1, kernel) for kernel in kernels), temporary_bytes, syncs_host, handled)


def in_graph(pieces: Iterable[Piece], scope: GraphScope) -> list[Piece]:
    """Returns pieces that CUDA graphs of `scope` replay."""

    def scoped(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(item if isinstance(item, HostWork) else replace(item, scope=scope) for item in items)

    return [replace(piece, forward=scoped(piece.forward), backward=scoped(piece.backward)) for piece in pieces]


def stream(name: str, read: float, write: float, *, launches: int = 1, rows: int = 0, looped: bool = False) -> Stream:
    """Returns a memory-bound kernel that reads and writes these bytes."""
    return Stream(name, round(read), round(write), launches, rows, looped=looped and launches > 1)


def weights(pieces: Iterable[Piece]) -> tuple[int, int]:
    """Parameters of pieces on this rank: dense and expert ones."""
    dense = expert = 0
    for piece in pieces:
        dense += piece.parameters
        expert += piece.expert_parameters
    return dense, expert


def gather_tp(name: str, phase: Phase, total_bytes: int, *, hidden: bool = False) -> Call:
    """All ranks of tp get all parts; `total_bytes` is the whole."""
    return Call(name, phase, Collective.ALL_GATHER, "tp", total_bytes, "next" if hidden else None)


def scatter_tp(name: str, phase: Phase, total_bytes: int, *, hidden: bool = False) -> Call:
    """Sums over tp, each rank keeping its part; `total_bytes` is the whole."""
    return Call(name, phase, Collective.REDUCE_SCATTER, "tp", total_bytes, "next" if hidden else None)


def reduce_tp(name: str, phase: Phase, total_bytes: int, *, hidden: bool = False) -> Call:
    """Sums over tp, each rank keeping all."""
    return Call(name, phase, Collective.ALL_REDUCE, "tp", total_bytes, "next" if hidden else None)
