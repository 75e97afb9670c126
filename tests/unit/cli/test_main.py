"""How the command line ends: one document, one line, the exit code of the signal; in any environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.processes import Terminated
from foretrace.cli import main
from unit.cli.command_line import call

COMMAND = [sys.executable, "-m", "foretrace"]


def command(error: BaseException | None, printed: str = "") -> Callable[..., None]:
    def ran(*_: object, **__: object) -> None:
        print(printed, end="")
        if error is not None:
            raise error

    return ran


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (Terminated(signal.SIGTERM), 143), (Terminated(signal.SIGHUP), 129)],
)
@pytest.mark.parametrize("printed", ["", '{"schema": "half', '{"schema": "whole"}\n'])
def test_a_signal_leaves_one_document(
    error: BaseException, code: int, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "app", command(error, printed))
    assert call("sweep", "--json") == code
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert answer.get("error", {}).get("code") == (None if printed.endswith("\n") else "interrupted")
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_error_is_short_whatever_a_reader_put_into_it(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "\x1b[31mred\n" * 10_000
    monkeypatch.setattr(main, "app", command(InputError("bad-value", long, where=long, hint=long)))
    assert call("simulate", *flags) == 3
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert len(text.splitlines()) <= 20 and len(text) <= 4_000
    assert "\x1b" not in text
    assert not flags or json.loads(shown.out)["error"]["code"] == "bad-value"


def test_an_error_after_the_answer_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "app", command(InputError("bad-value", "late"), "{}\n"))
    assert call("simulate", "--json") == 3
    shown = capsys.readouterr()
    assert shown.out == "{}\n" and "[bad-value]" in shown.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_that_waits(number: int, code: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job")
    arguments = ["simulate", str(tmp_path / "job"), "--json"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stderr is not None
        with (tmp_path / "job").open("wb"):  # the command waits for what is written
            started.send_signal(number)
            assert started.wait(timeout=20) == code
        assert json.loads(started.stdout.read())["error"]["code"] == "interrupted"
        assert len(started.stderr.read().splitlines()) == 1


def test_the_answer_does_not_depend_on_the_environment() -> None:
    """Nothing is set but nonsense, stderr is closed, and the terminal has no minus sign."""
    package = str(Path(sys.modules["foretrace"].__file__ or "").parents[1])
    environment = {
        "PATH": "",
        "PYTHONPATH": package,
        "COLUMNS": "many",
        "PYTHONIOENCODING": "ascii",
        "NUMBA_CACHE_DIR": "/dev/null/nowhere",
        "TMPDIR": "/dev/null/nowhere",
    }
    arguments = "network all-reduce 64MiB --cluster h100-dgx --ranks 16"
    shown = [
        subprocess.run(["/bin/sh", "-c", f'exec "$@" {more}', "sh", *COMMAND, *arguments.split()], env=values, **kept)
        for values, more, kept in (
            (environment, "2>&-", {"stdout": subprocess.PIPE, "check": True}),
            ({"PYTHONPATH": package, "PYTHONIOENCODING": "utf-8"}, "", {"capture_output": True, "check": True}),
        )
    ]
    assert shown[0].stdout.decode("ascii").count("-") >= shown[1].stdout.decode().count("−") > 0
    assert b"?" not in shown[0].stdout
    assert shown[1].stderr == b""


def test_the_exit_code_does_not_depend_on_stderr() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "simulate", "missing"], stderr=full, capture_output=False, check=False)
    assert done.returncode == 3


@pytest.mark.parametrize("stream", [">&-", ">/dev/full"])
def test_an_answer_that_nobody_gets_is_an_error_with_a_code(stream: str) -> None:
    words = ["/bin/sh", "-c", f'exec "$@" {stream}', "sh", *COMMAND, "list", "models"]
    done = subprocess.run(words, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert b"[unwritable-file]" in done.stderr and len(done.stderr.splitlines()) == 1


def ended_at_import(module: str, number: str) -> subprocess.CompletedProcess[bytes]:
    """Runs the command line and sends it a signal when it imports a module."""
    program = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}': signal.raise_signal(signal.{number})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from foretrace.__main__ import main\n"
        "main()\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_signal_while_the_command_line_is_imported(number: str, code: int) -> None:
    done = ended_at_import("foretrace.cli", number)
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (code, 1, b"")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_before_signals_are_handled(number: str) -> None:
    done = ended_at_import("foretrace.basics.processes", number)
    assert (done.returncode, done.stderr, done.stdout) == (-getattr(signal, number), b"", b"")


def test_a_null_character_is_refused() -> None:
    assert call("inspect", "a\0b") == 2
