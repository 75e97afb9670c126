"""Deals out the pieces of the model: which piece each chunk of each stage is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.schedules.schedule import Schedule, StageActions


def looped_pieces(stages: int, chunks: int) -> Longs:
    """Pieces dealt round the stages: chunk c of stage s is piece c·stages + s (Megatron's interleaving)."""
    return np.arange(stages * chunks, dtype=np.int64).reshape(chunks, stages).T.copy()


def vee_pieces(stages: int) -> Longs:
    """Two chunks a stage, down and back up: stage s holds pieces s and 2·stages − 1 − s."""
    down = np.arange(stages, dtype=np.int64)
    return np.stack([down, 2 * stages - 1 - down], axis=1)


def facing_pieces(stages: int) -> Longs:
    """Two whole pipelines in opposite directions: stage s holds pieces s and stages − 1 − s."""
    down = np.arange(stages, dtype=np.int64)
    return np.stack([down, stages - 1 - down], axis=1)


def one_way(name: str, microbatches: int, piece: Longs, stage_actions: Sequence[StageActions]) -> Schedule:
    """A schedule in which every microbatch travels the same way."""
    stages, chunks = piece.shape
    return Schedule(
        name=name,
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        piece=piece,
        chunk_direction=np.zeros(chunks, np.int64),
        direction=np.zeros(microbatches, np.int64),
        stage_actions=tuple(stage_actions),
    )
