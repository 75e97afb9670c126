"""Where the steps of a trace begin and end."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from small_machine import Do, Machine, Row, recorded, trace_of

_STEP = [Do(20e-6, 5e-6, name=name) for name in ("a", "b", "c", "d", "e", "f", "g", "h", "i")]


def _held(trace: RankProfile, steps: Steps) -> list[int]:
    """How much work on a device each step launched."""
    of_device = steps.of_event[trace.events.of(*ON_DEVICE)]
    return np.bincount(of_device[of_device >= 0], minlength=len(steps)).tolist()


def _unmarked(steps: int = 3) -> Machine:
    return Machine(_STEP, annotate=False).run(steps)


def test_profiler_steps_are_steps_and_reach_to_the_next() -> None:
    trace = recorded(Machine(_STEP).run(3))
    steps = find_steps(trace)
    assert steps.how == "ProfilerStep"
    assert steps.names == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    assert steps.whole.all()
    assert _held(trace, steps) == [9, 9, 9]
    np.testing.assert_allclose(steps.end_s[:-1], steps.start_s[1:])


@pytest.mark.parametrize("name", ["train_step-{}", "iteration {}", "## Step ##", "train/batch"])
def test_a_repeating_annotation_that_names_steps_is_one(name: str) -> None:
    machine = _unmarked()
    for number, start in enumerate(machine.starts_s):
        end = [*machine.starts_s[1:], machine.now_s][number]
        machine.rows.append(Row(EventCategory.ANNOTATION, name.format(number), start, (end - start) * 0.999, 0))
    steps = find_steps(recorded(machine))
    assert steps.how.startswith("annotation ")
    assert len(steps) == 3


def test_an_annotation_of_a_part_cuts_steps_at_its_start() -> None:
    machine = _unmarked()
    for start in machine.starts_s:
        machine.rows.append(Row(EventCategory.ANNOTATION, "## forward ##", start + 1e-6, 60e-6, 0))
    trace = recorded(machine)
    steps = find_steps(trace)
    assert steps.how == "annotation ## forward ##"
    assert _held(trace, steps) == [9, 9, 9]


def test_several_forwards_to_an_optimizer_are_one_step() -> None:
    machine = _unmarked(6)
    for number, start in enumerate(machine.starts_s):
        machine.rows.append(Row(EventCategory.ANNOTATION, "forward", start + 1e-6, 60e-6, 0))
        if number % 2:
            end = [*machine.starts_s[1:], machine.now_s][number]
            machine.rows.append(Row(EventCategory.ANNOTATION, "Optimizer.step#AdamW.step", end - 20e-6, 19e-6, 0))
    trace = recorded(machine)
    steps = find_steps(trace)
    assert _held(trace, steps)[:2] == [18, 18]
    assert steps.whole.tolist() == [True, True, False]


def test_without_annotations_a_forward_follows_a_backward() -> None:
    machine = _unmarked()
    for start in machine.starts_s:
        row = Row(EventCategory.CPU_OP, "autograd::engine::evaluate_function: MmBackward0", start + 110e-6, 90e-6, 0)
        machine.rows.append(row)
    steps = find_steps(recorded(machine))
    assert steps.how == "first kernel of each forward"
    assert len(steps) == 3


def test_kernels_alone_are_cut_where_they_repeat() -> None:
    machine = _unmarked()
    trace = trace_of(row for row in machine.rows if row.category == EventCategory.KERNEL)
    steps = find_steps(trace)
    assert steps.how == "repeating kernels"
    assert _held(trace, steps) == [9, 9, 9]


def test_what_shows_no_steps_is_one() -> None:
    steps = find_steps(recorded(_unmarked(1)))
    assert steps.how == "whole trace"
    assert steps.names == ("whole trace",)
    assert steps.start_s[0] == 0.0


def test_a_step_without_work_on_a_device_is_not_whole() -> None:
    machine = Machine(_STEP).run(2)
    machine.rows.append(Row(EventCategory.ANNOTATION, "ProfilerStep#2", machine.now_s, 1e-4, 0))
    steps = find_steps(recorded(machine))
    assert steps.whole.tolist() == [True, True, False]


def test_work_launched_before_the_trace_is_in_no_step() -> None:
    machine = Machine([Do(2e-6, 50e-6)] * 9).run(3)
    trace = recorded(machine, from_step=1)
    steps = find_steps(trace)
    of_device = steps.of_event[trace.events.of(*ON_DEVICE)]
    assert (of_device == -1).sum() > 0
    assert _held(trace, steps) == [9, 9]
