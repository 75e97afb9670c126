"""A trace of one GPU on many: gradients are all-reduced in DDP's buckets, and every assumption is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.job.gradients import with_gradients_reduced
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.step.buckets import DDP_BUCKET_BYTES
from kineto_files import document, kernel, span, write
from opened import program_of
from shared_files import shared

ENGINE = "autograd::engine::evaluate_function: MmBackward0"
MB = 1 << 20


def _step(gradients: list[int], *, rounds: int = 1, shapes: bool = True) -> list[dict[str, Any]]:
    """Microbatches of a forward and a backward of so many bf16 gradients (in MiB), then an optimizer, thrice."""
    events: list[dict[str, Any]] = []
    at, correlation = 0.0, 1

    def launch(name: str, us: float) -> None:
        nonlocal correlation
        events.append(span("cuda_runtime", "cudaLaunchKernel", at + 1, 3, correlation=correlation))
        events.append(kernel(name, at + 6, us, correlation))
        correlation += 1

    for number in range(3):
        begin = at
        for _ in range(rounds):
            events.append(span("user_annotation", "forward", at, 10))
            launch("gemm_forward", 5)
            at += 20
            for size in gradients:
                events.append(span("cpu_op", ENGINE, at, 8))
                launch("gemm_backward", 5)
                own = {"Input Dims": [[size * MB // 2]], "Input type": ["c10::BFloat16"]} if shapes else {}
                one = span("cpu_op", "torch::autograd::AccumulateGrad", at + 9, 2)
                one["args"] |= own
                events.append(one)
                at += 20
        events.append(span("user_annotation", "Optimizer.step#AdamW.step", at, 10))
        launch("multi_tensor_apply_kernel", 5)
        at += 20
        events.append(span("user_annotation", f"ProfilerStep#{number}", begin, at - begin))
    return events


def _reduced(folder: Path, *gradients: int, sizes: tuple[tuple[str, str], ...] = (), **more: Any) -> RankProfile:
    trace = read_trace(write(folder, document(_step(list(gradients), **more))))
    return with_gradients_reduced([trace], ProfilerTraceOptions(mesh="dp=8", sizes=sizes))[0]


def _elements(trace: RankProfile) -> list[int]:
    calls = trace.events.call[trace.events.call >= 0]
    return [trace.calls[number].in_elements * 2 // MB for number in calls.tolist()]


def test_buckets_fill_in_the_order_of_gradients(tmp_path: Path) -> None:
    trace = _reduced(tmp_path, 2, 10, 10, 10, 40, 3)
    assert _elements(trace)[:4] == [2, 30, 40, 3]  # the first holds 1 MiB, the others 25, closed once reached
    assert len(_elements(trace)) == 3 * 4
    assert DDP_BUCKET_BYTES == 25 * MB


def test_columns_that_a_profiler_does_not_have_stay_away(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document(_step([10, 40]))))
    trace = replace(trace, events=replace(trace.events, bytes_per_s=None, blocks_per_sm=None))
    (reduced,) = with_gradients_reduced([trace], ProfilerTraceOptions(mesh="dp=8"))
    assert len(reduced.events) > len(trace.events)
    assert reduced.events.bytes_per_s is None


def test_only_the_last_microbatch_reduces(tmp_path: Path) -> None:
    assert _elements(_reduced(tmp_path, 30, 30, rounds=4)) == [30, 30] * 3


def test_layers_alike_are_no_microbatches(tmp_path: Path) -> None:
    assert _elements(_reduced(tmp_path, 30, 30, 30, 30)) == [30] * 12


def test_buckets_come_as_their_gradients_do(tmp_path: Path) -> None:
    spread = _reduced(tmp_path, 30, 30, 30)
    calls = np.flatnonzero(spread.events.call >= 0)
    assert len(set(spread.events.start_s[calls[:3]].tolist())) == 3
    after = _reduced(tmp_path, 30, 30, 30, sizes=(("overlap", "none"),))
    calls = np.flatnonzero(after.events.call >= 0)
    assert len(set(after.events.start_s[calls[:3]].tolist())) == 1


def test_the_program_reduces_and_the_optimizer_waits(tmp_path: Path) -> None:
    path = write(tmp_path, document(_step([30, 30])))
    program = program_of([path], mesh="dp=8")
    columns = program.templates.columns
    reduces = np.flatnonzero(columns["communicator"] >= 0)
    assert columns["bytes"][reduces].tolist() == [30 * MB, 30 * MB] and np.isnan(columns["duration_s"][reduces]).all()
    optimizer = [at for at, name in enumerate(columns["name"].tolist()) if "multi_tensor" in program.strings[name]]
    needed = program.templates.dep_src[program.templates.dep_dst == optimizer[0]]
    assert reduces[-1] in needed
    assert any("as DDP does" in note.message for note in program.diagnostics)


def test_sizes_that_are_not_recorded_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _reduced(tmp_path, 30, shapes=False)
    assert caught.value.code == "not-recorded"
    assert "--set params=1.1e9" in (caught.value.hint or "")
    said = (("params", "1e8"), ("dtype", "fp32"))
    trace = _reduced(tmp_path, 30, 30, shapes=False, sizes=said)
    per_step = sum(trace.calls[number].in_elements for number in trace.events.call[trace.events.call >= 0]) / 3
    assert per_step == pytest.approx(1e8, rel=1e-6)
    assert {call.dtype for call in trace.calls} == {"Float"}


def test_a_models_name_says_its_parameters(tmp_path: Path) -> None:
    trace = _reduced(tmp_path, 30, 30, shapes=False, sizes=(("model", "llama3-8b"),))
    per_step = sum(trace.calls[number].in_elements for number in trace.events.call[trace.events.call >= 0]) / 3
    assert per_step == pytest.approx(8.03e9, rel=0.01)


def test_one_gpu_needs_no_reduction(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document(_step([30]))))
    assert with_gradients_reduced([trace], ProfilerTraceOptions())[0] is trace
    assert with_gradients_reduced([trace], ProfilerTraceOptions(mesh="dp=1"))[0] is trace


def test_an_unknown_overlap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _reduced(tmp_path, 30, sizes=(("overlap", "some"),))
    assert caught.value.code == "unknown-name"


def test_gradients_of_a_recorded_model() -> None:
    trace = read_trace(shared("data", "h200", "tinyllama_mbs4.json.gz"))
    [reduced] = with_gradients_reduced([trace], ProfilerTraceOptions(mesh="dp=64"))
    elements = [reduced.calls[number].in_elements for number in reduced.events.call[reduced.events.call >= 0].tolist()]
    assert sum(elements) == 2 * 1_100_048_384  # TinyLlama-1.1B's parameters, in each of two steps
    assert any("2.20 GB" in note.message for note in reduced.diagnostics)


def test_fewer_parameters_than_kernels_are_spread_all_the_same(tmp_path: Path) -> None:
    trace = _reduced(tmp_path, 1, 1, 1, 1, sizes=(("params", "3"),), shapes=False)
    calls = trace.events.call[trace.events.call >= 0].tolist()
    assert [trace.calls[number].in_elements for number in calls] == [3] * 3
    with pytest.raises(InputError) as caught:
        _reduced(tmp_path, 1, sizes=(("params", "0"),))
    assert caught.value.code == "out-of-range"


def test_what_is_said_in_vain_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, document(_step([1, 1])))
    sizes = (("all_reduce.bytes", "16MiB"), ("group.7", "tp"), ("dtype", "fp32"), ("overlap", "none"))
    program = program_of([path], mesh="dp=8", sizes=sizes)
    told = [one.message for one in program.diagnostics if one.code == "field-ignored"]
    assert told == ["not used here: --set all_reduce.bytes, group.7, dtype"]
    with pytest.raises(InputError) as caught:
        program_of([path], mesh="dp=8", sizes=(("group.7", "x"),))
    assert caught.value.code == "unknown-name"
