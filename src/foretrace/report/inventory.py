"""The contents of a program as a screen and as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from foretrace.analysis.inventory import Inventory
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.units import format_bytes, format_count, format_time

INVENTORY_SCHEMA = "foretrace.inventory/1"
MOST_ROLES = 16


def inventory_json(inventory: Inventory) -> dict[str, Any]:
    """All of it; sizes in bytes, times in seconds."""
    return {"schema": INVENTORY_SCHEMA, "format": "foretrace program", **asdict(inventory)}


def print_inventory(inventory: Inventory, name: str) -> None:
    """One screen."""
    steps = "steps repeat" if inventory.repeats else "one recorded step"
    facts: list[str] = [
        f"  {name}: a Foretrace program, {format_bytes(inventory.file_bytes)}"
        + (f" · {inventory.title}" if inventory.title else ""),
        f"  ranks    {format_count(inventory.world_size)} ({inventory.mesh}) in {format_count(inventory.rank_classes)} "
        f"rank classes · {steps}",
        f"  ops      {format_count(inventory.ops)} in a step, from {format_count(inventory.written_ops)} written in "
        f"{format_count(inventory.blocks)} blocks, placed {format_count(inventory.placements)} times",
        f"  lanes    {', '.join(inventory.lanes)}",
    ]
    if inventory.phases:
        facts.append(f"  phases   {', '.join(inventory.phases)}")
    if inventory.resources:
        facts.append(f"  shares   {', '.join(inventory.resources)}")
    facts.append(f"  prices   {', '.join(inventory.sources)}")
    if inventory.tokens_per_step is not None:
        facts.append(f"  tokens   {inventory.tokens_per_step:,.0f} a step")
    lines: list[list[Span]] = [[(fact, "")] for fact in facts]
    screen = Screen.of(sys.stdout)
    lines += [[], *_roles(inventory), *_traffic(inventory), *diagnostic_lines(inventory.diagnostics, screen)]
    show(screen, lines)


def _roles(inventory: Inventory) -> list[list[Span]]:
    width = max([len(role.name) for role in inventory.roles] + [4])
    lines: list[list[Span]] = [
        [(f"  {'role':<{width}}  {'ranks':>7}  {'ops each':>9}  {'time of its ops, each rank':<40}", "bold")]
    ]
    for role in inventory.roles[:MOST_ROLES]:
        times = " · ".join(f"{kind} {format_time(seconds)}" for kind, seconds in role.seconds_by_kind.items())
        lines.append([(f"  {role.name:<{width}}  {role.ranks:>7,}  {role.ops:>9,}  {times}", "")])
    if len(inventory.roles) > MOST_ROLES:
        lines.append([(f"  … {len(inventory.roles) - MOST_ROLES} more roles: see --json", "")])
    return lines


def _traffic(inventory: Inventory) -> list[list[Span]]:
    if not inventory.traffic:
        return []
    lines: list[list[Span]] = [[], [(f"  {'axis':<6}  {'what':<15}  {'ops, all ranks':>14}  bytes as issued", "bold")]]
    return lines + [
        [(f"  {one.axis:<6}  {one.collective:<15}  {one.ops:>14,}  {format_bytes(one.bytes)}", "")]
        for one in inventory.traffic
    ]
