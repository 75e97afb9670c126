"""ZB-H1 and ZB-V."""

from __future__ import annotations

from foretrace.schedules import make
from schedule_times import peak_in_flight


def test_zb_h1_delays_weight_gradients_by_the_stage() -> None:
    schedule = make("zb-h1", 3, 4)
    assert schedule.line(0) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"
    assert schedule.line(1) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"
    assert schedule.line(2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


def test_zb_h1_takes_fewer_microbatches_than_stages() -> None:
    schedule = make("zb-h1", 3, 2)
    assert schedule.line(0) == "F0 F1 I0 W0 I1 W1"
    assert schedule.line(2) == "F0 I0 F1 I1 W0 W1"


def test_zb_v_goes_down_the_stages_and_back_up() -> None:
    schedule = make("zb-v", 3, 6)
    assert schedule.piece.tolist() == [[0, 5], [1, 4], [2, 3]]
    assert [schedule.where(0, piece) for piece in range(6)] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 1),
        (1, 1),
        (0, 1),
    ]


def test_zb_v_keeps_every_stage_full() -> None:
    schedule = make("zb-v", 2, 4)
    assert schedule.line(0) == (
        "F0 F1 F2 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3 I0 W0 F2.1 I2.1 W2.1 I1 W1 F3.1 I3.1 W3.1 I2 W2 I3 W3"
    )
    assert schedule.line(1) == (
        "F0 F0.1 F1 F1.1 I0.1 W0.1 F2 I0 W0 F2.1 I1.1 W1.1 F3 I1 W1 F3.1 I2.1 W2.1 I2 I3.1 I3 W2 W3.1 W3"
    )


def test_zb_v_takes_a_single_microbatch() -> None:
    assert make("zb-v", 2, 1).line(0) == "F0 F0.1 I0.1 W0.1 I0 W0"


def test_both_hold_no_more_than_1f1b() -> None:
    assert peak_in_flight(make("zb-h1", 4, 16)).tolist() == [4, 4, 4, 4]
    assert peak_in_flight(make("zb-v", 4, 16)).tolist() == [8, 8, 8, 8]
