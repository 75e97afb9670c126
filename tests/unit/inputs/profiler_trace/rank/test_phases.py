"""Forward, backward and optimizer of a trace."""

from __future__ import annotations

from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.phases import phases
from foretrace.program.columns import Phase
from small_machine import Do, Machine, Row, recorded


def _phases(*ranges: Row) -> dict[str, Phase]:
    machine = Machine([Do(20e-6, 5e-6, name=name) for name in ("f", "loss", "b", "clip", "adam", "log")]).run(1)
    machine.rows += ranges
    trace = recorded(machine)
    found = phases(trace, EventLinks(trace))
    kernels = trace.events.of(EventCategory.KERNEL)
    return {name: Phase(int(found[at])) for name, at in zip(trace.names(kernels), kernels, strict=True)}


def test_the_innermost_range_that_names_a_phase_says_it() -> None:
    found = _phases(
        Row(EventCategory.ANNOTATION, "train", 0.0, 2e-4, 0),
        Row(EventCategory.ANNOTATION, "forward", 0.0, 30e-6, 0),
        Row(EventCategory.CPU_OP, "autograd::engine::evaluate_function: MulBackward0", 50e-6, 25e-6, 0),
        Row(EventCategory.ANNOTATION, "Optimizer.step#AdamW.step", 100e-6, 20e-6, 0),
    )
    assert found["f"] is Phase.FORWARD
    assert found["b"] is Phase.BACKWARD
    assert found["adam"] is Phase.OPTIMIZER


def test_what_is_not_named_belongs_to_what_comes_next() -> None:
    found = _phases(
        Row(EventCategory.CPU_OP, "autograd::engine::evaluate_function: MulBackward0", 50e-6, 25e-6, 0),
        Row(EventCategory.ANNOTATION, "Optimizer.step#AdamW.step", 100e-6, 20e-6, 0),
    )
    assert found["loss"] is Phase.FORWARD
    assert found["clip"] is Phase.OPTIMIZER
    assert found["log"] is Phase.NONE
