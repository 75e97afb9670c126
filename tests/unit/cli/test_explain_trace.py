"""`foretrace explain` of a profiler's traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from foretrace.cli.explain import TraceView
from kineto_files import document, kernel, span, write
from shared_files import ROOT


def run(*words: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    command = [sys.executable, "-m", "foretrace", "explain", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def steps(folder: Path, *, rank: int = 0, gemm_us: float = 40.0, name: str = "") -> Path:
    """Three steps of a gemm, an all-reduce beside it and a copy."""
    events: list[Any] = []
    for step in range(3):
        base, first = 1000.0 * step, 10 * step
        events.append(span("user_annotation", f"ProfilerStep#{step}", base, 1000))
        events.append(span("cpu_op", "aten::mm", base + 10, 30))
        for number, at in enumerate((15, 20, 25)):
            call = "cudaMemcpyAsync" if number == 2 else "cudaLaunchKernel"
            events.append(span("cuda_runtime", call, base + at, 2, correlation=first + number))
        events.append(kernel("ampere_sgemm_128x64_nn", base + 30, gemm_us, first))
        nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events.append(kernel(nccl, base + 50, 100 - 20 * rank, first + 1, stream=20))
        where = {"pid": 0, "tid": 7, "device": 0, "stream": 7, "correlation": first + 2, "bytes": 4000}
        events.append(span("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", base + 200, 2, **where))
    others = {
        "distributedInfo": {"rank": rank, "world_size": 2},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    }
    return write(folder, document(events, **others), name or f"rank{rank}.json")


def test_one_screen(tmp_path: Path) -> None:
    done = run(steps(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Step   1.00 ms" in done.stdout
    assert "bound by the host" in done.stdout
    assert "gemm" in done.stdout
    assert "last of several ProfilerSteps left out" in run(tmp_path / "rank0.json", "--hta-steps").stdout
    assert done.stdout == run(tmp_path / "rank0.json").stdout


@pytest.mark.parametrize(
    ("words", "says"), [(("--plot", "x.png"), "written as SVG"), (("--op", "linear"), "add --view sequences")]
)
def test_what_has_no_use_is_refused(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = run(steps(tmp_path), *words)
    assert done.returncode == 2 and says in done.stderr


@pytest.mark.parametrize("words", [("--what-if", "cuda-graphs"), ("--cluster", "h100-dgx"), ("--steps", "1")])
def test_what_would_change_a_trace_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    trace = steps(tmp_path)
    for about in ((trace,), (trace, trace, "--view", "diff")):
        done = run(*about, *words)
        assert done.returncode == 2 and "[option-not-for-command]" in done.stderr


def test_names_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    path = steps(tmp_path)
    name = "ampere_\\u001b[31mred\\u0007\\u202egemm"
    path.write_text(path.read_text().replace("ampere_sgemm_128x64_nn", name))
    for words in ((), ("--view", "kernels")):
        shown = run(path, *words).stdout
        assert "[31mred" in shown and "\N{REPLACEMENT CHARACTER}" in shown
        assert not {"\x1b", "\a", "\u202e"} & set(shown)


@pytest.mark.parametrize("view", [one for one in TraceView if one is not TraceView.DIFF])
def test_every_question_has_a_screen_and_json(tmp_path: Path, view: TraceView) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        steps(folder, rank=rank)
    done = run(folder, "--view", view)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
    answer = json.loads(run(folder, "--view", view, "--json").stdout)
    assert answer["schema"] == "foretrace.trace/1"
    assert len(answer["traces"]) == 2


def test_stragglers_of_two_ranks(tmp_path: Path) -> None:
    paths = [steps(tmp_path, rank=rank, gemm_us=5) for rank in range(2)]
    answer = json.loads(run(*paths, "--view", "stragglers", "--json").stdout)["stragglers"]
    assert answer[0]["rank"] == 1
    assert answer[0]["held_others_s"] == pytest.approx(20e-6)


def test_the_difference_of_two_traces(tmp_path: Path) -> None:
    before, after = steps(tmp_path, name="before.json"), steps(tmp_path, gemm_us=20, name="after.json")
    done = run(before, after, "--view", "diff")
    assert done.returncode == 0, done.stderr
    assert "−20.0 µs" in done.stdout
    changes = json.loads(run(before, after, "--view", "diff", "--json").stdout)["changes"]
    assert changes[0]["name"] == "ampere_sgemm_128x64_nn"
    alone = run(before, "--view", "diff")
    assert (alone.returncode, alone.stderr.startswith("error: 1 path")) == (2, True)


@pytest.mark.parametrize("view", [None, "breakdown", "queue", "bandwidth", "critical-path"])
def test_drawings_are_well_formed(tmp_path: Path, view: str | None) -> None:
    picture = tmp_path / "out.svg"
    words = ["--view", view] if view else []
    done = run(steps(tmp_path), *words, "--plot", picture)
    assert done.returncode == 0, done.stderr
    drawn = ElementTree.parse(picture).getroot()
    assert len(list(drawn.iter())) > 10


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    path = steps(tmp_path)
    for words in (
        ("--cluster", "h100-dgx"),
        ("--heatmap", str(tmp_path / "x.svg")),
        ("--view", "kernels", "--plot", str(tmp_path / "x.svg")),
        ("--view", "idle", "--op", "mm"),
    ):
        done = run(path, *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("error: "), words
    workload = run("examples/moe_128gpu.txt", "--view", "idle")
    assert (workload.returncode, "[option-not-for-input]" in workload.stderr) == (2, True)


def test_a_trace_without_device_work_is_bad_input(tmp_path: Path) -> None:
    done = run(write(tmp_path, document([span("cpu_op", "aten::mm", 0, 10)])))
    assert done.returncode == 3
    assert "no work of a device" in done.stderr


def test_odd_traces_have_every_screen(tmp_path: Path) -> None:
    alone = write(tmp_path, document([kernel("gemm", 5, 0, -1)]), "alone.json")
    for view in ("breakdown", "overlap", "idle", "kernels", "launches", "queue", "sequences", "steps"):
        done = run(alone, "--view", view)
        assert (done.returncode, done.stderr) == (0, ""), view
    assert run(alone).returncode == 0
    answer = json.loads(run(alone, "--json").stdout)
    assert answer["summary"]["median_delay_s"] is None
    assert (answer["summary"]["bound"], answer["critical_path"], answer["stragglers"]) == (None, None, None)
    done = run(alone, "--view", "critical-path")
    assert (done.returncode, "[nothing-to-do]" in done.stderr) == (3, True)


def keys(value: object) -> set[str]:
    """The names of all fields; not those of kernels, states or parts, which are data."""
    if isinstance(value, list):
        return {name for one in value for name in keys(one)}
    if isinstance(value, dict):
        data = not all(re.fullmatch("[a-z_]+", name) for name in value)
        return {name for key, one in value.items() for name in ({key} if not data else set()) | keys(one)}
    return set()


def test_the_json_page_names_every_key(tmp_path: Path) -> None:
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    paths = [steps(tmp_path, rank=rank) for rank in range(2)]
    answers = [run(*paths, "--json").stdout, run(*paths, "--view", "diff", "--json").stdout]
    answers += [
        run(*paths, "--view", view, "--json").stdout for view in ("launches", "queue", "bandwidth", "critical-path")
    ]
    missing = {key for one in answers for key in keys(json.loads(one)) if f"`{key}`" not in page}
    assert not missing - {"compute", "communication", "memory", "idle", "host", "forward", "backward", "optimizer"}
