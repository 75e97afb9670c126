"""Makes one graph of the slots of all stages, and runs it in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.errors import DeadlockError
from foretrace.schedules.schedule import ActionKind, Schedule, StageActions


@dataclass(frozen=True, slots=True, eq=False)
class SlotTable(StageActions):
    """The actions of every stage as one table, stage by stage; slots are numbered through."""

    stage: Longs
    first_slot: Longs
    """The first slot of each stage, with the number of all slots at the end, `[stages + 1]`."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotGraph:
    """The slots, and what each of them waits for besides the slot before it on its own stage."""

    rows: SlotTable
    awaited: Longs
    """The row that each row waits for; the number of rows means none."""
    waits_for: Longs
    """The slots awaited by each member of a slot, `[slots, members]`; the number of slots means none."""


def flatten(schedule: Schedule) -> SlotTable:
    """Put the actions of all stages in one table."""
    parts = schedule.stage_actions
    widths = [int(part.slot[-1]) + 1 if len(part) else 0 for part in parts]
    first_slot = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    stage = np.repeat(np.arange(schedule.stages), [len(part) for part in parts])
    return SlotTable(
        stage=stage,
        slot=np.concatenate([part.slot for part in parts]) + first_slot[stage],
        kind=np.concatenate([part.kind for part in parts]),
        microbatch=np.concatenate([part.microbatch for part in parts]),
        chunk=np.concatenate([part.chunk for part in parts]),
        first_slot=first_slot,
    )


def slot_graph(schedule: Schedule) -> SlotGraph:
    """The dependencies between slots: forwards from piece to piece, backwards the other way."""
    rows = flatten(schedule)
    awaited = awaited_rows(schedule, rows)
    no_slot = int(rows.first_slot[-1])
    member = np.arange(len(rows.slot)) - np.searchsorted(rows.slot, rows.slot)
    waits_for = np.full((no_slot, int(member.max()) + 1), no_slot)
    waits_for[rows.slot, member] = np.append(rows.slot, no_slot)[awaited]
    return SlotGraph(rows, awaited, waits_for)


def run_slots(schedule: Schedule, graph: SlotGraph, length: Floats, ready: Floats) -> Floats:
    """The end of every slot, `[slots, scenarios]`, when each stage runs its slots as early as it can.

    `length` is how long each slot takes, `ready` when each stage may start, `[stages, scenarios]`.
    Every round runs the next slot of all stages that can go on, so the rounds are as many as the longest
    chain of slots, whatever the number of stages.
    """
    first_slot = graph.rows.first_slot
    # The last row is "nothing to wait for"; infinity is "not run yet".
    end = np.full((len(length) + 1, ready.shape[1]), np.inf)
    end[-1] = -np.inf
    head, clock = first_slot[:-1].copy(), ready.copy()
    unfinished = np.flatnonzero(head < first_slot[1:])
    while unfinished.size:
        arrival = end[graph.waits_for[head[unfinished]]].max(axis=1)
        can_go = arrival[:, 0] < np.inf
        stage = unfinished[can_go]
        if not stage.size:
            raise _deadlock(schedule, graph, head, end[:, 0] < np.inf)
        slot = head[stage]
        clock[stage] = np.maximum(clock[stage], arrival[can_go]) + length[slot, None]
        end[slot] = clock[stage]
        head[stage] += 1
        unfinished = unfinished[head[unfinished] < first_slot[unfinished + 1]]
    return end[:-1]


def _deadlock(schedule: Schedule, graph: SlotGraph, head: Longs, done: Mask) -> DeadlockError:
    """Follow who waits for whom from the first blocked stage until a stage comes up again."""
    rows = graph.rows
    stage = int(np.flatnonzero(head < rows.first_slot[1:])[0])
    visited: list[int] = []
    waits: list[str] = []
    while stage not in visited:
        visited.append(stage)
        slot = int(head[stage])
        blocked_member = int(np.flatnonzero(~done[graph.waits_for[slot]])[0])
        row = int(np.searchsorted(rows.slot, slot)) + blocked_member
        awaited = int(graph.awaited[row])
        other = int(rows.stage[awaited])
        waits.append(f"stage {stage} at {rows.action(row)} waits for {rows.action(awaited)} of stage {other}")
        stage = other
    cycle = "; ".join(waits[visited.index(stage) :])
    return DeadlockError(
        "deadlock",
        f"schedule {schedule.name} deadlocks: {cycle}",
        hint="Order every stage so that a forward follows the forward of the piece before it, "
        "and a backward the backward of the piece after it.",
    )


def awaited_rows(schedule: Schedule, rows: SlotTable) -> Longs:
    """Returns the row on another piece that each row waits for; a weight gradient waits for its input gradient.

    The number of rows means none.
    """
    row, no_row = np.arange(len(rows.slot)), len(rows.slot)
    piece = schedule.piece[rows.stage, rows.chunk]
    is_weight = rows.kind == ActionKind.BACKWARD_WEIGHT
    is_forward = rows.kind == ActionKind.FORWARD
    is_backward = ~is_forward & ~is_weight

    # One more row than pieces in each table: nothing comes before the forward of the first piece, and the
    # backward of the last piece comes after its own forward.
    forward_before = np.full((schedule.pieces + 1, schedule.microbatches), no_row)
    forward_before[piece[is_forward] + 1, rows.microbatch[is_forward]] = row[is_forward]
    backward = np.full((schedule.pieces + 1, schedule.microbatches), no_row)
    backward[piece[is_backward], rows.microbatch[is_backward]] = row[is_backward]
    backward[-1] = forward_before[-1]
    return np.where(
        is_forward,
        forward_before[piece, rows.microbatch],
        backward[piece + is_backward, rows.microbatch],
    )
