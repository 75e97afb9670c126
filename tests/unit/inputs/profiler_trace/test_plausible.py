"""Traces with kernels that were moved, doubled or lost: the step stays right, or a warning says that it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_trace, read_traces
from foretrace.inputs.profiler_trace.format.columns import NO_NAME
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from foretrace.inputs.torch_ops.launched import device_kernels
from foretrace.program.check import check
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.counted_steps import find_counted_steps
from kineto_files import document, kernel, span, write
from opened import program_of

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


@pytest.mark.parametrize("change", [{"ts": 60}, {"args": {"stream": 13, "correlation": 1}}])
def test_a_kernel_that_is_there_again_in_another_place_counts_once(tmp_path: Path, change: dict[str, Any]) -> None:
    content = events()
    first = content[of_kernels(content)[0]]
    assert codes(tmp_path, [*content, first | change]) == (["duplicate-event"], len(content))


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


def test_gaps_of_missing_kernels_are_not_taken_for_waits_for_the_host(tmp_path: Path) -> None:
    content = events()
    for event in content:
        event["dur"] *= 0.7 if event["cat"] == "kernel" else 1
    whole = ProfilerTrace.load(write(tmp_path, document(content))).summary()
    gone = set(of_kernels(content)[3::KERNELS])
    left = [event for at, event in enumerate(content) if at not in gone]
    lacking = ProfilerTrace.load(write(tmp_path, document(left))).summary()
    assert [["cuda-graphs" in entry.text for entry in of.advice] for of in (whole, lacking)] == [[True], [False]]


@pytest.mark.parametrize("lost", [False, True])
def test_the_shapes_of_a_missing_kernel_are_not_those_of_its_neighbour(tmp_path: Path, lost: bool) -> None:
    content: list[dict[str, Any]] = []
    for number in range(1, 20, 2):
        at = 1000 * number
        shapes = {"Input_Dims": [[4096, 4096], [4096, 4096]], "Input_type": ["c10::BFloat16"] * 2}
        content.append(span("cpu_op", "aten::mm", at, 30, External_id=number, **shapes))
        for part, (name, took) in enumerate((("gemm", 400), ("convert", 1))):
            content.append(span("cuda_runtime", "cudaLaunchKernel", at + 5 + 10 * part, 5, correlation=number + part))
            if not (lost and name == "gemm" and number == 9):
                content.append(kernel(name, at + 50 + 500 * part, took, number + part))
    trace = read_trace(write(tmp_path, document(content)))
    attributed = device_kernels(trace, EventLinks(trace))
    assert len(attributed) == 10 - lost
    assert {trace.strings[trace.events.name[event]] for event in attributed} == {"gemm"}


def test_steps_that_overlap_are_said(tmp_path: Path) -> None:
    content = events()
    marks = [event for event in content if event["cat"] == "user_annotation"]
    marks[1]["ts"] += 500
    assert codes(tmp_path, content)[0] == ["overlapping-steps"]


@pytest.mark.parametrize(
    ("category", "factor"), [("kernel", 0), ("kernel", 1e-3), ("cuda_runtime", 1e3), ("cuda_runtime", 1e-3)]
)
def test_durations_in_another_unit_are_said(tmp_path: Path, category: str, factor: float) -> None:
    content = events()
    for event in content:
        if event["cat"] == category:
            event["dur"] *= factor
    assert "implausible-time" in codes(tmp_path, content)[0]


@pytest.mark.parametrize("factor", [20, 100, 1e3])
@pytest.mark.parametrize("categories", [("kernel",), ("kernel", "cuda_runtime", "user_annotation")])
def test_kernels_that_take_many_times_their_stream_are_refused(
    tmp_path: Path, categories: tuple[str, ...], factor: float
) -> None:
    content = events()
    for event in content:
        event["dur"] *= factor if event["cat"] in categories else 1
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, document(content)))
    assert error.value.code == "implausible-time" and error.value.where and error.value.hint


def test_kernels_of_graphs_that_run_at_once_are_read(tmp_path: Path) -> None:
    content = [span("cuda_runtime", "cudaGraphLaunch", 0, 5, correlation=1)]
    content += [kernel(f"k{at}", 20 + at, 20, 1) for at in range(40)]
    assert codes(tmp_path, content) == ([], len(content))
    for event in content:
        event["dur"] *= 1e3
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, document(content)))
    assert error.value.code == "implausible-time"


def test_a_unit_is_the_only_warning_where_it_explains_the_others(tmp_path: Path) -> None:
    content = [{**event, "ts": 1e3 * event["ts"], "dur": 1e3 * event["dur"]} for event in events()]
    assert codes(tmp_path, content)[0] == ["implausible-time"]


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_trace_in_another_unit_is_said(tmp_path: Path, factor: float) -> None:
    content = [{**event, "ts": factor * event["ts"], "dur": factor * event["dur"]} for event in events()]
    assert "implausible-time" in codes(tmp_path, content)[0]


def test_kernels_that_are_too_short_are_said(tmp_path: Path) -> None:
    content = events()
    for event in content:
        event["dur"] *= 0.4 if event["cat"] == "kernel" else 1
    assert codes(tmp_path, content)[0] == ["implausible-time"]


def test_launches_that_run_on_are_said(tmp_path: Path) -> None:
    content = events()
    for event in content[4:30:5]:
        event["dur"] *= 100 if event["cat"] == "cuda_runtime" else 1
    assert "implausible-time" in codes(tmp_path, content)[0]


@pytest.mark.parametrize("factor", [0, 0.5])
def test_marks_that_do_not_follow_each_other_are_said(tmp_path: Path, factor: float) -> None:
    content = events()
    for mark in marks_of(content):
        mark["dur"] *= factor
    assert codes(tmp_path, content)[0] == ["overlapping-steps"]


def test_a_wait_that_fills_its_step_and_more_does_not_make_it_negative(tmp_path: Path) -> None:
    content = [*events(), span("cuda_runtime", "cudaStreamSynchronize", 0, 1500, correlation=2000)]
    trace = read_trace(write(tmp_path, document(content)))
    steps = find_counted_steps(trace, EventLinks(trace)).steps
    assert (steps.end_s > steps.start_s).all()


def step_s(folder: Path, content: list[dict[str, Any]]) -> float:
    """The recorded step of a trace, as `simulate` has it."""
    return read_step(read_trace(write(folder, document(content)))).recorded_s


def marks_of(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in content if event["cat"] == "user_annotation"]


@pytest.mark.parametrize("which", range(STEPS))
@pytest.mark.parametrize("move_us", [-1e6, -500, -300, 300, 500, 1e6])
def test_a_mark_that_was_moved_does_not_change_the_step(tmp_path: Path, which: int, move_us: float) -> None:
    content = events()
    marks_of(content)[which]["ts"] += move_us
    assert step_s(tmp_path, content) == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_step_without_its_mark_is_found(tmp_path: Path, gone: int) -> None:
    content = events()
    content.remove(marks_of(content)[gone])
    assert step_s(tmp_path, content) == pytest.approx(1e-3, rel=0.05)
    assert codes(tmp_path, content)[0] == (["overlapping-steps"] if gone == 1 else [])


def test_marks_that_do_not_follow_the_kernels_are_left_out(tmp_path: Path) -> None:
    content = events()
    for mark, at_us in zip(marks_of(content), (0, 60, 2060), strict=True):
        mark |= {"ts": at_us, "dur": 50}
    assert codes(tmp_path, content)[0] == ["overlapping-steps"]
    assert step_s(tmp_path, content) == pytest.approx(1e-3, rel=0.05)


def test_marks_without_numbers_stay(tmp_path: Path) -> None:
    content = events()
    for mark in marks_of(content):
        mark["name"] = "ProfilerStep#1"
    assert codes(tmp_path, content) == ([], len(content))


@pytest.mark.parametrize("move_us", [-1e6, -700, 700, 1e6])
def test_a_trace_of_which_half_was_moved_is_refused(tmp_path: Path, move_us: float) -> None:
    content = events()
    for at in of_kernels(content)[::2]:
        content[at]["ts"] += move_us
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, document(content)))
    assert error.value.code in ("outside-step", "kernel-out-of-order") and error.value.where


@pytest.mark.parametrize("move_us", [-1e6, -700])
def test_a_device_whose_clock_is_off_is_read(tmp_path: Path, move_us: float) -> None:
    content = events()
    for at in of_kernels(content):
        content[at]["ts"] += move_us
    assert codes(tmp_path, content)[0] == ["kernel-before-launch"]
    assert step_s(tmp_path, content) == pytest.approx(1e-3, rel=0.05)


def test_kernels_that_are_there_again_on_another_stream_count_once(tmp_path: Path) -> None:
    content = events()
    again = [content[at] | {"args": {**content[at]["args"], "stream": 99}} for at in of_kernels(content)]
    assert codes(tmp_path, [*content, *again]) == (["duplicate-event"], len(content))


@pytest.mark.parametrize("known", [0, 3])
def test_kernels_without_launches_among_others_are_refused(tmp_path: Path, known: int) -> None:
    content = events()
    for at in of_kernels(content)[known:]:
        content[at]["args"]["correlation"] = -1
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, document(content)))
    assert error.value.code == "not-recorded" and error.value.where


@pytest.mark.parametrize(("elements", "told"), [(10**6, False), (10**9, True)])
def test_collectives_that_no_link_can_carry_are_said(tmp_path: Path, elements: int, told: bool) -> None:
    content = events()
    for at in of_kernels(content)[KERNELS - 1 :: KERNELS]:
        content[at]["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        content[at]["args"] |= {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": elements}
        content[at]["args"] |= {"Out msg nelems": elements, "Group size": 2}
    trace = ProfilerTrace.load(write(tmp_path, document(content, distributedInfo={"rank": 0, "world_size": 2})))
    assert [note.code for note in trace.timeline_diagnostics] == ["implausible-rate"] * told


def test_a_collective_whose_wait_overlaps_the_next_kernel_takes_no_negative_time(tmp_path: Path) -> None:
    for rank, took_us in enumerate((138, 5)):
        content = events()
        for at in of_kernels(content)[1::KERNELS]:
            content[at] |= {"name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "dur": took_us}
            content[at]["args"] |= {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1000}
            content[at]["args"] |= {"Out msg nelems": 1000, "Group size": 2}
        write(tmp_path, document(content, distributedInfo={"rank": rank, "world_size": 2}), f"rank{rank}.json")
    check(program_of(tmp_path))


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (2.0, True)])
def test_ranks_whose_steps_take_other_times_are_said(tmp_path: Path, factor: float, told: bool) -> None:
    for rank, scale in enumerate((1.0, factor)):
        content = [{**event, "ts": scale * event["ts"], "dur": scale * event["dur"]} for event in events()]
        info = {"rank": rank, "world_size": 2}
        write(tmp_path, document(content, distributedInfo=info), f"rank{rank}.json")
    codes = [note.code for note in ProfilerTrace.load(tmp_path).timeline_diagnostics]
    assert codes == ["implausible-time"] * told


def test_kernels_whose_launches_are_missing_are_said(tmp_path: Path) -> None:
    content = events()
    launches = [at for at, event in enumerate(content) if event["name"] == "cudaLaunchKernel"]
    early, between = set(launches[:5]), set(launches[5::4])
    assert codes(tmp_path, [e for at, e in enumerate(content) if at not in early])[0] == []
    assert codes(tmp_path, [e for at, e in enumerate(content) if at not in between])[0] == ["not-recorded"]


def test_a_clock_that_jumps_ahead_leaves_a_step_out(tmp_path: Path) -> None:
    content = events()
    for event in content:
        event["ts"] += 20_000 if event["ts"] >= 1999 else 0
    trace = read_trace(write(tmp_path, document(content)))
    counted = find_counted_steps(trace, EventLinks(trace))
    assert counted.step_s == pytest.approx(1e-3, rel=0.1)
    assert "steps-left-out" in [note.code for note in counted.notes if note.level == "warning"]


def test_a_clock_that_jumps_back_is_refused(tmp_path: Path) -> None:
    content = events()
    for event in content:
        event["ts"] -= 1500 if event["ts"] >= 1999 else 0
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, document(content)))
    assert error.value.code == "kernel-out-of-order"


def test_one_recording_under_two_names_is_said(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, document(events(), distributedInfo={"rank": rank, "world_size": 2}), f"rank{rank}.json")
    notes = [note for trace in read_traces([tmp_path]) for note in trace.diagnostics]
    assert [note.code for note in notes if note.level == "warning"] == ["duplicate-event"]


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


@pytest.mark.parametrize("field", ["name", "pid", "tid", "args"])
@pytest.mark.parametrize("value", [float("nan"), [1], None, True])
def test_fields_of_another_type_are_left_out_and_reported_once(tmp_path: Path, field: str, value: Any) -> None:
    content = events()
    for at in (2, 12):
        content[at][field] = {} if field == "args" and value is None else value
    found, left = codes(tmp_path, content)
    assert left == len(content)
    assert found.count("rows-skipped") == (field != "args" or value is not None)


def test_a_comparison_has_the_diagnostics_of_both_traces(tmp_path: Path) -> None:
    content = events()
    right = ProfilerTrace.load(write(tmp_path, document(content), "right.json"))
    content[2]["name"] = None
    odd = ProfilerTrace.load(write(tmp_path, document(content), "odd.json"))
    for difference in (right.diff(odd), odd.diff(right)):
        notes = [note for note in difference.diagnostics if note.level == "warning"]
        assert [note.code for note in notes] == ["rows-skipped"] and str(notes[0].where).endswith("odd.json")
        assert {change.name for change in difference.changes if change.what == "added"} <= {"k0", NO_NAME}


def test_blanks_without_end_are_refused(tmp_path: Path) -> None:
    text = json.dumps(document(events()))
    with pytest.raises(InputError) as error:
        read_trace(write(tmp_path, text[:-1] + " " * (70 << 20) + "}", "trace.json.gz"))
    assert error.value.code == "input-too-large"
