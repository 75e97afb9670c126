"""What a faster part would buy: the step run again, with each family of ops 10 % faster and with each for free.

All variants are scenarios of one run where durations are fixed; where resources are shared, each is a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.answer import Bottleneck
from foretrace.analysis.families import Family
from foretrace.program.arrays import distinct
from foretrace.program.graph import Graph

Floats = NDArray[np.float64]
StepTimes = Callable[[Floats], Floats]
"""The step times of scenarios, from what each op's price is multiplied by: [ops, scenarios]."""

FASTER = 1.1


def gain(step_time_s: float, changed_s: float) -> float:
    """How much shorter the step is; below zero where it is longer, as sharing can make it. Rounding is no gain."""
    shorter = step_time_s - changed_s
    return shorter if abs(shorter) > 1e-12 * step_time_s else 0.0


def sensitivities(
    graph: Graph, durations: Floats, step_time_s: float, step_times: StepTimes, families: list[Family]
) -> list[Bottleneck]:
    """What each family takes per rank, and what the step gains with it 10 % faster and with it gone."""
    if not families:
        return []
    factors = np.ones((len(graph.ops), 2 * len(families)))
    for i, family in enumerate(families):
        factors[family.ops, 2 * i] = 1 / FASTER
        factors[family.ops, 2 * i + 1] = 0.0
    times = step_times(factors)
    taken = graph.weight * durations
    return [
        Bottleneck(
            family.name,
            float(taken[family.ops[graph.op]].sum()) / graph.program.world,
            gain(step_time_s, float(times[2 * i])),
            gain(step_time_s, float(times[2 * i + 1])),
        )
        for i, family in enumerate(families)
    ]


def band(
    group: NDArray[np.int64], low: Floats, high: Floats, step_time_s: float, step_times: StepTimes
) -> tuple[float, float]:
    """The central 90 % interval of the step time, from each op's own as factors of its price.

    Errors within a group of ops are taken as fully correlated: all at their low end, or all at their high end. Those
    of different groups are independent, so their effects add as squares.
    """
    unsure = distinct(group[(low != 1.0) | (high != 1.0)]).tolist()
    if not unsure:
        return step_time_s, step_time_s
    factors = np.ones((len(group), 2 * len(unsure)))
    for column, number in enumerate(unsure):
        for end, ends in enumerate((low, high)):
            factors[:, 2 * column + end] = np.where(group == number, ends, 1.0)
    times = step_times(factors)
    below = np.maximum(step_time_s - times[0::2], 0.0)
    above = np.maximum(times[1::2] - step_time_s, 0.0)
    return step_time_s - float(np.sqrt((below**2).sum())), step_time_s + float(np.sqrt((above**2).sum()))
