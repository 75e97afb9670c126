"""DualPipe and DualPipeV."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.schedules import make
from schedule_times import peak_in_flight


def test_dualpipe_runs_two_directions_that_mirror_each_other() -> None:
    schedule = make("dualpipe", 4, 8)
    assert [schedule.line(stage) for stage in range(4)] == [
        "F0 F1 F2 F4.1 I4.1 W4.1 F5.1 F3&B5.1 F6.1&B0 B6.1 F7.1&B1 B7.1 I2 W2 I3 W3",
        "F0 F4.1 F1 F5.1 F2 B4.1 F6.1&B0 F3&B5.1 F7.1&B1 B6.1 B2 I7.1 I3 W7.1 W3",
        "F4.1 F0 F5.1 F1 F6.1 B0 F2&B4.1 F7.1&B1 F3&B5.1 B2 B6.1 I3 I7.1 W3 W7.1",
        "F4.1 F5.1 F6.1 F0 I0 W0 F1 F7.1&B1 F2&B4.1 B2 F3&B5.1 B3 I6.1 W6.1 I7.1 W7.1",
    ]


def test_every_piece_of_dualpipe_lives_on_two_stages_one_per_direction() -> None:
    schedule = make("dualpipe", 4, 8)
    assert schedule.pieces == 4
    assert schedule.piece.tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert [schedule.where(0, piece) for piece in range(4)] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert [schedule.where(4, piece) for piece in range(4)] == [(3, 1), (2, 1), (1, 1), (0, 1)]


def test_dualpipe_v_is_the_first_half_of_dualpipe() -> None:
    schedule = make("dualpipe-v", 2, 4)
    assert schedule.piece.tolist() == [[0, 3], [1, 2]]
    assert schedule.line(0) == "F0 F1 F2 F0.1 I0.1 W0.1 F1.1 F3&B1.1 F2.1&B0 B2.1 F3.1&B1 B3.1 I2 W2 I3 W3"
    assert schedule.line(1) == "F0 F0.1 F1 F1.1 F2 B0.1 F2.1&B0 F3&B1.1 F3.1&B1 B2.1 B2 I3.1 I3 W3.1 W3"


def test_both_hold_one_activation_more_than_there_are_pieces() -> None:
    assert peak_in_flight(make("dualpipe", 8, 20)).tolist() == [9] * 8
    assert peak_in_flight(make("dualpipe-v", 4, 10)).tolist() == [9] * 4


@pytest.mark.parametrize(
    ("stages", "microbatches", "message"),
    [
        (3, 6, "even number of stages, not 3"),
        (4, 9, r"even number of microbatches, at least 8, not 9  \[invalid-schedule\]\n +Use 10 microbatches"),
        (4, 6, r"at least 8, not 6  \[invalid-schedule\]\n +Use 8 microbatches"),
    ],
)
def test_dualpipe_says_what_it_needs(stages: int, microbatches: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make("dualpipe", stages, microbatches)


def test_dualpipe_v_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="at least 6 microbatches, not 5"):
        make("dualpipe-v", 3, 5)


def test_only_members_of_a_slot_are_paired() -> None:
    schedule = make("dualpipe-v", 2, 4)
    assert [int(schedule.paired(stage).sum()) for stage in range(2)] == [6, 6]
