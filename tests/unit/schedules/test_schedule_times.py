"""The evaluator with free transfers."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.schedules import ActionKind, make
from foretrace.schedules.slots import run_slots, slot_graph
from schedule_times import largest_cycle_mean, unit_times


def test_1f1b_on_two_stages_by_hand() -> None:
    times = unit_times(make("1f1b", 2, 2))
    assert times.start[0].tolist() == [0, 1, 4, 7]
    assert times.end[0].tolist() == [1, 2, 6, 9]
    assert times.start[1].tolist() == [1, 2, 4, 5]
    assert times.makespan == 9
    assert times.busy.tolist() == [6, 6]
    assert times.idle.tolist() == [3, 3]


def test_members_of_a_slot_start_and_end_together() -> None:
    schedule = make("dualpipe-v", 1, 2)
    assert schedule.line(0) == "F0 F0.1 F1 B0.1 F1.1&B0 B1.1 I1 W1"
    alone = unit_times(schedule)
    assert alone.start[0].tolist() == [0, 1, 2, 3, 5, 5, 8, 10, 11]
    assert alone.end[0][4:6].tolist() == [8, 8]
    assert unit_times(schedule, overlapped=2.5).end[0][4:6].tolist() == [7.5, 7.5]


def test_the_period_lets_stages_start_the_next_step_early() -> None:
    times = unit_times(make("zb-v", 2, 4))
    assert times.makespan == 25
    assert times.period == pytest.approx(24)
    assert times.idle_per_step == pytest.approx([0, 0])


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "interleaved-zb"])
def test_the_period_is_what_many_steps_in_a_row_take_each(name: str) -> None:
    schedule = make(name, 4, 8)
    graph = slot_graph(schedule)
    length = np.ones(len(graph.waits_for))
    last_slots = graph.rows.first_slot[1:] - 1
    ends = [np.zeros((4, 1))]
    for _ in range(20):
        ends.append(run_slots(schedule, graph, length, ready=ends[-1])[last_slots])
    assert unit_times(schedule).period == pytest.approx((ends[20] - ends[10]).mean() / 10)


def test_the_largest_cycle_mean_is_that_of_a_node_or_of_a_round_trip() -> None:
    assert largest_cycle_mean(np.array([[3.0, 7.0], [1.0, 2.0]])) == 4.0
    assert largest_cycle_mean(np.array([[5.0, 7.0], [1.0, 2.0]])) == 5.0
    assert largest_cycle_mean(np.array([[2.5]])) == 2.5


def test_actions_can_be_read_one_slot_at_a_time() -> None:
    schedule = make("dualpipe-v", 1, 2)
    slots = list(schedule.actions(0))
    assert [len(slot) for slot in slots] == [1, 1, 1, 1, 2, 1, 1, 1]
    assert [action.kind for action in slots[4]] == [ActionKind.FORWARD, ActionKind.BACKWARD]


def test_a_schedule_cannot_be_edited_in_place() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make("1f1b", 2, 2).stage_actions[0].kind[0] = 3
