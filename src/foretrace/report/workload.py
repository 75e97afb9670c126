"""The contents of a workload file as a screen and as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from foretrace.lower.aicb.inventory import WorkloadInventory
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.units import format_bytes, format_count, format_time

WORKLOAD_SCHEMA = "foretrace.workload/1"


def workload_json(inventory: WorkloadInventory) -> dict[str, Any]:
    """All of it; sizes in bytes, times in seconds."""
    return {"schema": WORKLOAD_SCHEMA, "format": "SimAI/AICB workload", **asdict(inventory)}


def print_workload(inventory: WorkloadInventory, name: str) -> None:
    """One screen."""
    kinds = " · ".join(f"{count} {kind}" for kind, count in inventory.kinds.items())
    compute = " · ".join(f"{which.replace('_', ' ')} {format_time(s)}" for which, s in inventory.compute_s.items())
    facts = [
        f"  {name}: a SimAI/AICB workload, {format_count(inventory.rows)} rows "
        f"({format_count(inventory.declared_rows)} declared)",
        f"  format   {inventory.policy} · {inventory.version}",
        f"  rows     {kinds}",
        f"  compute  {compute} (one rank, all rows as listed)",
    ]
    if inventory.mesh is not None:
        axes = inventory.mesh.replace(",", " · ").replace("=", " ")
        facts.append(f"  ranks    {format_count(inventory.world_size or 0)} · {axes}")
        facts.append(
            f"  step     {inventory.schedule} · microbatches {inventory.microbatches} · "
            f"layers per stage {inventory.layers_per_stage}"
        )
    if inventory.transfer_bytes:
        facts.append(f"  pp       {format_bytes(inventory.transfer_bytes)} across a stage boundary per microbatch")
    if inventory.tokens_per_step:
        facts.append(f"  tokens   {inventory.tokens_per_step:,.0f} a step")
    implied = [f"hidden size {inventory.hidden_size:,}"] if inventory.hidden_size else []
    if inventory.parameters_per_rank:
        implied.append(f"{inventory.parameters_per_rank:,} parameters per rank, as AICB counts them")
    if implied:
        facts.append(f"  implies  {' · '.join(implied)}")
    lines: list[list[Span]] = [[(fact, "")] for fact in facts]
    screen = Screen.of(sys.stdout)
    if inventory.traffic:
        lines += [
            [],
            [(f"  {'group':<6} {'collective':<16} {'calls':>7}  bytes (one rank, all rows as listed)", "bold")],
        ]
        lines += [
            [(f"  {one.axis:<6} {one.collective:<16} {one.calls:>7,}  {format_bytes(one.bytes)}", "")]
            for one in inventory.traffic
        ]
    show(screen, [*lines, [], *diagnostic_lines(inventory.diagnostics, screen)])
