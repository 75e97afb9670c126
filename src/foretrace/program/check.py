"""Checks what must hold of every program, whoever wrote it, and names the first thing that does not."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, distinct
from foretrace.basics.errors import InputError, shortened, shown_value
from foretrace.basics.limits import check_limit, limited, too_large
from foretrace.basics.numbers import MAX_REAL
from foretrace.program.columns import COLUMNS, ONE_TO_ONE, Category, Collective, Kind, Phase, label
from foretrace.program.dispatch import COPIES, parse_dispatch
from foretrace.program.kernels import MAX_FLOPS, MAX_MOVED_BYTES, parse_kernels
from foretrace.program.program import Communicator, Program, Resource
from foretrace.program.rendezvous import Members, check_rendezvous

MAX_ROWS = 1 << 25
"""Rows of a table at most once it is unrolled: ops of all roles, waits, members of groups. A row takes tens of bytes. A
file of a few kilobytes can repeat a row billions of times."""

MAX_OVERRIDES = 1 << 20

MAX_PAIRS = 1 << 27
"""Roles times communicators at most, for which there is a table."""

MAX_S = 1e9
"""Thirty years: what is longer is a mistake of units."""

MAX_BYTES = 2.0**60
"""The sum of the bytes of a column at most, so that sums of 64 bits do not overflow."""

_MIN_CAPACITY = 1e-9

LIMITS = {"flops": MAX_FLOPS, "moved_bytes": MAX_MOVED_BYTES, "bytes": MAX_BYTES}
"""The largest amounts of an op."""

Rows = NDArray[np.generic]


def check(program: Program) -> None:
    """Raises an error that names the block and op, or the ranks, where the program makes no sense."""
    check_limit(len(program.instances.override_column), MAX_OVERRIDES, "overrides", None)
    _check_names(program)
    _check_ranks(program)
    _check_group_sizes(program)
    members = [communicator.members(program.mesh) for communicator in program.communicators]
    _check_communicators(program, members)
    _check_indices(program)
    _check_columns(program)
    _check_dependencies(program)
    _check_instances(program)
    _check_overrides(program)
    _check_amounts(program)
    _check_times(program)
    _check_sources(program)
    _check_resources(program)
    _check_sends(program, members)
    check_rendezvous(program, members)


def where(program: Program, op: int) -> str:
    """Returns the block and name of an op of the templates, for messages; indices within them must be valid."""
    block = int(np.searchsorted(program.templates.start, op, side="right") - 1)
    name = program.strings[int(_whole(program.templates.columns["name"])[op])]
    number = op - int(program.templates.start[block])
    return f'block "{shortened(program.blocks[block].name)}", op {number} "{shortened(name)}"'


def _check_names(program: Program) -> None:
    """Names must be text, and a resource or an axis may not be called what ops are already called."""
    blocks = [text for block in program.blocks for text in (block.name, *block.ports)]
    tables = (program.lanes, program.communicators, program.resources, program.sources)
    axes_of_groups = [communicator.axis for communicator in program.communicators]
    notes = [text for note in program.diagnostics for text in (note.code, note.message, note.where or "")]
    named = [entry.name for table in tables for entry in table]
    texts = [program.title, *program.roles, *program.strings, *blocks, *named, *axes_of_groups, *notes]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InputError("invalid-program", f"a name is not text: {error.reason}") from error
    except TypeError:
        wrong = next(text for text in texts if not isinstance(text, str))
        raise InputError("invalid-program", f"a name is {shown_value(wrong)}", hint="names are text") from None
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
                f'a resource is called "{shortened(resource.name)}", which means ops',
                hint="choose another name",
            )
    names = [resource.name for resource in program.resources]
    if len(set(names)) != len(names):
        raise InputError("invalid-program", f'two resources are called "{shortened(max(names, key=names.count))}"')


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


def _check_group_sizes(program: Program) -> None:
    """Raises an error where communicators have more members than can be listed."""
    members = sum(_member_count(communicator, program) for communicator in program.communicators)
    _check_rows(members, "members of groups")
    pairs = len(program.roles) * len(program.communicators)
    if pairs > limited(MAX_PAIRS):
        problem = (
            f"{len(program.roles):,} roles and {len(program.communicators):,} communicators are more than can be run"
        )
        raise too_large(problem, None)


def _member_count(communicator: Communicator, program: Program) -> int:
    """Returns how many ranks the groups of a communicator have in all, at most."""
    if communicator.groups is not None:
        return sum(map(len, communicator.groups))
    if communicator.pair is None or not communicator.axes:
        return program.world
    return 2 * program.world // program.mesh.size(communicator.axes[0])


def _check_communicators(program: Program, members: Members) -> None:
    for communicator, rows in zip(program.communicators, members, strict=True):
        if communicator.groups is None and (communicator.pair is None or communicator.pair[0] != communicator.pair[1]):
            continue  # the mesh puts a rank in one group at most
        ranks = np.concatenate([group.ravel() for group in rows]) if rows else np.empty(0, np.int64)
        name = f'communicator "{shortened(communicator.name)}"'
        if not len(ranks) or not all(group.size for group in rows):
            raise InputError("invalid-program", f"{name} has no groups, or an empty one")
        if ranks.min() < 0 or ranks.max() >= program.world:
            raise InputError("invalid-program", f"{name} names a rank outside 0..{program.world - 1}")
        if np.bincount(ranks).max() > 1:
            raise InputError(
                "invalid-program", f"{name} has rank {np.argmax(np.bincount(ranks) > 1)} in two of its groups"
            )


def _check_indices(program: Program) -> None:
    templates, instances, resident = program.templates, program.instances, program.resident
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
                place = f'block "{shortened(info.name)}": port "{shortened(port)}"'
                raise InputError("invalid-program", f"{place} is op {op}, but the block has {size} ops")


def _check_instances(program: Program) -> None:
    """Raises an error where instances are too many, or overrides or links name an op that their block does not have."""
    templates, instances, links = program.templates, program.instances, program.links
    sizes = np.diff(templates.start)[instances.block].astype(np.int64)
    _check_rows(int(sizes.sum()), "ops")
    used = np.bincount(instances.block, minlength=len(program.blocks))
    for name in ("dep_dst", "memory_op", "send_op", "draw_op"):
        block_of = np.searchsorted(templates.start, getattr(templates, name), side="right") - 1
        _check_rows(int(used[block_of].sum()), f"rows of templates.{name}")
    if (instances.microbatch < -1).any():
        raise InputError("invalid-program", "placements.microbatch: a microbatch is negative")
    _placed_op(instances.override_instance, instances.override_op, sizes, "placements.override_op")
    _placed_op(links.src_instance, links.src_op, sizes, "links.src_op")
    _placed_op(links.dst_instance, links.dst_op, sizes, "links.dst_op")
    role_of = np.repeat(np.arange(len(program.roles)), np.diff(instances.start))
    if len(links.steps) and (role_of[links.src_instance] != role_of[links.dst_instance]).any():
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
    collective, kind = columns["collective"], columns["kind"]
    one_to_one = np.isin(collective, ONE_TO_ONE)
    expected = np.select(
        [kind == Kind.TRANSFER, kind == Kind.COLLECTIVE],
        [one_to_one, ~one_to_one & (collective != Collective.NONE)],
        collective == Collective.NONE,
    )
    if not expected.all():
        op = int(np.argmin(expected))
        problem = f"a {label(Kind(int(kind[op])))} cannot do {label(Collective(int(collective[op])))}"
        raise InputError("invalid-program", f"{where(program, op)}: {problem}")


def _check_overrides(program: Program) -> None:
    instances = program.instances
    for column in dict.fromkeys(instances.override_column):
        if column not in COLUMNS:
            raise InputError("invalid-program", f"placements.override_column: there is no column {shortened(column)}")
        if column in ("kind", "communicator", "collective"):
            raise InputError(
                "invalid-program", f"an override changes the {column} of an op", hint="write another block for it"
            )
        dtype = COLUMNS[column][0]
        if np.issubdtype(dtype, np.integer):
            limits, values = np.iinfo(dtype), _overrides(program, column)
            fits = (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
            if not fits.all():
                value = values[np.argmin(fits)]
                raise InputError(
                    "invalid-program",
                    f"an override sets {column} to {value:g}; it takes whole numbers from {limits.min} to {limits.max}",
                )


def _check_amounts(program: Program) -> None:
    """Raises an error where an amount is negative, not finite, or larger than can be meant."""
    for name in ("duration_s", "latency_s", "flops", "moved_bytes", "bytes"):
        values, most = _values(program, name), LIMITS.get(name, MAX_S)
        fits = (values >= 0) & (values <= most)
        if name == "duration_s":
            fits |= np.isnan(values)  # not priced
        if fits.all():
            continue
        at = int(np.argmin(fits))
        place = where(program, at) if at < len(program.templates.columns[name]) else "an override"
        hint = "durations are in seconds" if name.endswith("_s") else None
        if values[at] > most and math.isfinite(values[at]):
            raise InputError("invalid-program", f"{place}: {name} of {values[at]:g} is more than {most:g}", hint=hint)
        raise InputError("invalid-program", f"{place}: {name} is {values[at]:g}; it must be zero or more, and finite")
    sizes = {f"templates.{name}": getattr(program.templates, name) for name in _SIZES}
    for name, values in {**sizes, "resident.bytes": program.resident.bytes}.items():
        if (values < 0).any():
            raise InputError("invalid-program", f"{name}: a size is negative")
    used = np.bincount(program.instances.block, minlength=len(program.blocks)).astype(np.float64)
    for name, ops in _SIZES.items():
        block_of = np.searchsorted(program.templates.start, getattr(program.templates, ops), side="right") - 1
        if float(sizes[f"templates.{name}"].astype(np.float64) @ used[block_of]) > MAX_BYTES:
            raise InputError("invalid-program", f"templates.{name}: the sizes of a step are more than can be meant")
    if float(program.resident.bytes.sum(dtype=np.float64)) > MAX_BYTES:
        raise InputError("invalid-program", "resident.bytes: the sizes are more than can be meant")
    tokens = program.tokens_per_step
    if tokens is not None and not 0 < tokens <= _MAX_TOKENS:
        raise InputError(
            "invalid-program", f"tokens_per_step is {tokens:g}; it must be above zero and below {_MAX_TOKENS:g}"
        )


_SIZES = {"memory_alloc_bytes": "memory_op", "memory_free_bytes": "memory_op", "send_bytes": "send_op"}
"""Columns of bytes, and the columns of the ops that they are of."""

_MAX_TOKENS = 1e18


def _check_times(program: Program) -> None:
    """Raises an error where the latency of an op is longer than the op, overrides applied."""
    columns, instances = program.templates.columns, program.instances
    latency, duration = (columns[name].astype(np.float64) for name in ("latency_s", "duration_s"))
    late = np.flatnonzero(latency > duration)
    if len(late):
        raise InputError(
            "invalid-program", f"{where(program, int(late[0]))}: its latency_s is longer than its duration_s"
        )
    mine = [i for i, name in enumerate(instances.override_column) if name in ("latency_s", "duration_s")]
    if not mine:
        return
    row = program.templates.start[instances.block[instances.override_instance[mine]]] + instances.override_op[mine]
    cell = instances.override_instance[mine].astype(np.int64) * len(latency) + row
    _, first, number = np.unique(cell, return_index=True, return_inverse=True)
    times = {"latency_s": latency[row[first]], "duration_s": duration[row[first]]}
    for name, values in times.items():
        of_name = np.array([instances.override_column[i] == name for i in mine])
        values[number[of_name]] = instances.override_value[mine][of_name]  # of several, the last one counts
    late = np.flatnonzero(times["latency_s"] > times["duration_s"])
    if len(late):
        place = where(program, int(row[first[late[0]]]))
        raise InputError("invalid-program", f"{place}: an override makes its latency_s longer than its duration_s")


def _check_sources(program: Program) -> None:
    for source in program.sources:
        if not (0 <= source.low <= 1 <= source.high <= MAX_BAND):
            raise InputError(
                "invalid-program",
                f'source "{shortened(source.name)}" has the band {source.low:g} to {source.high:g}',
                hint=f"it must hold 1, from 0 to {MAX_BAND:g}",
            )


MAX_BAND = 1e6
"""The largest factor by which a price may be off."""


def check_kernels(program: Program) -> None:
    """Raises an error where ops without a duration name kernels, or ways of tokens to experts, that cannot be read."""
    columns = program.templates.columns
    kernels, kind = _whole(columns["kernel"]), columns["kind"]
    asks = np.isnan(columns["duration_s"].astype(np.float64)) & (kernels >= 0)
    readers = ((kind == Kind.COMPUTE, parse_kernels), (columns["collective"] == Collective.ALL_TO_ALL, _read_way))
    for chosen, read in readers:
        ops = np.flatnonzero(asks & chosen)
        numbers, first = np.unique(kernels[ops], return_index=True)
        for number, at in zip(numbers.tolist(), first.tolist(), strict=True):
            try:
                read(program.strings[number])
            except InputError as error:
                raise InputError(
                    error.code, f"{where(program, int(ops[at]))}: {error.message}", hint=error.hint
                ) from None


def _read_way(text: str) -> object:
    return text and text != COPIES and parse_dispatch(text)


def _check_resources(program: Program) -> None:
    templates = program.templates
    for resource in program.resources:
        for own in (resource.capacity_per_s, *(resource.capacities or ())):
            if not _MIN_CAPACITY <= own <= MAX_REAL:
                raise InputError("invalid-program", f'resource "{shortened(resource.name)}" has capacity {own:g}')
        if resource.instances is not None and not all(resource.instances or [()]):
            raise InputError(
                "invalid-program", f'resource "{shortened(resource.name)}" has no sets of ranks, or an empty one'
            )
        ranks = np.concatenate([rows.ravel() for rows in resource.members()] or [np.empty(0, np.int64)])
        if len(ranks) and (ranks.min() < 0 or ranks.max() >= program.world or np.bincount(ranks).max() > 1):
            raise InputError(
                "invalid-program", f'resource "{shortened(resource.name)}": a rank is in two sets, or outside the mesh'
            )
        _check_capacities(resource, program.world)
    capacity = np.array(
        [min((resource.capacity_per_s, *(resource.capacities or ()))) for resource in program.resources]
    )
    problems = {
        "it draws less than nothing": ~(np.isfinite(templates.draw_amount) & (templates.draw_amount >= 0)),
        "it draws on a resource for too long": templates.draw_amount > MAX_S * capacity[templates.draw_resource],
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
            "invalid-program", f'resource "{shortened(resource.name)}" has {len(own)} capacities for {count} instances'
        )


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


def _check_rows(rows: int, what: str) -> None:
    check_limit(rows, MAX_ROWS, f"{what} once the program is unrolled", None)


def _whole(values: Rows) -> Longs:
    return values.astype(np.int64)


def _values(program: Program, name: str) -> Floats:
    """A column with the values that overrides give it."""
    return np.concatenate([program.templates.columns[name].astype(np.float64), _overrides(program, name)])


def _overrides(program: Program, name: str) -> Floats:
    """Returns the values that overrides give a column."""
    instances = program.instances
    if name not in instances.override_column:
        return np.empty(0)
    return instances.override_value[[i for i, column in enumerate(instances.override_column) if column == name]]


def _within(values: Rows, limit: int, place: str, what: str) -> None:
    numbers = values.astype(np.float64)
    outside = np.flatnonzero(~((numbers >= 0) & (numbers < limit)))
    if len(outside):
        raise InputError("invalid-program", f"{place}[{outside[0]}]: there is no {what} {values[outside[0]]:g}")


def _starts(values: Rows, total: int, count: int, place: str) -> None:
    whole = _whole(values)
    if len(whole) != count + 1 or whole[0] != 0 or whole[-1] != total or (np.diff(whole) < 0).any():
        raise InputError("invalid-program", f"{place}: offsets do not divide {total} rows among {count}")


def _placed_op(instance: Rows, op: Rows, sizes: Longs, place: str) -> None:
    _within(instance, len(sizes), place, "placement")
    lost = np.flatnonzero((_whole(op) < 0) | (_whole(op) >= sizes[_whole(instance)]))
    if len(lost):
        raise InputError("invalid-program", f"{place}[{lost[0]}]: the block has no op {op[lost[0]]}")
