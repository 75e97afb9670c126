"""Rules of the code that no type checker knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shared_files import ROOT

SOURCE = ROOT / "src" / "foretrace"
MAX_PARAMETERS = 8
MIRRORS_COLUMNS = {"program/block.py:add"}
"""`BlockBuilder.add` has a parameter for every column of an op."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8"))


def public_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions that other modules can call: of the module and of its public classes, not those within functions."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            if not inner.name.startswith("_") or inner.name == "__init__":
                yield inner
        elif isinstance(inner, ast.ClassDef) and not inner.name.startswith("_"):
            yield from public_functions(inner)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    found = function.args
    named = [*found.posonlyargs, *found.args, *found.kwonlyargs]
    return len([one for one in named if one.arg not in ("self", "cls")])


def test_public_functions_have_few_parameters() -> None:
    many = {
        f"{name}:{function.name}": parameters(function)
        for name, tree in modules()
        if not name.startswith("cli/")
        for function in public_functions(tree)
        if parameters(function) > MAX_PARAMETERS
    }
    assert not many.keys() - MIRRORS_COLUMNS


def test_no_message_is_parsed() -> None:
    """A message is for people; code looks at the code of an error or a diagnostic."""
    parsing = [
        f"{name}:{node.lineno}"
        for name, tree in modules()
        if not name.startswith("schedules/")  # whose messages are sent between stages
        for node in ast.walk(tree)
        if (isinstance(node, ast.Compare) and any(is_message(one) for one in (node.left, *node.comparators)))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_message(node.func.value))
    ]
    assert parsing == []


def is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "message"
