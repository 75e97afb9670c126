"""Interleaved 1F1B and its zero-bubble form."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.schedules import make
from schedule_times import peak_in_flight


def test_interleaved_1f1b_deals_microbatches_to_chunks_in_groups() -> None:
    schedule = make("interleaved-1f1b", 2, 4, chunks=2)
    assert schedule.line(0) == "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3"
    assert schedule.line(1) == "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3"


def test_pieces_are_dealt_round_the_stages() -> None:
    schedule = make("interleaved-1f1b", 2, 2, chunks=3)
    assert schedule.piece.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert [schedule.where(0, piece) for piece in range(6)] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
    ]


def test_interleaved_zero_bubble_delays_weight_gradients_on_later_stages() -> None:
    schedule = make("interleaved-zb", 2, 2, chunks=2)
    assert schedule.line(0) == "F0 F1 F0.1 F1.1 I0.1 W0.1 I1.1 W1.1 I0 W0 I1 W1"
    assert schedule.line(1) == "F0 F1 F0.1 I0.1 F1.1 I1.1 W0.1 I0 W1.1 I1 W0 W1"


def test_interleaved_zero_bubble_holds_as_much_on_every_stage_as_1f1b_on_its_first() -> None:
    assert peak_in_flight(make("interleaved-zb", 4, 8, chunks=2)).tolist() == [8, 8, 8, 8]


@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zb"])
def test_microbatches_must_fill_whole_groups(name: str) -> None:
    with pytest.raises(
        InputError, match=r"multiple of its 4 stages, not 10  \[not-divisible\]\n +Use 8 or 12 microbatches"
    ):
        make(name, 4, 10)
    with pytest.raises(InputError, match="Use 4 microbatches"):
        make(name, 4, 3)


def test_one_chunk_is_not_interleaved() -> None:
    with pytest.raises(InputError, match="2 or more chunks per stage, not 1") as caught:
        make("interleaved-1f1b", 4, 8, chunks=1)
    assert caught.value.code == "invalid-schedule"
