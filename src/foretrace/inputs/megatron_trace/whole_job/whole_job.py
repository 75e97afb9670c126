"""Describes the step of the whole job from what one microbatch takes on each kind of rank.

All ranks and microbatches run in the order of a pipeline schedule, with collectives inside forward and backward where
the trace has them, and gradient reductions and the optimizer at the end. Communication carries bytes, which a machine
prices; it carries times only where they were recorded in a real run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import isnan

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.format import dtype_bytes
from foretrace.inputs.megatron_trace.whole_job.corrections import EXPERT_SLOWDOWN, HOST, compute_sources
from foretrace.inputs.megatron_trace.whole_job.exchanges import Exchanges, check_equal_calls
from foretrace.inputs.megatron_trace.whole_job.resize import GRADIENT_BYTES
from foretrace.inputs.megatron_trace.whole_job.work import RankWork, Stones, Stretch
from foretrace.inputs.option_values import Overlap
from foretrace.program.columns import UNPRICED, Phase
from foretrace.schedules.pipeline import Transfer
from foretrace.schedules.schedule import Schedule
from foretrace.step.buckets import Bucket, megatron_limit
from foretrace.step.end import even_megatron_buckets, turns_of
from foretrace.step.groups import group_size
from foretrace.step.spec import Call, ChunkSpec, Compute, Cut, EndItem, HostWork, Item, RoleSpec, StepSpec, Unit, Work

WEIGHT_SHARE = 0.5
"""The share of a backward that gives weight gradients, where a schedule runs them apart: they have as many flops as
input gradients. Traces time both together."""


@dataclass(frozen=True, slots=True)
class WholeJob:
    """How the traced work is run as a whole job.

    Attributes:
        title: Shown with the answer.
        mesh: Sizes of the axes of parallelism.
        schedule: The order of forwards and backwards.
        transfer: The activation that crosses a stage boundary for a microbatch.
        tokens_per_step: Where they are known.
        ex_situ: Whether the traces were taken on one GPU.
        gap_s: The host's time between two ops.
        alone: Whether it is one rank whose groups are not known.
        overlap: Communication that runs next to computation, in addition to what Megatron always overlaps.
        stage_layers: Layers of every chunk in the order of the model; None: as many in each chunk of a stage.
    """

    title: str
    mesh: Mesh
    schedule: Schedule
    transfer: Transfer
    tokens_per_step: float | None
    ex_situ: bool
    gap_s: float
    alone: bool
    overlap: frozenset[Overlap] = frozenset()
    stage_layers: tuple[int, ...] | None = None


def whole_job_spec(stones: Stones, job: WholeJob, notes: Sequence[Diagnostic]) -> StepSpec:
    """Describes the step of a job that is built of these stones."""
    _check_schedule(job.schedule)
    for stage in range(job.mesh.pp):
        each = [stones.work[stage, expert] for expert in range(job.mesh.ep)]
        check_equal_calls(stage, "its gradients", [work.gradients for work in each])
        check_equal_calls(stage, "its buckets", [[bucket.call for bucket in work.buckets] for work in each])
    roles = _Roles(stones, job)
    return StepSpec(
        title=job.title,
        mesh=job.mesh,
        schedule=job.schedule,
        roles=tuple(roles.role(stage, expert) for stage in range(job.mesh.pp) for expert in range(job.mesh.ep)),
        transfer=job.transfer,
        pp_overlap=Overlap.PP in job.overlap,
        repeats=False,
        tokens_per_step=job.tokens_per_step,
        end_waits_for_transfers=True,
        diagnostics=tuple(notes),
    )


def _check_schedule(schedule: Schedule) -> None:
    """Traces have embedding and loss on the first and last stage: schedules that put them elsewhere do not fit."""
    ends = int(schedule.piece[0].min()), int(schedule.piece[-1].max())
    if schedule.directions > 1 or ends != (0, schedule.pieces - 1):
        raise InputError(
            "invalid-schedule",
            f"{schedule.name} puts the ends of the model on other stages than the traces have them",
            hint="choose 1f1b, gpipe, interleaved-1f1b, looped-bfs, interleaved-zb or zb-h1",
        )


_Run = tuple[int, tuple[Item, ...]]
"""A layer, or -1, and its items in one pass."""


class _Roles:
    """Makes the roles of a job. Layers that do the same share one work, chunks that do the same are one object."""

    def __init__(self, stones: Stones, job: WholeJob) -> None:
        self.stones, self.job = stones, job
        self.gap: list[Item] = [HostWork("gap", job.gap_s, HOST)] if job.gap_s else []
        self.sources = compute_sources(stones, job.ex_situ)
        self.exchanges = Exchanges(stones, job.mesh.ep)
        self._batches: dict[float, HostWork] = {}
        self._items: dict[tuple[object, ...], tuple[Item, ...]] = {}
        self._works: dict[tuple[object, ...], Work] = {}
        self._chunks: dict[tuple[object, ...], ChunkSpec] = {}
        self._ends: dict[object, tuple[EndItem, ...]] = {}
        self._known_cuts: dict[tuple[Cut, ...], tuple[Cut, ...]] = {}

    def role(self, stage: int, expert: int) -> RoleSpec:
        """Returns what the ranks of a stage with the same experts do."""
        mesh, several = self.job.mesh, self.job.mesh.ep > 1
        work = self.stones.work[stage, expert]
        chunks = tuple((self._chunk(stage, expert, work, chunk),) for chunk in range(self.job.schedule.chunks))
        return RoleSpec(
            stage,
            f"stage {stage}, experts {expert}" if several else f"stage {stage}",
            mesh.where(pp=stage, ep=expert) if several else mesh.where(pp=stage),
            chunks,
            self._end(work),
            self._cuts(stage, work, [chunk for (chunk,) in chunks]),
        )

    def _chunk(self, stage: int, expert: int, work: RankWork, chunk: int) -> ChunkSpec:
        """Returns the units of a chunk: its layers, with what lies before the first and after the last."""
        piece = int(self.job.schedule.piece[stage][chunk])
        first, last = piece == 0, piece == self.job.schedule.pieces - 1
        forward = self._runs("forward_step", stage, expert, work.forward, chunk)
        backward = self._runs("backward_step", stage, expert, work.backward, chunk)
        before: list[Item] = [] if first else list(self.gap)
        if work.get_batch_s is not None and (first or last):
            before += [
                self._batches.setdefault(work.get_batch_s, HostWork("get_batch", work.get_batch_s, HOST)),
                *self.gap,
            ]
        after = list(self.gap)
        if last and work.loss:
            loss = self._runs("loss_func", stage, expert, work.loss, None)
            after += [*(item for _, items in loss for item in items), *self.gap]
        forward_pass = _Pass.of(before, forward, after)
        backward_pass = _Pass.of([] if last else self.gap, backward, self.gap)
        units = [Unit(self._work(*items), layer) for layer, *items in _paired(forward_pass, backward_pass)]
        key = tuple((id(unit.work), unit.layer) for unit in units)
        return self._chunks.setdefault(key, ChunkSpec(tuple(units)))

    def _work(self, forward: tuple[Item, ...], backward: tuple[Item, ...]) -> Work:
        key = tuple(map(id, forward)), tuple(map(id, backward))
        if key not in self._works:
            self._works[key] = Work("layer", forward, (), backward, weight_share=WEIGHT_SHARE)
        return self._works[key]

    def _runs(self, name: str, stage: int, expert: int, works: Sequence[Stretch], chunk: int | None) -> list[_Run]:
        """Returns the items of a chunk's part of a pass, layer by layer in the order in which they come.

        A call that runs next to the computation that follows it belongs to the layer of that computation.
        """
        exchanges = self.exchanges.of(stage, name)
        numbers = self._of_chunk(works, stage, chunk, backward=name == "backward_step")
        runs: list[_Run] = []
        launched: tuple[Item, ...] = ()
        for layer, group in groupby(numbers, key=lambda number: works[number].layer):
            items = list(launched)
            for number in group:
                items += self._stretch(name, works[number], exchanges[number][expert] if number in exchanges else None)
            launched = tuple(item for item in items[-1:] if isinstance(item, Call) and item.concurrent == "next")
            runs.append((layer, tuple(items[: len(items) - len(launched)])))
        return [*runs, (-1, launched)] if launched else runs

    def _stretch(self, name: str, work: Stretch, sends: tuple[int, ...] | None) -> tuple[Item, ...]:
        """Returns a computation and the call after it, the same objects for equal ones."""
        call, experts = work.call, work.rows is not None
        key = (name, work.compute_s, experts, call, sends)
        if key not in self._items:
            phase = Phase.BACKWARD if name == "backward_step" else Phase.FORWARD
            slower = EXPERT_SLOWDOWN if self.job.ex_situ and experts else 1.0
            items: list[Item] = [
                Compute(name, phase, seconds=work.compute_s * slower, source=self.sources[experts]),
            ]
            if call is not None:
                size = call.bytes if sends is None else sum(sends)
                concurrent = "previous" if call.concurrent is None and self._fuses(call) else call.concurrent
                items.append(replace(self._priced(call), phase=phase, bytes=size, sends=sends, concurrent=concurrent))
            self._items[key] = tuple(items)
        return self._items[key]

    def _fuses(self, call: Call) -> bool:
        return Overlap.TP in self.job.overlap and call.axis == "tp"

    def _priced(self, call: Call) -> Call:
        """Returns a call that takes no time if it is of a rank whose group is not known."""
        return replace(call, seconds=0.0) if self.job.alone and isnan(call.seconds) else call

    def _of_chunk(self, works: Sequence[Stretch], stage: int, chunk: int | None, *, backward: bool) -> range:
        """Returns which stretches are of a chunk: its share of the layers, and the ends of the model next to them."""
        chunks = self.job.schedule.chunks
        if chunk is None or chunks == 1:
            return range(len(works))
        layers = max((work.layer for work in works), default=-1) + 1
        if self.job.stage_layers is not None:
            counts = [self.job.stage_layers[piece] for piece in self.job.schedule.piece[stage].tolist()]
        elif layers < 1 or layers % chunks:
            raise InputError(
                "not-divisible",
                f"{layers or 'an unknown number of'} layers a stage do not divide into {chunks} chunks",
                hint="choose a schedule with one chunk per stage, such as 1f1b or zb-h1",
            )
        else:
            counts = [layers // chunks] * chunks
        turn = chunks - 1 - chunk if backward else chunk
        starts = {work.layer: number for number, work in reversed(list(enumerate(works)))}
        firsts = list(accumulate(counts[::-1] if backward else counts))[:-1]
        bounds = [0, *(starts[first] for first in firsts), len(works)]
        return range(bounds[turn], bounds[turn + 1])

    def _cuts(self, stage: int, work: RankWork, chunks: Sequence[ChunkSpec]) -> tuple[Cut, ...]:
        """Returns the gradient buckets that run next to the last backward: as traced, or as Megatron makes them."""
        traced = [self._traced_cut(bucket.after_share, bucket.call, chunks) for bucket in work.buckets]
        made = [
            self._cut(bucket.chunk, _share_done(chunks[bucket.chunk], bucket.first), call, bucket.size)
            for call in work.gradients
            if self._overlaps(call)
            for bucket in self._buckets(stage, call, chunks)
        ]
        cuts = (*traced, *made)
        return self._known_cuts.setdefault(cuts, cuts)

    def _overlaps(self, call: Call) -> bool:
        """Returns whether a reduction of gradients is divided into buckets that run next to the backward."""
        return Overlap.GRAD in self.job.overlap and call.axis != "embd" and group_size(self.job.mesh, call.axis) > 1

    def _buckets(self, stage: int, call: Call, chunks: Sequence[ChunkSpec]) -> list[Bucket]:
        finals = [(chunk, chunks[chunk]) for chunk in turns_of(self.job.schedule)[stage].finals]
        element_bytes = GRADIENT_BYTES if call.dtype is None else dtype_bytes(call.dtype)
        limit = element_bytes * megatron_limit(group_size(self.job.mesh, call.axis))
        return even_megatron_buckets(call.bytes, stage, finals, limit)

    def _traced_cut(self, share: float, call: Call, chunks: Sequence[ChunkSpec]) -> Cut:
        """Returns a bucket in the chunk in which it was launched, after a share of the stage's whole backward."""
        seconds = [_backward_s(chunk.units) for chunk in chunks]
        chunk, at = len(chunks) - 1, share * sum(seconds)
        while chunk and at >= seconds[chunk]:
            at, chunk = at - seconds[chunk], chunk - 1
        return self._cut(chunk, at / seconds[chunk] if seconds[chunk] else 1.0, call, call.bytes)

    def _cut(self, chunk: int, share: float, call: Call, size: int) -> Cut:
        """Returns a bucket that is scaled and reduced after a share of a chunk's last backward."""
        seconds = call.seconds if size == call.bytes else UNPRICED
        reduced = replace(self._priced(replace(call, seconds=seconds)), phase=Phase.BACKWARD, bytes=size)
        # The time of a reduction in a real run includes the scaling.
        scale = Compute(f"scale {call.name}", Phase.BACKWARD, moved_bytes=2.0 * size)
        return Cut(chunk, share, (scale, reduced) if isnan(seconds) else (reduced,))

    def _end(self, work: RankWork) -> tuple[EndItem, ...]:
        """Returns gradients scaled and reduced, then the optimizer, which waits for buckets that are under way."""
        key = work.gradients, work.optimizer_s
        if key in self._ends:
            return self._ends[key]
        end: list[EndItem] = []
        for call in work.gradients:
            if self._overlaps(call):
                continue
            meets = self.job.alone or group_size(self.job.mesh, call.axis) > 1
            scales = call.axis != "embd" and not self.job.alone
            # Megatron multiplies gradients by 1/dp before it reduces them: read once, written once. The time of
            # a reduction in a real run includes that.
            if scales and not (meets and not isnan(call.seconds)):
                scale = Compute(f"scale {call.name}", Phase.NONE, seconds=call.seconds, moved_bytes=2.0 * call.bytes)
                end.append(EndItem(scale))
            if meets:
                # The embedding's gradients are added once those of its own stage are there.
                end.append(EndItem(self._priced(call), after_reductions=call.axis == "embd"))
            end += [EndItem(gap) for gap in self.gap]
        update = Compute("optimizer_step", Phase.OPTIMIZER, seconds=work.optimizer_s, source=self.sources[False])
        end.append(EndItem(update, after_reductions=True))
        return self._ends.setdefault(key, tuple(end))


