"""Checks what must hold of every program, whoever wrote it, and names the first thing that does not."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, distinct
from foretrace.basics.errors import InputError
from foretrace.program.columns import COLUMNS, Category, Collective, Kind, Phase, label
from foretrace.program.program import Program, Resource
from foretrace.program.rendezvous import Members, check_rendezvous

MAX_OPS = 1 << 27
"""More ops than this, over all roles, would not fit into a machine's memory once unrolled."""

MAX_S = 1e9
"""Thirty years: what is longer is a mistake of units."""

Rows = NDArray[np.generic]


def check(program: Program) -> None:
    """Raises an error that names the block and op, or the ranks, where the program makes no sense."""
    _check_names(program)
    _check_ranks(program)
    members = [communicator.members(program.mesh) for communicator in program.communicators]
    _check_communicators(program, members)
    _check_indices(program)
    _check_columns(program)
    _check_overrides(program)
    _check_amounts(program)
    _check_resources(program)
    _check_sends(program, members)
    check_rendezvous(program, members)


def where(program: Program, op: int) -> str:
    """The block and name of an op of the templates, for messages."""
    block = int(np.searchsorted(program.templates.start, op, side="right") - 1)
    name = program.strings[int(_whole(program.templates.columns["name"])[op])]
    return f'block "{program.blocks[block].name}", op {op - int(program.templates.start[block])} "{name}"'


