"""Writes the end of a step as `EndItem`s: gradients reduced, their norm, the optimizer, parameters gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from foretrace.program.columns import Collective, Phase
from foretrace.program.program import Source
from foretrace.schedules import ActionKind, Schedule, StageActions
from foretrace.step.buckets import Bucket, megatron_buckets, spread_evenly
from foretrace.step.optimizer import Adam, Kernels, Share
from foretrace.step.segments import COLLECTIVE_LAUNCHES
from foretrace.step.spec import Call, ChunkSpec, Compute, EndItem, HostWork, Item, Launches

HOST_BYTES_PER_S = 100e9
"""Memory bandwidth of an optimizer on the host for one GPU: a socket with eight channels of DDR5-4800 moves 307 GB/s at
most and serves up to four GPUs."""

_HOST_OPTIMIZER = Source("optimizer on the host", 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Turns:
    """The actions that the end of a stage's step is tied to, by chunk: first forwards, and last backwards in order.

    Each is a row of the stage's actions, `rows`.
    """

    rows: StageActions
    firsts: dict[int, int]
    finals: dict[int, int]


_TURNS: WeakKeyDictionary[Schedule, tuple[Turns, ...]] = WeakKeyDictionary()


def turns_of(schedule: Schedule) -> tuple[Turns, ...]:
    """Finds the turns of every stage. A schedule is never edited, so they are kept as long as it is."""
    if schedule not in _TURNS:
        _TURNS[schedule] = tuple(_turns(rows, schedule.chunks) for rows in schedule.stage_actions)
    return _TURNS[schedule]


def _turns(rows: StageActions, chunks: int) -> Turns:
    forward = np.flatnonzero(rows.kind == ActionKind.FORWARD)
    closing = np.flatnonzero((rows.kind != ActionKind.FORWARD) & (rows.kind != ActionKind.BACKWARD_INPUT))
    first, final = np.full((2, chunks), -1)
    # Among several rows of a chunk the one written last stays.
    first[rows.chunk[forward[::-1]]] = forward[::-1]
    final[rows.chunk[closing]] = closing
    firsts, finals = (
        {int(chunk): int(row[chunk]) for chunk in np.argsort(row) if row[chunk] >= 0} for row in (first, final)
    )
    return Turns(rows, firsts, finals)


@dataclass(frozen=True, slots=True)
class TrainingEnd:
    """How a framework ends a step.

    Attributes:
        optimizer: Its optimizer.
        grad_overlap: Whether buckets are reduced next to the last backward; else after it.
        param_overlap: Whether buckets are gathered next to the next step's forward; else before it.
        ranks: Ranks of the job, which agree on the norm of gradients.
        frees_gradients: Whether the update gives the memory of gradients back.
        launches: The host's time for kernel launches.
        reduces: Whether gradients are reduced at the end; else every backward has reduced its own.
    """

    optimizer: Adam
    grad_overlap: bool
    param_overlap: bool
    ranks: int
    frees_gradients: bool
    launches: Launches | None = None
    reduces: bool = True

    def items(
        self, buckets: Sequence[tuple[str, Bucket]], share: Share, order: Sequence[int], tied: Call | None = None
    ) -> tuple[EndItem, ...]:
        """Returns the end of a stage's step.

        Args:
            buckets: Gradients by the group that reduces them (`dp` or `edp`), in order, sizes in parameters.
            order: The chunks in the order of their first forwards.
            share: The parameters that a rank of the stage updates.
            tied: The reduction of an embedding that first and last stage share.
        """
        end = list[EndItem]()
        waits = self._reduce(end, buckets if self.reduces else (), tied)
        waits = self._norm(end, share, waits)
        updated = self._update(end, share, waits)
        if self.optimizer.zero in (1, 2):
            self._gather(end, buckets, order, updated)
        # Gradients that were reduced next to a backward must have arrived before anything is computed from them.
        first = next(number for number, entry in enumerate(end) if isinstance(entry.item, Compute))
        end[first] = replace(end[first], after_reductions=True)
        return tuple(end)

    def _reduce(self, end: list[EndItem], buckets: Sequence[tuple[str, Bucket]], tied: Call | None) -> tuple[int, ...]:
        """Adds the reductions; returns the end items that the norm waits for."""
        what = Collective.REDUCE_SCATTER if self.optimizer.zero else Collective.ALL_REDUCE
        last: dict[str, int] = {}
        for group, bucket in buckets:
            name = "reduce gradients" if group == "dp" else "reduce expert gradients"
            call = Call(name, Phase.BACKWARD, what, group, self.optimizer.gradient_bytes * bucket.size)
            if self.grad_overlap:
                last[group] = len(end)
            end.append(reduction(call, bucket, overlap=self.grad_overlap))
        waits = tuple(last.values())
        if tied is None:
            return waits
        end.append(EndItem(tied, after=waits, after_reductions=not self.reduces))
        return ()

    def _norm(self, end: list[EndItem], share: Share, waits: tuple[int, ...]) -> tuple[int, ...]:
        """Adds the norm of all gradients, for which all ranks meet and the host waits.

        Returns the end items that the update waits for.
        """
        optimizer, norm = self.optimizer, tuple[int, ...]()
        if optimizer.clips_gradients:
            takes = _nonzero(gradients=optimizer.copied_gradient_bytes(share))
            end.append(EndItem(_optimizer("grad norm", optimizer.norm_kernels(share)), after=waits, takes=takes))
            if self.ranks > 1:
                end.append(EndItem(Call("reduce grad norm", Phase.OPTIMIZER, Collective.ALL_REDUCE, "world", 4)))
            waits, norm = (), (len(end) - 1,)
        count = sum(kernel.launches for _, kernel in optimizer.update_kernels(share))
        count += COLLECTIVE_LAUNCHES * (optimizer.zero in (1, 2))
        if self.launches is None or not count:
            return waits
        launch = HostWork("launch", count * self.launches.seconds, self.launches.source, Phase.OPTIMIZER)
        end.append(EndItem(launch, "host", after=norm))
        return (*waits, len(end) - 1)

    def _update(self, end: list[EndItem], share: Share, waits: tuple[int, ...]) -> int:
        """Adds the optimizer and what resets gradients; returns the item after which parameters are new."""
        optimizer = self.optimizer
        kernels = optimizer.update_kernels(share)
        copied = optimizer.copied_gradient_bytes(share)
        takes = _nonzero(gradients=0 if optimizer.clips_gradients else copied)
        frees = _nonzero(gradients=copied + (optimizer.gradient_bytes * share.total if self.frees_gradients else 0))
        if not optimizer.offloaded or not kernels:
            end.append(EndItem(_optimizer("optimizer", kernels), after=waits, takes=takes, frees=frees))
        else:
            end.append(EndItem(_optimizer("gradients to host", kernels[:1]), after=waits))
            seconds = optimizer.host_bytes(share) / HOST_BYTES_PER_S
            update = HostWork("optimizer", seconds, _HOST_OPTIMIZER, Phase.OPTIMIZER)
            end.append(EndItem(update, "host", after=(len(end) - 1,)))
            end.append(EndItem(_optimizer("parameters to gpu", kernels[1:]), after=(len(end) - 1,), frees=frees))
        updated = len(end) - 1
        if zero := optimizer.zero_kernels(share):
            end.append(EndItem(_optimizer("zero gradients", zero)))
        return updated

    def _gather(
        self, end: list[EndItem], buckets: Sequence[tuple[str, Bucket]], order: Sequence[int], updated: int
    ) -> None:
        """Adds the gathers of updated parameters from the ranks that have them, in the order of their use."""
        for group, bucket in sorted(buckets, key=lambda bucket: (order.index(bucket[1].chunk), bucket[1].first)):
            name = "gather parameters" if group == "dp" else "gather expert parameters"
            size = self.optimizer.gathered_bytes(bucket.size, bucket.narrow)
            call = Call(name, Phase.OPTIMIZER, Collective.ALL_GATHER, group, size)
            end.append(gather(call, bucket, updated, overlap=self.param_overlap))


def reduction(call: Call, bucket: Bucket, *, overlap: bool) -> EndItem:
    """Returns the reduction of a bucket: as soon as its last gradient is there, or in its turn at the end."""
    if not overlap:
        return EndItem(call, chunk=bucket.chunk)
    return EndItem(call, None, when=(bucket.chunk, bucket.first), chunk=bucket.chunk)


def gather(call: Call, bucket: Bucket, updated: int, *, overlap: bool) -> EndItem:
    """Returns the gather of a bucket: next to the next step's forward, or in its turn at the end."""
    if not overlap:
        return EndItem(call, chunk=bucket.chunk)
    return EndItem(call, None, after=(updated,), before=(bucket.chunk, bucket.first), chunk=bucket.chunk)


