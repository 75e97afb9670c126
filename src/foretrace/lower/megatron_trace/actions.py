"""What a rank does for one action of the schedule: a list of steps, from what a microbatch takes on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from foretrace.errors import InputError
from foretrace.lower.megatron_trace.calls import Call
from foretrace.lower.megatron_trace.corrections import EXPERT_SLOWDOWN
from foretrace.lower.megatron_trace.gradients import Bucket
from foretrace.lower.megatron_trace.routing import exchange
from foretrace.lower.megatron_trace.work import RankWork, Stones, Work, all_to_alls
from foretrace.mesh import Mesh
from foretrace.program.columns import UNPRICED
from foretrace.schedules.schedule import ActionKind, Schedule

WEIGHT_SHARE = 0.5
"""Of a backward, where a schedule takes weight gradients apart: they have as many flops as input gradients. Traces time
both together."""


class Step(NamedTuple):  # a tuple, for a job makes and compares thousands
    """One op of a block: work of the host or the GPU, in seconds or by the bytes it moves, or a call.

    `apart` is for calls that hold up nothing of the block: gradient buckets, for which the optimizer waits.
    """

    kind: Literal["host", "compute", "call"]
    name: str
    seconds: float = 0.0
    moved_bytes: float = 0.0
    call: Call | None = None
    size: int = 0
    sends: tuple[int, ...] | None = None
    experts: bool = False
    apart: bool = False
    layer: int = -1


_Exchange = tuple[tuple[int, ...], ...]
"""What each member of an all-to-all sends to each."""


class Actions:
    """The steps of every kind of action."""

    def __init__(self, stones: Stones, mesh: Mesh, schedule: Schedule, *, gap_s: float, ex_situ: bool) -> None:
        self.stones, self.mesh, self.schedule, self.ex_situ = stones, mesh, schedule, ex_situ
        self.gap = [Step("host", "gap", gap_s)] if gap_s else []
        self._exchanges: dict[tuple[int, str], dict[int, _Exchange]] = {}
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], _Exchange] = {}

    def steps(self, stage: int, expert: int, kind: ActionKind, chunk: int, final: bool) -> list[Step]:
        """What an action does; `final` where it is the last backward of its chunk, which reduces gradient buckets."""
        work = self.stones.work[stage, expert]
        piece = int(self.schedule.piece[stage][chunk])
        first, last = piece == 0, piece == self.schedule.pieces - 1
        if kind == ActionKind.FORWARD:
            return self._forward(stage, expert, work, chunk, first, last)
        if kind == ActionKind.BACKWARD_WEIGHT:
            parts = self._pass("backward_step", stage, expert, work.backward, chunk, WEIGHT_SHARE)
            computed = sum(step.seconds for step in parts if step.kind == "compute")
            return self._with_buckets([Step("compute", "weight gradients", computed)], work.buckets, final)
        part = 1 - WEIGHT_SHARE if kind == ActionKind.BACKWARD_INPUT else 1.0
        steps = self._pass("backward_step", stage, expert, work.backward, chunk, part)
        steps = self._with_buckets(steps, work.buckets, final and kind == ActionKind.BACKWARD)
        return [*([] if last else self.gap), *steps, *self.gap]

    def _forward(self, stage: int, expert: int, work: RankWork, chunk: int, first: bool, last: bool) -> list[Step]:
        steps = [] if first else list(self.gap)
        if work.get_batch_s is not None and (first or last):
            steps += [Step("host", "get_batch", work.get_batch_s), *self.gap]
        steps += [*self._pass("forward_step", stage, expert, work.forward, chunk, 1.0), *self.gap]
        if last and work.loss:
            steps += [*self._pass("loss_func", stage, expert, work.loss, None, 1.0), *self.gap]
        return steps

    def _pass(
        self, name: str, stage: int, expert: int, works: Sequence[Work], chunk: int | None, part: float
    ) -> list[Step]:
        exchanges = self._exchanges_of(stage, name)
        slower = EXPERT_SLOWDOWN if self.ex_situ else 1.0
        steps = []
        for number in self._of_chunk(works, chunk, backward=name == "backward_step"):
            work = works[number]
            experts = work.rows is not None
            seconds = part * work.compute_s * (slower if experts else 1.0)
            steps.append(Step("compute", name, seconds, layer=work.layer, experts=experts))
            if work.call is not None:
                sends = exchanges[number][expert] if number in exchanges else None
                size = work.call.bytes if sends is None else sum(sends)
                steps.append(Step("call", work.call.name, call=work.call, size=size, sends=sends, layer=work.layer))
        return steps

    def _with_buckets(self, steps: list[Step], buckets: Sequence[Bucket], final: bool) -> list[Step]:
        """Steps of a last backward with the gradient buckets launched where they were: after so much of it."""
        if not final or not buckets:
            return steps
        total = sum(step.seconds for step in steps if step.kind == "compute")
        merged: list[Step] = []
        waiting = sorted(buckets, key=lambda one: one.after_share)
        done = 0.0
        for step in steps:
            while step.kind == "compute" and waiting and waiting[0].after_share * total < done + step.seconds:
                before = max(waiting[0].after_share * total - done, 0.0)
                merged += [step._replace(seconds=before), *_bucket_steps(waiting.pop(0).call)]
                step = step._replace(seconds=step.seconds - before)
                done += before
            merged.append(step)
            done += step.seconds if step.kind == "compute" else 0.0
        for bucket in waiting:
            merged += _bucket_steps(bucket.call)
        return merged

    def _of_chunk(self, works: Sequence[Work], chunk: int | None, *, backward: bool) -> range:
        """Which works are of a chunk: its share of the layers, and what lies before the first or after the last."""
        chunks = self.schedule.chunks
        if chunk is None or chunks == 1:
            return range(len(works))
        layers = max((work.layer for work in works), default=-1) + 1
        if layers < 1 or layers % chunks:
            raise InputError(
                "not-divisible",
                f"{layers or 'an unknown number of'} layers a stage do not divide into {chunks} chunks",
                hint="choose a schedule with one chunk per stage, such as 1f1b or zb-h1",
            )
        each = layers // chunks
        turn = chunks - 1 - chunk if backward else chunk
        starts = {work.layer: number for number, work in reversed(list(enumerate(works)))}
        bounds = [0, *(starts[number * each] for number in range(1, chunks)), len(works)]
        return range(bounds[turn], bounds[turn + 1])

    def _exchanges_of(self, stage: int, name: str) -> dict[int, _Exchange]:
        """The all-to-alls of a stage's pass, by number of the work they end."""
        if (stage, name) not in self._exchanges:
            self._exchanges[stage, name] = self._find_exchanges(stage, name)
        return self._exchanges[stage, name]

    def _find_exchanges(self, stage: int, name: str) -> dict[int, _Exchange]:
        which = {"forward_step": "forward", "backward_step": "backward"}.get(name)
        if which is None or self.mesh.ep == 1:
            return {}
        each: list[Sequence[Work]] = [getattr(self.stones.work[stage, one], which) for one in range(self.mesh.ep)]
        kinds = {tuple((one.call.collective, one.call.axis) for one in works if one.call) for works in each}
        if len(kinds) > 1:
            raise InputError(
                "rendezvous-mismatch",
                f"ranks of stage {stage} differ in what they communicate in {name}",
                hint="the traces are not of one job, or the mesh is another: give --mesh",
            )
        numbers = all_to_alls(each[0])
        found: dict[int, _Exchange] = {}
        for place, number in enumerate(numbers):
            # What experts give back is what they were given.
            back = numbers[place ^ 1] if len(numbers) % 2 == 0 else number
            sent, received = (tuple([_bytes(works[one]) for works in each]) for one in (number, back))
            found[number] = self._exchange(sent, received)
        return found

    def _exchange(self, sent: tuple[int, ...], received: tuple[int, ...]) -> _Exchange:
        """An all-to-all; layers repeat it."""
        if (sent, received) not in self._known:
            made = exchange(sent, received)
            self._known[sent, received] = tuple([tuple(row) for row in made.tolist()])
        return self._known[sent, received]


