"""Changes the mesh, the routing or the layers of stages of a traced job.

What one layer takes is in the traces; so is how an expert's time grows with its tokens, because ranks receive different
numbers of them. Another tp is not: it changes every computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.gradients import VOCABULARY, TracedBucket
from foretrace.inputs.megatron_trace.layout import TraceJob
from foretrace.inputs.megatron_trace.whole_job.exchanges import reshaped
from foretrace.inputs.megatron_trace.whole_job.work import RankWork, Stones, Stretch
from foretrace.program.columns import Collective
from foretrace.step.spec import Call

GRADIENT_BYTES = 4
"""Of a parameter in the guess of what an embedding has: fp32."""


def resized(
    job: TraceJob, stones: Stones, target: Mesh, routing: float | None, stage_layers: Sequence[int] | None = None
) -> Stones:
    """Returns the stones of the job on another mesh.

    Args:
        job: The traced job.
        stones: What was traced.
        target: The mesh.
        routing: How many times the mean the busiest expert rank receives.
        stage_layers: Layers of every stage, where they are not as many in each.
    """
    mesh = job.mesh
    if (target.tp, target.cp) != (mesh.tp, mesh.cp):
        raise InputError(
            "cannot-change",
            f"tp={target.tp},cp={target.cp} asked, traced with tp={mesh.tp},cp={mesh.cp}",
            hint="another tp or cp changes every computation: trace it anew, or change dp, pp or ep",
        )
    notes = list(stones.notes)
    work = dict(stones.work)
    if target.ep != mesh.ep or routing is not None:
        work = _rerouted(job, work, target.ep, routing, notes)
    if target.pp != mesh.pp or stage_layers is not None:
        work = _restaged(job, work, target, stage_layers, notes)
    if target != mesh:
        notes.append(Diagnostic("note", "changed-as-asked", f"traced on {mesh}, built for {target}"))
    return Stones(work, stones.pools, notes)


def _rerouted(
    job: TraceJob, work: dict[tuple[int, int], RankWork], ep: int, routing: float | None, notes: list[Diagnostic]
) -> dict[tuple[int, int], RankWork]:
    """The same layers with experts shared out among `ep` ranks, and tokens as uneven as asked."""
    had, experts = job.mesh.ep, job.facts.experts
    if routing is not None and routing > ep > 1:
        raise InputError(
            "out-of-range",
            f"the busiest of {ep} expert ranks cannot receive {routing:g} times the mean",
            hint=f"at most {ep} times",
        )
    if had == 1:
        raise InputError(
            "cannot-change",
            "no expert parallelism in these traces",
            hint="--routing and another ep need traces of experts",
        )
    if max(ep, had) % min(ep, had) or (experts and experts % ep):
        count = f" of {experts} experts" if experts else ""
        raise InputError("not-divisible", f"experts shared out among {had} ranks cannot be so among {ep}{count}")
    rerouted: dict[tuple[int, int], RankWork] = {}
    for stage in range(job.mesh.pp):
        each = [work[stage, expert] for expert in range(had)]
        forward = _spread([rank_work.forward for rank_work in each], ep, routing)
        backward = _spread([rank_work.backward for rank_work in each], ep, routing)
        for expert in range(ep):
            like = each[expert * had // ep]
            gradients = tuple(
                replace(call, bytes=call.bytes * had // ep) if call.axis == "edp" else call for call in like.gradients
            )
            buckets = _scaled(like.buckets, had / ep, "edp")
            share = _share((*gradients, *(bucket.call for bucket in buckets)), like, 1.0)
            rerouted[stage, expert] = replace(
                like,
                forward=forward[expert],
                backward=backward[expert],
                gradients=gradients,
                buckets=buckets,
                optimizer_s=like.optimizer_s * share,
            )
    text = "experts' times for other numbers of tokens: a straight line through those of the traced ranks"
    notes.append(Diagnostic("note", "extrapolated", text))
    reached = _unevenness([rerouted[0, expert].forward for expert in range(ep)])
    if routing is not None and reached < 0.99 * routing:
        text = (
            f"several expert ranks are equally busy: the busiest receives {reached:.3g} times the mean, not {routing:g}"
        )
        notes.append(Diagnostic("warning", "replaced-option", text))
    return rerouted


def _unevenness(passes: Sequence[Sequence[Stretch]]) -> float:
    """Returns what the busiest coordinate receives, divided by the mean of all."""
    rows = [next((work.rows for work in works if work.rows is not None), 0) for works in passes]
    return max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0


def _spread(passes: Sequence[Sequence[Stretch]], ep: int, routing: float | None) -> list[tuple[Stretch, ...]]:
    """A pass of every expert coordinate, for `ep` of them."""
    had = len(passes)
    if len({len(works) for works in passes}) > 1:
        raise InputError(
            "rendezvous-mismatch",
            "ranks of a stage differ in how often they communicate",
            hint="trace them with the same model",
        )
    spread: list[list[Stretch]] = [[] for _ in range(ep)]
    for each in zip(*passes, strict=True):
        rows = [stretch.rows for stretch in each]
        now = _dealt([row or 0 for row in rows], ep, routing) if rows[0] is not None else None
        line = None if now is None else Line.through([(stretch.rows or 0, stretch.compute_s) for stretch in each])
        row_bytes = next(
            (stretch.call.bytes // stretch.rows for stretch in each if stretch.call is not None and stretch.rows), 0
        )
        for expert in range(ep):
            like = each[expert * had // ep]
            if now is not None and line is not None:
                call = like.call
                if call is not None:
                    call = replace(call, bytes=row_bytes * now[expert])
                like = replace(like, compute_s=line.at(now[expert]), call=call, rows=now[expert])
            elif like.call is not None and like.call.collective == Collective.ALL_GATHER and like.call.axis == "ep":
                like = replace(like, call=replace(like.call, bytes=like.call.bytes * ep // had))
            spread[expert].append(like)
    return [tuple(works) for works in spread]


def _dealt(rows: Sequence[int], ep: int, routing: float | None) -> list[int]:
    """Returns what each of `ep` coordinates receives, given what each traced coordinate did.

    The experts of neighbours are put together, or those of one coordinate divided evenly, for the senders there are
    now.
    """
    had = len(rows)
    if ep <= had:
        each = had // ep
        now = [round(sum(rows[expert * each : (expert + 1) * each]) * ep / had) for expert in range(ep)]
    else:
        now = [rows[expert * had // ep] for expert in range(ep)]
    return now if routing is None else reshaped(now, routing)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds that grow with tokens."""

    fixed_s: float
    per_row_s: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Line:
        """The line nearest to (tokens, seconds); through the origin where all have the same tokens."""
        rows, seconds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
        if len(set(rows.tolist())) < 2:
            return cls(0.0, float(seconds.mean() / rows[0])) if rows[0] else cls(float(seconds.mean()), 0.0)
        slope, fixed = np.polyfit(rows, seconds, 1)
        if slope < 0:
            return cls(float(seconds.mean()), 0.0)
        return cls(float(max(fixed, 0.0)), float(slope))

    def at(self, rows: int) -> float:
        """Returns the time for this number of tokens."""
        return self.fixed_s + self.per_row_s * rows


