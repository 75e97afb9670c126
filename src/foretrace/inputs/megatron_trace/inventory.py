"""Counts what rank traces of Megatron hold, for `foretrace inspect`, and what is missing from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.inputs.inventory import (
    SEPARATOR,
    Inventory,
    InventoryTable,
    contents_of,
    counted_text,
    mesh_text,
    some_of,
)
from foretrace.inputs.megatron_trace.calls import AXES, comm_of, group_of, tensor_bytes
from foretrace.inputs.megatron_trace.format import Facts, RankTrace, Run, SubOp, TraceOp
from foretrace.inputs.megatron_trace.format.ex_situ import TRANSFERS, is_ex_situ
from foretrace.inputs.megatron_trace.layout import find_job, last_iteration

SCHEMA: Final = "foretrace.traces/1"
MAX_RUNS: Final = 8
_MEANINGS: Final = {
    "ex situ": "ex situ: one GPU acted as each rank; times of communication mean nothing, and are not used",
    "real run": "real run: times of communication include waiting for partners (foretrace explain separates them)",
}


@dataclass(frozen=True, slots=True)
class OpSummary:
    """An op: how often it is in the traces, and its seconds."""

    op: str
    lines: int
    least_s: float
    mean_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Communication of one kind: how often, over which axis, and bytes that ranks give to it in all."""

    axis: str
    collective: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TraceInventory:
    """The contents of traces. What the names do not say, and what cannot be found out, is None."""

    kind: str
    """`real run` or `ex situ`."""
    runs: tuple[tuple[str, int], ...]
    """Each run and how many ranks of it there are."""
    ranks: int
    missing_ranks: int | None
    facts: Facts
    mesh: str | None
    world_size: int | None
    stages: tuple[int, ...]
    microbatches: int
    lines: int
    ops: tuple[OpSummary, ...]
    calls: tuple[CallSummary, ...]
    expert_tokens: tuple[int, ...]
    """What the experts of the ranks receive in an all-to-all, least to most."""
    diagnostics: tuple[Diagnostic, ...]


def runs_inventory(runs: Sequence[Run], mesh: Mesh | str | None, title: str) -> Inventory:
    """Counts what runs hold that were read already; `mesh` is that of the job where their names do not say it."""
    counted = count_runs(runs, mesh)
    return Inventory(
        SCHEMA,
        kind="megatron-trace",
        format="Megatron rank traces",
        title=title,
        world_size=counted.world_size,
        mesh=counted.mesh,
        contents={
            **contents_of(counted),
            "runs": [{"name": name, "ranks": ranks} for name, ranks in counted.runs],
        },
        facts=tuple(_facts(counted)),
        tables=tuple(_tables(counted)),
        diagnostics=counted.diagnostics,
        see=("foretrace explain FILE", "foretrace simulate FILE"),
    )


def _facts(counted: TraceInventory) -> Iterator[tuple[str, str]]:
    yield "kind", _MEANINGS[counted.kind]
    yield "runs", some_of([f"{name} ({counted_text(ranks, 'rank')})" for name, ranks in counted.runs], MAX_RUNS)
    named = [f"{key.replace('_', ' ')} {value}" for key, value in asdict(counted.facts).items() if value is not None]
    yield "names", SEPARATOR.join(named) or "say nothing about the job"
    yield "job", _job(counted)
    microbatches = counted_text(counted.microbatches, "microbatch", "microbatches")
    yield (
        "traced",
        f"{format_count(counted.lines)} ops · {microbatches} per rank · stages {_stages_text(counted.stages)}",
    )
    if counted.expert_tokens:
        least, most = counted.expert_tokens[0], counted.expert_tokens[-1]
        tokens = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        yield "experts", f"those of a rank receive {tokens} tokens per layer and microbatch"


def _job(counted: TraceInventory) -> str:
    if counted.mesh is None:
        return "its mesh is not known: give it with --mesh tp=1,pp=2,ep=8,dp=8"
    missing = f", {counted.missing_ranks:,} of them without a trace" if counted.missing_ranks else ""
    return f"{format_count(counted.world_size or 0)} ranks{missing}{SEPARATOR}{mesh_text(counted.mesh)}"


def _stages_text(stages: tuple[int, ...]) -> str:
    if len(stages) > 2 and stages[-1] - stages[0] == len(stages) - 1:
        return f"{stages[0]} to {stages[-1]}"
    return ", ".join(map(str, stages)) or "not recorded"


