"""Reads off traces what a rank does for a microbatch and at the end of a step: the stones a whole job is built of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.megatron_trace.calls import GRADIENT_OPS
from foretrace.inputs.megatron_trace.format import BUCKET_OP, RankTrace, TraceOp
from foretrace.inputs.megatron_trace.format.ex_situ import TRANSFERS
from foretrace.inputs.megatron_trace.gradients import TracedBucket, gradient_buckets, gradient_calls
from foretrace.inputs.megatron_trace.layout import TraceJob, fill_notes, last_iteration
from foretrace.inputs.megatron_trace.pieces import CUT_OPS, MS, PieceKey, TracePiece, pieces_of
from foretrace.inputs.megatron_trace.whole_job.pools import Pools
from foretrace.program.columns import Collective
from foretrace.step.spec import Call

SLACK: Final = 0.01
"""How much of what is sent may be lost on the way: tokens beyond an expert's capacity are dropped by some routers."""

OPTIMIZER_PHASES: Final = ("optimizer_main_update", "optimizer_state_update", "optimizer_post_update")
"""Parts of an optimizer_step that tracers of 2026 may write beside it, or instead of it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Computation, in seconds, and the call after it. `rows` are the tokens it works on, where experts do."""

    compute_s: float
    call: Call | None
    layer: int = -1
    rows: int | None = None
    key: PieceKey = ()


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work of the ranks of a stage with the same experts: per microbatch, and at the end of a step."""

    get_batch_s: float | None
    forward: tuple[Stretch, ...]
    loss: tuple[Stretch, ...]
    backward: tuple[Stretch, ...]
    gradients: tuple[Call, ...]
    optimizer_s: float
    buckets: tuple[TracedBucket, ...] = ()
    """Gradients reduced beside the last backward."""


@dataclass(slots=True)
class Stones:
    """The work of every kind of rank, by stage and expert coordinate, and how sure it is."""

    work: dict[tuple[int, int], RankWork]
    pools: Pools
    notes: list[Diagnostic] = field(default_factory=list)


def read_stones(job: TraceJob) -> Stones:
    """Pools all timings, and gives every kind of rank the typical ones."""
    # A campaign of which only some ranks were traced counts for as much as it holds.
    pools = Pools(sum(len(run.ranks) for run in job.runs) / len(job.present), one_sided=job.ex_situ)
    cut: dict[tuple[int, int, str], list[TracePiece]] = {}
    for number, run in enumerate(job.runs):
        for rank, trace in run.ranks.items():
            # Every ex-situ timing is one more; of a real run the last iteration is what is replayed.
            ops = trace.ops if job.ex_situ else last_iteration(trace)
            for op in ops:
                _pool(job, pools, cut, (number, rank), trace, op)
            _pool_phases(job, pools, trace)
    stones = Stones({}, pools)
    roles = {
        (stage, expert): job.standing_in(stage, expert) for stage in range(job.mesh.pp) for expert in range(job.mesh.ep)
    }
    reported: set[Diagnostic] = set()
    for (stage, expert), (rank, _) in roles.items():
        number = next(number for number, run in enumerate(job.runs) if rank in run.ranks)
        work, notes = _rank_work(job, pools, cut, number, rank, stage)
        stones.work[stage, expert] = work
        stones.notes += [note for note in notes if replace(note, where=None) not in reported]
        reported.update(replace(note, where=None) for note in notes)
    stones.notes += [*fill_notes(job, roles), *_check_tokens(job, stones), *_left_out(job)]
    return stones


def _left_out(job: TraceJob) -> list[Diagnostic]:
    """Ops that a whole job is not built of, with what they took."""
    known = {*CUT_OPS, *GRADIENT_OPS, *TRANSFERS, *OPTIMIZER_PHASES, "get_batch", "optimizer_step", BUCKET_OP}
    unknown: dict[str, tuple[str, float]] = {}
    for trace in (trace for run in job.runs for trace in run.ranks.values()):
        for op in trace.ops:
            if op.op not in known:
                where, longest = unknown.get(op.op, (trace.at(op.line), 0.0))
                unknown[op.op] = where, max(longest, op.duration_ms or 0.0)
    return [
        Diagnostic(
            "warning", "rows-skipped", f"{name} is no op that is known: left out, up to {longest:g} ms at a time", where
        )
        for name, (where, longest) in unknown.items()
    ]


def _check_tokens(job: TraceJob, stones: Stones) -> list[Diagnostic]:
    """Checks that the experts of a group receive what its ranks send; otherwise the group is another."""
    for stage in range(job.mesh.pp if job.mesh.ep > 1 else 0):
        each = [stones.work[stage, expert].forward for expert in range(job.mesh.ep)]
        numbers = all_to_alls(each[0])
        if len(numbers) < 2 or len({len(works) for works in each}) > 1:
            continue
        sent, received = (sum(sent_bytes(works[number]) for works in each) for number in numbers[:2])
        if abs(sent - received) > SLACK * sent:
            text = (
                f"ranks of stage {stage} send {sent:,} bytes to experts, which receive {received:,}: not all of a "
                f"group were traced, or ep is not {job.mesh.ep}"
            )
            return [Diagnostic("warning", "conflicting-values", text, job.runs[0].path)]
    return []


def sent_bytes(work: Stretch) -> int:
    """Returns the bytes of the call that ends a stretch."""
    return 0 if work.call is None else work.call.bytes


def _pool(
    job: TraceJob,
    pools: Pools,
    cut: dict[tuple[int, int, str], list[TracePiece]],
    which: tuple[int, int],
    trace: RankTrace,
    op: TraceOp,
) -> None:
    """Takes the timings of one op into the pools."""
    if op.duration_ms is None or op.timestamp_ms is None:
        return
    place = job.place(job.stage(trace.rank))
    if op.op in CUT_OPS:
        pieces = pieces_of(op, job.known_mesh, trace.at(op.line), job.layers_per_stage, place, job.ex_situ)
        cut.setdefault((*which, op.op), pieces)
        for piece in pieces:
            pools.add(piece.key, piece.compute_s)
    elif op.op in ("get_batch", "optimizer_step"):
        pools.add(_plain_key(job, trace.rank, op.op), op.duration_ms * MS)


def _pool_phases(job: TraceJob, pools: Pools, trace: RankTrace) -> None:
    """Takes an optimizer that was traced only in its phases into the pools, as one."""
    phases = [
        op.duration_ms for op in last_iteration(trace) if op.op in OPTIMIZER_PHASES and op.duration_ms is not None
    ]
    if phases and not any(op.op == "optimizer_step" for op in trace.ops):
        pools.add(_plain_key(job, trace.rank, "optimizer_step"), sum(phases) * MS)


def _plain_key(job: TraceJob, rank: int, op: str) -> PieceKey:
    """Returns a key: reading a batch is the same everywhere, and so are optimizers of stages in the middle."""
    return (op,) if op == "get_batch" else (op, job.place(job.stage(rank)))


def _rank_work(
    job: TraceJob, pools: Pools, cut: dict[tuple[int, int, str], list[TracePiece]], number: int, rank: int, stage: int
) -> tuple[RankWork, list[Diagnostic]]:
    def works(op: str) -> tuple[Stretch, ...]:
        pieces = cut.get((number, rank, op), [])
        return tuple(
            Stretch(pools.typical(piece.key), piece.call, piece.layer, piece.rows, piece.key) for piece in pieces
        )

    traces = list(job.traces(rank))
    forward, backward = works("forward_step"), works("backward_step")
    if not forward or not backward:
        lacking = "forward_step" if not forward else "backward_step"
        raise InputError(
            "not-recorded", f"rank {rank} has no {lacking}", where=traces[0].path, hint="trace a whole iteration"
        )
    gradients, notes = gradient_calls(job, traces, stage)
    optimizer = _plain_key(job, rank, "optimizer_step")
    if optimizer not in pools.samples:
        notes.append(
            Diagnostic(
                "warning", "not-recorded", "no optimizer_step in the trace: its time is not counted", traces[0].path
            )
        )
    reads = any(op.op == "get_batch" for trace in traces for op in trace.ops) and ("get_batch",) in pools.samples
    ends = job.place(stage) != "middle" and reads
    return RankWork(
        (pools.fastest if job.ex_situ else pools.typical)(("get_batch",)) if ends else None,
        forward,
        works("loss_func") if job.place(stage) in ("last", "only") else (),
        backward,
        tuple(gradients),
        pools.typical(optimizer) if optimizer in pools.samples else 0.0,
        gradient_buckets(job, traces),
    ), notes


def all_to_alls(works: Sequence[Stretch]) -> list[int]:
    """Which of these end with an all-to-all of experts."""
    return [number for number, work in enumerate(works) if _exchanges(work)]


def _exchanges(work: Stretch) -> bool:
    call = work.call
    return call is not None and call.collective == Collective.ALL_TO_ALL and call.axis == "ep"
