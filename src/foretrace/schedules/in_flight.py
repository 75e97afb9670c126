"""How many activations a schedule keeps at once."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.schedules.schedule import ActionKind, Schedule, StageActions


def peak_in_flight(schedule: Schedule) -> Longs:
    """The most chunk activations each stage holds at once, `[stages]`.

    An activation is held from its forward until its backward has ended; with a split backward, until its
    weight gradient has. Divided by the chunks per stage it counts whole microbatches.
    """
    return np.array([_peak(rows) for rows in schedule.stage_actions], dtype=np.int64)


def _peak(rows: StageActions) -> int:
    takes = rows.kind == ActionKind.FORWARD
    frees = (rows.kind == ActionKind.BACKWARD) | (rows.kind == ActionKind.BACKWARD_WEIGHT)
    started = np.cumsum(np.bincount(rows.slot, weights=takes))
    freed = np.cumsum(np.bincount(rows.slot, weights=frees))
    # What a slot frees is still held while the slot runs.
    freed_before = np.concatenate([[0.0], freed[:-1]])
    return int((started - freed_before).max())
