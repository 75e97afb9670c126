"""Finds what limits the kernels of a job: the figure of the GPU that would make them faster.

Each figure is doubled by itself and the kernels are priced again. A kernel that a figure limits alone takes half the
time then, so twice the gain is the time that the figure limits. The rest depends on none of them: launches, latency,
tiles that fill the SMs only in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from foretrace.cost.machine import Machine, PricedProgram
from foretrace.program.graph import Graph

LIMITS: Final = ("flops", "hbm")
"""The figures of a GPU that kernels can be limited by; see `hardware/changes.py`."""

FIXED: Final = "fixed"
"""The name of the time that no figure limits."""


def kernel_limits(machine: Machine, priced: PricedProgram, graph: Graph) -> Mapping[str, float] | None:
    """Returns the seconds of a rank, on average, by what limits the kernels that the machine priced.

    Args:
        machine: The machine that priced the program.
        priced: The program with its prices.
        graph: The program as it was run.

    Returns:
        Seconds by `flops`, `hbm` and `fixed`, the largest first; None where the machine priced no kernels.
    """
    chosen = np.flatnonzero(priced.prices.mix >= 0)
    if priced.cluster is None or machine.prices.kernels is not None or not len(chosen):
        return None
    runs = np.bincount(graph.op, weights=graph.weight, minlength=len(graph.ops))[chosen] / graph.program.world

    def seconds(prices_of: PricedProgram) -> float:
        return float((prices_of.prices.duration_s[0, chosen] * runs).sum())

    total_s = seconds(priced)
    gains = {name: total_s - seconds(machine.changed({name: 2.0}).price(graph.program)) for name in LIMITS}
    shares = {name: max(2 * gain, 0.0) for name, gain in gains.items()}
    # A kernel between two limits gains from either, so their shares may exceed the whole.
    over = max(sum(shares.values()) / total_s, 1.0) if total_s > 0 else 1.0
    shares = {name: limited_s / over for name, limited_s in shares.items()}
    shares[FIXED] = max(total_s - sum(shares.values()), 0.0)
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
