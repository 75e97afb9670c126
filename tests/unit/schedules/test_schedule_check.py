"""What `check` finds in schedules that have been tampered with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import DeadlockError, InputError
from foretrace.schedules import ActionKind, Schedule, StageActions, check, make

KINDS = {kind.letter: kind for kind in ActionKind}


def stage_of(text: str) -> StageActions:
    """The actions of a line such as `F0 F1&B0 B1`, all in chunk 0."""
    rows = [
        (slot, KINDS[action[0]], int(action[1:]), 0)
        for slot, together in enumerate(text.split())
        for action in together.split("&")
    ]
    return StageActions(*np.array(rows, dtype=np.int64).T.copy())


def with_lines(schedule: Schedule, lines: Iterable[str]) -> Schedule:
    return replace(schedule, stage_actions=tuple(map(stage_of, lines)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("F0 B0 B1", "stage 1 must run F1 once and runs it never"),
        ("F0 F1 F1 B0 B1", "stage 1 must run F1 once and runs it twice"),
        ("F0 F1 B0", "stage 1 must run B1 once and runs it never"),
        ("F0 F1 B0 B1 I1 W1", "stage 1 runs both B1 and I1"),
        ("F0 F1 B0 I1", "stage 1 must run W1 once and runs it never"),
        ("F0 F1 B0 B1 W1", "stage 1 must run W1 never and runs it once"),
        ("F0 B1 F1 B0", "stage 1 runs B1 before F1 has ended"),
        ("F0 F1&B1 B0", "stage 1 runs B1 before F1 has ended"),
        ("F0 F1 B0 W1 I1", "stage 1 runs W1 before I1 has ended"),
        ("F0 F1 B0 B2", "stage 1 names microbatch 2; schedule 1f1b has 0 to 1"),
    ],
)
def test_work_missing_repeated_or_misordered(line: str, message: str) -> None:
    broken = with_lines(make("1f1b", 2, 2), ["F0 F1 B0 B1", line])
    with pytest.raises(InputError, match=message):
        check(broken)


def test_a_missing_input_gradient_is_called_by_its_name() -> None:
    broken = with_lines(make("zb-h1", 1, 1), ["F0 W0"])
    with pytest.raises(InputError, match="stage 0 must run I0 once"):
        check(broken)


def test_deadlock_names_who_waits_for_whom() -> None:
    broken = with_lines(make("1f1b", 3, 2), ["F0 B0 F1 B1", "F0 F1 B0 B1", "F0 F1 B0 B1"])
    with pytest.raises(DeadlockError) as caught:
        check(broken)
    assert caught.value.message == (
        "schedule 1f1b deadlocks: stage 0 at B0 waits for B0 of stage 1; stage 1 at F1 waits for F1 of stage 0"
    )


def test_other_orders_of_microbatches_may_be_fine() -> None:
    check(with_lines(make("1f1b", 2, 2), ["F1 F0 B1 B0", "F1 F0 B1 B0"]))


def test_slots_must_count_up() -> None:
    schedule = make("1f1b", 1, 1)
    rows = schedule.stage_actions[0]
    gap = StageActions(rows.slot * 2, rows.kind, rows.microbatch, rows.chunk)
    with pytest.raises(InputError, match="stage 0 has B0 in slot 2; slots must count up from 0"):
        check(replace(schedule, stage_actions=(gap,)))


def test_every_piece_must_be_placed_once() -> None:
    schedule = make("zb-v", 2, 4)
    with pytest.raises(InputError, match=r"hold the pieces \[0, 1, 2, 2\] for direction 0"):
        check(replace(schedule, piece=np.array([[0, 2], [1, 2]])))
    with pytest.raises(InputError, match=r"piece of schedule zb-v has shape \(4,\), not \(2, 2\)"):
        check(replace(schedule, piece=np.arange(4)))
    with pytest.raises(InputError, match="a direction that no chunk serves"):
        check(replace(schedule, direction=np.ones(4, np.int64)))


def test_every_stage_must_be_listed() -> None:
    schedule = make("1f1b", 2, 2)
    with pytest.raises(InputError, match="has 2 stages and lists actions for 1"):
        check(replace(schedule, stage_actions=schedule.stage_actions[:1]))
