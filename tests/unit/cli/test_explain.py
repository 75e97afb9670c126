"""`foretrace explain` as a person runs it."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import foretrace
from foretrace import Mesh, ProgramBuilder, save, simulate
from shared_files import ROOT, shared
from unit.cli.command_line import answer_of, call


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks reduce over dp; the second comes 1 ms later."""
    build = ProgramBuilder(Mesh(dp=2), title="a job", repeats=False)
    for rank in range(2):
        role = build.role(f"rank {rank}", [rank])
        done = role.compute("layer", (2 + rank) * 1e-3, phase="forward", microbatch=0)
        role.collective("all_reduce", build.communicator("dp"), 1e-3, bytes=4096, after=done)
    save(build.program(), tmp_path / "job.foretrace")
    return tmp_path / "job.foretrace"


def test_the_screen(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", job) == 0
    out = capsys.readouterr()
    assert out.err == ""
    assert out.out.strip().startswith("Step   4.00 ms  predicted, not recorded     2 ranks · dp 2 · 1 microbatch")
    assert "longest dp wait: rank 0, stage 0 waited 1.00 ms for rank 1, busy with layer" in out.out


def test_json_and_a_timeline(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, timeline = tmp_path / "out.json", tmp_path / "run.pftrace"
    assert call("explain", job, "--json", "-o", written, "--perfetto", timeline, "--ranks", "1") == 0
    out = capsys.readouterr()
    result = json.loads(out.out)
    assert result["schema"] == "foretrace.explanation/1" and result["recorded"] is False
    assert json.loads(written.read_text(encoding="utf-8")) == result
    assert "open it at ui.perfetto.dev" in out.err
    trace = proto.Trace()
    trace.ParseFromString(timeline.read_bytes())
    processes = [packet.track_descriptor.process.process_name for packet in trace.packet]
    (shown,) = [name for name in processes if name]
    assert shown.startswith("rank 1")


def test_a_recorded_run_is_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "explain", shared("data", "traces", "dense4", "real"))
    assert result["recorded"] is True
    assert result["step_time_s"] == pytest.approx(0.9077, abs=1e-4)
    assert abs(result["replay_error"]) < 0.01


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples/traces").glob("*.txt")))
def test_one_rank_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "explain", ROOT / "examples/traces" / name)
    assert result["world_size"] == 1 and result["stragglers"] == []
    assert any("one rank alone" in one["message"] for one in result["diagnostics"])


def test_traces_that_are_not_of_a_whole_run_are_predicted_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shared("data", "traces", "dense4", "scaling_a")
    assert call("explain", folder, "--cluster", "a100-dgx", "--microbatches", "4") == 0
    assert "predicted, not recorded     4 ranks · tp 2 · pp 2 · 4 microbatches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("job.foretrace", "--ranks", "0"), 2, "--perfetto"),
        (("job.foretrace", "-o", "job.foretrace"), 2, "[output-overwrites-input]"),
        (("job.foretrace", "--mesh", "tp=two"), 2, "--mesh"),
        (("job.foretrace", "--microbatches", "4"), 2, "[option-not-for-input]"),
        (("nothing.foretrace",), 3, "nothing.foretrace"),
    ],
)
def test_refusals(
    words: tuple[str, ...],
    status: int,
    says: str,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(job.parent)
    assert call("explain", *words) == status
    out = capsys.readouterr()
    assert says in out.err
    assert out.out == ""


@pytest.mark.parametrize("words", [("--cluster", "h100-dgx"), ("--what-if", "compute=2x")])
def test_a_recorded_run_takes_no_options_of_a_prediction(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("explain", ROOT / "examples/traces/gpt13b_real_rank0.txt", *words) == 2
    assert "was recorded" in capsys.readouterr().err


def test_a_recorded_run_is_not_explained_as_another_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", shared("data", "traces", "dense4", "real"), "--microbatches", "4") == 2
    assert "[option-not-for-command]" in capsys.readouterr().err


def test_the_document_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/explain.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    import runpy
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(sys, "argv", ["pipeline.py", "job.foretrace"])
    stream = StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    runpy.run_path(str(ROOT / "examples/pipeline.py"), run_name="__main__")
    stream.truncate(0)
    stream.seek(0)
    exec(code, {})
    assert stream.getvalue().strip("\n") in page
    from foretrace.readings.explain import explain
    from foretrace.report.explain import explanation_json

    for key in explanation_json(explain(simulate("job.foretrace"))):
        assert f"`{key}`" in page, key


def test_what_one_could_do_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """Each remedy is what simulate gives with its option, the one that shortens a microbatch most first."""
    real = shared("data", "traces", "moe16", "pp4_tp1_ep4_expn16_dp4_nl8_hs4096_sl1024") / "real"
    found = answer_of(capsys, "explain", real)["remedies"]
    assert [one["option"] for one in found] == [
        "--routing 1x",
        "--microbatches 32",
        "--schedule zb-h1",
        "--schedule interleaved-1f1b",
    ]
    changes = [one["after_s"] / one["microbatches"] / one["before_s"] - 1 for one in found]
    assert changes == sorted(changes) and changes == pytest.approx([one["change"] for one in found])
    balanced = simulate(foretrace.open(real, routing=1.0), explain=False)
    assert (balanced.step_time_s, balanced.unchanged_step_time_s) == (found[0]["after_s"], found[0]["before_s"])


def test_nothing_is_tried_with_one_rank_or_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_of(capsys, "explain", ROOT / "examples" / "traces" / "gpt13b_real_rank0.txt")["remedies"] == []
