"""`foretrace compare` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from foretrace import Mesh, ProgramBuilder, save
from shared_files import ROOT
from unit.cli.command_line import answer_of, call


def write(path: Path, compute_s: float, transfer_s: float = 1e-3) -> Path:
    """Two stages: the first computes and sends, the second receives and computes 2 ms."""
    build = ProgramBuilder(Mesh(pp=2), title=path.stem, repeats=False)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("stage 0", [0]), build.role("stage 1", [1])
    done = first.compute("layer", compute_s, phase="forward", microbatch=0)
    first.transfer("send", pair, transfer_s, to=1, bytes=4096, after=done)
    received = second.transfer("receive", pair, transfer_s)
    second.compute("layer", 2e-3, phase="forward", microbatch=0, after=received)
    save(build.program(), path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / "predicted.foretrace", 3e-3), write(tmp_path / "measured.foretrace", 2e-3)]


def test_the_screen(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", *files) == 0
    out = capsys.readouterr()
    assert out.err == ""
    assert out.out.strip().startswith("Step   predicted 6.00 ms, simulated 5.00 ms: +20.0 %")
    assert "bubble" in out.out and "pp transfer" in out.out


def test_json_to_the_screen_and_to_a_file(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answer_of(capsys, "compare", *files, "-o", tmp_path / "out.json")
    assert result["schema"] == "foretrace.comparison/1"
    assert result["error"] == pytest.approx(0.2)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == result


def test_a_trace_of_both(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", *files, "--perfetto", tmp_path / "both.pftrace", "--ranks", "1") == 0
    assert "open it at ui.perfetto.dev" in capsys.readouterr().err
    trace = proto.Trace()
    trace.ParseFromString((tmp_path / "both.pftrace").read_bytes())
    processes = [packet.track_descriptor.process.process_name for packet in trace.packet]
    assert [name for name in processes if name] == ["predicted · rank 1 · stage 1", "simulated · rank 1 · stage 1"]


def test_a_prediction_that_reads_what_was_measured_is_warned_of(
    files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (warning,) = answer_of(capsys, "compare", files[1], files[1])["diagnostics"]
    assert warning["level"] == "warning" and "reads what was measured" in warning["message"]
    assert answer_of(capsys, "compare", files[0], files[1])["diagnostics"] == []


def test_a_workload_is_predicted_on_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ROOT / "examples/moe_128gpu.txt"
    result = answer_of(capsys, "compare", workload, workload, "--cluster", "h100-dgx", "--microbatches", "4")
    assert result["predicted"]["cluster"] == "h100-dgx"
    messages = [one["message"] for one in result["diagnostics"]]
    assert any("microbatches: 4 predicted" in message for message in messages)
    assert sum(part["difference_s"] for part in result["breakdown"]) == pytest.approx(result["step"]["difference_s"])


@pytest.mark.parametrize(
    ("names", "options", "status", "says"),
    [
        (["predicted"], (), 2, "PREDICTED… MEASURED"),
        (["predicted", "measured"], ("--ranks", "0"), 2, "--perfetto"),
        (["predicted", "measured"], ("-o", "measured.foretrace"), 2, "[output-overwrites-input]"),
        (["predicted", "measured"], ("--mesh", "tp=two"), 2, "--mesh"),
        (["predicted", "measured"], ("--microbatches", "0"), 2, "microbatches"),
        (["predicted", "measured"], ("--microbatches", "4"), 2, "[option-not-for-input]"),
        (["predicted", "predicted", "measured"], (), 2, "[several-inputs]"),
        (["predicted", "nothing"], (), 3, "nothing.foretrace"),
    ],
)
def test_refusals(
    names: list[str],
    options: tuple[str, ...],
    status: int,
    says: str,
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files[0].parent)
    assert call("compare", *(f"{name}.foretrace" for name in names), *options) == status
    out = capsys.readouterr()
    assert says in out.err
    assert out.out == ""
