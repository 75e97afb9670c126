"""`foretrace simulate` and `foretrace inspect` on SimAI/AICB workloads, as a person runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretrace import Mesh, ProgramBuilder, save
from shared_files import ROOT
from unit.cli.command_line import answer_of, call
from unit.inputs.aicb.workloads import row, text

LLAMA, MOE = ROOT / "examples" / "llama405b_1024gpu.txt", ROOT / "examples" / "moe_128gpu.txt"
EMBEDDING = row("embedding_layer", 10_000, 1, 5_000)
LAYER = row("attention_column", (100_000, "ALLGATHER", 1 << 24), 80_000, 60_000)
LOSS = row("cross_entropy1", (0, "ALLREDUCE", 16384))
SMALL = text([*[EMBEDDING, *[LAYER] * 4] * 4, LOSS], tp=2, ep=1, pp=2, vpp=4, ga=4, all_gpus=8, pp_comm=1 << 23)

KEYS = [
    "schema",
    "title",
    "world_size",
    "mesh",
    "cluster",
    "executor",
    "scenario",
    "unchanged_step_time_s",
    "step_time_s",
    "step_time_band_s",
    "step_time_is",
    "steps_run",
    "tokens_per_s_per_gpu",
    "breakdown_s",
    "critical_path",
    "bottlenecks",
    "peak_memory_bytes",
    "peak_memory",
    "lanes",
    "rank_classes",
    "provenance",
    "diagnostics",
]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.txt"
    path.write_text(SMALL, encoding="utf-8")
    return path


def simulated(capsys: pytest.CaptureFixture[str], file: Path, *options: str | Path) -> dict[str, Any]:
    return answer_of(capsys, "simulate", file, "--cluster", "h100-dgx", *options)


def refusal(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> list[str]:
    """The lines of an error: what is wrong, and at most one hint below it."""
    assert call(*arguments) == code
    out = capsys.readouterr()
    assert out.out == ""
    lines = out.err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2 and all(line.startswith("       ") for line in lines[1:]), lines
    assert "Traceback" not in out.err
    return lines


# The two examples


@pytest.mark.parametrize(
    ("file", "world", "mesh"), [(LLAMA, 1024, "tp=8,dp=8,pp=16"), (MOE, 128, "tp=8,dp=4,pp=4,ep=4")]
)
def test_the_examples(file: Path, world: int, mesh: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = simulated(capsys, file)
    assert set(KEYS) <= set(answer)
    assert answer["schema"] == "foretrace.simulation/1"
    assert (answer["world_size"], answer["mesh"], answer["cluster"]) == (world, mesh, "h100-dgx")
    assert answer["step_time_s"] > 0
    low, high = answer["step_time_band_s"]
    assert low <= answer["step_time_s"] <= high
    assert sum(answer["breakdown_s"].values()) == pytest.approx(answer["step_time_s"])
    assert {"compute", "bubble", "tp exposed", "pp exposed", "dp exposed", "optimizer"} <= set(answer["breakdown_s"])
    assert answer["tokens_per_s_per_gpu"] > 0
    assert sum(one["ranks"] for one in answer["rank_classes"]) == world
    for one in answer["diagnostics"]:
        # What no line of the file says has no line: the choices left to the user, and what the cluster makes of it.
        codes = ("group-crosses-domain", "training-frequency")
        of_no_line = "choose with --" in one["message"] or one["code"] in codes
        assert (one["where"] or "").startswith(f"{file}:") or of_no_line, one
        assert one["level"] in ("note", "warning")


def test_the_example_of_llama_by_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Reference 6: 7,213 ms of computation with embedding, head and loss on every stage; 15 bubbles of 16."""
    answer = simulated(capsys, LLAMA, "--every-stage")
    parts = answer["breakdown_s"]
    assert parts["compute"] + parts["optimizer"] == pytest.approx(7.213232, rel=1e-4)
    assert 12 < answer["step_time_s"] < 16
    spread = simulated(capsys, LLAMA)
    assert spread["breakdown_s"]["compute"] < parts["compute"]


