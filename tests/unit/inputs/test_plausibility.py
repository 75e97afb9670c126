"""Times that cannot have happened are mended, left out or said, and right ones are not touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.inputs.plausibility import RecordedWork, check_work, duplicates, odd_repeats, overlapped_s, queued_gap_s

COUNT = 100


def steady(**changes: np.ndarray) -> RecordedWork:
    """Kernels of 1 ms back to back on one stream, each launched 0.5 ms before it begins, and a wait for all."""
    start_s = np.arange(COUNT) * 1.1e-3
    columns = {
        "start_s": start_s,
        "duration_s": np.full(COUNT, 1e-3),
        "queue": np.zeros(COUNT, dtype=np.int64),
        "issued_s": start_s - 0.5e-3,
        "issuer": np.zeros(COUNT, dtype=np.int64),
        "done_s": np.full(COUNT, start_s[-1] + 1.2e-3),
        "repeats": np.zeros(COUNT, dtype=np.int64),
    }
    return RecordedWork(**(columns | changes))


def changed(column: str, row: int, value: float) -> np.ndarray:
    """A column of `steady` with another value in one row."""
    values = getattr(steady(), column).copy()
    values[row] = value
    return values


def test_times_that_can_be_stay() -> None:
    work, kept, findings = check_work(steady())
    assert kept.all() and not findings
    assert (work.start_s == steady().start_s).all()


@pytest.mark.parametrize("row", [1, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize(
    ("move_s", "codes"),
    [
        (-1.0, {"kernel-before-launch"}),
        (-0.02, {"kernel-before-launch"}),
        (0.02, {"kernel-out-of-order"}),
        (1.0, {"outside-step", "kernel-out-of-order"}),
    ],
)
def test_a_kernel_that_was_moved_is_put_back(row: int, move_s: float, codes: set[str]) -> None:
    right = steady()
    work, kept, findings = check_work(steady(start_s=changed("start_s", row, right.start_s[row] + move_s)))
    assert {finding.code for finding in findings} <= codes and findings
    assert findings[0].rows.tolist() == [row]
    assert kept.all()
    assert np.abs(work.start_s - right.start_s).max() < 0.2e-3


def test_a_kernel_of_an_unknown_launch_that_is_far_away_is_left_out() -> None:
    work = steady(start_s=changed("start_s", 3, 2.0), issued_s=changed("issued_s", 3, np.nan))
    _, kept, findings = check_work(work)
    assert np.flatnonzero(~kept).tolist() == [3]
    assert findings[0].code == "outside-step"


@pytest.mark.parametrize("row", [COUNT // 2, COUNT - 1])
def test_a_kernel_that_is_too_long_ends_where_the_next_begins(row: int) -> None:
    work, kept, findings = check_work(steady(duration_s=changed("duration_s", row, 1.0)))
    assert findings and kept.all()
    assert work.duration_s[row] < 1.3e-3


def test_many_that_cannot_be_are_kept_and_said() -> None:
    work, kept, findings = check_work(steady(issued_s=steady().issued_s + 1.0))
    assert kept.all()
    assert findings[0].code == "kernel-before-launch" and len(findings[0].rows) == COUNT
    assert (work.start_s == steady().start_s).all()


def test_overlaps_are_counted() -> None:
    assert overlapped_s(steady(), np.ones(COUNT, dtype=bool)) == (0.0, 0)
    seconds, count = overlapped_s(steady(duration_s=np.full(COUNT, 2.6e-3)), np.ones(COUNT, dtype=bool))
    assert count == COUNT - 1 and seconds > 0.1


def test_a_slow_repetition_is_found() -> None:
    everything = np.ones(COUNT, dtype=bool)
    for at_7_s, slow, fast in ((1e-3, [], []), (11e-3, [7], []), (9e-3, [], [])):
        rows = odd_repeats(steady(duration_s=changed("duration_s", 7, at_7_s)), everything)
        assert [row.tolist() for row in rows] == [slow, fast]


def test_fast_repetitions_are_found_if_they_lack_much() -> None:
    duration_s = steady().duration_s.copy()
    for seconds, fast in ((0.11e-3, []), (0.09e-3, [7, 8, 9])):
        duration_s[[7, 8, 9]] = seconds
        slow, rows = odd_repeats(steady(duration_s=duration_s), np.ones(COUNT, dtype=bool))
        assert not len(slow) and sorted(rows.tolist()) == fast


def test_a_device_that_waits_before_queued_work_is_found() -> None:
    work = steady(issued_s=steady().start_s - 10e-3)
    gap_s = float(work.start_s[1] - work.end_s[0])
    everything = np.ones(COUNT, dtype=bool)
    assert queued_gap_s(work, everything) == pytest.approx(gap_s)
    assert queued_gap_s(replace(work, duration_s=work.duration_s / 2), everything) == pytest.approx(gap_s + 0.5e-3)
    assert queued_gap_s(replace(work, issued_s=work.start_s), everything) == 0.0


def test_equal_rows_are_duplicates_wherever_they_are() -> None:
    assert duplicates([np.array([1, 2, 1, 1]), np.array([5, 5, 5, 6])]).tolist() == [False, False, True, False]
    assert not len(duplicates([np.empty(0)]))
