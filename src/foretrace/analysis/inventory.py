"""What is in a program, without running it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import Diagnostic
from foretrace.program.arrays import distinct
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.expand import Ops, expand
from foretrace.program.fold import fold
from foretrace.program.program import Program

Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoleInventory:
    """What the ranks of one role do in a step, each: ops, and the seconds their durations add up to by kind."""

    name: str
    ranks: int
    ops: int
    seconds_by_kind: dict[str, float]
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class TrafficInventory:
    """What goes over one axis in a step, summed over ranks: ops and bytes by collective; those of a transfer once."""

    axis: str
    collective: str
    ops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of a program."""

    title: str
    file_bytes: int
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


def take_inventory(program: Program, file_bytes: int) -> Inventory:
    """Counts what a program holds."""
    ops = expand(program)
    enabled = ops.column("enabled").astype(bool)
    population = np.bincount(program.role_of, minlength=len(program.roles))
    phases = distinct(ops.ints("phase")[enabled])
    return Inventory(
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
        placements=len(program.placements.block),
        lanes=tuple(lane.name for lane in program.lanes),
        phases=tuple(label(Phase(int(phase))) for phase in phases if phase != Phase.NONE),
        communicators=len(program.communicators),
        resources=tuple(resource.name for resource in program.resources),
        sources=tuple(source.name for source in program.sources),
        roles=tuple(_roles(ops, enabled, population)),
        traffic=tuple(_traffic(ops, enabled, population)),
        diagnostics=(*program.diagnostics, *_odd(ops, enabled)),
    )


def _roles(ops: Ops, enabled: Mask, population: Counts) -> list[RoleInventory]:
    program, role, kind = ops.program, ops.role, ops.ints("kind")
    duration = np.nan_to_num(ops.floats("duration_s")) * enabled
    seconds = np.zeros((len(program.roles), len(Kind)))
    np.add.at(seconds, (role, kind), duration)
    count = np.bincount(role[enabled], minlength=len(program.roles))
    resident = np.bincount(program.resident.role, weights=program.resident.bytes, minlength=len(program.roles))
    return [
        RoleInventory(
            name,
            int(population[i]),
            int(count[i]),
            {label(one): float(seconds[i, one]) for one in Kind if seconds[i, one] > 0},
            int(resident[i]),
        )
        for i, name in enumerate(program.roles)
    ]


def _traffic(ops: Ops, enabled: Mask, population: Counts) -> list[TrafficInventory]:
    communicator, collective = ops.ints("communicator"), ops.ints("collective")
    size, ranks = ops.ints("bytes"), population[ops.role]
    sends = np.zeros(len(ops.program.templates.columns["kind"]), dtype=bool)
    sends[ops.program.templates.send_op] = True
    size = np.where((collective == Collective.TRANSFER) & ~sends[ops.template], 0, size)
    found: dict[tuple[str, str], list[int]] = {}
    for number, one in enumerate(ops.program.communicators):
        mine = enabled & (communicator == number)
        for what in distinct(collective[mine]):
            these = mine & (collective == what)
            entry = found.setdefault((one.axis, label(Collective(int(what)))), [0, 0])
            entry[0] += int(ranks[these].sum())
            # By size, as whole numbers of Python's: sums may be larger than 64 bits hold.
            sizes, kind = np.unique(size[these], return_inverse=True)
            count = np.bincount(kind.ravel(), weights=ranks[these])
            entry[1] += sum(one * int(times) for one, times in zip(sizes.tolist(), count.tolist(), strict=True))
    return [TrafficInventory(axis, what, count, total) for (axis, what), (count, total) in sorted(found.items())]


def _odd(ops: Ops, enabled: Mask) -> list[Diagnostic]:
    notes = []
    unpriced = int((np.isnan(ops.floats("duration_s")) & enabled).sum())
    if unpriced:
        notes.append(
            Diagnostic(
                "warning",
                "unpriced-op",
                f"{unpriced:,} of {len(ops):,} ops have no duration: simulate it with --cluster",
            )
        )
    if not enabled.all():
        notes.append(Diagnostic("note", "odd-input", f"{int((~enabled).sum()):,} ops are switched off by overrides"))
    empty = [name for i, name in enumerate(ops.program.roles) if ops.start[i] == ops.start[i + 1]]
    notes += [Diagnostic("warning", "odd-input", "does nothing in a step", f'role "{name}"') for name in empty]
    return notes
