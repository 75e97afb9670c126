"""Notes of many ranks."""

from __future__ import annotations

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.profiler_trace.program import grouped


def _note(message: str, where: str | None) -> Diagnostic:
    return Diagnostic("note", "guessed", message, where)


def test_notes_that_differ_in_numbers_are_one_with_their_ranges() -> None:
    notes = [_note(f"left out: {count} kernels of 4 steps by Step#2", f"rank{count}") for count in ("37", "1,037", "5")]
    (one,) = grouped(notes)
    assert one == _note("left out: 5–1,037 kernels of 4 steps by Step#2", "rank37 and 2 more")


def test_what_differs_in_a_name_or_is_of_one_trace_stays_apart() -> None:
    named = [_note("without ProfilerStep#1", "a"), _note("without ProfilerStep#2", "b")]
    alone = [_note("3 waits", None), _note("4 waits", None)]
    assert grouped([*named, *alone]) == [*named, *alone]
