"""Checks the arguments of public functions and the fields of public classes against their annotations.

Python does not look at annotations, and a wrong type is then an AttributeError somewhere below. `checked` makes a
function refuse it with an `InputError` that names the argument, `checked_calls` the methods of a class, and
`check_fields` a dataclass. Methods that may be called a million times are checked only after they have failed
(`checked_methods`). Ranges are checked where values are used.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Callable as CallableType
from dataclasses import fields
from importlib import import_module
from io import IOBase
from itertools import islice
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from foretrace.basics.errors import InputError, did_you_mean, shown_value

_MAX_ITEMS: Final = 1000
"""Items of a sequence or mapping that are checked; later ones fail where they are used."""
_MAX_BITS: Final = 256
"""Bits of a whole number: counts of atoms have fewer."""

_INDENTED_IMPORT: Final = re.compile(r"^ +from (\S+) import (?:\(([^)]*)\)|([^\n(]*))", re.MULTILINE)
"""An import below `if TYPE_CHECKING`: the module, and its names in parentheses or on one line."""

Matcher = Callable[[Any], bool]
Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type)


def checked(function: Function) -> Function:
    """Returns a function that refuses arguments of other types than its annotations state."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _check_bound(function, signature.bind(*args, **kwargs))  # a missing argument is a TypeError, as elsewhere
        return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def checked_methods(kind: Kind) -> Kind:
    """Makes the public methods of a class report arguments of other types than their annotations state.

    A method that fails raises an `InputError` where an argument is wrong, and its own error otherwise.
    """
    return _with_methods(kind, _reporting)


def checked_calls(kind: Kind) -> Kind:
    """Makes the public methods of a class refuse arguments of other types than their annotations state."""
    return _with_methods(kind, checked)


def _with_methods(kind: Kind, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Kind:
    """Returns a class with its public methods wrapped."""
    for name, attribute in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(attribute):
            setattr(kind, name, wrapped(attribute))
        elif not name.startswith("_") and isinstance(attribute, classmethod):
            setattr(kind, name, classmethod(wrapped(attribute.__func__)))
    return kind


def _reporting(function: Callable[..., Any]) -> Callable[..., Any]:
    if not function.__annotations__.keys() - {"return"}:
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError):
            try:
                bound = inspect.signature(function).bind(*args, **kwargs)
            except TypeError:  # a missing argument
                bound = None
            if bound is not None:
                _check_bound(function, bound)
            raise

    return wrapper


def _check_bound(function: Callable[..., Any], bound: inspect.BoundArguments) -> None:
    """Raises an error where an argument does not have the type that its annotation states."""
    annotations = _annotations(function)
    for name, value in bound.arguments.items():
        if name not in annotations:
            continue
        kind = bound.signature.parameters[name].kind
        values = value.values() if kind is kind.VAR_KEYWORD else value if kind is kind.VAR_POSITIONAL else (value,)
        for item in values:
            _check_value(function, name, item, function.__qualname__.removesuffix(".__init__"))


def check_fields(instance: Any) -> None:
    """Raises an error where a field of a dataclass does not have the type that its annotation states."""
    kind: Any = type(instance)
    for name in _annotations(kind):
        _check_value(kind, name, getattr(instance, name), kind.__name__)


def _check_value(owner: Any, name: str, value: object, where: str) -> None:
    """Raises an error where an argument or a field does not have the type that its annotation states."""
    if value is None and _may_be_none(_annotations(owner)[name]):
        return  # nothing is imported to know what else it could be
    matches = _matcher_of(owner, name)
    if not matches(value):
        raise _refusal(where, name, _expected(owner, name), value) from None


def _refusal(owner: str, name: str, annotation: str, value: object) -> InputError:
    """Returns the error for a wrong argument; a number is out of range, and a word of a few is an unknown name."""
    code, near = "bad-value", ""
    if isinstance(value, Real) and not isinstance(value, bool) and re.search(r"\b(int|float)\b", annotation):
        code = "out-of-range"
    elif isinstance(value, str) and annotation.startswith("one of"):
        code, near = "unknown-name", did_you_mean(value, annotation.removeprefix("one of ").split(", "))
    return InputError(code, f"{name} is {shown_value(value)}{near}", where=owner, hint=f"expected {annotation}")


@functools.cache
def _annotations(owner: Any) -> dict[str, Any]:
    """Returns the annotations of the arguments of a function, or of the fields of a dataclass, by name."""
    if isinstance(owner, type):
        return {field.name: field.type for field in fields(owner) if field.init}
    return {name: annotation for name, annotation in owner.__annotations__.items() if name != "return"}


