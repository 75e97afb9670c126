"""Searches the package for regular expressions that take more than linear time on hostile text.

Usage: `python tools/redos.py [ROOM …]`, for example `python tools/redos.py inputs.aicb cost`. Every pattern that a
module holds, and every literal pattern in a call of `re`, is run on texts made from its own parts: the beginning of a
match, one repeated part, and an end that does not match. Sizes grow until a run takes long; the growth of the last ones
tells the exponent. Prints the patterns that would take long on 64 kB, and exits with 1 where there are any.
"""

from __future__ import annotations

import ast
import importlib
import math
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import foretrace

LONG_BYTES = 1 << 16
MAX_SECONDS = 0.5
"""The time that a pattern may take on `LONG_BYTES`: a reader does little else with a line of that length."""

_ENOUGH_S = 0.01
_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
_SIZES = (16, 20, 24, 28, 32, 48, 64, *(1 << power for power in range(7, 17)))
_MAX_PARTS = 24
_MISMATCHES = ("", "\0", "\n", " !")

BOUNDED: dict[str, str] = {
    "foretrace.inputs.profiler_trace.job.axes:_DESCRIPTIONS": "run on 200 characters of a description",
    "foretrace.inputs.torch_ops.ranges:_WHOLE": "matched from the beginning of a name only",
    "foretrace.report.profiler_trace.kernel_names:_WHAT": "run on 4,000 characters of a name",
    "foretrace.inputs.torch_ops.fused_attention:_CAUSAL_KERNEL": "run on 4,000 characters of a name",
    "foretrace.validate.models:_MTP": "names of models in training runs have at most 200 characters",
    "foretrace.validate.models:_REMARK": "names of models in training runs have at most 200 characters",
    "foretrace.validate.models:_LAYERS_LEFT": "names of models in training runs have at most 200 characters",
}
"""Patterns that are never run on long text, with the reason."""


@dataclass(frozen=True)
class Subject:
    """Holds a pattern, its name, and the methods by which the package uses it."""

    name: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]


def subjects(rooms: list[str]) -> Iterator[Subject]:
    """Yields the patterns of all modules, or of those in these rooms, each once."""
    seen: set[tuple[Any, int, str]] = set()
    for info in pkgutil.walk_packages(foretrace.__path__, "foretrace."):
        if info.name.endswith("__main__") or (rooms and not any(f"foretrace.{room}" in info.name for room in rooms)):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError as error:
            print(f"{info.name} is not looked at: {error}", file=sys.stderr)
            continue
        source = Path(module.__file__ or "").read_text()
        for name, pattern, methods in (*_held(module, source), *_literal(source)):
            key = (pattern.pattern, pattern.flags, info.name)
            if key not in seen and f"{info.name}:{name}" not in BOUNDED:
                seen.add(key)
                yield Subject(f"{info.name}:{name}", pattern, methods)


def _held(module: Any, source: str) -> Iterator[tuple[str, re.Pattern[Any], tuple[str, ...]]]:
    """Yields the patterns in a module's variables, also in tuples and dictionaries."""
    anywhere = tuple(method for method in _METHODS[:-2] if re.search(rf"\b(?!re\b)\w+\.{method}\(", source))
    for name, value in vars(module).items():
        # A pattern that was imported is looked at where it is defined.
        if not re.search(rf"^\s*{re.escape(name)}\b[^=\n]*=", source, re.MULTILINE):
            continue
        methods = tuple(method for method in _METHODS if re.search(rf"\b{re.escape(name)}\.{method}\b", source))
        for pattern in _patterns(value):
            yield name, pattern, methods or anywhere or ("search",)


