"""The contents of rank traces as a screen and as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from foretrace.lower.megatron_trace.inventory import TraceInventory
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.units import format_bytes, format_count, format_time

TRACES_SCHEMA = "foretrace.traces/1"


def traces_json(inventory: TraceInventory) -> dict[str, Any]:
    """All of it; sizes in bytes, times in seconds."""
    runs = [{"name": name, "ranks": ranks} for name, ranks in inventory.runs]
    return {"schema": TRACES_SCHEMA, "format": "Megatron rank traces", **asdict(inventory), "runs": runs}


def print_traces(inventory: TraceInventory, name: str) -> None:
    """One screen."""
    known = {key.replace("_", " "): value for key, value in asdict(inventory.facts).items() if value is not None}
    runs = ", ".join(f"{run} ({ranks} rank{'' if ranks == 1 else 's'})" for run, ranks in inventory.runs)
    facts = [
        f"  {name}: Megatron rank traces, {inventory.kind}, {format_count(inventory.lines)} ops",
        f"  runs     {runs}",
        f"  names    {' · '.join(f'{key} {value}' for key, value in known.items()) or 'say nothing of the job'}",
        f"  job      {_job(inventory)}",
        f"  traced   {inventory.microbatches} microbatch{'' if inventory.microbatches == 1 else 'es'} a rank · "
        f"stages {_stages(inventory.stages)}",
    ]
    if inventory.expert_tokens:
        least, most = inventory.expert_tokens[0], inventory.expert_tokens[-1]
        facts.append(f"  experts  of a rank receive {least:,} to {most:,} tokens a layer and microbatch")
    lines: list[list[Span]] = [[(fact, "")] for fact in facts]
    lines += [[], [(f"  {'op':<18} {'lines':>7}  {'least':>9}  {'mean':>9}  {'most':>9}", "bold")]]
    for one in inventory.ops:
        times = "  ".join(f"{format_time(s):>9}" for s in (one.least_s, one.mean_s, one.most_s))
        lines.append([(f"  {one.op:<18} {one.lines:>7,}  {times}", "")])
    if inventory.calls:
        lines += [[], [(f"  {'group':<6} {'collective':<16} {'calls':>7}  bytes that ranks give to it", "bold")]]
        lines += [
            [(f"  {one.axis:<6} {one.collective:<16} {one.calls:>7,}  {format_bytes(one.bytes)}", "")]
            for one in inventory.calls
        ]
    screen = Screen.of(sys.stdout)
    lines += [[], [(f"  {_meaning(inventory.kind)}", "bright_black")]]
    show(screen, [*lines, *diagnostic_lines(inventory.diagnostics, screen)])


def _stages(stages: tuple[int, ...]) -> str:
    if len(stages) > 2 and stages == tuple(range(stages[0], stages[-1] + 1)):
        return f"{stages[0]} to {stages[-1]}"
    return ", ".join(map(str, stages)) or "unknown"


def _job(inventory: TraceInventory) -> str:
    if inventory.mesh is None:
        return "its mesh is unknown: give --mesh, as in --mesh tp=1,pp=2,ep=8,dp=8"
    axes = inventory.mesh.replace(",", " · ").replace("=", " ")
    missing = f", {inventory.missing_ranks:,} of them without a trace" if inventory.missing_ranks else ""
    return f"{format_count(inventory.world_size or 0)} ranks{missing} · {axes}"


def _meaning(kind: str) -> str:
    if kind == "ex situ":
        return "ex situ: one GPU acted as each rank; times of communication mean nothing, and are not used"
    return "real run: times of communication include waiting for partners (foretrace explain tells them apart)"
