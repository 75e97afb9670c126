"""Which layers each piece of the model has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from foretrace.basics.errors import InputError


def split_layers(
    layers: int, pieces: int, given: Sequence[int] | None
) -> tuple[tuple[tuple[int, ...], ...], str | None]:
    """The layers of every piece by number, in the model's order, and what to say where they are not as many in each.

    Where the layers do not divide but two more would, the embedding and the head count as a layer each, as under
    Megatron's account-for-embedding-in-pipeline-split and -loss- (Llama 3 405B: 126 layers).
    """
    counts, note = _counts(layers, pieces, given)
    bounds = accumulate(counts, initial=0)
    return tuple(tuple(range(first, last)) for first, last in pairwise(bounds)), note


def _counts(layers: int, pieces: int, given: Sequence[int] | None) -> tuple[list[int], str | None]:
    if given is not None:
        if len(given) != pieces or sum(given) != layers or min(given) < 0:
            raise InputError(
                "bad-plan",
                f"stage_layers has {len(given)} parts of {sum(given)} layers in all; the model has {layers} layers "
                f"in {pieces} part{'s' * (pieces > 1)}",
                hint=f"give {pieces} numbers that add up to {layers}",
            )
        return list(given), None
    if layers % pieces == 0:
        return [layers // pieces] * pieces, None
    each, left = divmod(layers + 2, pieces)
    if left == 0 and pieces > 1:
        note = f"{layers} layers on {pieces} parts: embedding and head count as a layer each, {each} to a part"
        return [each - 1, *([each] * (pieces - 2)), each - 1], note
    if layers < pieces:
        raise InputError(
            "bad-plan",
            f"{layers} layers cannot fill {pieces} parts of a pipeline (pp times chunks)",
            hint=f"at most {layers} parts, or stage_layers with zeros",
        )
    each, left = divmod(layers, pieces)
    note = f"{layers} layers on {pieces} parts: {each} in each, one more in the first{f' {left}' if left > 1 else ''}"
    return [each + (piece < left) for piece in range(pieces)], note
