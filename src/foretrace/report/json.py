"""Answers as JSON: one object, stable keys, SI units, numbers as numbers; `schema` says the version.

The shape of an answer is a dataclass, a record, with one field for every key. `to_json` is the only function that makes
the object; `read_record` and `with_properties` help where a record repeats what the answer itself holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from foretrace.basics.outputs import write_text
from foretrace.basics.plain import to_plain

_Record = TypeVar("_Record")


def to_json(schema: str, *parts: Any) -> dict[str, Any]:
    """Returns an answer as plain values: its schema, then the keys of each part, a dataclass or a mapping."""
    result: dict[str, Any] = {"schema": schema}
    for part in parts:
        result |= to_plain(part)
    return result


def read_record(kind: type[_Record], answer: object, **others: Any) -> _Record:
    """Builds a record: `others`, and for each other field the attribute of `answer` that has its name."""
    names = (field.name for field in fields(kind) if field.name not in others)  # type: ignore[arg-type]
    return kind(**{name: getattr(answer, name) for name in names}, **others)


def with_properties(value: Any, *names: str) -> dict[str, Any]:
    """Returns a dataclass as plain values: its fields, then the properties named."""
    return {**to_plain(value), **{name: to_plain(getattr(value, name)) for name in names}}


def json_text(result: Mapping[str, Any]) -> str:
    """Returns an answer as the text of a file."""
    return json.dumps(result, indent=1, allow_nan=False) + "\n"


def write_json(result: Mapping[str, Any], path: Path) -> None:
    """Writes an answer to a file."""
    write_text(path, json_text(result), "JSON file")
