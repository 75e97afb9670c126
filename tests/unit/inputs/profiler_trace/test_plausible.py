"""Traces with kernels that were moved, doubled or lost: the step stays right, or a warning says that it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_trace
from kineto_files import document, kernel, span, write

STEPS, KERNELS = 3, 10


def events() -> list[dict[str, Any]]:
    """Steps of kernels of 100 µs, launched ahead, and a wait for the device at the end."""
    listed = []
    for step in range(STEPS):
        listed.append(span("user_annotation", f"ProfilerStep#{step}", 1000 * step, 999))
        for at in range(KERNELS):
            number = 1 + step * KERNELS + at
            listed.append(span("cuda_runtime", "cudaLaunchKernel", 1000 * step + 10 * at, 5, correlation=number))
            listed.append(kernel(f"k{at}", 1000 * step + 20 + 98 * at, 96, number))
    listed.append(span("cuda_runtime", "cudaDeviceSynchronize", 2999, 40, correlation=1000))
    return listed


def codes(folder: Path, content: list[dict[str, Any]]) -> tuple[list[str], int]:
    """The codes of warnings on a trace, and how many events are left."""
    trace = read_trace(write(folder, document(content)))
    return [note.code for note in trace.diagnostics if note.level == "warning"], len(trace.events)


def of_kernels(content: list[dict[str, Any]]) -> list[int]:
    return [at for at, event in enumerate(content) if event["cat"] == "kernel"]


def test_a_right_trace_has_no_warnings(tmp_path: Path) -> None:
    assert codes(tmp_path, events()) == ([], len(events()))


def test_events_that_are_there_twice_count_once(tmp_path: Path) -> None:
    content = events()
    assert codes(tmp_path, [*content, *content]) == (["duplicate-event"], len(content))
    assert codes(tmp_path, [*content, content[5]]) == (["duplicate-event"], len(content))


@pytest.mark.parametrize("which", [2, STEPS * KERNELS // 2, STEPS * KERNELS - 1])
@pytest.mark.parametrize("move_us", [-1e6, -2e4, 2e4, 1e6])
def test_a_kernel_that_was_moved_is_named_and_put_back(tmp_path: Path, which: int, move_us: float) -> None:
    content = events()
    moved = content[of_kernels(content)[which]]
    right = read_trace(write(tmp_path, document(content)))
    moved["ts"] += move_us
    trace = read_trace(write(tmp_path, document(content)))
    notes = [note for note in trace.diagnostics if note.level == "warning"]
    assert notes and moved["name"] in notes[0].message and notes[0].where
    assert trace.events.end_s.max() == pytest.approx(right.events.end_s.max(), rel=0.01)
    assert len(trace.events) == len(content)


def test_missing_kernels_are_said(tmp_path: Path) -> None:
    content = events()
    gone = set(of_kernels(content)[::3])
    assert codes(tmp_path, [e for at, e in enumerate(content) if at not in gone])[0] == ["launch-without-kernel"]


def test_steps_that_overlap_are_said(tmp_path: Path) -> None:
    content = events()
    marks = [event for event in content if event["cat"] == "user_annotation"]
    marks[1]["ts"] += 500
    assert codes(tmp_path, content)[0] == ["overlapping-steps"]


def test_a_group_of_a_billion_ranks_is_not_listed(tmp_path: Path) -> None:
    content = events()
    content[2]["args"] |= {"Collective name": "allreduce", "Group size": 10**9, "Global rank start": 0}
    content[2]["args"]["Global rank stride"] = 1
    found, left = codes(tmp_path, content)
    assert found == ["rows-skipped"] and left == len(content)


@pytest.mark.parametrize("field", ["name", "cat", "pid", "tid", "ts", "dur", "args"])
@pytest.mark.parametrize(
    "value", ["null", "[" * 600 + "]" * 600, "9" * 400, "Infinity", "NaN", '"1e9999999999"', "-5", "{}", '"\u00b2"']
)
def test_any_value_in_any_field_is_read_or_left_out(tmp_path: Path, field: str, value: str) -> None:
    content = events()
    content[2][field] = "VALUE"
    text = json.dumps(document(content)).replace('"VALUE"', value)
    trace = read_trace(write(tmp_path, text))
    assert len(content) - 1 <= len(trace.events) <= len(content)


def test_blanks_without_end_are_refused(tmp_path: Path) -> None:
    text = json.dumps(document(events()))
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, text[:-1] + " " * (70 << 20) + "}", "trace.json.gz"))
    assert error.value.code == "input-too-large"