def test_screen_of_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("simulate", MOE, "--cluster", "h100-dgx") == 0
    out = capsys.readouterr().out
    assert out.lstrip().startswith("Step")
    assert "nan" not in re.findall(r"[a-z]+", out.lower())
    assert "96 rows declared, 98 in the file" in out


@pytest.mark.parametrize("file", [LLAMA, MOE])
def test_inspect(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "inspect", file)
    assert answer["schema"] == "foretrace.workload/1"
    rows = len(file.read_text().splitlines()) - 2
    assert answer["rows"] == rows == sum(answer["kinds"].values())
    assert answer["declared_rows"] == (96 if file is MOE else 557)
    assert answer["world_size"] == (128 if file is MOE else 1024)
    assert answer["microbatches"] == (2 if file is MOE else 16)
    assert answer["layers_per_stage"] == 8
    assert answer["schedule"] == "1f1b"
    assert all(one["calls"] > 0 and one["bytes"] > 0 for one in answer["traffic"])
    assert call("inspect", file) == 0
    screen = capsys.readouterr().out
    assert file.name in screen and "layers per stage" in screen


def test_inspect_says_why_a_file_cannot_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.txt"
    path.write_text(text([EMBEDDING, LAYER], declared=7, tp=2, pp=1, ga=1, all_gpus=2), encoding="utf-8")
    answer = answer_of(capsys, "inspect", path)
    assert (answer["rows"], answer["declared_rows"]) == (2, 7)
    assert "cannot be simulated" in answer["diagnostics"][-1]["message"]


# Options


