"""Codes: the page lists them, the source uses each of them, and it uses no others."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import foretrace
from foretrace.basics import errors
from foretrace.basics.codes import CODES, EXIT_CODES, SECTIONS, codes_page
from shared_files import ROOT

SOURCE = Path(foretrace.__file__).parent
ROOMS = sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")} - {"codes.py"})

ERRORS = {"ForetraceError", "UsageError", "InputError", "InfeasibleError", "DeadlockError", "DefectError"}


def test_the_page_is_written_from_the_codes() -> None:
    page = (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8")
    assert page == codes_page(), "run python -m foretrace.basics.codes > docs/diagnostics.md"
    assert dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", page, re.MULTILINE)) == CODES


def test_a_code_is_in_one_section() -> None:
    assert sum(len(codes) for codes in SECTIONS.values()) == len(CODES)


@pytest.mark.parametrize("code", CODES)
def test_form(code: str) -> None:
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", code)
    assert re.fullmatch(r"[A-Z][^|\n]*[^.]\.", CODES[code])


def test_meanings_differ() -> None:
    assert len(set(CODES.values())) == len(CODES)


def test_exit_codes_are_those_of_the_errors() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert {kind.__name__ for kind in kinds} == ERRORS
    assert {kind.exit_code for kind in kinds} == EXIT_CODES.keys() - {0, 129, 130, 141, 143}


def test_an_error_of_a_worker_process_arrives_whole() -> None:
    sent = errors.UsageError("usage", "what?", where="--here", hint="that")
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is errors.UsageError
    assert vars(arrived) == vars(sent)


def test_every_code_is_used() -> None:
    used = {node.value for room in ROOMS for _, node in nodes(room) if isinstance(node, ast.Constant)}
    assert not CODES.keys() - used


@pytest.mark.parametrize("room", ROOMS)
def test_every_code_in_the_source_is_known(room: str) -> None:
    assert [found for found in stated_codes(room) if found[1] not in CODES] == []


@cache
def nodes(room: str) -> list[tuple[str, ast.AST]]:
    """Returns the nodes of every file of a room, with the file they are in."""
    path = SOURCE / room
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    trees = [(str(file.relative_to(SOURCE)), ast.parse(file.read_text(encoding="utf-8"))) for file in files]
    return [(file, node) for file, tree in trees for node in ast.walk(tree)]


def stated_codes(room: str) -> Iterator[tuple[str, str]]:
    """Yields where a code is stated, and the text in its place.

    That is the first argument of an error, the second of a diagnostic, an argument named `code` of a function of the
    same file, its default, and a `code` that something is compared with.
    """
    helpers = {
        (file, node.name): code_position(node) for file, node in nodes(room) if isinstance(node, ast.FunctionDef)
    }
    for file, node in nodes(room):
        for place in code_places(node, lambda name, file=file: helpers.get((file, name))):
            for text in texts_of(place):
                yield f"{file}:{place.lineno}", text


def code_position(function: ast.FunctionDef) -> int | None:
    """Returns which positional argument of a function is its `code`, not counting `self`."""
    names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    return names.index("code") if "code" in names else None


def code_places(node: ast.AST, position_of: Callable[[str], int | None]) -> Iterator[ast.expr]:
    """Yields the expressions of a node that are codes; `position_of` tells it of a function."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        number = 0 if name in ERRORS else 1 if name == "Diagnostic" else position_of(name)
        if number is not None:
            yield from node.args[number : number + 1]
        yield from (one.value for one in node.keywords if one.arg == "code")
    elif isinstance(node, ast.arguments):
        arguments = [*node.posonlyargs, *node.args]
        defaults = zip(arguments[len(arguments) - len(node.defaults) :], node.defaults, strict=True)
        for argument, default in (*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
            if argument.arg == "code" and default is not None:
                yield default
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "code":
        yield from node.comparators


def texts_of(place: ast.expr) -> Iterator[str]:
    """Yields the texts that an expression may be; nothing where it passes on what it was given."""
    if isinstance(place, ast.Constant) and isinstance(place.value, str):
        yield place.value
    elif isinstance(place, ast.JoinedStr):
        yield ast.unparse(place)
    elif isinstance(place, ast.IfExp):
        yield from (*texts_of(place.body), *texts_of(place.orelse))
    elif isinstance(place, ast.Tuple | ast.Set | ast.List):
        for element in place.elts:
            yield from texts_of(element)
