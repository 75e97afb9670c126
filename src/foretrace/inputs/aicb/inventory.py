"""Counts what a SimAI/AICB workload file holds, for `foretrace inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.inputs.aicb.calls import PASSES, CallReader
from foretrace.inputs.aicb.format import Workload, WorkloadRow, base_name
from foretrace.inputs.aicb.microbatches import Structure, find_structure
from foretrace.inputs.aicb.oddities import hidden_size
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.plan import WorkloadPlan, make_plan
from foretrace.inputs.aicb.program import lower_workload
from foretrace.inputs.aicb.step_end import step_call
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, contents_of, mesh_text
from foretrace.program.columns import label

SCHEMA: Final = "foretrace.workload/1"
_MAX_KINDS: Final = 40
"""Kinds of rows that the screen names; AICB writes fewer than 20."""
_SCOPE: Final = "one rank, all rows as listed"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The communication of one rank in the rows as listed: how often, and bytes in all."""

    axis: str
    collective: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WorkloadInventory:
    """The contents of a workload. `compute_s` are the seconds of each pass as listed; `mesh`, `schedule` and what
    follows are how it would be simulated, None where it cannot be, which the last diagnostic then says."""

    policy: str
    version: str
    declared_rows: int
    rows: int
    kinds: dict[str, int]
    compute_s: dict[str, float]
    mesh: str | None
    world_size: int | None
    schedule: str | None
    microbatches: int | None
    layers_per_stage: int | None
    transfer_bytes: int | None
    tokens_per_step: float | None
    hidden_size: int | None
    """What tokens and the bytes of an activation imply."""
    parameters_per_rank: int | None
    """Half the bytes that `grad_gather` gathers: AICB's own count, which has the embedding four times."""
    traffic: tuple[Traffic, ...]
    diagnostics: tuple[Diagnostic, ...]


def workload_inventory(workload: Workload, title: str) -> Inventory:
    """Counts the rows of a workload, their computation and their communication, and how it would be simulated."""
    counted = _count(workload)
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
    kinds = [f"{count:,} {kind}" for kind, count in counted.kinds.items()]
    more = [f"{len(kinds) - _MAX_KINDS:,} more"] if len(kinds) > _MAX_KINDS else []
    yield "", SEPARATOR.join([*kinds[:_MAX_KINDS], *more])
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


def _count(workload: Workload) -> WorkloadInventory:
    """Counts what a workload holds, and tries how it would be simulated."""
    structure: Structure | None = None
    plan: WorkloadPlan | None = None
    traffic: tuple[Traffic, ...] = ()
    diagnostics = workload.diagnostics
    try:
        structure = find_structure(workload)
        plan = make_plan(workload, structure, WorkloadOptions())
        traffic = _traffic(workload, CallReader(workload, plan.mesh))
        diagnostics = lower_workload(workload).diagnostics
    except InputError as error:
        diagnostics = (
            *diagnostics,
            Diagnostic("warning", "cannot-simulate", f"cannot be simulated: {error.message}", error.where),
        )
    return WorkloadInventory(
        policy=workload.header.policy,
        version=_version(workload, structure),
        declared_rows=workload.declared_rows,
        rows=len(workload.rows),
        kinds=dict(Counter(base_name(row.name) for row in workload.rows)),
        compute_s={which: sum(getattr(row, which).compute_ns for row in workload.rows) * 1e-9 for which in PASSES},
        mesh=str(plan.mesh) if plan else None,
        world_size=plan.mesh.world if plan else None,
        schedule=plan.schedule.name if plan else None,
        microbatches=len(structure.microbatches) if structure else None,
        layers_per_stage=structure.layers if structure else None,
        transfer_bytes=plan.transfer_bytes if plan else None,
        tokens_per_step=plan.tokens_per_step if plan else None,
        hidden_size=hidden_size(structure) if structure else None,
        parameters_per_rank=_parameters(workload),
        traffic=traffic,
        diagnostics=diagnostics,
    )


def _traffic(workload: Workload, calls: CallReader) -> tuple[Traffic, ...]:
    totals: dict[tuple[str, str], list[int]] = {}
    for row in workload.rows:
        for which in PASSES:
            call = step_call(row, which, calls)
            if call is not None:
                entry = totals.setdefault((call.axis, label(call.collective)), [0, 0])
                entry[0] += 1
                entry[1] += call.bytes
    return tuple(Traffic(axis, what, count, size) for (axis, what), (count, size) in sorted(totals.items()))


def _parameters(workload: Workload) -> int | None:
    """Dense parameters of a rank, from the row that gathers them in two bytes each."""
    sizes = [row.weight_grad.size_bytes for row in workload.rows if base_name(row.name) == "grad_gather"]
    return round(sizes[0] / 2) if sizes and sizes[0] else None


def _version(workload: Workload, structure: Structure | None) -> str:
    """Which AICB writes such a header and such rows."""
    header = workload.header
    if header.mode == 1:
        return "AICB inference (2025-09 on)"
    if header.ep is None and header.pp is None:
        return "2024-07: no ep, pp, ga, all_gpus"
    if header.vpp is None:
        return "2024-09 to 2024-10: no vpp, no pp_comm"
    rows = _moe_rows(structure)
    moe = f"; {rows} rows per MoE layer" if rows else ""
    if header.pp_comm_bytes is None:
        return f"2024-11: vpp, no pp_comm{moe}"
    return (f"2025-09 on{moe}" if rows == 5 else f"2024-12 on{moe}") if rows else "2024-12 on: vpp and pp_comm"


def _moe_rows(structure: Structure | None) -> int:
    layers: list[tuple[WorkloadRow, ...]] = list(structure.microbatches[0].layers) if structure else []
    return max((sum(base_name(row.name) == "mlp_moelayer" for row in layer) for layer in layers), default=0)
