"""`foretrace trace` as a person runs it, and scripts in the other commands."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foretrace.inputs.script import tracing
from foretrace.inputs.script.routing import Routing
from training_scripts import Tracer, needs_torch, write_script
from unit.cli.command_line import answer_of, call

ON = ("--cluster", "h100-dgx")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_script(tmp_path_factory.mktemp("scripts"))


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    made = Tracer()
    monkeypatch.setattr(tracing, "trace_script", made)
    return made


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    """The exit code of a command with --json, its error, and what it says on stderr."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    code = call(*words[:at], "--json", *words[at:])
    shown = capsys.readouterr()
    return code, json.loads(shown.out)["error"], shown.err


def traced(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert call(*arguments) == 0
    return dict(json.loads(capsys.readouterr().out))


@needs_torch
def test_a_program_of_a_real_script_simulates_as_the_script(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "trace_script", cache(tracing.trace_script))
    path = tmp_path / "job.foretrace"
    made = traced(capsys, "trace", script, "--world", "64", "-o", path, "--json", "--", "--hidden", "512")
    assert (made["schema"], made["world_size"], made["path"]) == ("foretrace.trace/1", 64, str(path))
    assert all(check["passed"] for check in made["checks"])
    (role,) = made["roles"]
    assert role["flops"] == 3 * 2 * 2 * 512**3 - 2 * 512**3  # the first layer has no input gradient
    assert [each["collective"] for each in role["collectives"]] == ["all_reduce"]
    assert sum(each["bytes"] for each in role["collectives"]) == 4 * 2 * (512 * 512 + 512)
    saved = answer_of(capsys, "simulate", path, *ON)
    direct = traced(capsys, "simulate", script, "--gpus", "64", *ON, "--json", "--", "--hidden", "512")
    assert saved["step_time_s"] == direct["step_time_s"]
    assert saved["peak_memory_bytes"] == role["peak_bytes"] == direct["peak_memory_bytes"]


@needs_torch
def test_a_script_that_crashes_shows_its_own_traceback(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error, shown = error_of(capsys, "trace", script, "--world", "8", "--ranks", "0", "--", "--mode", "crash")
    assert (code, error["code"]) == (3, "script-failed")
    assert error["where"].startswith(f"{script}:")
    assert 'raise KeyError("layers")' in shown
    assert "foretrace" not in shown.replace(str(script), "")


@needs_torch
def test_a_script_that_decides_by_a_value_names_the_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error, shown = error_of(
        capsys, "simulate", script, "--gpus", "8", "--trace-ranks", "0", *ON, "--", "--mode", "value"
    )
    assert (code, error["code"], shown) == (3, "needs-value", "")
    line = 1 + next(number for number, text in enumerate(script.read_text().splitlines()) if "loss.item()" in text)
    assert error["where"] == f"{script}:{line}"


@needs_torch
def test_a_script_that_refuses_its_arguments_says_so(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error, shown = error_of(capsys, "trace", script, "--world", "8", "--ranks", "0", "--", "--hiden", "4")
    assert (code, error["code"]) == (3, "script-failed")
    assert "unrecognized arguments: --hiden 4" in shown


class TestArguments:
    """With a tracer that runs nothing."""

    def test_follow_after_two_dashes(self, script: Path, tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("trace", "inspect", "simulate", "explain"):
            on = ON if command in ("simulate", "explain") else ()
            assert call(command, script, "--world", "4", *on, "--", "--data", "a b", "--", "-x") == 0
        capsys.readouterr()
        assert {request.arguments for request in tracer.requests} == {("--data", "a b", "--", "-x")}

    def test_may_be_varied(self, script: Path, tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
        swept = answer_of(capsys, "sweep", script, "--over", "gpus=2,4", *ON)
        assert [point["world_size"] for point in swept["points"]] == [2, 4]
        words = ("compare", script, "--world", "4", *ON, "--with", "args=--layers 4", "--json", "--", "--layers", "2")
        assert traced(capsys, *words)["a"]["world_size"] == 4
        assert {request.arguments for request in tracer.requests[2:]} == {("--layers", "2"), ("--layers", "4")}

    def test_without_two_dashes_are_refused(
        self, script: Path, tracer: Tracer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for command in ("trace", "inspect", "simulate"):
            assert error_of(capsys, command, script, script, "--world", "4")[1]["code"] == "several-inputs"
        assert error_of(capsys, "trace", script, "--args", "a", "--", "b")[1]["code"] == "repeated-option"
        assert error_of(capsys, "sweep", script, "--over", "tp=2,4", "--gpus", "4", *ON)[0] == 2
        assert tracer.requests == []


def test_options_of_a_trace(script: Path, tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--ranks", "all", "--steps", "2:3", "--unknown", "1", "--routing", "zipf:1.2", "--gpus-per-node", "4")
    made = answer_of(capsys, "trace", script, "--world", "2", *options)
    (request,) = tracer.requests
    assert (request.ranks, request.steps, request.gpus) == ((0, 1), (2, 3), 4)
    assert (request.unknown, request.routing) == (1.0, Routing(exponent=1.2))
    assert [role["ranks"] for role in made["roles"]] == [1, 1]
    assert call("trace", script, "--world", "2") == 0
    assert "rank 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "missing-argument"),
        (("--world", "4", "--format", "megatron"), "needs-cluster"),
        (("--world", "4", "--gpus-per-node", "0"), "out-of-range"),
        (("--world", "4", "--ranks", "4"), "no-such-rank"),
        (("--world", "4", "--routing", "even"), "unknown-name"),
        (("--world", "4", "--routing", "zipf:-1"), "out-of-range"),
    ],
)
def test_what_cannot_be_traced(
    script: Path, words: tuple[str, ...], code: str, tracer: Tracer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, "trace", script, *words)[:2][1]["code"] == code
    assert tracer.requests == []


def test_other_files_are_no_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "trace", tmp_path / "job.txt", "--world", "4")[:2][1]["code"] == "wrong-format"
    assert error_of(capsys, "trace", tmp_path / "none.py", "--world", "4")[:2][1]["code"] == "file-not-found"


@pytest.mark.usefixtures("tracer")
def test_the_script_is_not_written_over(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = script.read_text()
    assert error_of(capsys, "trace", script, "--world", "4", "-o", script)[0] == 2
    assert script.read_text() == before
