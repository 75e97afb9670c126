"""What must hold of every program, whoever wrote it; the first thing that does not is named."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import InputError
from foretrace.program.columns import COLUMNS, Category, Kind, Phase
from foretrace.program.expand import expand
from foretrace.program.graph import check_rendezvous
from foretrace.program.program import Program


def check(program: Program) -> None:
    """Raises an error that names the block and op, or the ranks, where the program makes no sense."""
    _check_ranks(program)
    _check_indices(program)
    _check_columns(program)
    _check_prices(program)
    _check_resources(program)
    check_rendezvous(expand(program))


def _check_ranks(program: Program) -> None:
    if program.world != program.mesh.world:
        raise InputError(f"the mesh has {program.mesh.world} ranks, the program {program.world}")
    _within(program.role_of, len(program.roles), "role_of", "role")
    for communicator in program.communicators:
        ranks = np.concatenate([rows.ravel() for rows in communicator.members(program.mesh)])
        if len(ranks) and not (ranks.min() >= 0 and ranks.max() < program.world):
            raise InputError(f'communicator "{communicator.name}" names a rank outside 0..{program.world - 1}')
        if len(np.unique(ranks)) != len(ranks):
            raise InputError(f'communicator "{communicator.name}" has a rank in two of its groups')


def _check_indices(program: Program) -> None:
    templates, placements, links = program.templates, program.placements, program.links
    ops = len(templates.columns["kind"])
    _starts(templates.start, ops, len(program.blocks), "templates.start")
    _starts(placements.start, len(placements.block), len(program.roles), "placements.start")
    for name in ("dep_src", "dep_dst", "memory_op", "send_op", "draw_op"):
        _within(getattr(templates, name), ops, f"templates.{name}", "op")
    _within(templates.draw_resource, len(program.resources), "templates.draw_resource", "resource")
    _within(templates.memory_category, len(Category), "templates.memory_category", "category")
    _within(placements.block, len(program.blocks), "placements.block", "block")
    block_of = np.repeat(np.arange(len(program.blocks)), np.diff(templates.start))
    if (block_of[templates.dep_src] != block_of[templates.dep_dst]).any():
        raise InputError("templates.dep_src: a dependency leads from one block into another")
    if (templates.dep_src == templates.dep_dst).any():
        raise InputError("templates.dep_src: an op depends on itself")
    sizes = np.diff(templates.start)[placements.block]
    role_of = np.repeat(np.arange(len(program.roles)), np.diff(placements.start))
    _placed_op(placements.override_placement, placements.override_op, sizes, "placements.override_op")
    _placed_op(links.src_placement, links.src_op, sizes, "links.src_op")
    _placed_op(links.dst_placement, links.dst_op, sizes, "links.dst_op")
    if (role_of[links.src_placement] != role_of[links.dst_placement]).any():
        raise InputError("links: a dependency leads from one role to another", hint="ranks meet in rendezvous")
    if len(links.steps) and not set(np.unique(links.steps)) <= {0, 1}:
        raise InputError("links.steps: a dependency reaches further than into the next step")


def _check_columns(program: Program) -> None:
    columns = program.templates.columns
    missing = set(COLUMNS) - set(columns)
    if missing:
        raise InputError(f"templates: column {min(missing)} is missing")
    unknown = set(program.placements.override_column) - set(COLUMNS)
    if unknown:
        raise InputError(f"placements.override_column: there is no column {min(unknown)}")
    limits = {
        "kind": len(Kind),
        "phase": len(Phase),
        "lane": len(program.lanes),
        "name": len(program.strings),
    }
    for name, limit in limits.items():
        _within(_values(program, name), limit, f"templates.{name}", name)
    optional = {
        "communicator": len(program.communicators),
        "kernel": len(program.strings),
        "dtype": len(program.strings),
    }
    for name, limit in optional.items():
        _within(_values(program, name) + 1, limit + 1, f"templates.{name}", name)
    _within(_values(program, "source"), len(program.sources), "templates.source", "source")
    meets = columns["communicator"].astype(np.int64) >= 0
    communicates = np.isin(columns["kind"], (Kind.COLLECTIVE, Kind.TRANSFER))
    if (meets != communicates).any():
        op = int(np.flatnonzero(meets != communicates)[0])
        state = "has no communicator" if communicates[op] else "computes but has a communicator"
        raise InputError(f"{where(program, op)}: {state}")


def _check_prices(program: Program) -> None:
    for name in ("duration_s", "latency_s", "flops", "moved_bytes", "bytes"):
        values = _values(program, name)
        bad = np.flatnonzero(np.isinf(values) | (values < 0) | (np.isnan(values) & (name != "duration_s")))
        if len(bad):
            at = int(bad[0])
            place = where(program, at) if at < len(program.templates.columns[name]) else "an override"
            raise InputError(f"{place}: {name} is {values[at]:g}; it must be zero or more, and finite")


def _check_resources(program: Program) -> None:
    templates = program.templates
    for resource in program.resources:
        if not (resource.capacity_per_s > 0 and np.isfinite(resource.capacity_per_s)):
            raise InputError(f'resource "{resource.name}" has capacity {resource.capacity_per_s:g}')
        if resource.instances is not None:
            ranks = [rank for shared in resource.instances for rank in shared]
            if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(program.world)):
                raise InputError(f'resource "{resource.name}": a rank is in two sets, or outside the mesh')
    capacity = np.array([resource.capacity_per_s for resource in program.resources])
    problems = {
        "it draws less than nothing": ~(np.isfinite(templates.draw_amount) & (templates.draw_amount >= 0)),
        "it holds less than nothing": ~(np.isfinite(templates.draw_held) & (templates.draw_held >= 0)),
        "it holds a whole resource": templates.draw_held >= capacity[templates.draw_resource],
    }
    for problem, rows in problems.items():
        if rows.any():
            raise InputError(f"{where(program, int(templates.draw_op[rows][0]))}: {problem}")
    for name in ("memory_alloc_bytes", "memory_free_bytes", "send_bytes"):
        if (getattr(templates, name) < 0).any():
            raise InputError(f"templates.{name}: a size is negative")


def where(program: Program, op: int) -> str:
    """The block and name of an op of the templates, for messages."""
    block = int(np.searchsorted(program.templates.start, op, side="right") - 1)
    name = program.strings[int(program.templates.columns["name"].astype(np.int64)[op])]
    return f'block "{program.blocks[block].name}", op {op - int(program.templates.start[block])} "{name}"'


def _values(program: Program, name: str) -> NDArray[np.float64]:
    """A column with the values that overrides give it."""
    mine = [i for i, column in enumerate(program.placements.override_column) if column == name]
    return np.concatenate([program.templates.columns[name].astype(np.float64), program.placements.override_value[mine]])


def _within(values: NDArray[np.generic], limit: int, place: str, what: str) -> None:
    outside = (values.astype(np.float64) < 0) | (values.astype(np.float64) >= limit)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise InputError(f"{place}[{at}]: there is no {what} {values[at]}")


def _starts(values: NDArray[np.generic], total: int, count: int, place: str) -> None:
    whole = values.astype(np.int64)
    if len(whole) != count + 1 or whole[0] != 0 or whole[-1] != total or (np.diff(whole) < 0).any():
        raise InputError(f"{place}: offsets do not divide {total} rows among {count}")


def _placed_op(placement: NDArray[np.generic], op: NDArray[np.generic], sizes: NDArray[np.generic], place: str) -> None:
    _within(placement, len(sizes), place, "placement")
    beyond = op.astype(np.int64) >= sizes.astype(np.int64)[placement.astype(np.int64)]
    if (beyond | (op.astype(np.int64) < 0)).any():
        raise InputError(f"{place}[{int(np.flatnonzero(beyond)[0])}]: the block has no such op")
