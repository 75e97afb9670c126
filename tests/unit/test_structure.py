"""Rules of the code that no type checker knows."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shared_files import ROOT

SOURCE = ROOT / "src" / "foretrace"
MAX_PARAMETERS = 8
MIRRORS_COLUMNS = {"program/block.py:add"}
"""`BlockBuilder.add` has a parameter for every column of an op."""

SCRIPT = ROOT / "tools" / "structure.py"


def load_script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("structure", SCRIPT)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


structure = load_script()


@pytest.fixture(scope="module")
def package() -> object:
    return structure.Package()


@pytest.mark.parametrize("rule", structure.RULES)
def test_the_package_keeps(rule: str, package: object) -> None:
    violations = structure.RULES[rule](package)
    assert not violations, "\n".join([f"{len(violations)} violations", *violations])


def test_the_modules_that_a_folder_names_are_in_it() -> None:
    """A reader follows the names in the docstring of an `__init__`."""
    missing = []
    for path in sorted((ROOT / "src" / "foretrace").rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        named = re.findall(r"`([a-z_]+\.py)`", text)
        missing += [
            f"{path}: {name}"
            for name in named
            if not any((near / name).exists() for near in (path.parent, path.parents[1]))
        ]
    assert not missing


class TestTheRules:
    """Each rule finds what breaks it, in a package that breaks all of them."""

    @pytest.fixture
    def broken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
        files = {
            "__init__.py": "",
            "room/__init__.py": '"""A room."""',
            "room/first.py": "from foretrace.room import small\nclass Thing: ...\nMOST_RANKS = 8\n",
            "room/second.py": "class Thing: ...\nclass _Own: ...\ndef size(one): return [found for found in one]\n",
            "room/third.py": "class _Own: ...\nmost_ranks = MAX_RANKS = 3\n",
            "room/small.py": "",
            **{f"room/more{number}.py": "" for number in range(12)},
        }
        for name, text in files.items():
            path = tmp_path / "src" / "foretrace" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(structure, "EXTENSION_POINTS", {})
        return structure.Package(tmp_path)

    @pytest.mark.parametrize(
        ("rule", "places"),
        [
            ("class-names", ["class Thing is defined in room/first.py, room/second.py"]),
            ("small-modules", ["room/small.py:"]),
            ("large-folders", ["room/: 16 modules"]),
            ("vague-names", ["room/second.py:3: one ", "room/second.py:3: found "]),
            ("limit-names", ["room/first.py:3: MOST_RANKS "]),
        ],
    )
    def test_finds(self, rule: str, places: list[str], broken: object) -> None:
        violations = structure.RULES[rule](broken)
        assert len(violations) == len(places)
        assert all(line.startswith(place) for line, place in zip(sorted(violations), sorted(places), strict=True))

    @pytest.mark.usefixtures("broken")
    def test_a_reason_permits_a_large_folder(self, tmp_path: Path) -> None:
        path = tmp_path / "src" / "foretrace" / "room" / "__init__.py"
        path.write_text('"""A room with many modules, because each is one command."""', encoding="utf-8")
        assert structure.large_folders(structure.Package(tmp_path)) == []

    def test_an_extension_point_is_permitted_and_must_exist(
        self, broken: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(structure, "EXTENSION_POINTS", {"room/small.py": "…", "room/gone.py": "…"})
        (violation,) = structure.small_modules(broken)
        assert violation.startswith("room/gone.py: ")


def test_a_command_s_imports_are_counted() -> None:
    listing = structure.imported_modules(ROOT, "list schedules --json")
    assert 5 < listing < structure.imported_modules(ROOT, structure.COMMANDS["predict"])
    with pytest.raises(RuntimeError, match="no-such"):
        structure.imported_modules(ROOT, "simulate no-such-file")


def test_the_script_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--tabel"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--table" in done.stderr


class TestTheDesignPage:
    """What docs/design.md names is where the page says."""

    PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")

    def rows(self, heading: str) -> list[list[str]]:
        """Returns the cells of a section's table, without its head."""
        section = self.PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        _, _, *lines = (line for line in section.splitlines() if line.startswith("|"))
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    def test_is_short(self) -> None:
        lines = self.PAGE.splitlines()
        assert len(lines) <= 150
        assert not [line for line in lines if len(line) >= 100]

    def test_its_files_exist(self) -> None:
        named = re.findall(r"`([a-z_0-9/]+\.py)`", self.PAGE)
        assert len(named) > 20
        assert not [name for name in named if not (SOURCE / name).is_file()]

    def test_its_rooms_are_the_contract(self) -> None:
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
        rooms = [room.strip("`/") for room, _, _ in self.rows("The rooms")]
        assert [f"foretrace.{room}" for room in rooms] == layers[::-1]

    def test_the_modules_to_read_first_exist(self) -> None:
        firsts = [
            f"{room.strip('`')}{name}.py"
            for room, _, names in self.rows("The rooms")
            for name in re.findall(r"`(\w+)`", names)
        ]
        assert len(firsts) > 20
        assert not [place for place in firsts if not (SOURCE / place).is_file()]

    def test_the_nouns_are_defined_where_it_says(self) -> None:
        import foretrace

        nouns = {noun.strip("`"): place.strip("`") for noun, place, _ in self.rows("The five nouns")}
        assert list(nouns) == ["Input", "Machine", "Scenario", "Answer", "Plan"]
        homes = {noun: getattr(foretrace, noun).__module__.removeprefix("foretrace.") for noun in nouns}
        assert {noun: f"{home.replace('.', '/')}.py" for noun, home in homes.items()} == nouns

    def test_the_picture_shows_every_room(self) -> None:
        (place,) = re.findall(r"!\[.*\]\((.*\.svg)\)", self.PAGE)
        picture = (ROOT / "docs" / place).read_text(encoding="utf-8")
        rooms = {room.strip("`") for room, _, _ in self.rows("The rooms")} - {"basics/"}
        assert not [room for room in rooms if room not in picture]

    def test_its_example_runs(self) -> None:
        import foretrace

        (code,) = re.findall(r"```python\n(.*?)```", self.PAGE, re.DOTALL)
        names: dict[str, object] = {"foretrace": foretrace}
        exec(code, names)
        assert names["answer"].step_time_s > 0  # type: ignore[attr-defined]


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
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([argument for argument in named if argument.arg not in ("self", "cls")])


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
        if (isinstance(node, ast.Compare) and any(map(is_message, (node.left, *node.comparators))))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_message(node.func.value))
    ]
    assert parsing == []