def _check_names(program: Program) -> None:
    """Names must be text, and a resource or an axis may not be called what ops are already called."""
    texts = [program.title, *program.roles, *program.strings, *(block.name for block in program.blocks)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InputError("invalid-program", f"a name is no text: {error.reason}") from error
    words = {"compute", "communication", "host", *(label(member) for member in (*Phase, *Collective))}
    axes = {communicator.axis for communicator in program.communicators}
    for name in sorted(axes & words):
        raise InputError(
            "invalid-program", f'an axis is called "{name}", which means ops of that kind', hint="choose another name"
        )
    for resource in program.resources:
        if resource.name in words | axes:
            raise InputError(
                "invalid-program",
                f'a resource is called "{resource.name}", which means ops',
                hint="choose another name",
            )
    names = [resource.name for resource in program.resources]
    if len(set(names)) != len(names):
        raise InputError("invalid-program", f'two resources are called "{max(names, key=names.count)}"')


def _check_ranks(program: Program) -> None:
    if program.world != program.mesh.world:
        raise InputError("invalid-program", f"the mesh has {program.mesh.world} ranks, the program {program.world}")
    lost = np.flatnonzero(_whole(program.role_of) < 0)
    if len(lost):
        raise InputError(
            "invalid-program",
            f"rank {lost[0]} has no role ({len(lost)} ranks in all)",
            hint="every rank runs something",
        )
    _within(program.role_of, len(program.roles), "role_of", "role")


def _check_communicators(program: Program, members: Members) -> None:
    for communicator, rows in zip(program.communicators, members, strict=True):
        if communicator.groups is None and (communicator.pair is None or communicator.pair[0] != communicator.pair[1]):
            continue  # the mesh puts a rank in one group at most
        ranks = np.concatenate([group.ravel() for group in rows]) if rows else np.empty(0, np.int64)
        name = f'communicator "{communicator.name}"'
        if not len(ranks) or not all(group.size for group in rows):
            raise InputError("invalid-program", f"{name} has no groups, or an empty one")
        if ranks.min() < 0 or ranks.max() >= program.world:
            raise InputError("invalid-program", f"{name} names a rank outside 0..{program.world - 1}")
        if np.bincount(ranks).max() > 1:
            raise InputError(
                "invalid-program", f"{name} has rank {np.argmax(np.bincount(ranks) > 1)} in two of its groups"
            )


def _check_indices(program: Program) -> None:
    templates, instances, links, resident = (
        program.templates,
        program.instances,
        program.links,
        program.resident,
    )
    ops = len(templates.columns["kind"])
    _starts(templates.start, ops, len(program.blocks), "templates.start")
    _starts(instances.start, len(instances.block), len(program.roles), "placements.start")
    for name in ("dep_src", "dep_dst", "memory_op", "send_op", "draw_op"):
        _within(getattr(templates, name), ops, f"templates.{name}", "op")
    _within(templates.draw_resource, len(program.resources), "templates.draw_resource", "resource")
    _within(templates.memory_category, len(Category), "templates.memory_category", "category")
    _within(instances.block, len(program.blocks), "placements.block", "block")
    _within(resident.role, len(program.roles), "resident.role", "role")
    _within(resident.category, len(Category), "resident.category", "category")
    for info, size in zip(program.blocks, np.diff(templates.start).tolist(), strict=True):
        for port, op in info.ports.items():
            if not 0 <= op < size:
                raise InputError(
                    "invalid-program", f'block "{info.name}": port "{port}" is op {op}, but the block has {size} ops'
                )
    _check_dependencies(program)
    sizes = np.diff(templates.start)[instances.block].astype(np.int64)
    if sizes.sum() > MAX_OPS:
        raise InputError("too-large", f"the program unrolls to {sizes.sum():,} ops; at most {MAX_OPS:,} can be run")
    _placed_op(instances.override_instance, instances.override_op, sizes, "placements.override_op")
    _placed_op(links.src_instance, links.src_op, sizes, "links.src_op")
    _placed_op(links.dst_instance, links.dst_op, sizes, "links.dst_op")
    role_of = np.repeat(np.arange(len(program.roles)), np.diff(instances.start))
    if (role_of[links.src_instance] != role_of[links.dst_instance]).any():
        raise InputError(
            "invalid-program", "links: a dependency leads from one role to another", hint="ranks meet in rendezvous"
        )
    if len(links.steps) and not set(distinct(links.steps)) <= {0, 1}:
        raise InputError("invalid-program", "links.steps: a dependency reaches further than into the next step")


def _check_dependencies(program: Program) -> None:
    templates = program.templates
    block_of = np.repeat(np.arange(len(program.blocks)), np.diff(templates.start))
    across = np.flatnonzero(block_of[templates.dep_src] != block_of[templates.dep_dst])
    if len(across):
        op = int(templates.dep_dst[across[0]])
        raise InputError("invalid-program", f"{where(program, op)}: it depends on an op of another block")
    itself = np.flatnonzero(templates.dep_src == templates.dep_dst)
    if len(itself):
        raise InputError(
            "invalid-program", f"{where(program, int(templates.dep_dst[itself[0]]))}: it depends on itself"
        )


def _check_columns(program: Program) -> None:
    columns = program.templates.columns
    missing = set(COLUMNS) - set(columns)
    if missing:
        raise InputError("invalid-program", f"templates: column {min(missing)} is missing")
    limits = {
        "kind": len(Kind),
        "phase": len(Phase),
        "collective": len(Collective),
        "lane": len(program.lanes),
        "name": len(program.strings),
        "source": len(program.sources),
        "enabled": 2,
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
    meets = _whole(columns["communicator"]) >= 0
    communicates = np.isin(columns["kind"], (Kind.COLLECTIVE, Kind.TRANSFER))
    odd = np.flatnonzero(meets != communicates)
    if len(odd):
        state = "has no communicator" if communicates[odd[0]] else "does not communicate but has a communicator"
        raise InputError("invalid-program", f"{where(program, int(odd[0]))}: it {state}")


def _check_overrides(program: Program) -> None:
    instances = program.instances
    for column, value in zip(instances.override_column, instances.override_value.tolist(), strict=True):
        if column not in COLUMNS:
            raise InputError("invalid-program", f"placements.override_column: there is no column {column}")
        if column in ("kind", "communicator", "collective"):
            raise InputError(
                "invalid-program", f"an override changes the {column} of an op", hint="write another block for it"
            )
        dtype = COLUMNS[column][0]
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            if not (math.isfinite(value) and value == math.floor(value) and limits.min <= value <= limits.max):
                raise InputError(
                    "invalid-program",
                    f"an override sets {column} to {value:g}; it takes whole numbers from {limits.min} to {limits.max}",
                )


def _check_amounts(program: Program) -> None:
    for name in ("duration_s", "latency_s", "flops", "moved_bytes", "bytes"):
        values = _values(program, name)
        bad = np.flatnonzero(np.isinf(values) | (values < 0) | (np.isnan(values) & (name != "duration_s")))
        if len(bad):
            at = int(bad[0])
            place = where(program, at) if at < len(program.templates.columns[name]) else "an override"
            raise InputError(
                "invalid-program", f"{place}: {name} is {values[at]:g}; it must be zero or more, and finite"
            )
        if name.endswith("_s") and (values > MAX_S).any():
            at = int(np.flatnonzero(values > MAX_S)[0])
            raise InputError(
                "invalid-program",
                f"{name} of {values[at]:g} s is longer than {MAX_S:g} s",
                hint="durations are in seconds",
            )
    columns = program.templates.columns
    late = np.flatnonzero(columns["latency_s"].astype(np.float64) > columns["duration_s"].astype(np.float64))
    if len(late):
        raise InputError(
            "invalid-program", f"{where(program, int(late[0]))}: its latency_s is longer than its duration_s"
        )
    for name in ("memory_alloc_bytes", "memory_free_bytes", "send_bytes"):
        if (getattr(program.templates, name) < 0).any():
            raise InputError("invalid-program", f"templates.{name}: a size is negative")
    if (program.resident.bytes < 0).any():
        raise InputError("invalid-program", "resident.bytes: a size is negative")
    tokens = program.tokens_per_step
    if tokens is not None and not (math.isfinite(tokens) and tokens > 0):
        raise InputError("invalid-program", f"tokens_per_step is {tokens:g}; it must be above zero")
    for source in program.sources:
        if not (0 <= source.low <= 1 <= source.high < math.inf):
            raise InputError(
                "invalid-program",
                f'source "{source.name}" has the band {source.low:g} to {source.high:g}; it must hold 1',
            )


def _check_resources(program: Program) -> None:
    templates = program.templates
    for resource in program.resources:
        if not (resource.capacity_per_s > 0 and math.isfinite(resource.capacity_per_s)):
            raise InputError("invalid-program", f'resource "{resource.name}" has capacity {resource.capacity_per_s:g}')
        if resource.instances is not None and not all(resource.instances or [()]):
            raise InputError("invalid-program", f'resource "{resource.name}" has no sets of ranks, or an empty one')
        ranks = np.concatenate([rows.ravel() for rows in resource.members()] or [np.empty(0, np.int64)])
        if len(ranks) and (ranks.min() < 0 or ranks.max() >= program.world or np.bincount(ranks).max() > 1):
            raise InputError(
                "invalid-program", f'resource "{resource.name}": a rank is in two sets, or outside the mesh'
            )
        _check_capacities(resource, program.world)
    capacity = np.array(
        [min((resource.capacity_per_s, *(resource.capacities or ()))) for resource in program.resources]
    )
    problems = {
        "it draws less than nothing": ~(np.isfinite(templates.draw_amount) & (templates.draw_amount >= 0)),
        "it holds less than nothing": ~(np.isfinite(templates.draw_held) & (templates.draw_held >= 0)),
        "it holds a whole resource": templates.draw_held >= capacity[templates.draw_resource],
    }
    for problem, rows in problems.items():
        if rows.any():
            raise InputError("invalid-program", f"{where(program, int(templates.draw_op[rows][0]))}: {problem}")


def _check_capacities(resource: Resource, world: int) -> None:
    own, count = resource.capacities, world if resource.instances is None else len(resource.instances)
    if own is not None and len(own) != count:
        raise InputError(
            "invalid-program", f'resource "{resource.name}" has {len(own)} capacities for {count} instances'
        )
    for capacity in own or ():
        if not (capacity > 0 and math.isfinite(capacity)):
            raise InputError("invalid-program", f'resource "{resource.name}" has an instance of capacity {capacity:g}')


def _check_sends(program: Program, members: Members) -> None:
    templates = program.templates
    smallest = np.array([min(rows.shape[1] for rows in member) for member in members] + [0])
    reach = smallest[_whole(templates.columns["communicator"])[templates.send_op]]
    lost = np.flatnonzero((templates.send_to < 0) | (templates.send_to >= reach))
    if len(lost):
        op, to = int(templates.send_op[lost[0]]), int(templates.send_to[lost[0]])
        raise InputError(
            "invalid-program", f"{where(program, op)}: it sends to position {to} of a group of {reach[lost[0]]}"
        )


def _whole(values: Rows) -> Longs:
    return values.astype(np.int64)


def _values(program: Program, name: str) -> Floats:
    """A column with the values that overrides give it."""
    mine = [i for i, column in enumerate(program.instances.override_column) if column == name]
    return np.concatenate([program.templates.columns[name].astype(np.float64), program.instances.override_value[mine]])


def _within(values: Rows, limit: int, place: str, what: str) -> None:
    numbers = values.astype(np.float64)
    outside = np.flatnonzero(~((numbers >= 0) & (numbers < limit)))
    if len(outside):
        raise InputError("invalid-program", f"{place}[{outside[0]}]: there is no {what} {values[outside[0]]}")


def _starts(values: Rows, total: int, count: int, place: str) -> None:
    whole = _whole(values)
    if len(whole) != count + 1 or whole[0] != 0 or whole[-1] != total or (np.diff(whole) < 0).any():
        raise InputError("invalid-program", f"{place}: offsets do not divide {total} rows among {count}")


def _placed_op(instance: Rows, op: Rows, sizes: Longs, place: str) -> None:
    _within(instance, len(sizes), place, "placement")
    lost = np.flatnonzero((_whole(op) < 0) | (_whole(op) >= sizes[_whole(instance)]))
    if len(lost):
        raise InputError("invalid-program", f"{place}[{lost[0]}]: the block has no op {op[lost[0]]}")