def _bucket_steps(call: Call) -> list[Step]:
    """A bucket of gradients, scaled and reduced beside what goes on."""
    scaled = Step("compute", f"scale {call.name}", UNPRICED, moved_bytes=2.0 * call.bytes)
    return [scaled, Step("call", call.name, call=call, size=call.bytes, apart=True)]


def _bytes(work: Work) -> int:
    return 0 if work.call is None else work.call.bytes


def repeated_layers(steps: Sequence[Step]) -> dict[int, int]:
    """Where a layer begins that is as the one before it, and how many steps it has. Layers with calls that run beside
    something are left out, for what those hold up may lie in the next."""
    bounds = [number for number in range(1, len(steps)) if steps[number].layer != steps[number - 1].layer]
    bounds.append(len(steps))
    found: dict[int, int] = {}
    for first, second, third in zip(bounds, bounds[1:], bounds[2:], strict=False):
        if steps[second].layer >= 0 and third - second == second - first:
            pairs = zip(steps[first:second], steps[second:third], strict=True)
            if all(_alike(one, other) for one, other in pairs):
                found[second] = third - second
    return found


def _alike(one: Step, other: Step) -> bool:
    beside = one.apart or (one.call is not None and one.call.beside)
    return not beside and one[:-1] == other[:-1]  # all but the layer
