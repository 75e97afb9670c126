"""The pages about profiles show what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared_files import ROOT, shared

PAGES = ("profiler-whatif", "profiler-jobs", "profiler-trace-files", "trace-analysis", "torch-tables")
BLOCK = re.compile(r"```(?:console)?\n\$ foretrace ([^\n]*)\n(.+?)```", re.DOTALL)
FOLDERS = (("data", "h200"), ("data", "kineto"))


def screens() -> list[tuple[str, str, str]]:
    """Every command of samples that a page shows with what it prints: page, command, screen."""
    texts = {page: (ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in PAGES}
    found = [(page, words, screen) for page, text in texts.items() for words, screen in BLOCK.findall(text)]
    # Those of examples are held in test_table_commands.
    return [one for one in found if not one[2].lstrip().startswith("$") and "examples/" not in one[1]]


def printed(words: str, folder: Path) -> str:
    """What a command prints where the samples it names are, and the repository's own files."""
    for one in re.findall(r"[\w./-]+\.(?:json\.gz|table\.txt)", words):
        if one.startswith("benchmarks/"):
            (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        else:
            (folder / one).symlink_to(_sample(one, folder))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    command = [sys.executable, "-m", "foretrace", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    return (done.stdout + done.stderr).strip("\n")


def _sample(name: str, folder: Path) -> Path:
    if name == "cut.json.gz":
        whole = shared("data", "kineto", "nccl_parser_config_nccl_data.json.gz").read_bytes()
        (folder / "whole.json.gz").write_bytes(whole[: len(whole) // 2])
        return folder / "whole.json.gz"
    found = [path for path in (shared(*one) / name for one in FOLDERS) if path.exists()]
    if not found:
        pytest.skip(f"{name} is not at hand")
    return found[0]


@pytest.mark.parametrize(("words", "screen"), [one[1:] for one in screens()], ids=[one[1] for one in screens()])
def test_a_screen(words: str, screen: str, tmp_path: Path) -> None:
    asked, _, filtered = words.partition(" | ")
    found = printed(asked, tmp_path)
    if filtered:
        wanted = filtered.removeprefix("grep ").strip("'\"")
        found = "\n".join(line for line in found.splitlines() if wanted in line)
    shown = screen.strip("\n")
    if shown.endswith("\n  …"):
        shown = shown.removesuffix("\n  …")
        found = found[: len(shown)]
    assert found == shown


def test_there_are_some_on_every_page() -> None:
    assert {page for page, _, _ in screens()} == set(PAGES)
