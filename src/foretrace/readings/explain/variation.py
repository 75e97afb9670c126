"""How much the same computation varies from microbatch to microbatch.

The same op is the same place in a rank's pass of another microbatch. Its variation is robust: the median absolute
deviation from the median, so that one slow microbatch does not count as jitter of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.program.columns import Kind, Phase, label
from foretrace.readings.explain.rows import OpRows

MIN_MICROBATCHES = 3
"""The median deviation of two values tells no more than their difference."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Computation of one phase on one pipeline stage over `microbatches` microbatches.

    `of_ops` is the median absolute deviation of single ops by their median, over all `ops` of the pass weighed by their
    time; `of_passes` that of the compute of the whole pass, mean over ranks.
    """

    stage: int
    phase: str
    microbatches: int
    ops: int
    of_ops: float
    of_passes: float


def variation(rows: OpRows) -> tuple[Variation, ...]:
    """Returns the variation by stage and phase, in order; nothing for fewer than three microbatches."""
    stage = rows.stage_of_class[rows.owner]
    variations = []
    for number in range(rows.graph.program.mesh.pp):
        for phase in (kind for kind in Phase if kind not in (Phase.NONE, Phase.OPTIMIZER)):
            mine = (stage == number) & (rows.kind == Kind.COMPUTE) & (rows.phase == phase) & (rows.microbatch >= 0)
            varied = _of(rows, np.flatnonzero(mine), number, phase)
            if varied is not None:
                variations.append(varied)
    return tuple(variations)


def _of(rows: OpRows, mine: Longs, stage: int, phase: Phase) -> Variation | None:
    deviations, medians, passes, weights, ops, least = 0.0, 0.0, 0.0, 0.0, 0, 0
    if not len(mine):
        return None
    owners, starts = np.unique(rows.owner[mine], return_index=True)  # rows come class by class
    for owner, its in zip(owners.tolist(), np.split(mine, starts[1:]), strict=True):
        table = _table(rows, its)
        if table is None:
            continue
        weight = float(rows.graph.classes.count[owner])
        middle, deviation = _median_deviation(table)
        whole, off = _median_deviation(table.sum(axis=1, keepdims=True))
        deviations, medians = deviations + weight * float(deviation.sum()), medians + weight * float(middle.sum())
        passes += weight * (float(off[0] / whole[0]) if whole[0] > 0 else 0.0)
        weights, ops, least = weights + weight, max(ops, table.shape[1]), max(least, len(table))
    if medians <= 0:
        return None
    return Variation(stage, label(phase), least, ops, deviations / medians, passes / weights)


def _table(rows: OpRows, mine: Longs) -> Floats | None:
    """Returns seconds [microbatches, ops] of one rank's passes; None where they are too few or not of the same ops."""
    order = np.argsort(rows.microbatch[mine], kind="stable")
    _, counts = np.unique(rows.microbatch[mine], return_counts=True)
    if len(counts) < MIN_MICROBATCHES or (counts != counts[0]).any():
        return None
    return np.asarray(rows.running_s[mine[order]].reshape(len(counts), -1))


def _median_deviation(table: Floats) -> tuple[Floats, Floats]:
    """Returns median and median absolute deviation of each column."""
    middle = np.median(table, axis=0)
    return np.asarray(middle), np.asarray(np.median(np.abs(table - middle), axis=0))
