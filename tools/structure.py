"""Checks the rules of structure and naming that no linter knows, and prints the figures that they keep small.

    python tools/structure.py                    # one line per violation; exit code 1 if there is one
    python tools/structure.py --table [CHECKOUT]  # files, lines, collisions, and modules that each command imports

The rules are those of docs/design.md. The script needs nothing but the standard library.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MAX_MODULES: Final = 15
"""Modules in a folder, without its `__init__`."""
MIN_LINES: Final = 60
"""Lines of a module that only one other module imports."""

EXTENSION_POINTS: Final = {
    "report/generate.py": "holds the screen and JSON of one command, as others in report/ do; commands print nothing",
    "schedules/zero_bubble.py": "holds one family of schedules; a new family is a module like it",
}
"""Small modules with one importer that stay modules, and why."""

VAGUE_NAMES: Final = frozenset(("one", "ones", "found", "said", "taken", "alike", "seated", "met", "wanted"))
"""Pronouns and participles, which do not say what a variable holds."""
LIMIT_WORDS: Final = ("MOST", "LEAST", "LONGEST", "SHORTEST", "FEWEST")
"""Words for which limits are called `MAX_` or `MIN_` instead."""

COMMANDS: Final = {
    "AICB": "simulate examples/llama405b_1024gpu.txt --cluster h100-dgx",
    "ex situ": "simulate examples/traces/moe_ex_situ_rank2.txt --mesh pp=2,ep=8,dp=8 --pp-comm 8MiB"
    " --cluster a100-dgx --microbatches 8",
    "Kineto": "simulate benchmarks/truth/profiles/tinyllama_mbs1_s256.shapes.json.gz",
    "predict": "predict llama3-8b --gpus 32 --tp 2 --pp 4 --gbs 32 --cluster h100-dgx",
}
"""The commands whose imports are counted."""

_COUNT_IMPORTS: Final = """
import atexit, runpy, sys
def count():
    print("imported", sum(name.partition(".")[0] == "foretrace" for name in sys.modules), file=sys.stderr)
