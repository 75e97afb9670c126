"""Checks that a schedule does all its work, once, in an order that can run."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError
from foretrace.schedules.schedule import Action, ActionKind, Schedule
from foretrace.schedules.slots import SlotTable, flatten, run_slots, slot_graph


def check(schedule: Schedule) -> None:
    """Raise InputError where a stage misses, repeats or misorders actions, DeadlockError where stages wait.

    Every stage runs the forward of each of its chunks once for each microbatch that comes by, and after it
    the backward: whole, or the input gradient and after it the weight gradient. A forward follows the forward
    of the piece before it, a backward that of the piece after it.
    """
    _check_pieces(schedule)
    _check_columns(schedule)
    rows = flatten(schedule)
    _check_each_once(schedule, rows)
    _check_own_order(schedule, rows)
    graph = slot_graph(schedule)
    run_slots(schedule, graph, np.ones(len(graph.waits_for)), np.zeros((schedule.stages, 1)))


def _check_pieces(schedule: Schedule) -> None:
    """Every microbatch has a direction, and every direction finds every piece in exactly one chunk."""
    for word, table, shape in (
        ("piece", schedule.piece, (schedule.stages, schedule.chunks)),
        ("chunk_direction", schedule.chunk_direction, (schedule.chunks,)),
        ("direction", schedule.direction, (schedule.microbatches,)),
    ):
        if table.shape != shape:
            raise InputError(
                "invalid-schedule", f"{word} of schedule {schedule.name} has shape {table.shape}, not {shape}"
            )
    if not np.isin(schedule.direction, schedule.chunk_direction).all():
        raise InputError(
            "invalid-schedule", f"schedule {schedule.name} sends microbatches in a direction that no chunk serves"
        )
    for direction in range(schedule.directions):
        held = np.sort(schedule.piece[:, schedule.chunk_direction == direction].ravel())
        if not np.array_equal(held, np.arange(schedule.pieces)):
            raise InputError(
                "invalid-schedule",
                f"the chunks of schedule {schedule.name} hold the pieces {held.tolist()} "
                f"for direction {direction}; each of 0 to {schedule.pieces - 1} must be there once",
            )


def _check_columns(schedule: Schedule) -> None:
    """Rows name kinds, microbatches, chunks and slots that exist."""
    listed = len(schedule.stage_actions)
    if listed != schedule.stages:
        raise InputError(
            "invalid-schedule", f"schedule {schedule.name} has {schedule.stages} stages and lists actions for {listed}"
        )
    for stage, rows in enumerate(schedule.stage_actions):
        for word, column, count in (
            ("kind", rows.kind, len(ActionKind)),
            ("microbatch", rows.microbatch, schedule.microbatches),
            ("chunk", rows.chunk, schedule.chunks),
        ):
            outside = column[(column < 0) | (column >= count)]
            if outside.size:
                raise InputError(
                    "invalid-schedule",
                    f"stage {stage} names {word} {outside[0]}; schedule {schedule.name} has 0 to {count - 1}",
                )
        # The first row must be in slot 0, every other in the slot of the row before it or the next.
        steps = np.diff(rows.slot, prepend=-1)
        wrong = np.flatnonzero((steps < 0) | (steps > 1) | (rows.slot < 0))
        if wrong.size:
            raise InputError(
                "invalid-schedule",
                f"stage {stage} has {rows.action(int(wrong[0]))} in slot {rows.slot[wrong[0]]}; "
                "slots must count up from 0 without gaps",
            )


def _check_each_once(schedule: Schedule, rows: SlotTable) -> None:
    """Each stage runs what its chunks must run, and nothing else."""
    count = [_per_place(schedule, rows, rows.kind == kind) for kind in ActionKind]
    forward, backward, backward_input, backward_weight = count
    passes_by = schedule.chunk_direction[:, None] == schedule.direction
    due = np.broadcast_to(passes_by, forward.shape).astype(np.int64)
    _require_count(ActionKind.FORWARD, forward, due)
    both = np.argwhere((backward > 0) & (backward_input > 0))
    if both.size:
        stage, chunk, microbatch = map(int, both[0])
        whole = Action(ActionKind.BACKWARD, microbatch, chunk)
        part = Action(ActionKind.BACKWARD_INPUT, microbatch, chunk)
        raise InputError("invalid-schedule", f"stage {stage} runs both {whole} and {part}, the same gradient twice")
    named = ActionKind.BACKWARD if backward.any() else ActionKind.BACKWARD_INPUT
    _require_count(named, backward + backward_input, due)
    _require_count(ActionKind.BACKWARD_WEIGHT, backward_weight, backward_input)


def _require_count(kind: ActionKind, count: Longs, due: Longs) -> None:
    wrong = np.argwhere(count != due)
    if wrong.size:
        stage, chunk, microbatch = map(int, wrong[0])
        actual, expected = (int(table[stage, chunk, microbatch]) for table in (count, due))
        raise InputError(
            "invalid-schedule",
            f"stage {stage} must run {Action(kind, microbatch, chunk)} {_times(expected)} and runs it {_times(actual)}",
        )


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _check_own_order(schedule: Schedule, rows: SlotTable) -> None:
    """On its own stage a backward comes after its forward, a weight gradient after its input gradient."""
    is_weight = rows.kind == ActionKind.BACKWARD_WEIGHT
    is_forward = rows.kind == ActionKind.FORWARD
    place = (rows.stage, rows.chunk, rows.microbatch)
    forward_slot = _slot_by_place(schedule, rows, is_forward)
    backward_slot = _slot_by_place(schedule, rows, ~is_forward & ~is_weight)
    before = np.where(is_weight, backward_slot[place], forward_slot[place])
    early = np.flatnonzero(~is_forward & (rows.slot <= before))
    if early.size:
        row = int(early[0])
        first = ActionKind.BACKWARD_INPUT if is_weight[row] else ActionKind.FORWARD
        action = rows.action(row)
        needed = Action(first, action.microbatch, action.chunk)
        raise InputError(
            "invalid-schedule", f"stage {rows.stage[row]} runs {action} before {needed} has ended; it must come after"
        )


def _per_place(schedule: Schedule, rows: SlotTable, chosen: Mask) -> Longs:
    """How many of the chosen rows each stage, chunk and microbatch has."""
    shape = (schedule.stages, schedule.chunks, schedule.microbatches)
    place = np.ravel_multi_index((rows.stage, rows.chunk, rows.microbatch), shape)
    return np.bincount(place[chosen], minlength=int(np.prod(shape))).reshape(shape)


def _slot_by_place(schedule: Schedule, rows: SlotTable, chosen: Mask) -> Longs:
    """The slot of the one chosen row of each stage, chunk and microbatch."""
    slot = np.zeros((schedule.stages, schedule.chunks, schedule.microbatches), np.int64)
    slot[rows.stage[chosen], rows.chunk[chosen], rows.microbatch[chosen]] = rows.slot[chosen]
    return slot
