"""Gradients of a table without communication, reduced over the replicas of a mesh as DistributedDataParallel does.

A table has no order and no sizes: gradients are taken to come evenly over the backward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from foretrace.lower.torch.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from foretrace.program.block import PlacedOp
from foretrace.program.columns import Phase
from foretrace.program.program import Communicator, Source
from foretrace.program.role import RoleBuilder

MOST_BUCKETS: Final = 4096
"""Gradients of more than 100 GB on one GPU are divided into so many, which are then larger than DDP's."""


def buckets(total_bytes: int) -> list[int]:
    """Bytes of each bucket, in the order in which they are full."""
    size = max(BUCKET_BYTES, -(-total_bytes // MOST_BUCKETS))
    first = min(FIRST_BUCKET_BYTES, total_bytes)
    whole, rest = divmod(total_bytes - first, size)
    return [first, *[size] * whole, *([rest] if rest else [])]


class Reduction:
    """Writes the computation of a backward pass with the all-reduces of its gradients: each beside what follows, or,
    where `under` is false, all of them after it. `pass_s` is how long the pass takes."""

    def __init__(self, over: Communicator, sizes: Sequence[int], pass_s: float, *, under: bool) -> None:
        self._over = over
        total, ready = sum(sizes), 0
        self._waiting: deque[tuple[float, int]] = deque()
        for size in sizes:
            ready += size
            self._waiting.append((pass_s * ready / total, size))
        self._under = under
        self._at_s = 0.0

    def compute(self, role: RoleBuilder, name: str, duration_s: float, source: Source) -> None:
        """A part of the pass, cut where a bucket is full."""
        end_s = self._at_s + duration_s
        while self._under and self._waiting and self._waiting[0][0] < end_s:
            ready_s, size = self._waiting.popleft()
            piece = role.compute(name, max(ready_s - self._at_s, 0.0), phase=Phase.BACKWARD, source=source)
            self._reduce(role, size, piece)
            self._at_s = ready_s
        if end_s > self._at_s:
            role.compute(name, end_s - self._at_s, phase=Phase.BACKWARD, source=source)
        self._at_s = end_s

    def finish(self, role: RoleBuilder, source: Source) -> None:
        """What has not been reduced, and the wait for all of it."""
        ended = role.compute("end of the backward", 0.0, phase=Phase.BACKWARD, source=source)
        reduced = ended
        while self._waiting:
            reduced = self._reduce(role, self._waiting.popleft()[1], ended)
        role.compute("gradients reduced", 0.0, phase=Phase.BACKWARD, source=source, after=reduced)

    def _reduce(self, role: RoleBuilder, size: int, after: PlacedOp) -> PlacedOp:
        return role.collective(
            "all_reduce", self._over, name="reduce gradients", phase=Phase.BACKWARD, bytes=size, after=after
        )