def _tables(counted: TraceInventory) -> Iterator[InventoryTable]:
    ops = [
        (op.op, f"{op.lines:,}", *(format_time(seconds) for seconds in (op.least_s, op.mean_s, op.most_s)))
        for op in counted.ops
    ]
    if ops:
        yield InventoryTable(("op", "lines", "least", "mean", "most"), ops)
    calls = [(call.axis, call.collective, f"{call.calls:,}", format_bytes(call.bytes)) for call in counted.calls]
    if calls:
        note = "bytes that all traced ranks give to all calls"
        yield InventoryTable(("group", "collective", "calls", "bytes"), calls, note, text_columns=2)


def count_runs(runs: Sequence[Run], mesh: Mesh | str | None = None) -> TraceInventory:
    """Counts what runs hold that were read already, and infers the job that they are of."""
    notes = [
        note for run in runs for note in (*run.diagnostics, *(n for t in run.ranks.values() for n in t.diagnostics))
    ]
    facts: Facts = runs[0].facts
    job_mesh: Mesh | None = None
    try:
        job = find_job(runs, mesh)
        facts, job_mesh = job.facts, job.known_mesh
        notes += job.notes
    except InputError as error:
        notes.append(Diagnostic("warning", "cannot-simulate", f"cannot be simulated: {error.message}", error.where))
    ranks = {rank for run in runs for rank in run.ranks}
    ops = [op for _, op in _ops(runs)]
    traces = [trace for run in runs for trace in run.ranks.values()]
    forwards = [sum(op.op == "forward_step" for op in last_iteration(trace)) for trace in traces]
    return TraceInventory(
        kind="ex situ" if is_ex_situ(runs) else "real run",
        runs=tuple((run.name, len(run.ranks)) for run in runs),
        ranks=len(ranks),
        missing_ranks=None if job_mesh is None else job_mesh.world - len(ranks),
        facts=facts,
        mesh=None if job_mesh is None else str(job_mesh),
        world_size=None if job_mesh is None else job_mesh.world,
        stages=tuple(sorted({op.stage for op in ops if op.stage is not None})),
        microbatches=max(forwards, default=0),
        lines=len(ops),
        ops=tuple(_summaries(ops)),
        calls=tuple(_calls(runs)),
        expert_tokens=tuple(sorted(_tokens(runs))),
        diagnostics=tuple(notes),
    )


def _ops(runs: Sequence[Run]) -> Iterator[tuple[RankTrace, TraceOp]]:
    return ((trace, op) for run in runs for trace in run.ranks.values() for op in trace.ops)


def _summaries(ops: Sequence[TraceOp]) -> Iterator[OpSummary]:
    times: dict[str, list[float]] = {}
    for op in ops:
        times.setdefault(op.op, []).append((op.duration_ms or 0.0) * 1e-3)
    for name, seconds in times.items():
        yield OpSummary(name, len(seconds), min(seconds), sum(seconds) / len(seconds), max(seconds))


def _calls(runs: Sequence[Run]) -> Iterator[CallSummary]:
    counts: dict[tuple[str, str], list[int]] = {}
    for trace, op in _ops(runs):
        where = trace.at(op.line)
        given: list[tuple[str | None, str, TraceOp | SubOp]] = [
            (group_of(sub), comm_of(sub) or "", sub) for sub in op.subs
        ]
        if op.shape and (op.op in TRANSFERS or op.op.endswith("allreduce")):
            given.append((op.group, "transfer" if op.op in TRANSFERS else "allreduce", op))
        for group, what, tensor in given:
            if tensor.shape is not None and tensor.dtype is not None:
                size = tensor_bytes(tensor.shape, tensor.dtype, where)
                counts.setdefault((AXES.get(group or "", group or "?"), what), []).append(size)
    for (axis, what), sizes in sorted(counts.items()):
        yield CallSummary(axis, what, len(sizes), sum(sizes))


def _tokens(runs: Sequence[Run]) -> set[int]:
    """Rows of the second all-to-all of each pair: what experts received and give back."""
    tokens: set[int] = set()
    for _, op in _ops(runs):
        kinds = [(group_of(sub), comm_of(sub), sub.shape) for sub in op.subs]
        shapes = [shape for group, comm, shape in kinds if (group, comm) == ("exp", "all_to_all") and shape]
        rows = [shape[0] for shape in shapes if len(shape) == 2]
        if op.op == "forward_step" and len(rows) % 2 == 0:
            tokens.update(rows[1::2])
    return tokens