@dataclass(frozen=True, slots=True)
class _Layered:
    """A pass: what lies before its layers, its layers, and what lies after."""

    head: tuple[Stretch, ...]
    layers: tuple[tuple[Stretch, ...], ...]
    tail: tuple[Stretch, ...]

    @classmethod
    def of(cls, works: Sequence[Stretch]) -> _Layered:
        numbers = [number for number, work in enumerate(works) if work.layer >= 0]
        if not numbers:
            raise InputError(
                "not-recorded",
                "the traces do not say how many layers a stage has",
                hint="another pp needs it: keep the tracer's names",
            )
        first, last = numbers[0], numbers[-1] + 1
        count = max(work.layer for work in works) + 1
        starts = [next(n for n, work in enumerate(works) if work.layer == layer) for layer in range(count)] + [last]
        layers = tuple(tuple(works[starts[n] : starts[n + 1]]) for n in range(count))
        return cls(tuple(works[:first]), layers, tuple(works[last:]))


def _restaged(
    job: TraceJob,
    work: dict[tuple[int, int], RankWork],
    target: Mesh,
    stage_layers: Sequence[int] | None,
    notes: list[Diagnostic],
) -> dict[tuple[int, int], RankWork]:
    """The layers of all stages dealt out to another number of them, or unevenly."""
    each = job.layers_per_stage
    if each is None:
        raise InputError(
            "not-recorded",
            "the traces' names do not say how many layers there are",
            hint="another pp and --stage-layers need it: keep the tracer's names",
        )
    if job.mesh.pp == 1:
        raise InputError(
            "cannot-change",
            "traced on one stage, where embedding, layers and head are not told apart",
            hint="another pp needs traces of two stages at least",
        )
    total = each * job.mesh.pp
    if stage_layers is not None:
        if sum(stage_layers) != total:
            raise InputError(
                "bad-plan",
                f"stage_layers has {sum(stage_layers)} layers, the traced model {total}",
                hint=f"give {target.pp} numbers that add up to {total}",
            )
    elif total % target.pp:
        raise InputError(
            "not-divisible",
            f"{total} layers do not divide into {target.pp} stages",
            hint="choose a pp that divides them",
        )
    counts, last = stage_layers or [total // target.pp] * target.pp, job.mesh.pp - 1
    middle = 1 if job.mesh.pp > 2 else None
    restaged: dict[tuple[int, int], RankWork] = {}
    for expert in range(target.ep):
        ends = [work[stage, expert] for stage in (0, last)]
        inner = work[middle, expert] if middle is not None else None
        for stage in range(target.pp):
            count, first_here, last_here = counts[stage], stage == 0, stage == target.pp - 1
            begins = ends[0] if first_here else inner or ends[1]
            closes = ends[1] if last_here else inner or ends[0]
            gradients, like = _stage_gradients(job, ends, inner, first_here, last_here, count, notes)
            buckets = _scaled(like.buckets, count / each)
            share = _share((*gradients, *(bucket.call for bucket in buckets)), like, count / each)
            restaged[stage, expert] = RankWork(
                (ends[0] if first_here else ends[1]).get_batch_s if first_here or last_here else None,
                _pass(begins.forward, closes.forward, count),
                ends[1].loss if last_here else (),
                _pass(closes.backward, begins.backward, count),
                gradients if target.pp > 1 else tuple(call for call in gradients if call.axis != "embd"),
                like.optimizer_s * share,
                buckets,
            )
    return restaged


def _pass(first: Sequence[Stretch], last: Sequence[Stretch], count: int) -> tuple[Stretch, ...]:
    """A pass through `count` layers that begins as one stage's does and ends as another's."""
    begins, ends = _Layered.of(first), _Layered.of(last)
    inner = begins.layers[1] if len(begins.layers) > 1 else ends.layers[-1]
    layers = [begins.layers[0], *[inner] * (count - 1)]
    numbered = [replace(work, layer=number) for number, layer in enumerate(layers) for work in layer]
    return (*begins.head, *numbered, *ends.tail)


def _stage_gradients(
    job: TraceJob,
    ends: Sequence[RankWork],
    inner: RankWork | None,
    first: bool,
    last: bool,
    count: int,
    notes: list[Diagnostic],
) -> tuple[tuple[Call, ...], RankWork]:
    """Returns the reductions of a stage of `count` layers, and the traced stage it is made of."""
    each = job.layers_per_stage or 1
    embedding = [_embedding_bytes(job, end, inner, notes) for end in ends]
    like = ends[0] if first else ends[1] if last else inner or ends[0]
    own = embedding[0] if like is ends[0] else embedding[1] if like is ends[1] else 0
    extra = (embedding[0] if first else 0) + (embedding[1] if last else 0)
    calls = []
    for call in like.gradients:
        if call.axis == "embd":
            if first or last:
                calls.append(call)
            continue
        body = call.bytes - (own if call.axis == "dp" else 0)
        calls.append(replace(call, bytes=body * count // each + (extra if call.axis == "dp" else 0)))
    return tuple(calls), like


def _embedding_bytes(job: TraceJob, end: RankWork, inner: RankWork | None, notes: list[Diagnostic]) -> int:
    """The gradient bytes of an embedding or head: what an outer stage has more than one in the middle, or a guess."""
    mine = next((call.bytes for call in end.gradients if call.axis == "dp"), 0)
    if inner is not None:
        return max(mine - next((call.bytes for call in inner.gradients if call.axis == "dp"), 0), 0)
    hidden = job.facts.hidden
    if hidden is None:
        return 0
    text = f"embedding and head taken to have {VOCABULARY:,} × {hidden} parameters: no stage without them was traced"
    note = Diagnostic("warning", "assumed", text)
    if note not in notes:
        notes.append(note)
    return min(VOCABULARY * hidden * GRADIENT_BYTES // job.mesh.tp, mine)


def _scaled(buckets: Sequence[TracedBucket], by: float, axis: str | None = None) -> tuple[TracedBucket, ...]:
    """Buckets of more or fewer parameters, all or those of an axis."""
    return tuple(
        replace(bucket, call=replace(bucket.call, bytes=round(bucket.call.bytes * by)))
        if axis in (None, bucket.call.axis)
        else bucket
        for bucket in buckets
    )


def _share(calls: Sequence[Call], like: RankWork, otherwise: float) -> float:
    """How many times the parameters of a traced rank a rank has, by what they reduce; `otherwise` where that is
    nothing."""
    had = _total((*like.gradients, *(bucket.call for bucket in like.buckets)))
    return _total(calls) / had if had else otherwise


def _total(calls: Sequence[Call]) -> int:
    return sum(call.bytes for call in calls if call.axis != "embd")
