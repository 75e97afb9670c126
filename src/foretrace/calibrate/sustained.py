"""Converts recorded times from the frequency that the GPU had to those that prices are kept at.

Products and attention run as fast as the frequency allows, which depends on the power that the step leaves: a step of
small products amid much memory work runs them as fast as a short measurement does, one of large products up to a fifth
slower. Two estimates say how far the products of a trace were slowed down, and neither is certain: the power that its
kernels draw (`cost.kernels.clocks`), and the ratio that all its products have in common to the model's prices at full
frequency. The two are weighted; what is left of the second is particular to the machine, as are the differences of
single kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.kernels.model import EfficiencyModel
from foretrace.program.kernels import Gemm, GroupedGemm, Kernel

MIN_S: Final = 5e-5
"""Shorter products say more about their launch than about the clock."""

POWER_SPREAD: Final = 0.03
"""How far the clock by power may be off, one standard deviation: over eleven mixes on an H200, 3 %."""

MODEL_SPREAD: Final = 0.04
"""How far the model may be off for all products of a GPU at once: NVIDIA's tables of one GPU by different frameworks
differ by up to a tenth."""


@dataclass(frozen=True, slots=True)
class AtClocks:
    """Seconds of kernels in a burst and in a long run.

    `slower` is how many times as long as in a burst the recorded products took because of the frequency, at least 1.
    """

    burst_s: Floats
    sustained_s: Floats
    slower: float


def at_clocks(kernels: Sequence[Kernel], seconds: Floats, model: EfficiencyModel, by_power: float) -> AtClocks:
    """Recorded times as prices are kept; `by_power` is how much longer than in a burst products take by the power that
    the step drew."""
    burst, sustained = model.seconds(kernels, sustained=False), model.seconds(kernels)
    moves = np.log(sustained / burst)
    long = np.array([isinstance(kernel, Gemm | GroupedGemm) for kernel in kernels], dtype=bool)
    long &= (seconds >= MIN_S) & (moves > 0.01)
    if not long.any():
        return AtClocks(seconds.copy(), seconds.copy(), 1.0)
    whole = _middle(moves[long], seconds[long])
    # Both as parts of the way from a burst (0) to a long run amid a profile's mix (1); heavier mixes go further.
    by_model = max(_middle(np.log(seconds[long] / burst[long]) / moves[long], seconds[long]), 0.0)
    weight = MODEL_SPREAD**2 / (MODEL_SPREAD**2 + POWER_SPREAD**2)
    part = weight * np.log(by_power) / whole + (1 - weight) * min(by_model, 1.5)
    return AtClocks(seconds * np.exp(-part * moves), seconds * np.exp((1 - part) * moves), float(np.exp(part * whole)))


def _middle(values: Floats, weights: Floats) -> float:
    """The weighted median."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, 0.5)])
