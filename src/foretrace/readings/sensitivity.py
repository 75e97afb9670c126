"""Measures what a faster part would gain: the step run again, with each family of ops 10 % faster and with each free.

All variants are scenarios of one run where durations are fixed; where resources are shared, each is a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Floats, Longs, distinct
from foretrace.program.graph import Graph
from foretrace.readings.answer.answer import Bottleneck
from foretrace.readings.families import Family

FASTER = 1.1


def gain(step_time_s: float, changed_s: float) -> float:
    """Returns how much shorter the step is; below zero where it is longer, as sharing can make it.

    Rounding is not a gain.
    """
    shorter = step_time_s - changed_s
    return shorter if abs(shorter) > 1e-12 * step_time_s else 0.0


def gain_factors(ops: int, families: Sequence[Family]) -> Floats:
    """Returns two scenarios for each family, [ops, scenarios]: it is 10 % faster, and it is gone."""
    factors = np.ones((ops, 2 * len(families)))
    for number, family in enumerate(families):
        factors[family.ops, 2 * number] = 1 / FASTER
        factors[family.ops, 2 * number + 1] = 0.0
    return factors


def family_gains(
    graph: Graph, durations: Floats, step_time_s: float, times: Floats, families: Sequence[Family]
) -> tuple[Bottleneck, ...]:
    """Reads off what each family takes per rank, and what the step gains with it 10 % faster and with it gone.

    Args:
        graph: What was run.
        durations: Seconds of each node.
        step_time_s: The step as it is.
        times: The step times of the scenarios of `gain_factors`.
        families: The families, in the order of the scenarios.
    """
    busy_s = graph.weight * durations
    return tuple(
        Bottleneck(
            family.name,
            float(busy_s[family.ops[graph.op]].sum()) / graph.program.world,
            gain(step_time_s, float(times[2 * number])),
            gain(step_time_s, float(times[2 * number + 1])),
        )
        for number, family in enumerate(families)
    )


def band_factors(group: Longs, low: Floats, high: Floats) -> Floats:
    """Returns two scenarios for each group of ops that has a band, [ops, scenarios]: its low end and its high end.

    Errors within a group count as fully correlated: all at their low end, or all at their high end.
    """
    unsure = distinct(group[(low != 1.0) | (high != 1.0)]).tolist()
    factors = np.ones((len(group), 2 * len(unsure)))
    for column, number in enumerate(unsure):
        for end, ends in enumerate((low, high)):
            factors[:, 2 * column + end] = np.where(group == number, ends, 1.0)
    return factors


def band(step_time_s: float, times: Floats) -> tuple[float, float]:
    """Returns the central 90 % interval of the step time from the scenarios of `band_factors`.

    Errors of different groups are independent, so their effects add as squares.
    """
    below = np.maximum(step_time_s - times[0::2], 0.0)
    above = np.maximum(times[1::2] - step_time_s, 0.0)
    return step_time_s - float(np.sqrt((below**2).sum())), step_time_s + float(np.sqrt((above**2).sum()))
