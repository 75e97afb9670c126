"""Reads JSON with limits, and takes checked values out of its objects.

A `Record` is one object of a JSON file together with its place. Every field is checked when it is taken, so that a
number where text belongs, a missing field or a list nested a thousand times is an error that names the place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foretrace.basics.errors import InputError
from foretrace.basics.numbers import MAX_REAL, MAX_WHOLE, NumberError, real_field, whole_field

MAX_NESTING: Final = 200
"""Levels of lists and objects in JSON; real files have fewer than 20."""

MAX_DIM_NESTING: Final = 8
"""Levels of lists in the sizes of tensors: a list of lists of tensors has 3."""

_REQUIRED: Final = object()

Pairs = Callable[[list[tuple[str, Any]]], Any]
"""Makes a value of the keys and values of an object."""

Dims = tuple[Any, ...]
"""Sizes of a tensor, or of every tensor of a list."""


def read_json(data: str | bytes, where: str, hint: str | None = None, pairs: Pairs | None = None) -> Any:
    """Returns the value of JSON text.

    Args:
        data: The text, in UTF-8.
        where: The file, and the line where the text is one of many.
        hint: What errors say is expected.
        pairs: Makes the value of an object from its keys and values; None is a dictionary.

    Raises:
        InputError: The text is not JSON (`bad-syntax`), nested too deep (`too-deep`), or holds a number that is not
            finite or has thousands of digits (`out-of-range`).
    """
    if isinstance(data, bytes):
        data = data.decode("utf-8-sig", "replace")

    def refuse(word: str) -> float:
        raise NumberError("out-of-range", f"{word} is not a finite number")

    try:
        value = json.loads(data, parse_constant=refuse, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise InputError(
            "bad-syntax", f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}", hint=hint
        ) from None
    except RecursionError:
        raise _too_deep(where, hint) from None
    except NumberError as error:
        raise InputError(error.code, error.problem, where=where, hint=hint) from None
    except ValueError:  # Python's limit on the digits of a whole number
        raise InputError("out-of-range", "a number has thousands of digits", where=where, hint=hint) from None
    return check_nesting(value, where, hint)


def refuse_printed_answer(values: Mapping[str, Any], where: str) -> None:
    """Raises an error where an object of JSON is an answer that a command has printed, which cannot be opened again."""
    schema = values.get("schema")
    if isinstance(schema, str) and schema.startswith("foretrace."):
        hint = "--save OUT.answer writes an answer that can be opened"
        raise InputError("wrong-format", "this is an answer as it was printed (--json, -o)", where=where, hint=hint)


def check_nesting(value: Any, where: str, hint: str | None = None) -> Any:
    """Returns a value of JSON; raises an error where it is nested more than `MAX_NESTING` deep."""
    if _is_deep(value):
        raise _too_deep(where, hint)
    return value


def _too_deep(where: str, hint: str | None) -> InputError:
    return InputError("too-deep", f"lists and objects are nested more than {MAX_NESTING} deep", where=where, hint=hint)


def _is_deep(value: Any) -> bool:
    """Returns whether a value is nested more than `MAX_NESTING` deep."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        containers = [inner for inner in level if isinstance(inner, dict | list)]
        if not containers:
            return False
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return True


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a JSON file, whose fields are checked when they are taken.

    Every accessor raises an `InputError` that names the field and the place. A field without a `default` is required;
    `null` counts as missing.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, value: object, where: str, noun: str = "object") -> Record:
        """Returns a value as a record; raises an error unless it is an object. `noun` is what errors call it."""
        if not isinstance(value, dict):
            raise InputError("bad-value", f"expected {noun}, not {_kind(value)}", where=where)
        return cls(value, where)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def whole(self, name: str, default: Any = _REQUIRED, *, least: int = 0, most: int = MAX_WHOLE) -> int:
        """Returns a whole number from `least` to `most`."""
        value = self._value(name, default)
        return int(default) if value is default else whole_field(name, value, self.where, least=least, most=most)

    def real(self, name: str, default: Any = _REQUIRED, *, least: float = 0.0, most: float = MAX_REAL) -> float:
        """Returns a finite number from `least` to `most`."""
        value = self._value(name, default)
        return float(default) if value is default else real_field(name, value, self.where, least=least, most=most)

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Returns a text."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "text", value)
        return value

    def items(self, name: str, default: Any = _REQUIRED) -> Sequence[Any]:
        """Returns the items of a list."""
        value = self._value(name, default)
        if not isinstance(value, list | tuple):
            raise self._wrong(name, "a list", value)
        return value

    def record(self, name: str) -> Record:
        """Returns an object within this one."""
        value = self._value(name, _REQUIRED)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Record(value, f"{self.where}: {name}")

    def records(self, name: str) -> Iterator[Record]:
        """Returns the objects of a list."""
        for at, value in enumerate(self.items(name)):
            yield Record.of(value, f"{self.where}: {name}[{at}]")

    def dims(self, name: str, default: Any = _REQUIRED, *, least: int = 0) -> Dims:
        """Returns the sizes of a tensor, or of every tensor of a list."""
        return dims_of(self.items(name, default), name, self.where, least=least)

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise InputError("missing-field", f"field {name} is missing", where=self.where)
        return default

    def _wrong(self, name: str, expected: str, value: object) -> InputError:
        return InputError("bad-value", f"{name}: expected {expected}, not {_kind(value)}", where=self.where)


def dims_of(values: Sequence[Any], name: str, where: str, *, least: int = 0, _level: int = 1) -> Dims:
    """Returns nested lists of sizes as tuples; raises an error where one is not a whole number or too deep."""
    if _level > MAX_DIM_NESTING:
        raise InputError("too-deep", f"{name} is nested more than {MAX_DIM_NESTING} deep", where=where)
    sizes: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            sizes.append(dims_of(value, name, where, least=least, _level=_level + 1))
        else:
            sizes.append(whole_field(name, value, where, least=least))
    return tuple(sizes)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
