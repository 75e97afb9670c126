"""Turns the pieces of a layer into its work: what recomputation runs again, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foretrace.program.columns import Phase
from foretrace.step.spec import Item, Work
from foretrace.workload.layers.linear import quantizes_again
from foretrace.workload.layers.modules import Recomputed, offloaded_bytes, recomputed_parts
from foretrace.workload.layers.piece import Piece, weights
from foretrace.workload.plan import OffloadModule, Recompute, RecomputeModule
from foretrace.workload.stack import Stack


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a layer keeps its activations: what is recomputed, by which modules, and which of them go to the host."""

    recompute: Recompute = "none"
    modules: tuple[RecomputeModule, ...] = ()
    """selective: the parts of a layer that run again, unless the stack has a policy of its own."""
    offloads: tuple[OffloadModule, ...] = ()


MAX_PERSISTENT_PARAMETERS: Final = 100_000
"""DeepSpeed's limit: it leaves a tensor whole that has no more parameters (`stage3_param_persistence_threshold`)."""

EVERYTHING: Final = Keeping()
"""Nothing is recomputed or offloaded."""


def work_of(
    name: str, pieces: Sequence[Piece], stack: Stack, keeping: Keeping, *, input_bytes: int, output_bytes: int
) -> Work:
    """The work of pieces that run one after the other; `input_bytes` is what comes in, kept under full recompute."""
    if keeping.recompute == "full" or (keeping.recompute == "selective" and stack.selective == "products"):
        kept = _Kept.of_policy(pieces, stack, keeping.recompute, input_bytes)
    else:
        kept = _Kept.of_modules(pieces, stack, keeping)
    dense, expert = weights(pieces)
    return Work(
        name=name,
        forward=tuple(item for piece in pieces for item in piece.forward),
        recompute=tuple(replace(item, phase=Phase.RECOMPUTE) for item in kept.again),
        backward=tuple(item for piece in reversed(pieces) for item in piece.backward),
        saved_bytes=kept.saved_bytes,
        recomputed_bytes=kept.recomputed_bytes,
        offloaded_bytes=kept.offloaded_bytes,
        parameters=dense,
        expert_parameters=expert,
        narrow_parameters=sum(piece.narrow_parameters for piece in pieces if piece.parameters),
        narrow_expert_parameters=sum(piece.narrow_parameters for piece in pieces if piece.expert_parameters),
        output_bytes=output_bytes,
        tensors=sum(piece.parameters > MAX_PERSISTENT_PARAMETERS for piece in pieces),
        largest_bytes=max((*_tensors(pieces).values(), *(piece.output_bytes for piece in pieces)), default=0),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The bytes that pieces keep, and the items that run again for the rest."""

    again: list[Item]
    saved_bytes: int
    recomputed_bytes: int
    offloaded_bytes: int = 0

    @classmethod
    def of_policy(cls, pieces: Sequence[Piece], stack: Stack, recompute: Recompute, input_bytes: int) -> _Kept:
        """Keeps nothing but the input and, under `selective`, the products that torchtitan's policy keeps."""
        products = _kept_products(pieces) if recompute == "selective" else set[int]()
        needed = pieces[: _last_needed(pieces)] if stack.early_stop else pieces
        again = [item for index, piece in enumerate(needed) if index not in products for item in piece.forward]
        kept = input_bytes + sum(
            pieces[index].output_bytes + sum(size for _, size in pieces[index].inner) for index in products
        )
        everything = sum(_tensors(pieces).values())
        return cls(again, kept, max(everything - kept, 0) if again else 0)

    @classmethod
    def of_modules(cls, pieces: Sequence[Piece], stack: Stack, keeping: Keeping) -> _Kept:
        """Keeps everything but what the modules of the plan make again."""
        modules = keeping.modules if keeping.recompute == "selective" else ()
        parts = recomputed_parts(pieces, stack, modules)
        tensors = _tensors(pieces)
        inputs = {name: size for part in parts for name, size in part.kept.items()}
        dropped = {name for part in parts for name in part.dropped}
        kept = {name: size for name, size in (tensors | inputs).items() if name not in dropped}
        return cls(
            again=_runs_again(pieces, stack, parts),
            saved_bytes=sum(kept.values()),
            recomputed_bytes=_alive_at_once(parts, tensors, kept),
            offloaded_bytes=offloaded_bytes(pieces, stack, keeping.offloads, kept) if keeping.offloads else 0,
        )


def _runs_again(pieces: Sequence[Piece], stack: Stack, parts: Sequence[Recomputed]) -> list[Item]:
    """Returns the items of the parts in the order in which the backward needs them, each piece once."""
    again: list[Item] = []
    seen = set[int]()
    covered = {number for part in parts for number in part.pieces}
    for part in parts:
        numbers = part.pieces
        if stack.early_stop and part.keeps_output:
            numbers = numbers[: _last_needed([pieces[number] for number in numbers])]
        again += [item for number in numbers if number not in seen for item in pieces[number].forward]
        seen.update(part.pieces)
        # With Transformer Engine's `save_original_input`, the operand is quantised again for the weight gradient.
        for number in part.quantized:
            if number not in covered and not quantizes_again(pieces[number]):
                again += [item for item in pieces[number].forward if item.name == f"{pieces[number].name} quantize"]
    return again


def _alive_at_once(parts: Sequence[Recomputed], tensors: dict[str, int], kept: dict[str, int]) -> int:
    """Returns the most bytes of dropped tensors that are alive at once while the backward of the pieces runs.

    A part's tensors live from the backward of the last piece that needs them to that of its own first piece: the output
    of a norm that was dropped is there while all of the experts' backward runs. A part within another is dropped there
    too, so that its tensors live as long as its own do. Where a part keeps its input in 16 bits instead of 8, what that
    takes more is counted once, as kept.

    Args:
        parts: The parts that run again.
        tensors: Tensors that the layer keeps without recomputation, in bytes by name.
        kept: Those that it keeps with it.
    """
    peak = 0
    # Of parts that drop the same tensor, the one with the fewest pieces is the innermost.
    owner = {name: part for part in sorted(parts, key=lambda part: -len(part.pieces)) for name in part.dropped}
    for moment in parts:
        alive = [part for part in parts if part.first <= moment.last <= part.last]
        again = {name for name, part in owner.items() if part in alive and name in tensors}
        instead = {name for part in alive for name in part.kept if name in kept and name not in tensors}
        peak = max(peak, sum(tensors[name] for name in again) - sum(kept[name] for name in instead))
    return peak


def _last_needed(pieces: Sequence[Piece]) -> int:
    """The pieces that a checkpoint runs before it has all that the pieces keep: it stops before the last keeper.

    PyTorch saves an operator's inputs before launching it (torch.utils.checkpoint, early stop). A piece that keeps
    results of its own has to run.
    """
    needed = (index + bool(piece.inner) for index, piece in enumerate(pieces) if piece.saved or piece.inner)
    return max(needed, default=0)


def _kept_products(pieces: Sequence[Piece]) -> set[int]:
    """Core attention, and the first, third, fifth... product (torchtitan's policy `op`)."""
    products = [index for index, piece in enumerate(pieces) if piece.product]
    return {*products[::2], *(index for index, piece in enumerate(pieces) if piece.core)}


def _tensors(pieces: Iterable[Piece]) -> dict[str, int]:
    """Returns the bytes of kept tensors by name: one that two pieces keep counts once."""
    return dict(tensor for piece in pieces for tensor in (*piece.saved, *piece.inner))