def test_schedule(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, zero = simulated(capsys, job), simulated(capsys, job, "--schedule", "ZB_H1")
    assert "1f1b, 4 microbatches" in plain["title"]
    assert "zb-h1, 4 microbatches" in zero["title"]
    assert zero["step_time_s"] < plain["step_time_s"]


def test_vpp(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {vpp: simulated(capsys, job, "--vpp", vpp) for vpp in ("auto", "layers", "chunks", "2", "1")}
    assert steps["auto"]["step_time_s"] == steps["layers"]["step_time_s"] == steps["1"]["step_time_s"]
    assert "4 chunks" in steps["chunks"]["title"] and "2 chunks" in steps["2"]["title"]
    assert steps["2"]["step_time_s"] < steps["1"]["step_time_s"]


def test_overlap(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = {name: simulated(capsys, job, "--overlap", name)["step_time_s"] for name in ("none", "pp", "tp", "all")}
    assert times["none"] == simulated(capsys, job)["step_time_s"]
    assert times["all"] < min(times["pp"], times["tp"]) and max(times["pp"], times["tp"]) < times["none"]


def test_gpus(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = simulated(capsys, job, "--gpus", "1,024")
    assert (answer["world_size"], answer["mesh"]) == (1024, "tp=2,dp=256,pp=2")
    assert any("1,024 GPUs as asked, 8 in the header" in one["message"] for one in answer["diagnostics"])


def test_microbatches(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (simulated(capsys, job, "--microbatches", count) for count in ("4", "8"))
    assert few["step_time_s"] == simulated(capsys, job)["step_time_s"]
    assert many["breakdown_s"]["compute"] == pytest.approx(2 * few["breakdown_s"]["compute"])
    assert many["tokens_per_s_per_gpu"] > few["tokens_per_s_per_gpu"]  # the bubble is the same


def test_pp_comm(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [simulated(capsys, job, "--pp-comm", size)["breakdown_s"]["pp exposed"] for size in ("8MiB", "80MiB")]
    assert parts[0] == simulated(capsys, job)["breakdown_s"]["pp exposed"]
    assert parts[1] > 5 * parts[0]


def test_every_stage(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 microbatches of 15.001 µs of embedding, on one stage of two or on both."""
    compute = [simulated(capsys, job, *option)["breakdown_s"]["compute"] for option in ((), ("--every-stage",))]
    assert compute[1] - compute[0] == pytest.approx(4 * 15.001e-6 / 2, rel=1e-6)


def test_placement(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The two ranks of each tp group on different nodes."""
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("hosts: [{name: a, ranks: [0, 2, 4, 6]}, {name: b, ranks: [1, 3, 5, 7]}]\n", encoding="utf-8")
    near, apart = simulated(capsys, job), simulated(capsys, job, "--placement", hosts)
    assert apart["breakdown_s"]["tp exposed"] > 2 * near["breakdown_s"]["tp exposed"]
    short = tmp_path / "short.yaml"
    short.write_text("hosts: [{name: a, ranks: 0-3}]\n", encoding="utf-8")
    lines = refusal(capsys, 3, "simulate", job, "--cluster", "h100-dgx", "--placement", short)
    assert "short.yaml" in lines[0] and "4 of 8 ranks have no host" in lines[0]


def test_options_together(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = simulated(
        capsys,
        job,
        "--gpus",
        "16",
        "--schedule",
        "interleaved",
        "--vpp",
        "2",
        "--overlap",
        "dp,pp",
        "--pp-comm",
        "1MiB",
    )
    assert "interleaved-1f1b, 4 microbatches, 2 chunks" in answer["title"]
    assert any("param, pp" in one["message"] for one in answer["diagnostics"])


def test_unfolded_and_twice_the_same(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, again = simulated(capsys, job), simulated(capsys, job)
    assert once == again
    assert simulated(capsys, job, "--unfolded")["step_time_s"] == once["step_time_s"]


# Usage


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--vpp", "many"], 2, "--vpp many"),
        (["--vpp", "0"], 2, "--vpp 0"),
        (["--microbatches", "0"], 2, "microbatches 0 is less than 1"),
        (["--gpus", "0"], 2, "gpus 0 is less than 1"),
        (["--gpus", "many"], 2, "--gpus"),
        (["--gpus", "7"], 3, "job.txt:1: 7 GPUs cannot be divided into tp 2 × pp 2 = 4"),
        (["--pp-comm", "16XB"], 2, "--pp-comm"),
        (["--overlap", "everything"], 2, 'overlap "everything" is not known'),
        (["--schedule", "1f2b"], 2, "did you mean 1f1b?"),
        (["--vpp", "8"], 3, "8 chunks are more than the 4 layers"),
        (["--cluster", "h100-dgxx"], 3, "did you mean h100-dgx"),
    ],
)
def test_options_that_cannot_be_meant(
    options: list[str], code: int, says: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", job, *([] if "--cluster" in options else ["--cluster", "h100-dgx"]), *options]
    assert says in refusal(capsys, code, *arguments)[0]


def test_a_cluster_is_needed(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = refusal(capsys, 2, "simulate", job)
    assert "[needs-cluster]" in lines[0]
    assert "--cluster h100-dgx" in lines[1]


@pytest.mark.parametrize(
    "option",
    [
        ["--gpus", "8"],
        ["--schedule", "zb-h1"],
        ["--vpp", "2"],
        ["--overlap", "all"],
        ["--microbatches", "4"],
        ["--pp-comm", "1MiB"],
        ["--every-stage"],
    ],
)
def test_a_program_has_made_these_choices(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ProgramBuilder(Mesh())
    build.role("all", [0]).compute("work", 1e-3)
    path = tmp_path / "job.foretrace"
    save(build.program(), path)
    assert call("simulate", path) == 0
    capsys.readouterr()
    lines = refusal(capsys, 2, "simulate", path, *option)
    assert "job.foretrace is a program" in lines[0]


def test_a_cluster_too_small(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("based_on: h100-dgx\nname: mine\nnodes: 2\n", encoding="utf-8")
    assert call("simulate", job, "--cluster", mine, "--gpus", "16") == 0
    capsys.readouterr()
    lines = refusal(capsys, 3, "simulate", job, "--cluster", mine, "--gpus", "32")
    assert lines[0] == f"error: {job}:1: the job has 32 GPUs, the cluster mine 16 (2 nodes of 8)  [cluster-too-small]"
    assert "--gpus" in lines[1] and re.search(r"mine\.yaml:\d", lines[1])


# Files that are not what they should be

HEADER = SMALL.splitlines()[0]


def bad(name: str) -> bytes:
    whole = SMALL.encode()
    return {
        "empty": b"",
        "blank": b"\n  \n\t\n",
        "binary": bytes(range(256)) * 16,
        "an image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(64),
        "gzip": b"\x1f\x8b\x08\0" + bytes(64),
        "header alone": HEADER.encode(),
        "header and count": f"{HEADER}\n21\n".encode(),
        "header and rows": f"{HEADER}\n{LAYER}\n".encode(),
        "negative size": whole.replace(b"16777216", b"-16777216", 1),
        "negative time": whole.replace(b"\t80000\t", b"\t-80000\t", 1),
        "negative pp_comm": whole.replace(b"pp_comm: 8388608", b"pp_comm: -1"),
        "nan": whole.replace(b"\t80000\t", b"\tnan\t", 1),
        "too large": whole.replace(b"\t80000\t", b"\t1e99\t", 1),
        "a billion rows": whole.replace(b"\n21\n", b"\n1000000000\n", 1),
        "rows as words": whole.replace(b"\n21\n", b"\ntwenty\n", 1),
        "tp that does not divide": whole.replace(b"NPU_group: 2", b"NPU_group: 3"),
        "pp that does not divide": whole.replace(b" pp: 2", b" pp: 5"),
        "ep that does not divide": whole.replace(b"ep: 1", b"ep: 3"),
        "tp of 0": whole.replace(b"NPU_group: 2", b"NPU_group: 0"),
        "no gpus": whole.replace(b"all_gpus: 8", b"all_gpus: 0"),
        "collective": whole.replace(b"ALLGATHER", b"ALLGETHER"),
        "policy": whole.replace(b"HYBRID_TRANSFORMER_FWD_IN_BCKWD", b"HYBRID_TRANSFORMERS"),
        "json": b'{"policy": "DATA"}',
        "a row too short": whole.replace(b"\t100\nattention", b"\nattention", 1),
    }[name]


LINES = {
    "header alone": 1,
    "header and count": 2,
    "header and rows": 2,
    "negative size": 4,
    "negative time": 4,
    "negative pp_comm": 1,
    "nan": 4,
    "too large": 4,
    "a billion rows": 2,
    "rows as words": 2,
    "tp that does not divide": 1,
    "pp that does not divide": 1,
    "ep that does not divide": 1,
    "tp of 0": 1,
    "no gpus": 1,
    "collective": 4,
    "policy": 1,
    "json": 1,
    "a row too short": 3,
}
"""The line that is named; files without lines are named alone."""


@pytest.mark.parametrize("name", ["empty", "blank", "binary", "an image", "gzip", *LINES])
def test_bad_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(bad(name))
    lines = refusal(capsys, 3, "simulate", path, "--cluster", "h100-dgx")
    assert lines[0].startswith(f"error: {path}:{LINES[name]}: " if name in LINES else f"error: {path}:"), lines[0]
    assert len(lines) == 2  # and what would be right
    assert len(lines[0]) < 300 + len(str(path))


@pytest.mark.parametrize("file", [LLAMA, SMALL], ids=["llama", "small"])
def test_a_file_cut_anywhere(file: Path | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to the last column of the last row, whose beginning is a number as well."""
    whole = file.read_bytes() if isinstance(file, Path) else file.encode()
    path = tmp_path / "cut.txt"
    last = len(whole.rstrip()) - 3
    header = whole.index(b"\n")
    cuts = {*range(1, last, max(last // 25, 1)), *range(1, header + 6, 11), *range(last - 60, last, 9), last - 1}
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        lines = refusal(capsys, 3, "simulate", path, "--cluster", "h100-dgx")
        assert re.match(rf"error: {re.escape(str(path))}:\d+: ", lines[0]), (cut, lines[0])


def test_a_file_that_is_not_there(tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.exists()
    for command in ("simulate", "inspect"):
        lines = refusal(capsys, 3, command, tmp_path / "jib.txt")
        assert "jib.txt" in lines[0]
        lines = refusal(capsys, 3, command, tmp_path)
        assert str(tmp_path) in lines[0]


def test_as_a_process(job: Path) -> None:
    command = [sys.executable, "-m", "foretrace", "simulate", str(job), "--cluster", "h100-dgx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lstrip().startswith("Step") and "\x1b" not in done.stdout
