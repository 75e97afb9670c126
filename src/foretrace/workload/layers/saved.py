"""Turns the pieces of a layer into its work: what recomputation runs again, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from foretrace.program.columns import Phase
from foretrace.step.spec import Item, Work
from foretrace.workload.layers.piece import Piece, weights
from foretrace.workload.plan import Recompute
from foretrace.workload.stack import Stack


def work_of(
    name: str, pieces: Sequence[Piece], stack: Stack, recompute: Recompute, *, input_bytes: int, output_bytes: int
) -> Work:
    """The work of pieces that run one after the other; `input_bytes` is what comes in, kept under full recompute."""
    again = _recomputed(pieces, stack, recompute)
    everything = _bytes(tensor for piece in pieces for tensor in (*piece.saved, *piece.inner))
    kept = _kept(pieces, stack, recompute, input_bytes)
    dense, expert = weights(pieces)
    return Work(
        name=name,
        forward=tuple(item for piece in pieces for item in piece.forward),
        recompute=tuple(replace(item, phase=Phase.RECOMPUTE) for item in again),
        backward=tuple(item for piece in reversed(pieces) for item in piece.backward),
        saved_bytes=kept,
        recomputed_bytes=max(everything - kept, 0) if again else 0,
        parameters=dense,
        expert_parameters=expert,
        output_bytes=output_bytes,
    )


def _recomputed(pieces: Sequence[Piece], stack: Stack, recompute: Recompute) -> list[Item]:
    if recompute == "none":
        return []
    if recompute == "selective" and stack.selective == "core":
        return [item for piece in pieces if piece.core for item in piece.forward]
    needed = pieces[: _last_keeper(pieces)] if stack.early_stop else pieces
    kept = _kept_products(pieces) if recompute == "selective" else set[int]()
    return [item for index, piece in enumerate(needed) if index not in kept for item in piece.forward]


def _last_keeper(pieces: Sequence[Piece]) -> int:
    """The last piece that keeps anything: a checkpoint stops when it has what that one keeps, before it runs.

    PyTorch saves an operator's inputs before launching it (torch.utils.checkpoint, early stop).
    """
    return max((index for index, piece in enumerate(pieces) if piece.saved or piece.inner), default=0)


def _kept_products(pieces: Sequence[Piece]) -> set[int]:
    """Core attention, and the first, third, fifth... product (torchtitan's policy `op`)."""
    products = [index for index, piece in enumerate(pieces) if piece.product]
    return {*products[::2], *(index for index, piece in enumerate(pieces) if piece.core)}


def _kept(pieces: Sequence[Piece], stack: Stack, recompute: Recompute, input_bytes: int) -> int:
    if recompute == "full":
        return input_bytes
    if recompute == "selective" and stack.selective == "products":
        return input_bytes + sum(
            pieces[index].output_bytes + sum(size for _, size in pieces[index].inner)
            for index in _kept_products(pieces)
        )
    if recompute == "selective":
        inner = {name for piece in pieces if piece.core for name, _ in piece.inner}
        others = {name for piece in pieces if not piece.core for name, _ in (*piece.saved, *piece.inner)}
        lost = inner - others
    else:
        lost = set()
    tensors = (tensor for piece in pieces for tensor in (*piece.saved, *piece.inner))
    return _bytes(tensor for tensor in tensors if tensor[0] not in lost)


def _bytes(tensors: Iterable[tuple[str, int]]) -> int:
    """Returns the bytes of tensors by name, each counted once."""
    return sum(dict(tensors).values())
