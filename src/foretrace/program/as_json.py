"""Writes a program as JSON, in words, for people and tests to read. Nothing reads it back; see `file` for that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any

import numpy as np

from foretrace.program.columns import Category, Collective, Kind, Phase, label
from foretrace.program.file import plain_fields, written_name
from foretrace.program.program import Program
from foretrace.program.sections import Column


def to_json(program: Program) -> dict[str, Any]:
    """Returns the program in words: an object for each op of the templates, instance, link and so on.

    Blocks, roles, ops and instances are named by their number in their list; a duration of None is unpriced.
    """
    templates, instances = program.templates, program.instances
    described = ("lanes", "communicators", "resources", "sources", "blocks", "diagnostics")
    placed = {"block": instances.block.tolist(), "microbatch": instances.microbatch.tolist()}
    return {
        "title": program.title,
        "mesh": str(program.mesh),
        "repeats": program.repeats,
        "tokens_per_step": program.tokens_per_step,
        **{name: [plain_fields(item) for item in getattr(program, name)] for name in described},
        "roles": list(program.roles),
        "role_of": program.role_of.tolist(),
        "ops": _rows({"block": _owner(templates.start)} | _columns_in_words(program)),
        "dependencies": _rows(_table(templates, "dep_")),
        "memory": _rows(_table(templates, "memory_")),
        "sends": _rows(_table(templates, "send_")),
        "draws": _rows(_table(templates, "draw_")),
        "placements": _rows({"role": _owner(instances.start)} | placed),
        "overrides": _rows(_table(instances, "override_")),
        "links": _rows(_table(program.links)),
        "resident": _rows(_table(program.resident)),
    }


def _table(part: Any, prefix: str = "") -> dict[str, list[Any]]:
    """Returns the arrays of a part whose names begin with the prefix, by the rest of their names."""
    names = [field.name for field in fields(part) if field.name.startswith(prefix)]
    table = {written_name(name.removeprefix(prefix)): np.asarray(getattr(part, name)).tolist() for name in names}
    return table | ({"category": _words(table["category"], Category)} if "category" in table else {})


def _owner(start: Column) -> list[int]:
    """Returns the block or role that each row belongs to."""
    owners: list[int] = np.repeat(np.arange(len(start) - 1), np.diff(start)).tolist()
    return owners


def _columns_in_words(program: Program) -> dict[str, list[Any]]:
    columns = {name: values.tolist() for name, values in program.templates.columns.items()}
    for name, kind in (("kind", Kind), ("phase", Phase), ("collective", Collective)):
        columns[name] = _words(columns[name], kind)
    tables: dict[str, Iterable[str]] = {
        "lane": (lane.name for lane in program.lanes),
        "name": program.strings,
        "kernel": program.strings,
        "dtype": program.strings,
        "communicator": (communicator.name for communicator in program.communicators),
        "source": (source.name for source in program.sources),
    }
    for name, table in tables.items():
        known = [*table, None]
        columns[name] = [known[number] for number in columns[name]]
    columns["duration_s"] = [None if math.isnan(value) else value for value in columns["duration_s"]]
    return columns


def _words(numbers: Iterable[int], kind: type[IntEnum]) -> list[str]:
    words = [label(member) for member in kind]
    return [words[number] for number in numbers]


def _rows(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