def _patterns(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict) and depth < 4:
        for part in (*value, *value.values()):
            yield from _patterns(part, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth < 4:
        for part in value:
            yield from _patterns(part, depth + 1)
    elif hasattr(type(value), "__dataclass_fields__") and depth < 4:
        for field in type(value).__dataclass_fields__:
            yield from _patterns(getattr(value, field, None), depth + 1)


def _literal(source: str) -> Iterator[tuple[str, re.Pattern[Any], tuple[str, ...]]]:
    """Yields the patterns that calls such as `re.sub("…", …)` give as text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            function, text = node.func, node.args[0]
            of_re = isinstance(function.value, ast.Name) and function.value.id == "re"
            if of_re and function.attr in _METHODS and isinstance(text, ast.Constant):
                yield f"line {node.lineno}", re.compile(text.value), (function.attr,)


def attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yields (beginning, repeated part, end) made from the parts of a pattern."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    characters = list(dict.fromkeys(_characters(tree)))[:_MAX_PARTS]
    pumps = [("", character) for character in characters]
    pumps += [("", first + second) for first in characters[:6] for second in characters[:6] if first != second]
    pumps += [(before, part) for before, body in _repeats(tree, "") for part in _samples(body)]
    whole = next(iter(_samples(tree)), "")
    pumps += [("", whole), ("", whole[:-1])]
    for before, part in dict.fromkeys(pumps):
        if part:
            for end in _MISMATCHES:
                yield before, part, end


def _characters(tree: Any) -> Iterator[str]:
    for code, argument in tree:
        if code in (codes.LITERAL, codes.NOT_LITERAL):
            yield chr(argument) if code is codes.LITERAL else "~"
        elif code is codes.IN:
            yield from _of_set(argument)
        elif code is codes.ANY:
            yield from "a "
        else:
            for part in _parts(code, argument):
                yield from _characters(part)


def _parts(code: Any, argument: Any) -> list[Any]:
    """Returns the patterns within one node."""
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return [argument[2]]
    if code is codes.BRANCH:
        return list(argument[1])
    if code is codes.SUBPATTERN:
        return [argument[3]]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [argument[1]]
    return [argument] if code is codes.ATOMIC_GROUP else []


def _of_set(items: Any) -> list[str]:
    """Returns characters that a set such as [a-z_] has."""
    kinds = {codes.CATEGORY_DIGIT: "0", codes.CATEGORY_SPACE: " \n", codes.CATEGORY_WORD: "a0_"}
    if items[0][0] is codes.NEGATE:
        excluded = {character for item in items[1:] for character in _of_set([item])}
        return [character for character in "a0 ~\"'=,:;-_/" if character not in excluded][:3]
    characters: list[str] = []
    for code, argument in items:
        if code is codes.LITERAL:
            characters.append(chr(argument))
        elif code is codes.RANGE:
            characters.append(chr(argument[0]))
        elif code is codes.CATEGORY:
            characters += kinds.get(argument, "a ")
    return characters


def _samples(tree: Any) -> list[str]:
    """Returns a few texts that match a pattern: the shortest, with each alternative and repeated parts once."""
    texts = [""]
    for code, argument in tree:
        options: list[str] = [""]
        if code is codes.LITERAL:
            options = [chr(argument)]
        elif code is codes.NOT_LITERAL:
            options = ["~"]
        elif code is codes.ANY:
            options = ["a", " "]
        elif code is codes.IN:
            options = _of_set(argument) or ["a"]
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            options = [part * max(argument[0], 1) for part in _samples(argument[2])]
            options += [""] if argument[0] == 0 else []
        elif code in (codes.BRANCH, codes.SUBPATTERN, codes.ATOMIC_GROUP):
            options = [text for part in _parts(code, argument) for text in _samples(part)] or [""]
        texts = [text + option for text in texts[:4] for option in options[:4]][:8]
    return texts


def _repeats(tree: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yields every part that may be repeated often, with a text that matches what stands before it."""
    for at, (code, argument) in enumerate(tree):
        here = before + next(iter(_samples(tree[:at])), "")
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT) and argument[1] > 8:
            yield here, argument[2]
            # Two repeats in a row of the same character divide it in many ways.
            yield "", argument[2]
        for part in _parts(code, argument):
            yield from _repeats(part, here)


def growth(run: Callable[[str], object], before: str, part: str, end: str) -> tuple[float, float]:
    """Returns the exponent by which time grows, and the seconds that `LONG_BYTES` take by it."""
    known: list[tuple[int, float]] = []
    for size in _SIZES:
        text = before + part * (size // len(part) + 1) + end
        seconds = _seconds(run, text)
        if seconds > _ENOUGH_S / 10:
            seconds = min(seconds, _seconds(run, text), _seconds(run, text))
        known.append((size, seconds))
        if seconds > _ENOUGH_S:
            break
    (small, less), (large, more) = known[-2:]
    if more < _ENOUGH_S / 10:
        return 1.0, more
    exponent = math.log(more / max(less, 1e-7)) / math.log(large / small)
    return exponent, more * (LONG_BYTES / large) ** min(exponent, 20.0)


def _seconds(run: Callable[[str], object], text: str) -> float:
    begin = time.process_time()
    run(text)
    return time.process_time() - begin


def worst(subject: Subject) -> tuple[float, float, str] | None:
    """Returns exponent, seconds and text of the attack that a pattern takes longest for; None where none is long."""
    most: tuple[float, float, str] | None = None
    is_bytes = isinstance(subject.pattern.pattern, bytes)
    for method in subject.methods:

        def run(text: str, method: str = method) -> object:
            data: Any = text.encode("utf-8", "replace") if is_bytes else text
            arguments = (data[:0], data) if method in ("sub", "subn") else (data,)
            result: Any = getattr(subject.pattern, method)(*arguments)
            return list(result) if method == "finditer" else result

        for before, part, end in dict.fromkeys(attacks(subject.pattern)):
            exponent, seconds = growth(run, before, part, end)
            if exponent > 1.4 and seconds > MAX_SECONDS and (most is None or seconds > most[1]):
                most = (exponent, seconds, f"{method} of {before!r} + {part!r} * n + {end!r}")
            if most is not None and most[1] > 1e3:
                return most
    return most


def main(rooms: list[str]) -> int:
    """Looks at all patterns and prints those that take long."""
    count = slow = 0
    for subject in subjects(rooms):
        count += 1
        attack = worst(subject)
        if attack is not None:
            slow += 1
            print(f"{subject.name}: n^{attack[0]:.1f}, {attack[1]:.3g} s for 64 kB: {attack[2]}", flush=True)
    print(f"{count} patterns, {slow} of them slow")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
