"""What is in rank traces of Megatron."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

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
from foretrace.inputs.megatron_trace.format import Run
from foretrace.inputs.megatron_trace.trace_inventory import TraceInventory, take_inventory

SCHEMA: Final = "foretrace.traces/1"
MAX_RUNS: Final = 8
_MEANINGS: Final = {
    "ex situ": "ex situ: one GPU acted as each rank; times of communication mean nothing, and are not used",
    "real run": "real run: times of communication include waiting for partners (foretrace explain separates them)",
}


def runs_inventory(runs: Sequence[Run], mesh: Mesh | str | None, title: str) -> Inventory:
    """Counts what runs hold that were read already; `mesh` is that of the job where their names do not say it."""
    counted = take_inventory(runs, mesh)
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
    if len(stages) > 2 and stages == tuple(range(stages[0], stages[-1] + 1)):
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
