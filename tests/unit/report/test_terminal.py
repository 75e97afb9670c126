"""Lines of text on a terminal."""

from __future__ import annotations

from foretrace.basics.codes import CODES, RECORDED_TIMES
from foretrace.basics.errors import Diagnostic
from foretrace.report.terminal import diagnostic_lines


def test_warnings_on_recorded_times_come_first() -> None:
    others = [Diagnostic("warning", "rows-skipped", "other", None), Diagnostic("note", "implausible-time", "other")]
    times = [Diagnostic("warning", code, f"time {code}", "trace.json") for code in RECORDED_TIMES]
    lines = diagnostic_lines((*others * 3, *times), len(times))
    assert all("time" in line[1][0] for line in lines[: len(times)])
    assert len(lines) == len(times) + 1


def test_codes_of_recorded_times_are_codes() -> None:
    assert set(RECORDED_TIMES) <= set(CODES)
