"""Which ranks others wait for.

A rank is named a straggler by either of two signs. It *computes long*: its compute is above the median of its stage by
more than `FACTOR` robust standard deviations (1.4826 times the median absolute deviation of all ranks' ratios to their
stage's median) and by 2 % at least. Or it *holds others up*: what its partners lost waiting for it, pipeline stages
apart, is above the median of all ranks by the same measure and 1 % of a rank's step at least. Medians and their
deviations are used because the very ranks looked for would inflate a mean and a standard deviation and hide behind
them; 3.5 is the limit Iglewicz and Hoaglin recommend for such scores (How to Detect and Handle Outliers, ASQC 1993).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.readings.account import Account
from foretrace.readings.explain.rows import ACROSS_STAGES, ROUNDING, OpRows, weighted_median

FACTOR = 3.5 * 1.4826
MIN_COMPUTE = 0.02
MIN_WAIT = 0.01


@dataclass(frozen=True, slots=True)
class RankLateness:
    """One rank, the first of `identical` ranks that behave identically.

    `meetings` counts the rendezvous it took part in with others, `times_last` those in which it came last and someone
    was held up. `held_others_s` is what its partners lost by that, added up over partners, pipeline stages apart;
    `held_stages_s` the same between stages, where the order of the pipeline decides who comes last. `held_up_s` is what
    it lost itself to late partners of either kind. `compute_ratio` is its compute by the median of its stage, None
    where that is zero. `flags` says why it is a straggler: `computes long`, `holds others up`.
    """

    rank: int
    identical: int
    stage: int
    meetings: int
    times_last: int
    held_others_s: float
    held_stages_s: float
    held_up_s: float
    compute_s: float
    compute_ratio: float | None
    flags: tuple[str, ...]


def lateness(rows: OpRows, account: Account) -> tuple[RankLateness, ...]:
    """Returns every rank class, in the order of ranks."""
    classes = rows.graph.classes
    count = classes.count.astype(np.float64)
    stage = rows.stage_of_class
    compute = account.ranks.compute_s[classes.representative]
    ratio = _ratios(compute, stage, count)
    across = np.isin(rows.axis, ACROSS_STAGES)
    held = np.flatnonzero((rows.held_s > ROUNDING * rows.step_s) & (rows.last != np.arange(len(rows.node))))
    guilty = rows.owner[rows.last[held]]
    lost = rows.held_s[held] * rows.ranks[held] / count[guilty]
    others, stages = np.zeros(len(count)), np.zeros(len(count))
    np.add.at(others, guilty, np.where(across[held], 0.0, lost))
    np.add.at(stages, guilty, np.where(across[held], lost, 0.0))
    last = np.unique(rows.last[held], return_counts=True)[0]
    times_last = np.bincount(rows.owner[last], minlength=len(count))
    victim = np.bincount(rows.owner, weights=rows.held_s, minlength=len(count))
    slow, late = _slow(ratio, count), _late(others, count, rows.step_s)
    return tuple(
        RankLateness(
            rank=int(classes.representative[number]),
            identical=int(count[number]),
            stage=int(stage[number]),
            meetings=int(meetings),
            times_last=int(times_last[number]),
            held_others_s=float(others[number]),
            held_stages_s=float(stages[number]),
            held_up_s=float(victim[number]),
            compute_s=float(compute[number]),
            compute_ratio=None if np.isnan(ratio[number]) else float(ratio[number]),
            flags=(*(("computes long",) if slow[number] else ()), *(("holds others up",) if late[number] else ())),
        )
        for number, meetings in enumerate(_meetings(rows).tolist())
    )


def _meetings(rows: OpRows) -> Longs:
    """Returns how many rendezvous of more than one rank each class takes part in."""
    meets = (rows.communicator >= 0) & (rows.members > 1)
    return np.asarray(np.bincount(rows.owner[meets], minlength=len(rows.graph.classes)))


def _ratios(compute: Floats, stage: Longs, count: Floats) -> Floats:
    """Returns compute divided by the median of the stage; NaN where that is zero."""
    ratio = np.full(len(compute), np.nan)
    for number in np.unique(stage, return_counts=True)[0].tolist():
        peers = np.flatnonzero(stage == number)
        median = weighted_median(compute[peers], count[peers])
        if median > 0:
            ratio[peers] = compute[peers] / median
    return ratio


def _slow(ratio: Floats, count: Floats) -> Mask:
    known = np.flatnonzero(~np.isnan(ratio))
    limit = max(MIN_COMPUTE, FACTOR * weighted_median(np.abs(ratio[known] - 1), count[known]))
    return np.asarray(np.where(np.isnan(ratio), 0.0, ratio - 1) > limit)


def _late(lost: Floats, count: Floats, step_s: float) -> Mask:
    median = weighted_median(lost, count)
    deviation = weighted_median(np.abs(lost - median), count)
    return np.asarray(lost - median > max(MIN_WAIT * step_s, FACTOR * deviation))
