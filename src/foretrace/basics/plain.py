"""Dataclasses as plain values (what JSON can hold) and back.

The keys are the names of the fields.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def to_plain(value: Any) -> Any:
    """Converts dataclasses to dicts, tuples and arrays to lists, enums and paths to text; other values stay."""
    if isinstance(value, Enum):  # before int and str, which some enums are
        return value.value if isinstance(value.value, str) else value.name.lower()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no plain form")


def _key(key: Any) -> str:
    return ":".join(map(str, key)) if isinstance(key, tuple) else str(key)


def from_plain(kind: Any, value: Any) -> Any:
    """Builds a value of type `kind` from its plain form; the opposite of `to_plain`.

    Raises:
        TypeError, ValueError, KeyError: The plain value does not have the form of `kind`.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and kind in (None, type(None))):
        return value
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is not one of {arguments}")
        return value
    if origin is tuple:
        inner = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(from_plain(item, part) for item, part in zip(inner, value, strict=True))
    if origin in (dict, Mapping):
        return {_key_of(arguments[0], key): from_plain(arguments[1], item) for key, item in value.items()}
    if origin in (list, frozenset):
        return origin(from_plain(arguments[0], item) for item in value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {field.name for field in fields(kind)}
        build: Any = kind
        return build(**{name: from_plain(hints[name], part) for name, part in value.items() if name in known})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {to_plain(member): member for member in kind}[value]
    if kind is float and isinstance(value, int | float):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise TypeError(f"{value!r} is not a {kind}")


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return from_plain(kind, value)
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
    raise TypeError(f"{value!r} is none of {kinds}")


def _key_of(kind: Any, text: str) -> Any:
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        parts = text.split(":", len(kinds) - 1)  # the last part may hold colons, such as "name:attention*"
        return tuple(map(_key_of, kinds, parts))
    return int(text) if kind is int else text