atexit.register(count)
runpy.run_module("foretrace", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Module:
    """A module of the package: its dotted name, its file, and its text as a tree."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The module's syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def bindings(self) -> list[tuple[str, int]]:
        """Every name that the module binds, with its line."""
        return list(_bindings(self.tree))

    @property
    def lines(self) -> int:
        """How many lines the file has."""
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        """Whether the module is the `__init__` of a folder."""
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """The dotted name of the folder that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def _bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((alias.asname, node.lineno) for alias in node.names if alias.asname)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno


class Package:
    """All modules under the `src/foretrace` of a checkout.

    Args:
        checkout: The root of the repository.
    """

    def __init__(self, checkout: Path = ROOT) -> None:
        self.root = checkout / "src" / "foretrace"
        self.modules = {module.name: module for module in self._read()}

    def _read(self) -> Iterator[Module]:
        for path in sorted(self.root.rglob("*.py")):
            parts = path.relative_to(self.root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Module(name, path, path.read_text(encoding="utf-8"))

    def place(self, module: Module) -> str:
        """Returns the path of a module within the package, such as `cost/machine.py`."""
        return module.path.relative_to(self.root).as_posix()

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """The modules that import each module, by dotted name; imports within functions count too."""
        importers: dict[str, set[str]] = defaultdict(set)
        for module in self.modules.values():
            for name in self._imports(module):
                if name != module.name:
                    importers[name].add(module.name)
        return importers

    def _imports(self, module: Module) -> Iterator[str]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(module, node)
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    yield from (target for target in [name if name in self.modules else base] if target in self.modules)

    @staticmethod
    def _base(module: Module, node: ast.ImportFrom) -> str:
        """Returns the absolute name of the module that an import is from."""
        if not node.level:
            return node.module or ""
        parents = module.package.split(".")
        return ".".join(parents[: len(parents) - node.level + 1] + ([node.module] if node.module else []))

    @cached_property
    def single_imports(self) -> dict[str, str]:
        """The modules that exactly one other module imports, each with that importer."""
        return {
            name: next(iter(self.importers[name]))
            for name, module in self.modules.items()
            if len(self.importers[name]) == 1 and not module.is_package
        }

    @cached_property
    def collisions(self) -> dict[str, list[str]]:
        """The names that several public classes have, each with the files of these classes."""
        homes: dict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(self.place(module))
        return {name: places for name, places in homes.items() if len(places) > 1}


def shared_class_names(package: Package) -> list[str]:
    """Lists the names that several public classes have."""
    return [f"class {name} is defined in {', '.join(places)}" for name, places in sorted(package.collisions.items())]


def small_modules(package: Package) -> list[str]:
    """Lists modules that belong in their only importer, and extension points that are not such modules any more."""
    violations, exceptions = [], dict(EXTENSION_POINTS)
    for name, importer in sorted(package.single_imports.items()):
        module = package.modules[name]
        place = package.place(module)
        if module.lines < MIN_LINES and exceptions.pop(place, None) is None:
            violations.append(f"{place}: {module.lines} lines, imported by {importer} alone: move it there")
    return violations + [f"{place}: listed as an extension point without need" for place in exceptions]


def large_folders(package: Package) -> list[str]:
    """Lists folders with many modules whose `__init__` docstring gives no reason."""
    counts: dict[Path, int] = defaultdict(int)
    reasons: dict[Path, str] = {}
    for module in package.modules.values():
        if module.is_package:
            reasons[module.path.parent] = ast.get_docstring(module.tree) or ""
        else:
            counts[module.path.parent] += 1
    return [
        f"{folder.relative_to(package.root).as_posix()}/: {count} modules; its docstring gives no reason (because …)"
        for folder, count in sorted(counts.items())
        if count > MAX_MODULES and "because" not in reasons.get(folder, "")
    ]


def vague_names(package: Package) -> list[str]:
    """Lists variables, parameters, attributes, functions and classes with a name that says nothing."""
    return [
        f"{package.place(module)}:{line}: {name} does not say what it holds"
        for module in package.modules.values()
        for name, line in module.bindings
        if name.strip("_").lower() in VAGUE_NAMES
    ]


def limit_names(package: Package) -> list[str]:
    """Lists constants that name a limit by a superlative."""
    return [
        f"{package.place(module)}:{line}: {name} is a limit: call it MAX_ or MIN_"
        for module in package.modules.values()
        for name, line in module.bindings
        if name.isupper() and name.lstrip("_").startswith(LIMIT_WORDS)
    ]


RULES: Final[dict[str, Callable[[Package], list[str]]]] = {
    "class-names": shared_class_names,
    "small-modules": small_modules,
    "large-folders": large_folders,
    "vague-names": vague_names,
    "limit-names": limit_names,
}
"""The rules by name; each returns its violations, one line each."""


def imported_modules(checkout: Path, command: str) -> int:
    """Counts the modules of the package that a command has imported when it ends.

    Raises:
        RuntimeError: The command failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    words = [sys.executable, "-c", _COUNT_IMPORTS, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=checkout)
    report = done.stderr.strip().rpartition("\n")[2].split()
    if done.returncode or report[:1] != ["imported"]:
        raise RuntimeError(f"foretrace {command} failed in {checkout}:\n{done.stderr}")
    return int(report[1])


def print_table(checkout: Path) -> None:
    """Prints the figures of a checkout: its size, its names, and what each of `COMMANDS` imports."""
    package = Package(checkout)
    rows = {
        "files": len(package.modules),
        "lines": sum(module.lines for module in package.modules.values()),
        "public class-name collisions": len(package.collisions),
        "modules with one importer": len(package.single_imports),
    }
    rows |= {f"modules imported: {name}": imported_modules(checkout, words) for name, words in COMMANDS.items()}
    for name, value in rows.items():
        print(f"{name:30}{value:>8,}")


def main(arguments: list[str]) -> int:
    """Runs the script and returns its exit code."""
    if arguments[:1] == ["--table"] and len(arguments) <= 2:
        print_table(Path(arguments[1]).resolve() if arguments[1:] else ROOT)
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    package = Package()
    violations = [violation for rule in RULES.values() for violation in rule(package)]
    print("\n".join(violations) or "structure: no violations")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
