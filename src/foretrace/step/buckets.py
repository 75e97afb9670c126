"""Divides gradients into buckets as frameworks do: which are reduced together, and after what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MEGATRON_BUCKET_PARAMETERS, MEGATRON_PARAMETERS_PER_RANK = 40_000_000, 1_000_000
"""Parameters of a bucket: max(40 M, 1 M · ranks), as Megatron-core's DistributedDataParallel has it."""

DDP_FIRST_BUCKET_BYTES: Final = 1 << 20
DDP_BUCKET_BYTES: Final = 25 << 20
"""PyTorch's `DistributedDataParallel`: bucket_cap_mb = 25, the first bucket 1 MiB so that communication starts early
(torch/nn/parallel/distributed.py, `_DEFAULT_FIRST_BUCKET_BYTES`)."""
DDP_MAX_BUCKETS: Final = 4096
"""Gradients of more than 100 GB on one GPU are divided into this many, which are then larger than DDP's."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients of units `first` to `last` of a chunk, which a backward completes from the last to the first.

    `size` is in what the sizes of units were given in: parameters or bytes. `narrow` is the part of it that computes
    in 8 bits or fewer.
    """

    chunk: int
    first: int
    last: int
    size: int
    narrow: int = 0


def megatron_limit(ranks: int) -> int:
    """Returns the parameters at which Megatron-core closes a bucket that `ranks` reduce."""
    return max(MEGATRON_BUCKET_PARAMETERS, MEGATRON_PARAMETERS_PER_RANK * ranks)


def megatron_buckets(stage: int, chunk: int, sizes: Sequence[int], limit: int) -> list[Bucket]:
    """Returns the buckets of a chunk in the order in which a backward completes them.

    Only the first chunk of the first stage has several. Elsewhere Megatron-core reduces a chunk at once, because that
    is hidden by the stages that are still at work (its DistributedDataParallel sets no bucket size there).

    Args:
        stage: The stage of the chunk.
        chunk: Its number on the stage.
        sizes: The size of each unit in the order of the model.
        limit: The size at which a bucket is closed.
    """
    buckets: list[Bucket] = []
    several = stage == 0 and chunk == 0
    size, last, first = 0, -1, -1
    for at in range(len(sizes) - 1, -1, -1):
        if not sizes[at]:
            continue
        last, first, size = (last if size else at), at, size + sizes[at]
        if several and size >= limit:
            buckets.append(Bucket(chunk, first, last, size))
            size = 0
    return [*buckets, Bucket(chunk, first, last, size)] if size else buckets


def spread_evenly(total: int, parts: int) -> list[int]:
    """Divides a total into parts that are as equal as whole numbers can be."""
    return [total * (at + 1) // parts - total * at // parts for at in range(parts)]


def ddp_buckets(gradients: Iterable[tuple[int, str]]) -> list[range]:
    """Returns the gradients of each bucket of DDP, by number in the order in which they come.

    A bucket is closed once it has reached its size, or where another dtype follows.

    Args:
        gradients: Bytes and dtype of each gradient.
    """
    buckets: list[range] = []
    begin, size, limit, dtype = 0, 0, DDP_FIRST_BUCKET_BYTES, ""
    for number, (nbytes, kind) in enumerate(gradients):
        if size and kind != dtype:
            buckets.append(range(begin, number))
            begin, size = number, 0
        dtype, size, end = kind, size + nbytes, number + 1
        if size >= limit:
            buckets.append(range(begin, end))
            begin, size, limit = end, 0, DDP_BUCKET_BYTES
    return [*buckets, range(begin, end)] if size else buckets


def even_ddp_buckets(total_bytes: int) -> list[int]:
    """Returns the bytes of each bucket of DDP in order, for gradients whose own sizes are not known."""
    size = max(DDP_BUCKET_BYTES, -(-total_bytes // DDP_MAX_BUCKETS))
    first = min(DDP_FIRST_BUCKET_BYTES, total_bytes)
    whole, rest = divmod(total_bytes - first, size)
    return [first, *[size] * whole, *([rest] if rest else [])]
