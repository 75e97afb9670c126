"""The commands as a person runs them: what they print, what they refuse, and how they exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace import Mesh, Program, ProgramBuilder, save
from foretrace.cli.main import run


def two_stages(*, repeats: bool = True) -> Program:
    """Two ranks: the first computes 3 ms and sends for 1 ms, the second receives and computes 2 ms."""
    build = ProgramBuilder(Mesh(pp=2), title="two stages", repeats=repeats, tokens_per_step=1000)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("stage 0", [0]), build.role("stage 1", [1])
    first.resident(weights=1 << 30)
    done = first.compute("layer", 3e-3, phase="forward", alloc={"activations": 1 << 20}, free={"activations": 1 << 20})
    first.transfer("send", pair, 1e-3, to=1, bytes=4096, after=done)
    received = second.transfer("receive", pair, 1e-3)
    second.compute("layer", 2e-3, phase="forward", after=received)
    return build.program()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.foretrace"
    save(two_stages(), path)
    return path


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        run([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def answer_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, object]:
    assert call(*arguments, "--json") == 0
    out = capsys.readouterr()
    assert out.err == ""
    return dict(json.loads(out.out))


def test_json_of_a_simulation(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "simulate", job)
    assert answer["schema"] == "foretrace.simulation/1"
    assert answer["step_time_s"] == pytest.approx(3e-3, abs=1e-12)  # the send of one step hides under the next layer
    assert answer["step_time_band_s"] == [answer["step_time_s"]] * 2
    assert answer["world_size"] == 2
    assert answer["tokens_per_s_per_gpu"] == pytest.approx(1000 / 3e-3 / 2)
    assert answer["peak_memory_bytes"] == (1 << 30) + (1 << 20)
    assert sum(answer["breakdown_s"].values()) == pytest.approx(3e-3)  # type: ignore[attr-defined]
    assert answer["diagnostics"] == []
    assert answer["provenance"] == [{"source": "as written in the program", "share": 1.0, "band": [1.0, 1.0]}]


def test_what_if_and_straggler_change_the_step(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faster = answer_of(capsys, "simulate", job, "--what-if", "compute=2x")
    slower = answer_of(capsys, "simulate", job, "--straggler", "1=2x")
    named = answer_of(capsys, "simulate", job, "--what-if", "name:lay*=3x")
    assert faster["step_time_s"] == pytest.approx(1.5e-3)
    assert slower["step_time_s"] == pytest.approx(4e-3)
    assert named["step_time_s"] == pytest.approx(1e-3)


def test_a_scenario_is_named_beside_what_it_changes(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--what-if", "compute=2x", "--straggler", "1=1.5x", "--slow-link", "0:pp=2x"]
    answer = answer_of(capsys, "simulate", job, *options)
    assert answer["scenario"] == {
        "what_if": {"compute": 2.0},
        "stragglers": {"1": 1.5},
        "jitter": 0.0,
        "choices": [],
        "slow_links": {"0:pp": 2.0},
    }
    assert answer["unchanged_step_time_s"] == pytest.approx(3e-3)
    call("simulate", job, *options)
    text = capsys.readouterr().out
    assert "compute 2× as fast · rank 1 computes 1.5× as slowly · pp of rank 0 2× as slow: " in text
    assert "on 3.00 ms" in text


def test_one_recorded_step_gives_its_makespan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "once.foretrace"
    save(two_stages(repeats=False), path)
    answer = answer_of(capsys, "simulate", path)
    assert answer["step_time_s"] == pytest.approx(6e-3)
    assert answer["step_time_is"] == "makespan of one step"
    call("simulate", path)
    assert "makespan" in capsys.readouterr().out


def test_the_screen_has_the_answer_first(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("simulate", job) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0].split() == ["Step", "3.00", "ms", "2", "ranks", "·", "pp", "2"]
    text = "\n".join(lines)
    assert "peak memory 1.00 GiB (rank 0, stage 0)" in text
    assert "stage 1  " in text
    assert "prices   as written in the program" in text
    assert "█" not in text and "\x1b" not in text  # piped output has neither bars nor colour


def test_output_file_and_perfetto(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, trace = tmp_path / "result.json", tmp_path / "out.pftrace"
    assert call("simulate", job, "-o", result, "--perfetto", trace, "--ranks", "0-1") == 0
    assert json.loads(result.read_text())["step_time_s"] == pytest.approx(3e-3)
    assert trace.stat().st_size > 0
    assert "out.pftrace" in capsys.readouterr().err


def test_inspect(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory = answer_of(capsys, "inspect", job)
    assert inventory["schema"] == "foretrace.inventory/1"
    assert inventory["ops"] == 4 and inventory["rank_classes"] == 2
    assert call("inspect", job) == 0
    out = capsys.readouterr().out
    assert "two stages" in out and "stage 0" in out and "pp" in out


def test_two_runs_print_the_same(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        call("simulate", job)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["simulate"], 2, "FILE"),
        (["simulat", "x"], 2, "simulate"),
        (["simulate", "JOB", "--what-if", "compute"], 2, "compute=1.1x"),
        (["simulate", "JOB", "--what-if", "compute=fast"], 2, "fast"),
        (["simulate", "JOB", "--what-if", "compute=1.1"], 2, "1.1x"),
        (["simulate", "JOB", "--straggler", "1=1.2"], 2, "1.2x"),
        (["sweep", "JOB", "--over", "compute=1,2x"], 2, "2x"),
        (["sweep", "JOB", "--over", "gbs=2x"], 2, "gbs=2"),
        (["simulate", "JOB", "--what-if", "compute=0x"], 2, "0"),
        (["simulate", "JOB", "--what-if", "comptue=2x"], 3, "did you mean compute"),
        (["simulate", "JOB", "--straggler", "7=2x"], 3, "rank 7"),
        (["simulate", "JOB", "--straggler", "one=2x"], 2, "one"),
        (["simulate", "JOB", "--executor", "magic"], 2, "magic"),
        (["simulate", "JOB", "--ranks", "a"], 2, "--ranks"),
        (["simulate", "JOB", "--straggler", "99999999999999999999=2x"], 2, "[out-of-range]"),
        (["simulate", "JOB", "--straggler", "1=20%"], 2, "1.2x"),
        (["simulate", "JOB", "--what-if", "compute=1e-320x"], 2, "1e-320"),
        (["simulate", "JOB", "--slow-link", "1:compute=2x"], 3, "does not communicate"),
        (["simulate", "JOB", "--slow-link", "1=2x"], 2, "RANK:AXIS"),
        (["simulate", "JOB", "--ranks", "0-1"], 2, "--perfetto"),
        (["simulate", "JOB", "--ranks", "0-99999999999", "--perfetto", "x"], 2, "10,000"),
        (["simulate", "JOB", "-o", "JOB"], 2, "[output-overwrites-input]"),
        (["simulate", "JOB", "--perfetto", "JOB"], 2, "[output-overwrites-input]"),
        (["simulate", "nothing.foretrace"], 3, "nothing.foretrace"),
        (["simulate", "JOB", "-o", "no/such/folder/x.json"], 3, "no/such/folder"),
        (["simulate", "JOB", "--perfetto", "no/such/folder/x.pftrace"], 3, "no/such/folder"),
    ],
)
def test_refusals(arguments: list[str], code: int, says: str, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*(str(job) if word == "JOB" else word for word in arguments)) == code
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: ") and says in out.err
    assert "Traceback" not in out.err


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["simulate", "JOB", "--gpus", "8"], 2, "option-not-for-input"),
        (["simulate", "JOB", "--nonsense"], 2, "usage"),
        (["simulate", "nothing.foretrace"], 3, "file-not-found"),
    ],
)
def test_an_error_as_json(
    arguments: list[str], status: int, code: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*(str(job) if word == "JOB" else word for word in arguments), "--json") == status
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert (found["schema"], found["error"]["code"], out.err) == ("foretrace.error/1", code, "")
    assert set(found["error"]) == {"code", "message", "where", "hint"}


def damaged(name: str, job: Path) -> bytes:
    """A file that is not what it should be."""
    whole = job.read_bytes()
    return {
        "empty": b"",
        "text": b"HYBRID_TRANSFORMER_FWD_IN_BCKWD\n12\n",
        "cut short": whole[: len(whole) // 2],
        "binary": bytes(range(256)) * 8,
    }[name]


@pytest.mark.parametrize("name", ["empty", "text", "cut short", "binary"])
@pytest.mark.parametrize("command", ["simulate", "inspect"])
def test_a_bad_file_is_named(
    name: str, command: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.foretrace"
    path.write_bytes(damaged(name, job))
    assert call(command, path) == 3
    assert "bad.foretrace" in capsys.readouterr().err


def test_a_deadlock_exits_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ProgramBuilder(Mesh(dp=2))
    one, other = build.groups("one", [[0, 1]]), build.groups("other", [[0, 1]])
    for rank, order in enumerate([(one, other), (other, one)]):
        role = build.role(f"rank {rank}", [rank])
        for communicator in order:
            role.collective("all_reduce", communicator, 1e-3, bytes=8, lane="network")
    save(build.program(), tmp_path / "stuck.foretrace")
    assert call("simulate", tmp_path / "stuck.foretrace") == 5
    message = capsys.readouterr().err
    assert "deadlock" in message and "rank 0" in message and "rank 1" in message and "on other" in message


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("simulate", "inspect"):
        assert call(command, "--help") == 0
        assert f"foretrace {command} job.foretrace" in capsys.readouterr().out


def test_a_closed_pipe_ends_it_quietly(job: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "foretrace", "simulate", str(job)], stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_an_answer_that_cannot_be_written_is_an_error(job: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "foretrace", "simulate", str(job), "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "No space left on device  [unwritable-file]" in done.stderr
    assert done.stderr.count("\n") == 1
