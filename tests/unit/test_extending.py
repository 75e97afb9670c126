"""Every recipe of docs/extending.md is applied to a copy of the package, and every command of it is run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared_files import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
MAX_LINES = 15
"""Lines of a block, blank ones and the name of its file not counted."""
SUBJECTS = ["GPU", "cluster", "model", "stack", "schedule", "input", "price source", "exporter", "view", "command"]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the file and the place in it that the first line names."""

    language: str
    lines: list[str]
    file: str = ""
    place: str = ""


def blocks(text: str) -> list[Block]:
    result = []
    for language, content in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        first, *lines = content.splitlines()
        if language == "console":
            result.append(Block(language, [first, *lines]))
            continue
        named = re.fullmatch(r"# (\S+?)(?:, (at the end|in \w+))?", first)
        assert named, f"no file is named: {first}"
        result.append(Block(language, lines, named[1], named[2] or ""))
    return result


def sections() -> dict[str, list[Block]]:
    _, *parts = re.split(r"^## An? ", PAGE, flags=re.MULTILINE)
    return {part.partition("\n")[0]: blocks(part) for part in parts}


def apply(block: Block, folder: Path) -> None:
    """Writes a block to its file: a new file, the end of a file, or the start of the table that it names."""
    path = folder / block.file
    new = "\n".join(block.lines) + "\n"
    if not block.place:
        assert not path.exists(), f"{block.file} exists"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if block.place == "at the end":
        path.write_text(f"{text}\n{new}", encoding="utf-8")
        return
    table = block.place.removeprefix("in ")
    imports = "".join(f"{line}\n" for line in block.lines if line.startswith("from "))
    entries = "".join(f"{line}\n" for line in block.lines if not line.startswith("from "))
    future = "from __future__ import annotations\n"
    text = text.replace(future, f"{future}\n{imports}", 1)
    opening = re.search(rf"^{table}\b.*[\[{{(]\n", text, re.MULTILINE)
    assert opening, f"{block.file} has no table {table}"
    path.write_text(text[: opening.end()] + entries + text[opening.end() :], encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with all blocks of the page applied, and the page's own files next to it."""
    made = tmp_path_factory.mktemp("extending")
    shutil.copytree(ROOT / "src" / "foretrace", made / "src" / "foretrace")
    for section in sections().values():
        for block in section:
            if block.language != "console":
                apply(block, made)
    return made


def run(command: str, folder: Path) -> str:
    program, *words = command.split()
    arguments = {"foretrace": [sys.executable, "-m", "foretrace"], "python": [sys.executable]}[program]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    environment["PYTHONPATH"] = str(folder / "src")
    done = subprocess.run(
        [*arguments, *words], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def shown(section: str) -> list[tuple[str, str]]:
    """The commands of a section, each with the output that the page shows."""
    text = "".join("\n".join(block.lines) + "\n" for block in sections()[section] if block.language == "console")
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)


def test_the_page_has_all_subjects() -> None:
    assert list(sections()) == SUBJECTS


@pytest.mark.parametrize("section", SUBJECTS)
def test_blocks_are_short(section: str) -> None:
    for block in sections()[section]:
        assert len([line for line in block.lines if line.strip()]) <= MAX_LINES, block.file


@pytest.mark.parametrize(("command", "screen"), [pair for section in SUBJECTS for pair in shown(section)])
def test_a_command_of_the_page(command: str, screen: str, folder: Path) -> None:
    printed = run(command, folder)
    assert printed.strip()
    pattern = "".join(".*" if line == "…" else re.escape(f"{line}\n") for line in screen.splitlines())
    assert re.search(pattern, printed, re.DOTALL)


def test_every_section_runs_something() -> None:
    assert all(shown(section) for section in SUBJECTS)