def _may_be_none(annotation: Any) -> bool:
    return isinstance(annotation, str) and annotation.endswith("| None")


@functools.cache
def _type_of(owner: Any, name: str) -> Any:
    """Returns the type that an annotation states; `Any` where a name in it is not known."""
    annotation = _annotations(owner)[name]
    try:
        return eval(annotation, {}, _names(owner.__module__)) if isinstance(annotation, str) else annotation
    except NameError:
        return Any


@functools.cache
def _matcher_of(owner: Any, name: str) -> Matcher:
    return _matcher(_type_of(owner, name))


def _expected(owner: Any, name: str) -> str:
    """Returns an annotation as errors show it: its words where it lists some."""
    kind = _type_of(owner, name)
    words = [word for part in (kind, *get_args(kind)) if get_origin(part) is Literal for word in get_args(part)]
    return f"one of {', '.join(map(str, words))}" if words else str(_annotations(owner)[name])


class _Names(dict[str, Any]):
    """The names that annotations of a module refer to; it may import some of them for type checkers only."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(vars(module))
        self._homes: dict[str, str] = {}
        for home, *names in _INDENTED_IMPORT.findall(inspect.getsource(module)):
            self._homes |= dict.fromkeys(re.findall(r"\w+", "".join(names)), home)

    def __missing__(self, name: str) -> Any:
        return getattr(import_module(self._homes[name]), name)


@functools.cache
def _names(module: str) -> _Names:
    return _Names(sys.modules[module])


def _matcher(kind: Any) -> Matcher:
    """Returns a function that says whether a value is of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        parts = [_matcher(part) for part in arguments]
        return lambda value: any(matches(value) for matches in parts)
    if origin is Literal:
        return lambda value: isinstance(value, str | int) and value in arguments
    if origin is Collection or (
        isinstance(origin, type) and issubclass(origin, tuple | list | set | frozenset | Sequence)
    ):
        return _items_matcher(origin, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        matches_key, matches_item = map(_matcher, arguments)
        return lambda value: (
            isinstance(value, origin)
            and all(matches_key(key) and matches_item(item) for key, item in islice(value.items(), _MAX_ITEMS))
        )
    if origin is np.ndarray:
        return _array_matcher(arguments[-1])
    if origin is CallableType:
        return callable
    if origin is Iterable:
        return _iterable_matcher(_matcher(arguments[0]))
    plain = origin or kind
    if plain is Any or plain is object:
        return _anything
    if plain is None or plain is type(None):
        return lambda value: value is None
    if not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
        return _anything
    return _plain_matcher(plain)


def _plain_matcher(kind: type) -> Matcher:
    if kind is float:
        return lambda value: isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)
    if kind is int:
        return lambda value: (
            isinstance(value, Integral) and not isinstance(value, bool) and int(value).bit_length() <= _MAX_BITS
        )
    return lambda value: isinstance(value, kind)


def _items_matcher(origin: Any, arguments: tuple[Any, ...]) -> Matcher:
    if origin is tuple and Ellipsis not in arguments:
        parts = [_matcher(part) for part in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(matches(item) for matches, item in zip(parts, value, strict=True))
        )
    matches_item = _matcher(arguments[0])
    return lambda value: (
        isinstance(value, origin)
        and not isinstance(value, str | bytes)
        and all(map(matches_item, islice(value, _MAX_ITEMS)))
    )


def _iterable_matcher(item: Matcher) -> Matcher:
    """Returns a matcher of iterables; those that can be gone through only once are for those who do."""

    def matches(value: Any) -> bool:
        if isinstance(value, str | bytes | IOBase) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
            return False
        return isinstance(value, Iterator) or all(map(item, islice(value, _MAX_ITEMS)))

    return matches


def _array_matcher(dtype: Any) -> Matcher:
    """Returns a matcher of arrays whose numbers have the kind that an annotation such as `NDArray[np.int32]` states."""
    scalar = get_args(dtype)[0] if get_args(dtype) else None
    is_number = isinstance(scalar, type) and issubclass(scalar, np.number)
    kinds = {"i": "iu", "u": "iu", "f": "iuf"}.get(np.dtype(scalar).kind) if is_number else None
    return lambda value: isinstance(value, np.ndarray) and (kinds is None or value.dtype.kind in kinds)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _anything(_: Any) -> bool:
    return True
