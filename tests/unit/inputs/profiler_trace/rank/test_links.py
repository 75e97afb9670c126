"""What joins the events of a trace."""

from __future__ import annotations

import numpy as np

from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from small_machine import Row, trace_of


def _named(links: EventLinks, column: str, name: str) -> str | None:
    """The name of what a column gives for the first event of a name."""
    trace = links.trace
    event = next(at for at in range(len(trace.events)) if trace.strings[trace.events.name[at]] == name)
    found = int(getattr(links, column)[event])
    return None if found < 0 else trace.strings[trace.events.name[found]]


def _trace(*more: Row) -> EventLinks:
    rows = [
        Row(EventCategory.ANNOTATION, "step", 0.0, 100e-6, 0),
        Row(EventCategory.ANNOTATION, "forward", 1e-6, 60e-6, 0),
        Row(EventCategory.CPU_OP, "aten::linear", 2e-6, 40e-6, 0, external=5),
        Row(EventCategory.CPU_OP, "aten::addmm", 4e-6, 30e-6, 0, external=6),
        Row(EventCategory.RUNTIME, "cudaLaunchKernel", 10e-6, 5e-6, 0, -1, 77),
        Row(EventCategory.KERNEL, "gemm", 20e-6, 30e-6, -1, 7, 77),
        Row(EventCategory.CPU_OP, "aten::sum", 70e-6, 5e-6, 1),
        *more,
    ]
    return EventLinks(trace_of(rows))


def test_a_kernel_has_the_call_that_launched_it_and_the_innermost_op_around_that() -> None:
    links = _trace()
    assert _named(links, "launch", "gemm") == "cudaLaunchKernel"
    assert _named(links, "op", "gemm") == "aten::addmm"
    assert _named(links, "annotation", "gemm") == "forward"
    assert _named(links, "op", "aten::addmm") == "aten::linear"
    assert _named(links, "op", "aten::linear") is None


def test_annotations_of_the_main_thread_hold_for_a_thread_without() -> None:
    links = _trace()
    assert _named(links, "annotation", "aten::sum") == "step"
    gemm = int(np.flatnonzero(links.trace.events.category == EventCategory.KERNEL)[0])
    assert [links.trace.strings[links.trace.events.name[at]] for at in links.chain(gemm)] == ["forward", "step"]


def test_a_kernel_without_a_launch_is_joined_by_external_id() -> None:
    links = _trace(Row(EventCategory.KERNEL, "lost", 60e-6, 5e-6, -1, 7, 99, external=5))
    assert _named(links, "launch", "lost") is None
    assert _named(links, "op", "lost") == "aten::linear"


def test_of_calls_with_one_correlation_the_last_before_a_kernel_launched_it() -> None:
    links = _trace(
        Row(EventCategory.RUNTIME, "cudaLaunchKernelExC", 60e-6, 5e-6, 0, -1, 77),
        Row(EventCategory.KERNEL, "again", 70e-6, 5e-6, -1, 7, 77),
    )
    assert _named(links, "launch", "gemm") == "cudaLaunchKernel"
    assert _named(links, "launch", "again") == "cudaLaunchKernelExC"


def test_a_range_that_ends_where_another_begins_does_not_hold_it() -> None:
    # In floats 0.3 + 0.1 us lies behind 0.4 us.
    rows = [
        Row(EventCategory.CPU_OP, "first", 0.3e-6, 0.1e-6, 0),
        Row(EventCategory.CPU_OP, "second", 0.4e-6, 0.2e-6, 0),
        Row(EventCategory.CPU_OP, "empty", 0.5e-6, 0.0, 0),
    ]
    links = EventLinks(trace_of(rows))
    assert _named(links, "op", "second") is None
    assert _named(links, "op", "empty") == "second"


def test_the_innermost_op_is_what_a_stack_finds() -> None:
    rng = np.random.default_rng(7)
    rows: list[Row] = []

    def nest(start: float, end: float, depth: int) -> None:
        cuts = np.sort(rng.uniform(start, end, 2 * int(rng.integers(1, 4))))
        for low, high in cuts.reshape(-1, 2):
            if high - low > 4e-9:
                rows.append(Row(EventCategory.CPU_OP, f"op {len(rows)}", float(low), float(high - low), 0))
                if depth < 5:
                    nest(float(low), float(high), depth + 1)

    nest(0.0, 1e-3, 0)
    links = EventLinks(trace_of(rows))
    events = links.trace.events
    stack: list[int] = []
    for at in range(len(events)):
        while stack and np.rint(events.end_s[stack[-1]] * 1e9) <= np.rint(events.start_s[at] * 1e9):
            stack.pop()
        assert links.op[at] == (stack[-1] if stack else -1)
        stack.append(at)
