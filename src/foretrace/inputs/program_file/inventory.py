"""Counts what is in a program, without running it, for `foretrace inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs, Mask, distinct
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, contents_of, counted_text, mesh_text
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.expand import Ops, expand
from foretrace.program.fold import fold
from foretrace.program.program import Program

SCHEMA: Final = "foretrace.inventory/1"
MAX_ROLES: Final = 16


@dataclass(frozen=True, slots=True)
class RoleInventory:
    """The step of each rank of a role: ops, and the sum of their durations by kind."""

    name: str
    ranks: int
    ops: int
    seconds_by_kind: dict[str, float]
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class TrafficInventory:
    """Ops and bytes of one collective over one axis in a step, summed over ranks; bytes of a transfer count once."""

    axis: str
    collective: str
    ops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ProgramInventory:
    """The contents of a program; `ops` are those of a step over all ranks, `file_bytes` is None without a file."""

    title: str
    file_bytes: int | None
    mesh: str
    world_size: int
    rank_classes: int
    repeats: bool
    tokens_per_step: float | None
    ops: int
    written_ops: int
    blocks: int
    placements: int
    lanes: tuple[str, ...]
    phases: tuple[str, ...]
    communicators: int
    resources: tuple[str, ...]
    sources: tuple[str, ...]
    roles: tuple[RoleInventory, ...]
    traffic: tuple[TrafficInventory, ...]
    diagnostics: tuple[Diagnostic, ...]


def program_inventory(program: Program, file_bytes: int | None, title: str) -> Inventory:
    """Longs what a program holds; `file_bytes` is the size of its file, None where it is not in one."""
    counted = count_program(program, file_bytes)
    return Inventory(
        SCHEMA,
        kind="program",
        format="foretrace program",
        title=title,
        world_size=counted.world_size,
        mesh=counted.mesh,
        contents=contents_of(counted),
        facts=(*_job_facts(counted), *op_facts(counted)),
        tables=program_tables(counted),
        diagnostics=counted.diagnostics,
        see=() if file_bytes is None else ("foretrace simulate FILE",),
    )


def count_program(program: Program, file_bytes: int | None) -> ProgramInventory:
    """Longs what a program holds, as a dataclass that other inventories can take parts of."""
    ops = expand(program)
    enabled = ops.column("enabled").astype(bool)
    population = np.bincount(program.role_of, minlength=len(program.roles))
    phases = distinct(ops.ints("phase")[enabled])
    return ProgramInventory(
        title=program.title,
        file_bytes=file_bytes,
        mesh=str(program.mesh),
        world_size=program.world,
        rank_classes=len(fold(ops).classes),
        repeats=program.repeats,
        tokens_per_step=program.tokens_per_step,
        ops=int(np.bincount(ops.role[enabled], minlength=len(program.roles)) @ population),
        written_ops=len(program.templates.columns["kind"]),
        blocks=len(program.blocks),
        placements=len(program.instances.block),
        lanes=tuple(lane.name for lane in program.lanes),
        phases=tuple(label(Phase(int(phase))) for phase in phases if phase != Phase.NONE),
        communicators=len(program.communicators),
        resources=tuple(resource.name for resource in program.resources),
        sources=tuple(source.name for source in program.sources),
        roles=tuple(_roles(ops, enabled, population)),
        traffic=tuple(_traffic(ops, enabled, population)),
        diagnostics=(*program.diagnostics, *_diagnostics(ops, enabled)),
    )


def _roles(ops: Ops, enabled: Mask, population: Longs) -> Iterator[RoleInventory]:
    program = ops.program
    seconds = np.zeros((len(program.roles), len(Kind)))
    np.add.at(seconds, (ops.role, ops.ints("kind")), np.nan_to_num(ops.floats("duration_s")) * enabled)
    count = np.bincount(ops.role[enabled], minlength=len(program.roles))
    resident = np.bincount(program.resident.role, weights=program.resident.bytes, minlength=len(program.roles))
    for number, name in enumerate(program.roles):
        by_kind = {label(kind): float(seconds[number, kind]) for kind in Kind if seconds[number, kind] > 0}
        yield RoleInventory(name, int(population[number]), int(count[number]), by_kind, int(resident[number]))


def _traffic(ops: Ops, enabled: Mask, population: Longs) -> Iterator[TrafficInventory]:
    communicator, collective = ops.ints("communicator"), ops.ints("collective")
    size, ranks = ops.ints("bytes"), population[ops.role]
    sends = np.zeros(len(ops.program.templates.columns["kind"]), dtype=bool)
    sends[ops.program.templates.send_op] = True
    size = np.where((collective == Collective.TRANSFER) & ~sends[ops.template], 0, size)
    totals: dict[tuple[str, str], list[int]] = {}
    for number, group in enumerate(ops.program.communicators):
        in_group = enabled & (communicator == number)
        for code in distinct(collective[in_group]):
            calls = in_group & (collective == code)
            total = totals.setdefault((group.axis, label(Collective(int(code)))), [0, 0])
            total[0] += int(ranks[calls].sum())
            # By size, as Python's whole numbers: a sum may be larger than 64 bits hold.
            sizes, position = np.unique(size[calls], return_inverse=True)
            count = np.bincount(position.ravel(), weights=ranks[calls])
            total[1] += sum(each * int(times) for each, times in zip(sizes.tolist(), count.tolist(), strict=True))
    for (axis, name), (count_of_ops, total_bytes) in sorted(totals.items()):
        yield TrafficInventory(axis, name, count_of_ops, total_bytes)


def _diagnostics(ops: Ops, enabled: Mask) -> Iterator[Diagnostic]:
    unpriced = int((np.isnan(ops.floats("duration_s")) & enabled).sum())
    if unpriced:
        message = f"{unpriced:,} of {len(ops):,} ops have no duration: simulate it with --cluster"
        yield Diagnostic("warning", "unpriced-op", message)
    if not enabled.all():
        yield Diagnostic("note", "odd-input", f"{int((~enabled).sum()):,} ops are switched off by overrides")
    for number, name in enumerate(ops.program.roles):
        if ops.start[number] == ops.start[number + 1]:
            yield Diagnostic("warning", "odd-input", "does nothing in a step", f'role "{name}"')


def _job_facts(counted: ProgramInventory) -> Iterator[tuple[str, str]]:
    if counted.title:
        yield "job", counted.title
    if counted.file_bytes is not None:
        yield "file", format_bytes(counted.file_bytes)
    yield "ranks", f"{format_count(counted.world_size)}{SEPARATOR}{mesh_text(counted.mesh)}"
    tokens = "" if counted.tokens_per_step is None else f"{SEPARATOR}{counted.tokens_per_step:,.0f} tokens"
    yield "step", f"{'repeats' if counted.repeats else 'one recorded step'}{tokens}"


def op_facts(counted: ProgramInventory) -> Iterator[tuple[str, str]]:
    """Yields the lines of a screen about the ops of a program."""
    yield "classes", f"{counted_text(counted.rank_classes, 'class', 'classes')} of ranks with identical ops"
    yield "ops", f"{format_count(counted.ops)} in a step over all ranks"
    blocks, times = counted_text(counted.blocks, "block"), counted_text(counted.placements, "time")
    yield "", f"{format_count(counted.written_ops)} written in {blocks}, placed {times}"
    yield "lanes", SEPARATOR.join(counted.lanes)
    if counted.phases:
        yield "phases", SEPARATOR.join(phase.replace("_", " ") for phase in counted.phases)
    if counted.communicators:
        yield "groups", counted_text(counted.communicators, "communicator")
    if counted.resources:
        yield "resources", SEPARATOR.join(counted.resources)
    yield "prices", SEPARATOR.join(counted.sources)


def program_tables(counted: ProgramInventory) -> tuple[InventoryTable, ...]:
    """Returns the tables of a screen about a program: its roles, and its communication."""
    return (*_role_table(counted), *_traffic_table(counted))


def _role_table(counted: ProgramInventory) -> Iterator[InventoryTable]:
    if not counted.roles:
        return
    kinds = [label(kind) for kind in Kind if any(label(kind) in role.seconds_by_kind for role in counted.roles)]
    resident = any(role.resident_bytes for role in counted.roles)
    rows = [
        (
            role.name,
            f"{role.ranks:,}",
            f"{role.ops:,}",
            *(format_time(role.seconds_by_kind.get(kind, 0.0)) for kind in kinds),
            *((format_bytes(role.resident_bytes),) if resident else ()),
        )
        for role in counted.roles[:MAX_ROLES]
    ]
    notes = ["ops and times are of one rank"] if kinds else ["ops are of one rank"]
    if len(counted.roles) > MAX_ROLES:
        notes.append(f"{len(counted.roles) - MAX_ROLES:,} more roles in --json")
    heads = ("role", "ranks", "ops", *kinds, *(("resident",) if resident else ()))
    yield InventoryTable(heads, rows, "; ".join(notes))


def _traffic_table(counted: ProgramInventory) -> Iterator[InventoryTable]:
    rows = [(entry.axis, entry.collective, f"{entry.ops:,}", format_bytes(entry.bytes)) for entry in counted.traffic]
    if rows:
        note = "ops and bytes as issued, summed over all ranks"
        yield InventoryTable(("axis", "collective", "ops", "bytes"), rows, note, text_columns=2)
