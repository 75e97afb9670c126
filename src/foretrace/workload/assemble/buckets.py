"""Gradients in buckets: which units' are reduced together, and when they are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrace.workload.assemble.pieces import Piece

LEAST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
"""Parameters of a bucket: max(40 M, 1 M · dp), as Megatron-core's DistributedDataParallel has it."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters, dense or experts', of units first to last of a chunk; gradients come from the last to the first."""

    chunk: int
    first: int
    last: int
    count: int
    group: str
    """The group over which they are reduced: dp or edp."""


def buckets_of(stage: int, pieces: Iterable[tuple[int, Piece]], ranks: int, experts_ranks: int) -> list[Bucket]:
    """The buckets of a stage's chunks, each in the order in which a backward fills them.

    Only the first chunk of the first stage has several: elsewhere Megatron reduces a chunk at once, since that is
    hidden by the stages that are still at work (its DistributedDataParallel sets no bucket size there).
    """
    buckets: list[Bucket] = []
    for chunk, piece in pieces:
        for group, size in (("dp", ranks), ("edp", experts_ranks)):
            if size > 1:
                most = max(LEAST_BUCKET, BUCKET_PER_RANK * size) if stage == 0 and chunk == 0 else None
                buckets += _fill(chunk, piece, group, most)
    return buckets


def _fill(chunk: int, piece: Piece, group: str, most: int | None) -> list[Bucket]:
    buckets: list[Bucket] = []
    held, last, first = 0, -1, -1
    for at in range(len(piece.units) - 1, -1, -1):
        work = piece.units[at].work
        count = work.parameters if group == "dp" else work.expert_parameters
        if not count:
            continue
        last, first, held = (last if held else at), at, held + count
        if most is not None and held >= most:
            buckets.append(Bucket(chunk, first, last, held, group))
            held = 0
    if held:
        buckets.append(Bucket(chunk, first, last, held, group))
    return buckets
