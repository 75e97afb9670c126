"""Finds what limits a job: the figures of the machine that would make its kernels and its communication faster.

Each figure that kernels depend on is doubled by itself and the kernels are priced again. A kernel that a figure limits
alone takes half the time then, so twice the gain is the time that the figure limits. The rest depends on none of them:
launches, latency, tiles that fill the SMs only in part. Communication has its limits from the network's prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic
from foretrace.cost.machine import Machine, PricedProgram
from foretrace.cost.prices import Prices
from foretrace.hardware.changes import CHANGES, FIGURES, describe_change
from foretrace.program.graph import Graph
from foretrace.readings.scenario import Scenario
from foretrace.readings.sharing import AxisLimit

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


def axis_limits(prices: Prices, graph: Graph, op_s: Floats) -> tuple[AxisLimit, ...]:
    """Returns what limits the communication of each axis; `op_s` has the seconds that each op takes in all."""
    calls, axes = prices.calls, [each.axis for each in graph.program.communicators]
    limits = {} if calls is None else calls.limits(op_s, axes)
    return tuple(AxisLimit(axis, limit.kind, limit.name, limit.share) for axis, limit in limits.items())


def idle_changes(scenario: Scenario, priced: PricedProgram, machine: Machine) -> tuple[Diagnostic, ...]:
    """Returns a warning for every what-if of the machine that changes no price of the job, next to the others.

    `priced` is the program at the prices under all what-ifs.
    """
    program, notes = priced.ops.program, []
    for what, change in scenario.of_machine(program).items():
        if what not in CHANGES or what == "memory":
            continue
        rest = {name: other for name, other in scenario.what_if.items() if name != what}
        without = replace(scenario, what_if=rest).machine_for(program, machine)
        if _same_figures(scenario.machine_for(program, machine), without):
            continue
        prices = without.price(program).prices
        if not np.array_equal(prices.duration_s, priced.prices.duration_s):
            continue
        carried = what in ("flops", "hbm", "power", "gpu") and not (prices.mix >= 0).any()
        why = "its computation carries recorded times" if carried else "no op of it is limited by that"
        text = f"{describe_change(what, change)} changes no price of this job: {why}"
        notes.append(Diagnostic("warning", "what-if-without-effect", text, f"--what-if {what}"))
    return tuple(notes)


def _same_figures(changed: Machine, machine: Machine) -> bool:
    """Returns whether two machines have the same figures: a factor of 1 changes nothing."""
    first, second = changed.needed_cluster(), machine.needed_cluster()
    return first.gpu.title == second.gpu.title and all(
        figure.read(first) == figure.read(second) for figure in FIGURES.values()
    )


def moved_limits(
    before: tuple[AxisLimit, ...], after: tuple[AxisLimit, ...], scenario: Scenario
) -> tuple[Diagnostic, ...]:
    """Returns a note for every axis whose communication a what-if has given another limit."""
    kinds = {limit.axis: limit.kind for limit in before}
    notes = []
    for limit in after:
        kind = kinds.get(limit.axis)
        if kind in scenario.what_if and kind != limit.kind:
            text = f"{limit.axis} is limited by {limit.name} then: more {kind} alone would not help further"
            notes.append(Diagnostic("note", "limit-moved", text))
    return tuple(notes)
