"""Traces as programs: what they take as recorded, and with their host otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.api import simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.option_values import HostMode
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from foretrace.program.columns import Kind, Phase
from foretrace.program.program import Program
from foretrace.readings.scenario import Scenario
from kineto_files import document, kernel, span, write
from opened import program_of
from shared_files import shared

KINETO = (
    "amd_trace_mi250*",
    "critical_path_alexnet*",
    "critical_path_cuda_event*",
    "execution_trace_benchmark_simple_add_trace*",
    "nccl_parser*",
    "negative_queue*",
    "timeline_analysis*",
    "trace_diff*",
    "trace_filter*",
    "triton_example*",
)


def _step_s(path: Path, host: HostMode = "profiled", **options: Any) -> float:
    return simulate(program_of([path], host=host, **options), explain=False).step_time_s


def _written(folder: Path, steps: int = 3, *, host_us: float = 40.0, kernel_us: float = 5.0) -> Path:
    """Steps of ten launches, host-bound unless the kernels are longer than the launches are apart."""
    events: list[dict[str, Any]] = []
    free = 0.0
    for number in range(steps):
        begin = 1000.0 + number * 10 * host_us
        events.append(span("user_annotation", f"ProfilerStep#{number}", begin, 10 * host_us))
        events.append(span("user_annotation", "forward", begin + 0.5, 5 * host_us))
        events.append(span("user_annotation", "Optimizer.step#SGD.step", begin + 5 * host_us + 1, 4 * host_us))
        for at in range(10):
            call, correlation = begin + at * host_us + 2, 100 * number + at
            events.append(span("cpu_op", "aten::mm", call - 1, 8, Input_Dims=[[256, 512], [512, 128]],
                               Input_type=["c10::BFloat16", "c10::BFloat16"]))  # fmt: skip
            events.append(span("cuda_runtime", "cudaLaunchKernel", call, 5, correlation=correlation))
            start = max(call + 8, free + 1.5)
            events.append(kernel("nvjet_tst_128x64", start, kernel_us, correlation))
            free = start + kernel_us
    devices = [{"id": 0, "name": "NVIDIA H200"}]
    return write(folder, document(events, deviceProperties=devices))


@pytest.mark.parametrize("pattern", KINETO)
def test_replayed_a_sample_takes_its_recorded_step(pattern: str) -> None:
    path = shared("data", "kineto", pattern)
    assert _step_s(path) == pytest.approx(read_step(read_trace(path)).recorded_s, rel=0.01)


@pytest.mark.parametrize(
    ("name", "profiled_s", "unprofiled_s", "off"),
    [("tinyllama_mbs4", 133.77e-3, 134.043e-3, 0.03), ("tinyllama_mbs1_s512", 69.92e-3, 41.329e-3, 0.08)],
)
def test_an_h200_step_as_recorded_and_without_the_profiler(
    name: str, profiled_s: float, unprofiled_s: float, off: float
) -> None:
    path = shared("data", "h200", f"{name}.json.gz")
    assert _step_s(path) == pytest.approx(profiled_s, rel=0.01)
    assert _step_s(path, "unprofiled") == pytest.approx(unprofiled_s, rel=off)


def test_an_h200_step_as_a_cuda_graph() -> None:
    path = shared("data", "h200", "tinyllama_mbs1_s512.json.gz")
    assert _step_s(path, "graphs") == pytest.approx(16.388e-3, rel=0.08)
    assert _step_s(path, "graphs") < _step_s(path, "none") < _step_s(path, "unprofiled") < _step_s(path)


def test_a_program_says_what_it_is_made_of(tmp_path: Path) -> None:
    program = program_of([_written(tmp_path)])
    assert program.repeats
    assert {(lane.name, lane.kind) for lane in program.lanes} == {("host thread 0", "host"), ("stream 7", "compute")}
    columns = program.templates.columns
    computes = columns["kind"] == Kind.COMPUTE
    assert computes.sum() == 10
    assert {Phase(one) for one in columns["phase"][computes].tolist()} == {Phase.FORWARD, Phase.OPTIMIZER}
    (text,) = {program.strings[at] for at in columns["kernel"][computes].tolist()}
    assert text.startswith("gemm m=256 n=128 k=512")
    assert [source.name for source in program.sources if "recorded" in source.name] == ["recorded on NVIDIA H200"]
    assert "recorded step 0.40 ms (0.40 to 0.40): mean of 3 steps by ProfilerStep, on the host" in _said(program)


def test_modes_of_the_host(tmp_path: Path) -> None:
    path = _written(tmp_path)
    assert _step_s(path) == pytest.approx(400e-6, rel=1e-6)
    assert 150e-6 < _step_s(path, "unprofiled") < 350e-6
    assert _step_s(path, "none") == pytest.approx(10 * 6e-6, rel=0.1)
    assert _step_s(path, "graphs") == pytest.approx(10 * 5.38e-6, rel=0.01)


@pytest.mark.parametrize(("host_us", "kernel_us"), [(125.0, 100.0), (25.0, 100.0), (25.0, 5.0)])
@pytest.mark.parametrize("streams", [(7,), (7, 8)])
def test_a_step_of_one_kernel_a_stream_runs_beside_its_host(
    tmp_path: Path, host_us: float, kernel_us: float, streams: tuple[int, ...]
) -> None:
    events, free = [], 0.0
    for number in range(4):
        begin = 1000 + number * host_us
        events.append(span("user_annotation", f"ProfilerStep#{number}", begin, host_us))
        start = max(begin + 12, free + 1)
        free = start + kernel_us
        for at, stream in enumerate(streams):
            correlation = 10 * number + at
            events.append(span("cuda_runtime", "cudaLaunchKernel", begin + 4 + at, 0.5, correlation=correlation))
            events.append(kernel("gemm", start, kernel_us, correlation, stream=stream))
    path = write(tmp_path, document(events))
    assert _step_s(path) == pytest.approx(max(host_us, kernel_us + 1) * 1e-6, rel=0.01)
    assert _step_s(path, "graphs") < (kernel_us + 2) * 1e-6


@pytest.mark.parametrize("overlap_us", [1, 10])
@pytest.mark.parametrize("launched", [True, False])
def test_kernels_that_overlap_on_their_stream_do_so_in_every_mode(
    tmp_path: Path, overlap_us: int, launched: bool
) -> None:
    apart = 20 - overlap_us
    events = []
    for number in range(4):
        begin = 1000 + number * 20 * apart
        events.append(span("user_annotation", f"ProfilerStep#{number}", begin, 20 * apart))
        for at in range(20):
            correlation, call = 100 * number + at, begin + at * apart
            if launched:
                events.append(span("cuda_runtime", "cudaLaunchKernel", call, 2, correlation=correlation))
            events.append(kernel(f"gemm_{at}", call + 6, 20, correlation))
    path = write(tmp_path, document(events))
    for mode in ("profiled", "unprofiled", "none", "graphs"):
        assert _step_s(path, mode) == pytest.approx(20 * apart * 1e-6, rel=0.01)


def test_kernels_without_launches_keep_the_pauses_between_them(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        begin = 1000 + number * 440
        events.append(span("user_annotation", f"ProfilerStep#{number}", begin, 440))
        events += [kernel(f"gemm_{at}", begin + 6 + at * 105, 100, 10 * number + at) for at in range(4)]
    path = write(tmp_path, document(events))
    assert _step_s(path) == pytest.approx(440e-6, rel=1e-3)
    assert _step_s(path, "unprofiled") == pytest.approx(440e-6, rel=0.01)
    assert _step_s(path, "none") < 425e-6


def test_a_single_step_that_goes_on_after_its_host_is_not_slower_without_the_profiler(tmp_path: Path) -> None:
    events = [
        span("user_annotation", "ProfilerStep#0", 1000, 840),
        span("cuda_runtime", "cudaLaunchKernel", 1010, 4, correlation=1),
        kernel("gemm", 1016, 400, 1),
        span("cuda_runtime", "cudaLaunchKernel", 1026, 4, correlation=2),
        kernel("gemm", 1417, 390, 2),
        span("cuda_runtime", "cudaStreamSynchronize", 1031, 780, correlation=3),
        span("cuda_runtime", "cudaLaunchKernel", 1823, 4, correlation=4),
        kernel("gemm", 1829, 315, 4, stream=8),
    ]
    path = write(tmp_path, document(events))
    assert _step_s(path) == pytest.approx(840e-6, rel=0.01)
    assert _step_s(path, "none") <= _step_s(path, "unprofiled") <= _step_s(path)


def test_of_a_single_step_the_device_catches_up_with_only_its_own_work_counts(tmp_path: Path) -> None:
    events = [
        span("user_annotation", "ProfilerStep#0", 1000, 850),
        span("cuda_runtime", "cudaLaunchKernel", 1046, 4, correlation=1),
        kernel("gemm", 1052, 450, 1, stream=8),
        span("cuda_runtime", "cudaLaunchKernel", 1103, 4, correlation=2),
        kernel("gemm", 1109, 675, 2),
        span("cuda_runtime", "cudaStreamSynchronize", 1108, 680, correlation=3),
        span("cuda_runtime", "cudaLaunchKernel", 1837, 4, correlation=4),
        kernel("gemm", 1843, 470, 4, stream=8),
    ]
    path = write(tmp_path, document(events))
    assert _step_s(path) == pytest.approx(read_step(read_trace(path)).recorded_s, rel=0.01)


def test_a_device_bound_step_hardly_changes_without_its_host(tmp_path: Path) -> None:
    path = _written(tmp_path, host_us=20.0, kernel_us=90.0)
    as_recorded = _step_s(path)
    assert as_recorded == pytest.approx(10 * 91.5e-6, rel=0.01)
    for mode in ("unprofiled", "none", "graphs"):
        assert _step_s(path, mode) == pytest.approx(as_recorded, rel=0.03)


def test_faster_kernels_never_make_a_step_slower(tmp_path: Path) -> None:
    for kernel_us in (5.0, 38.0, 90.0):
        program = program_of([_written(tmp_path, kernel_us=kernel_us)])
        times = [
            simulate(program, None, Scenario(what_if={"compute": factor}), explain=False).step_time_s
            for factor in (1.0, 1.5, 2.0, 8.0)
        ]
        assert (np.diff(times) <= 1e-12).all()


def test_a_step_with_waits_cannot_be_captured_as_it_is() -> None:
    path = shared("data", "kineto", "trace_diff*")
    assert "cannot be captured" in _said(program_of([path], host="graphs"))


def test_ranks_without_a_common_step_are_refused(tmp_path: Path) -> None:
    first = _written(tmp_path).rename(tmp_path / "rank0.json")
    events = [span("user_annotation", "ProfilerStep#9", 0, 90)]
    for at in range(3):
        events.append(span("cuda_runtime", "cudaLaunchKernel", 10 + 20 * at, 5, correlation=at))
        events.append(kernel("gemm", 20 + 20 * at, 5, at))
    second = write(tmp_path, document(events, distributedInfo={"rank": 1, "world_size": 2}), "rank1.json")
    with pytest.raises(InputError) as caught:
        program_of([first, second])
    assert caught.value.code == "several-inputs"


def _said(program: Program) -> str:
    return "\n".join(note.message for note in program.diagnostics)


def test_what_the_host_waited_for_in_vain_is_said_as_each_mode_takes_it(tmp_path: Path) -> None:
    path = _written(tmp_path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events += [span("cuda_runtime", "cudaEventSynchronize", 1020.0 + 400.0 * step, 16) for step in range(3)]
    path = write(tmp_path, document(events, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]))

    def told(host: HostMode) -> str:
        notes = program_of([path], host=host).diagnostics
        return next(one.message for one in notes if "for what is not in the trace" in one.message)

    assert told("profiled").endswith("the host waits 0.02 ms of a step for what is not in the trace; kept as it was")
    assert told("unprofiled").endswith("kept as it was")
    assert told("none").endswith("left out with the host")
    assert told("graphs").endswith("left out with the host")
