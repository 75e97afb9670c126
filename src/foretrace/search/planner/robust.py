"""Says which plans predictions cannot tell from the best, and which of them to measure first.

Errors that all plans have in common cancel: a GPU that runs at another frequency slows all of them. The rest differs
from plan to plan. Plans whose layers have the same sizes share the errors of kernels and of collectives inside layers;
plans with the same pipeline and the same end of the step share those of transfers, bubbles and reductions. Each such
part is drawn once for all plans that share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.elementary import log
from foretrace.models.model import Model
from foretrace.search.planner.closed_form import DIVISION, MESH, WORK
from foretrace.search.planner.plan_table import PlanTable
from foretrace.validate.plan_order import PLAN_ERRORS

DRAWS: Final = 2000
"""Draws of errors: a share of them is known to ± 1 % (one standard deviation of a share of one half)."""
WORK_SHARE: Final = 0.5
"""The part of the variance that belongs to the work of layers. A judgement: plans with the same layers differ in what
is left, and measured groups are too small to fit it."""
MIN_TIES: Final = 0.1
"""The share of draws in which a plan must be faster than the best not to be told from it: the usual 90 % confidence, on
one side."""
MAX_RIVALS: Final = 4000
"""Plans that are drawn, those with the shortest steps first: as many take a second."""
REACH: Final = 4.0
"""Standard deviations of two plans' difference beyond which a plan is not drawn: it would be faster in one draw of
30,000, which is fewer than one in all."""
MEASURED_FIRST: Final = 3
"""Plans that are proposed for measurement: the best and one of each of two other families."""

_WORK: Final = (*WORK, "rank_order")
_REST: Final = (*MESH, "vpp", "schedule", "zero", "grad_overlap", "param_overlap", "pp_overlap", *DIVISION)


@dataclass(frozen=True, slots=True, eq=False)
class Rivals:
    """Plans near the best.

    Attributes:
        rows: Their rows, in order of their steps; the best comes first.
        wins: The share of draws in which each is the fastest.
        ties: The share of draws in which each is faster than the best.
        families: A number for each that plans with the same layers and pipeline have in common.
        spread: One standard deviation of the error of two plans against each other.
    """

    rows: Longs
    wins: Floats
    ties: Floats
    families: Longs
    spread: float

    @property
    def indistinguishable(self) -> list[int]:
        """Returns the places of the plans that cannot be told from the best, which is among them."""
        return [0, *(at for at in np.flatnonzero(self.ties >= MIN_TIES).tolist() if at)]

    @property
    def measure_first(self) -> list[int]:
        """Returns the places of the plans to measure first: the best of each family, by how often its family wins."""
        wins = np.bincount(self.families, weights=self.wins)
        firsts = {int(family): place for place, family in reversed(list(enumerate(self.families.tolist())))}
        best = int(self.families[0])
        others = sorted(
            (family for family in firsts if family != best), key=lambda family: (-wins[family], firsts[family])
        )
        rivals = {int(self.families[place]) for place in self.indistinguishable}
        chosen = [best, *(family for family in others if family in rivals)]
        return [firsts[family] for family in chosen[:MEASURED_FIRST]]


def rivals_of(table: PlanTable, steps_s: Floats, best: int, model: Model) -> Rivals:
    """Draws the errors of the plans near the best.

    Args:
        table: The plans.
        steps_s: Their steps, simulated or estimated; infinity for plans that are no rivals.
        best: The best row.
        model: The model, whose kind says how far predictions are off.
    """
    error = PLAN_ERRORS["experts" if model.has_experts else "dense"]
    spread = error * math.sqrt(2.0)
    near = np.flatnonzero(steps_s <= steps_s[best] * math.exp(REACH * spread))
    near = near[np.lexsort((near, steps_s[near], near != best))][:MAX_RIVALS]
    nearby = table.select(near)
    work, rest = nearby.keys(*_WORK)[1], nearby.keys(*_REST)[1]
    families = nearby.keys(*_WORK, "pp", "vpp", "schedule", *DIVISION)[1]
    logs = log(steps_s[near])
    generator = np.random.Generator(np.random.PCG64(0))
    wins, ties = np.zeros(len(near)), np.zeros(len(near))
    work_error, rest_error = error * math.sqrt(WORK_SHARE), error * math.sqrt(1 - WORK_SHARE)
    for _ in range(DRAWS):
        drawn = logs + work_error * generator.standard_normal(int(work.max()) + 1)[work]
        drawn += rest_error * generator.standard_normal(int(rest.max()) + 1)[rest]
        wins[int(drawn.argmin())] += 1
        ties += drawn < drawn[0]
    return Rivals(near, wins / DRAWS, ties / DRAWS, families, spread)


def front_of(steps_s: Sequence[float], needed_bytes: Sequence[int]) -> list[int]:
    """Returns the plans of which no other is both as fast and as small, in order of their steps."""
    order = sorted(range(len(steps_s)), key=lambda at: (steps_s[at], needed_bytes[at], at))
    front: list[int] = []
    smallest = float("inf")
    for at in order:
        if needed_bytes[at] < smallest:
            front.append(at)
            smallest = needed_bytes[at]
    return front
