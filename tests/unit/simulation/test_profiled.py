"""A profiler's trace as a job: with and without the profiler, changed and unchanged, on a cluster."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from foretrace import Answer, Machine, simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.base import Input
from foretrace.inputs.profiler_trace.input import DEVICE_SPREAD, GRAPH_SPREAD
from foretrace.inputs.profiler_trace.profiling_cost import HOST_SPREAD
from foretrace.inputs.registry import open_input
from foretrace.readings.scenario import Scenario
from foretrace.report.terminal import print_answer
from rank_traces import step, write_ranks
from recorded_steps import trace_file
from shared_files import ROOT

HOST_BOUND = ROOT / "benchmarks" / "truth" / "profiles" / "gpt_small.shapes.json.gz"
DEVICE_BOUND = ROOT / "benchmarks" / "truth" / "profiles" / "gpt_4x4096_mbs4_s1024.shapes.json.gz"


def run(path: Path, scenario: Scenario | None = None, cluster: str | None = None, **options: Any) -> Answer:
    return simulate(open_input([path]).with_options(**options), Machine(cluster), scenario)


def screen(answer: Answer) -> str:
    shown = StringIO()
    print_answer(answer, shown)
    return shown.getvalue()


@pytest.fixture(scope="module")
def unprofiled_s() -> float:
    """The host-bound step without the profiler."""
    return run(HOST_BOUND, host="unprofiled").step_time_s


@pytest.mark.parametrize(
    ("what_if", "options"),
    [
        ({}, {"batch": 2.0}),
        ({}, {"gpu": "h100-sxm"}),
        ({}, {"host": "graphs"}),
        ({}, {"host": "none"}),
        ({"host": 2.0}, {}),
        ({"gemm": 2.0}, {"batch": 2.0}),
        ({"host": 2.0}, {"host": "unprofiled"}),
    ],
)
def test_every_what_if_is_compared_with_the_step_without_the_profiler(
    what_if: dict[str, float], options: dict[str, Any], unprofiled_s: float
) -> None:
    answer = run(HOST_BOUND, Scenario(what_if), **options)
    assert answer.unchanged_step_time_unprofiled_s == pytest.approx(unprofiled_s)
    assert f"on {1e3 * unprofiled_s:.1f} ms without the profiler" in screen(answer).replace("from", "on")
    if options.get("host", "profiled") == "profiled":
        assert answer.unchanged_step_time_s == pytest.approx(run(HOST_BOUND).step_time_s)
    else:
        assert answer.unchanged_step_time_s == pytest.approx(unprofiled_s)
        assert answer.step_time_unprofiled_s == answer.step_time_s


def test_a_faster_host_gains_half_of_the_step_it_binds(unprofiled_s: float) -> None:
    answer = run(HOST_BOUND, Scenario({"host": 2.0}))
    assert answer.step_time_unprofiled_s == pytest.approx(unprofiled_s / 2, rel=0.01)


def test_nothing_changed_nothing_compared() -> None:
    answer = run(HOST_BOUND)
    assert answer.unchanged_step_time_s is None and answer.unchanged_step_time_unprofiled_s is None
    assert "With" not in screen(answer)


def test_what_changes_nothing_is_called_no_change(unprofiled_s: float) -> None:
    text = screen(run(HOST_BOUND, Scenario({"gemm": 1.0 + 1e-12})))
    assert f"no change from {1e3 * unprofiled_s:.1f} ms without the profiler" in text


def test_the_band_of_a_host_bound_step_is_the_hosts() -> None:
    answer = run(HOST_BOUND)
    assert answer.step_time_unprofiled_s is not None and answer.step_time_unprofiled_band_s is not None
    low, high = (end / answer.step_time_unprofiled_s for end in answer.step_time_unprofiled_band_s)
    off = (HOST_SPREAD**2 + DEVICE_SPREAD**2) ** 0.5
    assert low == pytest.approx(1 - off, rel=0.01) and high == pytest.approx(1 + off, rel=0.01)
    assert " ± " in screen(answer).splitlines()[2]
    assert answer.to_dict()["step_time_unprofiled_band_s"] == list(answer.step_time_unprofiled_band_s)


def test_the_band_of_a_device_bound_step_is_the_devices() -> None:
    answer = run(DEVICE_BOUND)
    assert answer.step_time_unprofiled_s is not None and answer.step_time_unprofiled_band_s is not None
    low, high = (end / answer.step_time_unprofiled_s for end in answer.step_time_unprofiled_band_s)
    assert (low, high) == pytest.approx((1 - DEVICE_SPREAD, 1 + DEVICE_SPREAD), abs=2e-3)


def test_the_band_of_a_graph_is_its_own() -> None:
    answer = run(HOST_BOUND, host="graphs")
    expected = (answer.step_time_s * (1 - GRAPH_SPREAD), answer.step_time_s * (1 + GRAPH_SPREAD))
    assert answer.step_time_band_s == answer.step_time_unprofiled_band_s == pytest.approx(expected)


def test_the_band_holds_that_of_prices(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    as_is, scaled = run(path), run(path, gpu="h100-sxm")
    assert as_is.step_time_unprofiled_band_s is not None and scaled.step_time_unprofiled_band_s is not None

    def width(answer: Answer) -> float:
        assert answer.step_time_unprofiled_band_s is not None and answer.step_time_unprofiled_s is not None
        low, high = answer.step_time_unprofiled_band_s
        return (high - low) / answer.step_time_unprofiled_s

    assert width(scaled) > width(as_is)


def test_without_explaining_there_is_no_band() -> None:
    assert simulate(HOST_BOUND, explain=False).step_time_unprofiled_band_s is None


def warnings(answer: Answer) -> list[str]:
    return [one.message for one in answer.diagnostics if one.level == "warning"]


def test_a_cluster_of_other_gpus_is_warned_of(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    (text,) = (one for one in warnings(run(path, cluster="h100-dgx")) if "computation" in one)
    assert "NVIDIA H200" in text and "--what-if gpu=h100-sxm" in text
    assert not [one for one in warnings(run(path, cluster="h100-dgx", gpu="h100-sxm")) if "computation" in one]
    assert not [one for one in warnings(run(path, cluster="h200-dgx")) if "computation" in one]
    (text,) = (one for one in warnings(run(path, cluster="h200-dgx", gpu="b200")) if "computation" in one)
    assert "as if on b200" in text
    assert not warnings(run(path))


def test_what_no_trace_tells_is_noted_where_ranks_are_added(tmp_path: Path) -> None:
    write_ranks(tmp_path, step(range(4)), range(4))
    job = open_input([tmp_path])

    def notes(one: Input) -> list[str]:
        answer = simulate(one, Machine("h100-dgx"), explain=False)
        return [note.message for note in answer.diagnostics if "slowest of" in note.message]

    assert not notes(job)
    assert "slowest of 64 GPUs" in notes(job.with_options(mesh="dp=64"))[0]


def test_a_replay_that_is_far_from_what_was_recorded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = open_input([HOST_BOUND])
    recorded_s = job.recorded_step_s
    assert recorded_s is not None
    monkeypatch.setattr(type(job), "recorded_step_s", 4 * recorded_s)
    with pytest.raises(InputError) as error:
        simulate(job, Machine(None))
    assert error.value.code == "replay-differs" and str(HOST_BOUND) in str(error.value.where)


@pytest.mark.parametrize(("gpu", "told"), [("NVIDIA H200", False), ("NVIDIA A100-SXM4-80GB", True), ("Abacus", False)])
def test_products_that_the_named_gpu_cannot_run_are_told(gpu: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = open_input([DEVICE_BOUND])
    monkeypatch.setattr(type(job), "recorded_gpu", gpu)
    codes = [note.code for note in simulate(job, Machine(None)).diagnostics if note.level == "warning"]
    assert ("implausible-rate" in codes) is told