def is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "message"


class TestOneReaderAndOneWriter:
    """User's files are opened by `basics/files.py` and written by `basics/outputs.py`, which keep them apart."""

    READ_AND_WRITE = (
        *("basics/files.py", "basics/outputs.py"),
        *("engine/jit.py", "cost/kernels/parameters.py", "cost/network/nccl/machine.py"),  # read files of the package
        "report/page/document.py",  # reads files of the package
        *("server/app.py", "server/store.py", "server/uploads.py", "server/worker.py"),  # have a folder of their own
        *(f"inputs/script/{name}.py" for name in ("tracing", "tracer/run", "tracer/mailbox")),  # a temporary folder
        "basics/last_resort.py",  # writes what a defect leaves to be reported
    )

    METHODS = ("read_text", "read_bytes", "write_bytes", "mkdir", "unlink", "rename", "touch", "symlink_to", "tofile")
    FUNCTIONS = ("open", "fdopen", "replace", "save", "savez", "savetxt", "loadtxt", "fromfile", "memmap", "load")
    MODULES = ("os", "io", "np", "gzip", "shutil", "tempfile", "codecs")

    def test_no_other_module_opens_files(self) -> None:
        opened = [
            f"{path.relative_to(SOURCE)}:{node.lineno}"
            for path in sorted(SOURCE.rglob("*.py"))
            if str(path.relative_to(SOURCE)) not in self.READ_AND_WRITE
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and self.opens(node)
        ]
        assert not opened

    def opens(self, call: ast.Call) -> bool:
        """Whether a call opens a file: `open(…)`, `os.open(…)`, `path.read_text(…)`, `path.open("rb")`."""
        function = call.func
        if "os.devnull" in ast.unparse(call):  # for what could not be written
            return False
        if isinstance(function, ast.Name):
            return function.id == "open"
        if not isinstance(function, ast.Attribute):
            return False
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id in self.MODULES:
            return function.attr in self.FUNCTIONS
        mode = call.args[0] if call.args else None
        has_mode = isinstance(mode, ast.Constant) and str(mode.value).rstrip("bt+") in ("r", "w", "a", "x")
        return function.attr in self.METHODS or (function.attr == "open" and has_mode)
