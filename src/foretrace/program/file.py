"""Reads and writes program files: `job.foretrace`, and with a timeline `job.answer`, exact to the bit.

Names and small tables are JSON in the header; every array is a section (see `sections`). Groups of ranks that
are written out, and the columns that overrides name, are arrays too: there may be one for each rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import accumulate, chain, pairwise
from operator import index
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from foretrace.basics.errors import Diagnostic, ForetraceError, InputError, located, quoted
from foretrace.basics.files import AnyFile
from foretrace.basics.limits import check_limit
from foretrace.basics.mesh import Mesh
from foretrace.basics.numbers import real_field, whole_field
from foretrace.basics.records import read_json
from foretrace.program.check import check, check_kernels
from foretrace.program.classes import RankClasses, classes_of, coarsest
from foretrace.program.columns import COLUMNS, LaneKind
from foretrace.program.expand import Ops, expand
from foretrace.program.graph import instantiate, members_met
from foretrace.program.program import (
    BlockInfo,
    Communicator,
    Instances,
    Lane,
    Links,
    Program,
    Resident,
    Resource,
    Source,
    Templates,
)
from foretrace.program.sections import Column, read_file, write_file
from foretrace.program.timeline import Timeline


def written_name(field: str) -> str:
    """Returns what files and JSON call a field: the format has "placement" for an instance of a block."""
    return field.replace("instance", "placement")


_TABLES: Final[tuple[dict[str, type], ...]] = (
    {"role_of": np.int32},
    {"templates.start": np.int32},
    {f"templates.{name}": dtype for name, (dtype, _) in COLUMNS.items()},
    {"templates.dep_src": np.int32, "templates.dep_dst": np.int32},
    {
        "templates.memory_op": np.int32,
        "templates.memory_category": np.uint8,
        "templates.memory_alloc_bytes": np.int64,
        "templates.memory_free_bytes": np.int64,
    },
    {"templates.send_op": np.int32, "templates.send_to": np.int32, "templates.send_bytes": np.int64},
    {
        "templates.draw_op": np.int32,
        "templates.draw_resource": np.int32,
        "templates.draw_amount": np.float64,
        "templates.draw_held": np.float64,
    },
    {"placements.start": np.int32},
    {"placements.block": np.int32, "placements.microbatch": np.int32},
    {
        "placements.override_placement": np.int32,
        "placements.override_op": np.int32,
        "placements.override_column": np.int16,
        "placements.override_value": np.float64,
    },
    {f"links.{written_name(field.name)}": np.int32 for field in fields(Links)},
    {"resident.role": np.int32, "resident.category": np.uint8, "resident.bytes": np.int64},
    {"communicators.group_size": np.int32},
    {"communicators.group_rank": np.int32},
    {"resources.instance_size": np.int32},
    {"resources.instance_rank": np.int32},
)
"""The sections by the table they are columns of; columns of one table are equally long."""

SECTIONS: Final = {name: np.dtype(dtype) for table in _TABLES for name, dtype in table.items()}
"""The dtype of every section, in the order of the file."""

TIMELINE_SECTIONS: Final[dict[str, np.dtype[Any]]] = {
    "timeline.class_of_rank": np.dtype(np.int32),
    **dict.fromkeys(
        ("timeline.ready_s", "timeline.start_s", "timeline.end_s", "timeline.end_before_s"), np.dtype(np.float64)
    ),
}
"""The sections that a timeline adds to those of its program."""

_MAX_MOMENT_S: Final = 1e15
"""The latest moment of a timeline: as many ops as can be run, each as long as can be meant."""

_MAX_LISTS: Final = 2_000_000

_NOTHING: Final = type(None)
_LIST: Final = (list, _NOTHING)
_COUNT: Final = (int, _NOTHING)
_HEADER: Final[dict[str, tuple[type, ...]]] = {
    "title": (str,),
    "mesh": (str,),
    "repeats": (bool,),
    "tokens_per_step": (float, _NOTHING),
    **dict.fromkeys(("lanes", "communicators", "resources", "sources"), (list,)),
    **dict.fromkeys(("strings", "blocks", "roles", "override_columns", "diagnostics"), (list,)),
}
"""The fields of the header and the types JSON may give them."""

Groups = tuple[tuple[int, ...], ...]
"""Ranks that meet or share, group by group."""


def save(program: Program, path: str | Path) -> None:
    """Writes a program file; a file that is there is replaced as a whole."""
    if not isinstance(program, Program) or not isinstance(path, str | Path):
        problem = "save takes a program and the name of a file"
        raise InputError("bad-value", problem, hint='save(program, "job.foretrace")')
    arrays = _arrays(program)
    _check_shapes(arrays, str(path))
    _write(path, _header(program), {name: arrays[name] for name in SECTIONS})


def load(path: AnyFile) -> Program:
    """Reads and checks a program file; what is wrong is named with the file and the byte, section or op."""
    header, arrays = read_file(path, SECTIONS)
    return _checked(_read_header(header, path), arrays, path)


def save_timeline(timeline: Timeline, path: str | Path, attached: Mapping[str, Any]) -> None:
    """Writes a timeline with its program, and `attached`, which JSON must be able to hold."""
    program, arrays = timeline.graph.program, _arrays(timeline.graph.program)
    _check_shapes(arrays, str(path))
    times = (timeline.ready_s, timeline.start_s, timeline.end_s, timeline.end_before_s)
    columns: list[Column] = [
        timeline.graph.classes.of_rank.astype(np.int32),
        *(np.asarray(time_, dtype=np.float64) for time_ in times),
    ]
    run = {
        "step_time_s": timeline.step_time_s,
        "steps_run": timeline.steps_run,
        "diagnostics": [plain_fields(diagnostic) for diagnostic in timeline.diagnostics],
        "attached": attached,
    }
    more: dict[str, Column] = dict(zip(TIMELINE_SECTIONS, columns, strict=True))
    _write(path, _header(program) | {"run": run}, {name: arrays[name] for name in SECTIONS} | more)


def load_timeline(path: AnyFile) -> tuple[Timeline, Any]:
    """Reads what `save_timeline` wrote: the timeline, and what was attached to it."""
    raw, arrays = read_file(path, SECTIONS | TIMELINE_SECTIONS)
    header = _read_header(raw, path)
    run = header.pop("run", None) if isinstance(header, dict) else None
    given = {name: arrays.pop(name) for name in TIMELINE_SECTIONS}
    program = _checked(header, arrays, path)
    try:
        fields_ = _fields(run, "run", step_time_s=(float,), steps_run=(int,), diagnostics=(list,), attached=(dict,))
        notes = tuple(_diagnostic(value, f"run, diagnostic {i}") for i, value in enumerate(fields_["diagnostics"]))
    except ForetraceError as error:
        raise located(error, str(path)) from None
    of_rank, ready, start, end, end_before = given.values()
    times = (ready, start, end, end_before)
    ops = expand(program)
    graph = instantiate(ops, _read_classes(of_rank, ops, str(path)), members_met(ops))
    if (
        any(len(column) != len(graph) or not (np.abs(column) <= _MAX_MOMENT_S).all() for column in times)
        or ((end < start) | (start < 0)).any()
    ):
        raise InputError("damaged-file", "the timeline does not fit the program", where=str(path))
    timeline = Timeline(graph, ready, start, end, end_before, fields_["step_time_s"], fields_["steps_run"], notes)
    return timeline, fields_["attached"]


def _read_header(text: bytes, path: AnyFile) -> Any:
    """Returns the value of the header, which is JSON."""
    # A list of nothing is three bytes in the file and takes 64 in memory.
    check_limit(text.count(b"[") + text.count(b"{"), _MAX_LISTS, "lists and objects in the header", str(path))
    return read_json(text, f"{path}: header")


def _read_classes(of_rank: Column, ops: Ops, path: str) -> RankClasses:
    """Returns the classes of ranks; raises an error unless ranks of one class run the same ops and meet the same."""
    role_of = ops.program.role_of
    if len(of_rank) == len(role_of) and not len(of_rank):
        return classes_of(of_rank.astype(np.int64))
    fits = len(of_rank) == len(role_of) and of_rank.min() >= 0 and of_rank.max() < len(of_rank)
    if fits:
        classes = classes_of(of_rank.astype(np.int64))
        rows = [rows for groups in members_met(ops).values() for rows in groups]
        fits = len(classes) == int(of_rank.max()) + 1 and (role_of == role_of[classes.representative][of_rank]).all()
        if fits and len(coarsest(of_rank.astype(np.int64), rows)) == len(classes):
            return classes
    raise InputError("damaged-file", "the rank classes do not fit the program", where=path)


def _write(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, Column]) -> None:
    # Ports and coordinates may be numpy's whole numbers, which JSON does not know.
    text = json.dumps(header, separators=(",", ":"), default=index)
    write_file(Path(path), text.encode("ascii"), arrays)


def _checked(header: object, arrays: Mapping[str, Column], path: AnyFile) -> Program:
    _check_shapes(arrays, str(path))
    try:
        program = _program(header, arrays)
        check(program)
        check_kernels(program)
    except ForetraceError as error:
        raise located(error, str(path)) from None
    return program


def _arrays(program: Program) -> dict[str, Column]:
    """Every array of the program by the name of its section."""
    numbers = {name: number for number, name in enumerate(_override_columns(program))}
    overridden = [numbers[name] for name in program.instances.override_column]
    arrays: dict[str, Column] = {
        "role_of": program.role_of,
        "placements.override_column": np.array(overridden, dtype=np.int16),
        **_joined("communicators.group", (communicator.groups for communicator in program.communicators)),
        **_joined("resources.instance", (resource.instances for resource in program.resources)),
        **{f"templates.{name}": values for name, values in program.templates.columns.items()},
    }
    for part in ("templates", "instances", "links", "resident"):
        for field in fields(getattr(program, part)):
            section = written_name(f"{part}.{field.name}")
            if section in SECTIONS:
                arrays.setdefault(section, getattr(getattr(program, part), field.name))
    return arrays


def _joined(section: str, owners: Iterable[Groups | None]) -> dict[str, Column]:
    """All groups of all owners, one after the other, as sizes and ranks; `_split` is the way back."""
    groups = [ranks for owned in owners for ranks in owned or ()]
    return {
        f"{section}_size": np.array([len(ranks) for ranks in groups], dtype=np.int32),
        f"{section}_rank": np.fromiter(chain.from_iterable(groups), dtype=np.int32),
    }


def _override_columns(program: Program) -> list[str]:
    return list(dict.fromkeys(program.instances.override_column))


def _check_shapes(arrays: Mapping[str, Column], path: str) -> None:
    """Raises an error unless these are the arrays of a program, as far as their types and lengths go."""
    if odd := sorted(arrays.keys() ^ SECTIONS.keys()):
        state = "missing" if odd[0] in SECTIONS else "not known"
        raise InputError(
            "invalid-program", f"{odd[0]} is {state}", where=path, hint=f"a program has {', '.join(SECTIONS)}"
        )
    for name, dtype in SECTIONS.items():
        if arrays[name].dtype != dtype or arrays[name].ndim != 1:
            raise InputError("invalid-program", f"{name} is not a column of {dtype}", where=path)
    for table in _TABLES:
        first = next(iter(table))
        for name in table:
            if len(arrays[name]) != len(arrays[first]):
                raise InputError(
                    "invalid-program",
                    f"{name} has {len(arrays[name])} rows, {first} has {len(arrays[first])}",
                    where=path,
                    hint="columns of one table are equally long",
                )


def _header(program: Program) -> dict[str, Any]:
    tokens = program.tokens_per_step
    return {
        "title": program.title,
        "mesh": str(program.mesh),
        "repeats": bool(program.repeats),
        "tokens_per_step": None if tokens is None else float(tokens),
        "lanes": [plain_fields(lane) for lane in program.lanes],
        "communicators": [
            plain_fields(communicator) | {"groups": _count(communicator.groups)}
            for communicator in program.communicators
        ],
        "resources": [
            {
                "name": resource.name,
                "capacity_per_s": float(resource.capacity_per_s),
                "instances": _count(resource.instances),
            }
            | ({} if resource.capacities is None else {"capacities": [float(value) for value in resource.capacities]})
            for resource in program.resources
        ],
        "sources": [{"name": s.name, "low": float(s.low), "high": float(s.high)} for s in program.sources],
        "strings": list(program.strings),
        "blocks": [plain_fields(block) for block in program.blocks],
        "roles": list(program.roles),
        "override_columns": _override_columns(program),
        "diagnostics": [plain_fields(diagnostic) for diagnostic in program.diagnostics],
    }


def _count(groups: Groups | None) -> int | None:
    return None if groups is None else len(groups)


def _program(header: object, arrays: Mapping[str, Column]) -> Program:
    given = _fields(header, "header", **_HEADER)
    return Program(
        title=given["title"],
        mesh=Mesh.parse(given["mesh"], where="header, mesh"),
        lanes=tuple(_lane(lane, f"header, lane {i}") for i, lane in enumerate(given["lanes"])),
        communicators=_communicators(given["communicators"], arrays),
        resources=_resources(given["resources"], arrays),
        sources=tuple(_source(source, f"header, source {i}") for i, source in enumerate(given["sources"])),
        strings=_items(given["strings"], "header, strings", str),
        blocks=tuple(_block(block, f"header, block {i}") for i, block in enumerate(given["blocks"])),
        roles=_items(given["roles"], "header, roles", str),
        role_of=arrays["role_of"],
        templates=Templates(
            columns={name: arrays[f"templates.{name}"] for name in COLUMNS},
            **_part(Templates, "templates", arrays),
        ),
        instances=_instances(_items(given["override_columns"], "header, override_columns", str), arrays),
        links=Links(**_part(Links, "links", arrays)),
        resident=Resident(**_part(Resident, "resident", arrays)),
        repeats=given["repeats"],
        tokens_per_step=given["tokens_per_step"],
        diagnostics=tuple(
            _diagnostic(value, f"header, diagnostic {i}") for i, value in enumerate(given["diagnostics"])
        ),
    )


def _part(kind: type, part: str, arrays: Mapping[str, Column]) -> dict[str, Any]:
    """Returns the arrays of one part of a program, by the names of its fields."""
    sections = {field.name: f"{part}.{written_name(field.name)}" for field in fields(kind)}
    return {name: arrays[section] for name, section in sections.items() if section in arrays}


def _lane(value: object, place: str) -> Lane:
    lane = Lane(**_fields(value, place, name=(str,), kind=(str,)))
    if lane.kind not in get_args(LaneKind):
        known = ", ".join(get_args(LaneKind))
        raise InputError(
            "unknown-name",
            f"lane kind {quoted(lane.kind)} is not known",
            where=place,
            hint=f"known: {known}",
        )
    return lane


def _source(value: object, place: str) -> Source:
    return Source(**_fields(value, place, name=(str,), low=(float,), high=(float,)))


def _diagnostic(value: object, place: str) -> Diagnostic:
    coded = {"code": "odd-input"} | value if isinstance(value, dict) else value  # older files have no codes
    diagnostic = Diagnostic(**_fields(coded, place, level=(str,), code=(str,), message=(str,), where=(str, _NOTHING)))
    if diagnostic.level not in ("note", "warning"):
        raise InputError(
            "unknown-name",
            f"level {quoted(diagnostic.level)} is not known",
            where=place,
            hint="known: note, warning",
        )
    return diagnostic


def _block(value: object, place: str) -> BlockInfo:
    block = BlockInfo(**_fields(value, place, name=(str,), ports=(dict,)))
    _items(list(block.ports.values()), f"{place}, ports", int)
    return block


def _communicators(values: list[object], arrays: Mapping[str, Column]) -> tuple[Communicator, ...]:
    rows = [_communicator(value, f"header, communicator {i}") for i, value in enumerate(values)]
    groups = _split([row["groups"] for row in rows], "communicators.group", arrays)
    return tuple(Communicator(**row | {"groups": mine}) for row, mine in zip(rows, groups, strict=True))


def _communicator(value: object, place: str) -> dict[str, Any]:
    """The fields of a communicator, its groups still as their number."""
    row = _fields(value, place, name=(str,), axis=(str,), axes=(list,), pair=_LIST, groups=_COUNT)
    row["axes"] = _items(row["axes"], f"{place}, axes", str)
    if row["pair"] is not None:
        row["pair"] = _items(row["pair"], f"{place}, pair", int)
        if len(row["pair"]) != 2 or len(row["axes"]) != 1:
            raise InputError("invalid-program", "a pair is two coordinates on one axis", where=place)
    if row["groups"] == 0:
        raise InputError("invalid-program", "a communicator has at least one group", where=place)
    return row


def _resources(values: list[object], arrays: Mapping[str, Column]) -> tuple[Resource, ...]:
    rows = [_resource(value, f"header, resource {i}") for i, value in enumerate(values)]
    shared = _split([row["instances"] for row in rows], "resources.instance", arrays)
    return tuple(Resource(**row | {"instances": ranks}) for row, ranks in zip(rows, shared, strict=True))


def _resource(value: object, place: str) -> dict[str, Any]:
    """The fields of a resource, its instances still as their number; `capacities` is there where they differ."""
    kinds: dict[str, tuple[type, ...]] = {"name": (str,), "capacity_per_s": (float,), "instances": _COUNT}
    if isinstance(value, dict) and "capacities" in value:
        kinds["capacities"] = (list,)
    row = _fields(value, place, **kinds)
    own = row.get("capacities")
    return row | {"capacities": None if own is None else _items(own, f"{place}, capacities", float)}


def _split(counts: list[int | None], section: str, arrays: Mapping[str, Column]) -> list[Groups | None]:
    """The groups of each owner, of which there are as many as the header says; None where it says none."""
    sizes, ranks = arrays[f"{section}_size"], arrays[f"{section}_rank"].tolist()
    given = [count or 0 for count in counts]
    if min(given, default=0) < 0 or sum(given) != len(sizes):
        raise InputError(
            "invalid-program",
            f'section "{section}_size" has {len(sizes)} groups',
            hint=f"the header names {sum(given)}",
        )
    if (sizes < 0).any() or int(sizes.sum(dtype=np.int64)) != len(ranks):
        raise InputError(
            "invalid-program", f'section "{section}_rank" does not have the ranks that {section}_size counts'
        )
    groups = [tuple(ranks[a:b]) for a, b in pairwise(accumulate(sizes.tolist(), initial=0))]
    owned = [tuple(groups[a:b]) for a, b in pairwise(accumulate(given, initial=0))]
    return [None if count is None else mine for count, mine in zip(counts, owned, strict=True)]


def _instances(overrides: tuple[str, ...], arrays: Mapping[str, Column]) -> Instances:
    numbers = arrays["placements.override_column"]
    if ((numbers < 0) | (numbers >= len(overrides))).any():
        raise InputError(
            "invalid-program", 'section "placements.override_column" names a column that the header does not'
        )
    columns = tuple(overrides[number] for number in numbers.tolist())
    return Instances(**_part(Instances, "placements", arrays) | {"override_column": columns})


def _fields(value: object, place: str, **kinds: tuple[type, ...]) -> dict[str, Any]:
    """The fields of a JSON object: all that are asked for, no others, each of one of its types."""
    if not isinstance(value, dict):
        raise InputError(
            "bad-value", "this is not an object", where=place, hint=f"expected the fields {', '.join(kinds)}"
        )
    for name in value:
        if name not in kinds:
            raise InputError(
                "unknown-field", f"field {quoted(name)} is not known", where=place, hint=f"known: {', '.join(kinds)}"
            )
    for name, allowed in kinds.items():
        if name not in value:
            raise InputError("missing-field", f'field "{name}" is missing', where=place)
        # The exact type: to Python a bool is an int.
        if type(value[name]) not in allowed:
            expected = " or ".join(_JSON_NAMES[kind] for kind in allowed)
            raise InputError(
                "bad-value", f'field "{name}" is of the wrong type', where=place, hint=f"expected {expected}"
            )
        _check_number(value[name], name, place)
    return value


_JSON_NAMES: Final[dict[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number with a point",
    list: "a list",
    dict: "an object",
    _NOTHING: "null",
}


def _items(values: list[object], place: str, kind: type) -> tuple[Any, ...]:
    for at, value in enumerate(values):
        if type(value) is not kind:
            raise InputError(
                "bad-value", f"item {at} is of the wrong type", where=place, hint=f"expected {_JSON_NAMES[kind]}"
            )
        _check_number(value, f"item {at}", place)
    return tuple(values)


def _check_number(value: object, name: str, place: str) -> None:
    """Raises an error where a value is a number that is negative, not finite or too large; the header has none."""
    if type(value) is int:
        whole_field(name, value, place)
    elif type(value) is float:
        real_field(name, value, place)


def plain_fields(part: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by name, their values as they are."""
    return {field.name: getattr(part, field.name) for field in fields(part)}