def even_megatron_buckets(total: int, stage: int, chunks: Sequence[tuple[int, ChunkSpec]], limit: int) -> list[Bucket]:
    """Divides gradients of a stage into Megatron's buckets where the sizes of layers are not known.

    All layers count as equal. Embedding and head count to the layers next to them.

    Args:
        total: The size of all gradients of the stage.
        stage: The stage.
        chunks: Its chunks with their numbers, in the order in which backwards complete them.
        limit: The size at which a bucket is closed.
    """
    counted = [[unit.layer >= 0 for unit in chunk.units] for _, chunk in chunks]
    if not any(map(any, counted)):
        counted = [[True] * len(chunk.units) for _, chunk in chunks]
    sizes = iter(spread_evenly(total, sum(map(sum, counted))))
    buckets: list[Bucket] = []
    for (number, chunk), counts in zip(chunks, counted, strict=True):
        each = [next(sizes) if counts_here else 0 for counts_here in counts]
        for bucket in megatron_buckets(stage, number, each, limit):
            after_embedding = bucket.first == 1 and chunk.units[0].layer < 0
            buckets.append(replace(bucket, first=0) if after_embedding else bucket)
    return buckets


def _optimizer(name: str, kernels: Kernels) -> Item:
    return Compute(name, Phase.OPTIMIZER, kernels)


def _nonzero(**sizes: int) -> dict[str, int]:
    return {category: size for category, size in sizes.items() if size}
