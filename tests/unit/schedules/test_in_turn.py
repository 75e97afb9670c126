"""GPipe, 1F1B and looped breadth-first, as their papers draw them."""

from __future__ import annotations

from foretrace.schedules import Schedule, make
from schedule_times import peak_in_flight


def lines(schedule: Schedule) -> list[str]:
    return [schedule.line(stage) for stage in range(schedule.stages)]


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    assert lines(make("gpipe", 2, 3)) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_1f1b_alternates_after_a_warmup_that_shrinks_along_the_pipeline() -> None:
    assert lines(make("1f1b", 3, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_1f1b_takes_fewer_microbatches_than_stages() -> None:
    assert lines(make("1f1b", 4, 2)) == ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]


def test_1f1b_holds_one_microbatch_more_for_each_later_stage() -> None:
    assert peak_in_flight(make("1f1b", 4, 8)).tolist() == [4, 3, 2, 1]
    assert peak_in_flight(make("gpipe", 4, 8)).tolist() == [8, 8, 8, 8]


def test_looped_bfs_finishes_a_chunk_before_the_next() -> None:
    assert lines(make("looped-bfs", 2, 2, chunks=2)) == ["F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"] * 2


def test_looped_bfs_with_one_chunk_is_gpipe() -> None:
    assert lines(make("looped-bfs", 3, 5, chunks=1)) == lines(make("gpipe", 3, 5))


def paired(schedule: Schedule) -> list[str]:
    """Returns the paired actions of each stage."""
    lists = [list(schedule.actions(stage)) for stage in range(schedule.stages)]
    return [
        " ".join(str(action) for (action,), is_paired in zip(actions, schedule.paired(stage), strict=True) if is_paired)
        for stage, actions in enumerate(lists)
    ]


def test_actions_of_the_warmup_and_the_cooldown_are_not_paired() -> None:
    assert paired(make("1f1b", 3, 4)) == ["B0 F3", "B0 F2 B1 F3", "B0 F1 B1 F2 B2 F3"]
    assert paired(make("gpipe", 2, 3)) == ["", ""]
    assert paired(make("1f1b", 1, 1)) == [""]
