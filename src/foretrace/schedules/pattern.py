"""A stage's order written as repeated patterns, and turned into columns.

A pattern is a few slots, such as `F0 I0 W` or `F0&B1`: the letter of the action and its chunk, `&` between
actions that overlap. Microbatches are not written: in every schedule here each chunk takes its microbatches
in rising order, so the n-th `F0` is microbatch n. `W` stands alone: it is the weight gradient that has waited
longest, that of the oldest input gradient (`I`) without one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foretrace.basics.arrays import Longs, distinct
from foretrace.schedules.schedule import ActionKind, StageActions

Phase = tuple[str, int]
"""A pattern and how often it is repeated."""

_KINDS = {kind.letter: kind for kind in ActionKind}


def stage_from_phases(phases: Iterable[Phase]) -> StageActions:
    """The stage that runs these phases one after the other."""
    return number_microbatches(*columns(phases))


def columns(phases: Iterable[Phase]) -> tuple[Longs, Longs, Longs]:
    """Slot, kind and chunk of every action of these phases, in order."""
    slots, kinds, chunks = [], [], []
    first_slot = 0
    for pattern, repeats in phases:
        slot, kind, chunk = _parse(pattern)
        width = int(slot[-1]) + 1
        first_of_repeat = first_slot + width * np.arange(repeats, dtype=np.int64)
        slots.append((first_of_repeat[:, None] + slot).ravel())
        kinds.append(np.tile(kind, repeats))
        chunks.append(np.tile(chunk, repeats))
        first_slot += width * repeats
    return np.concatenate(slots), np.concatenate(kinds), np.concatenate(chunks)


def number_microbatches(slot: Longs, kind: Longs, chunk: Longs) -> StageActions:
    """Fill in which microbatch each row is, and the chunk of each weight gradient, from the order alone."""
    chunk = chunk.copy()
    microbatch = np.zeros_like(chunk)
    is_weight = kind == ActionKind.BACKWARD_WEIGHT
    is_forward = kind == ActionKind.FORWARD
    for rows_of_kind in (is_forward, ~is_forward & ~is_weight):
        for one_chunk in distinct(chunk[rows_of_kind]):
            rows = np.flatnonzero(rows_of_kind & (chunk == one_chunk))
            microbatch[rows] = np.arange(len(rows))
    is_input = kind == ActionKind.BACKWARD_INPUT
    chunk[is_weight] = chunk[is_input]
    microbatch[is_weight] = microbatch[is_input]
    return StageActions(slot, kind, microbatch, chunk)


def keep_microbatches(stage: StageActions, microbatches: int) -> StageActions:
    """The same order with only the first microbatches in it."""
    kept = stage.microbatch < microbatches
    slot = stage.slot[kept]
    renumbered = np.cumsum(np.diff(slot, prepend=slot[:1]) != 0, dtype=np.int64)
    return StageActions(renumbered, stage.kind[kept], stage.microbatch[kept], stage.chunk[kept])


def _parse(pattern: str) -> tuple[Longs, Longs, Longs]:
    """Slot, kind and chunk of each action of a pattern."""
    rows = [
        (slot, _KINDS[action[0]], int(action[1:] or 0))
        for slot, together in enumerate(pattern.split())
        for action in together.split("&")
    ]
    slot, kind, chunk = np.array(rows, dtype=np.int64).T
    return slot, kind, chunk