@dataclass(frozen=True, slots=True)
class _Pass:
    """A forward or a backward in the order in which it runs: what lies before its layers, its layers, what follows."""

    begin: tuple[Item, ...]
    layers: tuple[_Run, ...]
    end: tuple[Item, ...]

    @classmethod
    def of(cls, before: Sequence[Item], runs: Sequence[_Run], after: Sequence[Item]) -> _Pass:
        """Sorts runs; what lies between layers counts to the layer before it."""
        begin, end, layers = list(before), list[Item](), list[tuple[int, list[Item]]]()
        for layer, items in runs:
            if layer >= 0:
                if end:
                    layers[-1][1].extend(end)
                layers.append((layer, list(items)))
                end = []
            else:
                (end if layers else begin).extend(items)
        return cls(tuple(begin), tuple((layer, tuple(items)) for layer, items in layers), (*end, *after))

    @property
    def items(self) -> tuple[Item, ...]:
        """All items in order."""
        return (*self.begin, *(item for _, items in self.layers for item in items), *self.end)


def _paired(forward: _Pass, backward: _Pass) -> list[tuple[int, tuple[Item, ...], tuple[Item, ...]]]:
    """Returns (layer, forward, backward) of each unit in the order of the model.

    A backward meets layers from the last to the first. Where both passes do not have as many layers, there is one unit.
    """
    if not forward.layers or len(backward.layers) != len(forward.layers):
        return [(-1, forward.items, backward.items)]
    both = zip(forward.layers, reversed(backward.layers), strict=True)
    units = [(layer, items, back) for (layer, items), (_, back) in both]
    ends = [[(-1, forward.begin, backward.end)], [(-1, forward.end, backward.begin)]]
    begin, end = ([unit for unit in each if unit[1] or unit[2]] for each in ends)
    return [*begin, *units, *end]


def _backward_s(units: Sequence[Unit]) -> float:
    items = (item for unit in units for item in unit.work.backward)
    return sum(item.seconds for item in items if isinstance(item, Compute))


def _share_done(chunk: ChunkSpec, unit: int) -> float:
    """Returns the share of a chunk's backward after which a unit is done."""
    total = _backward_s(chunk.units)
    return _backward_s(chunk.units[unit:]) / total if total else 1.0
