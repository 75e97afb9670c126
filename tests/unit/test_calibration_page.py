"""docs/calibration.md shows the file that is written, and docs/json.md names the keys of a calibration."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared_files import ROOT, shared

PAGE = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trace that the page names, calibrated."""
    made = tmp_path_factory.mktemp("calibration")
    trace = shared("data", "h200", "tinyllama_mbs4.json.gz")
    (made / trace.name).symlink_to(trace)
    (made / "benchmarks").symlink_to(ROOT / "benchmarks")
    run(made, f"calibrate {trace.name} -o my.yaml")
    return made


def run(folder: Path, words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    command = [sys.executable, "-m", "foretrace", *words.split()]
    command += ["--no-silicon"] if not words.startswith("calibrate ") and "--prices model" not in words else []
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    return done.stdout


def test_the_file(folder: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    written = (folder / "my.yaml").read_text(encoding="utf-8")
    head, *parts = text.split("…\n")
    assert written.startswith(head)
    assert all(part in written for part in parts)


def test_the_json_page_names_every_key(folder: Path) -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    found = json.loads(run(folder, "calibration show my.yaml llama3-8b --gpus 8 --json"))
    keys = {*found, *found["coverage"], *found["coverage"]["kernels"][0], *found["made_of"][0], *found["families"][0]}
    keys |= set(found["coverage"]["shares"]) | set(found["host"] or {})
    for key in keys - {"schema"}:
        assert f"`{key}`" in page, key
