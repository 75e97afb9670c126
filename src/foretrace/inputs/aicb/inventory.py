"""What is in a SimAI/AICB workload file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.inputs.aicb.format import Workload
from foretrace.inputs.aicb.workload_inventory import WorkloadInventory, take_inventory
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, contents_of, mesh_text

SCHEMA: Final = "foretrace.workload/1"
_SCOPE: Final = "one rank, all rows as listed"


def workload_inventory(workload: Workload, title: str) -> Inventory:
    """Counts the rows of a workload, their computation and their communication, and how it would be simulated."""
    counted = take_inventory(workload)
    return Inventory(
        SCHEMA,
        kind="aicb",
        format="SimAI/AICB workload",
        title=title,
        world_size=counted.world_size,
        mesh=counted.mesh,
        contents=contents_of(counted),
        facts=tuple(_facts(counted)),
        tables=tuple(_tables(counted)),
        diagnostics=counted.diagnostics,
        see=("foretrace simulate FILE --cluster h100-dgx",) if counted.mesh else (),
    )


def _facts(counted: WorkloadInventory) -> Iterator[tuple[str, str]]:
    yield "format", f"{counted.policy}{SEPARATOR}{counted.version}"
    yield "rows", f"{format_count(counted.rows)} ({format_count(counted.declared_rows)} declared)"
    yield "", SEPARATOR.join(f"{count:,} {kind}" for kind, count in counted.kinds.items())
    passes = (f"{name.replace('_', ' ')} {format_time(seconds)}" for name, seconds in counted.compute_s.items())
    yield "compute", f"{SEPARATOR.join(passes)} ({_SCOPE})"
    if counted.mesh is not None:
        yield "ranks", f"{format_count(counted.world_size or 0)}{SEPARATOR}{mesh_text(counted.mesh)}"
        yield (
            "step",
            f"{counted.schedule} · microbatches {counted.microbatches} · layers per stage {counted.layers_per_stage}",
        )
    if counted.transfer_bytes:
        yield "pp", f"{format_bytes(counted.transfer_bytes)} across a stage boundary per microbatch"
    if counted.tokens_per_step:
        yield "tokens", f"{counted.tokens_per_step:,.0f} a step"
    implied = [f"hidden size {counted.hidden_size:,}"] if counted.hidden_size else []
    if counted.parameters_per_rank:
        implied.append(f"{counted.parameters_per_rank:,} parameters per rank, as AICB counts them")
    if implied:
        yield "implies", SEPARATOR.join(implied)


def _tables(counted: WorkloadInventory) -> Iterator[InventoryTable]:
    rows = [(entry.axis, entry.collective, f"{entry.calls:,}", format_bytes(entry.bytes)) for entry in counted.traffic]
    if rows:
        yield InventoryTable(("group", "collective", "calls", "bytes"), rows, _SCOPE, text_columns=2)
