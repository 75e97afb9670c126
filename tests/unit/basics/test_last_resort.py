"""An exception that nothing expected is one line, an exit code of its own, and a file with the details."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.basics import last_resort
from foretrace.cli import main
from foretrace.cli.main import run


def failing(error: Exception) -> object:
    def command(*_: object, **__: object) -> None:
        raise error

    return command


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        run(list(arguments))
    return int(stopped.value.code or 0)


@pytest.fixture(autouse=True)
def details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(last_resort.VARIABLE, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("division"), "internal-error"),
        (KeyError("\x1b[31m\n" * 100), "internal-error"),
        (RecursionError(), "internal-error"),
        (MemoryError(), "memory-exhausted"),
        (OSError(12, "Cannot allocate memory"), "memory-exhausted"),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "missing-package"),
    ],
)
def test_a_defect_has_a_code_and_details(
    error: Exception,
    code: str,
    details: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(main, "app", failing(error))
    assert call("simulate", "job") == 70
    shown = capsys.readouterr()
    assert shown.out == "" and f"[{code}]" in shown.err and len(shown.err.splitlines()) <= 4
    (file,) = details.iterdir()
    assert str(file) in shown.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert type(error).__name__ in file.read_text() and "'simulate', 'job'" in file.read_text()
    assert call("simulate", "job", "--json") == 70
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_a_defect_is_reported_where_no_details_can_be_written(
    details: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(details / "missing"))
    monkeypatch.setattr(main, "app", failing(ZeroDivisionError()))
    assert call("simulate", "job") == 70
    assert "[internal-error]" in capsys.readouterr().err


def test_an_error_that_cannot_be_shown_still_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "app", failing(ZeroDivisionError()))
    monkeypatch.setattr(main, "as_defect", failing(MemoryError()))
    assert call("simulate", "job") == 70
    assert "[internal-error]" in capfd.readouterr().err


def test_a_traceback_is_printed_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(last_resort.VARIABLE, "1")
    monkeypatch.setattr(main, "app", failing(ZeroDivisionError()))
    assert call("simulate", "job") == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_broken_installation_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('broken', name='typer')")
    package = str(Path(sys.modules["foretrace"].__file__ or "").parents[1])
    path = os.pathsep.join([str(tmp_path), package])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "foretrace", "list"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 70 and done.stdout == ""
    assert "[missing-package]" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_keeps_the_details_of_the_last_exceptions(details: Path) -> None:
    folder = details / "defects"
    folder.mkdir()
    for number in range(last_resort.MAX_KEPT + 5):
        last_resort.as_defect(ZeroDivisionError(f"number {number}"), [], str(folder))
        for path in folder.iterdir():  # files of the same moment have no order
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1))
    texts = [path.read_text() for path in folder.iterdir()]
    assert len(texts) == last_resort.MAX_KEPT
    assert any(f"number {last_resort.MAX_KEPT + 4}" in text for text in texts)
    assert not any("number 0\n" in text for text in texts)
