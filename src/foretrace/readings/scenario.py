"""A scenario: what is different from normal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from foretrace.basics.arrays import Mask, distinct
from foretrace.basics.errors import InputError
from foretrace.cost.prices import Prices
from foretrace.program.columns import Kind
from foretrace.program.expand import Ops
from foretrace.readings.families import select
from foretrace.readings.jitter import check_jitter

MAX_FACTOR = 1e6
"""No part of a machine gets a million times as fast, or as slow."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The differences from a normal run.

    Attributes:
        what_if: How many times as fast families of ops or resources are: `{"compute": 1.1, "name:attention*": 2}`.
        stragglers: How many times as slowly ranks compute: `{5: 1.2}`.
        slow_links: How many times as slow the communication of a rank over an axis is: `{(5, "dp"): 2}`.
        jitter: By which share of its time every computation varies: 0.03 is a standard deviation of 3 %.
        steady: Whether steps repeat, so that the time of a step is their period; else it is the makespan of one step
            from a standstill. None: as the input has it.
    """

    what_if: Mapping[str, float] = field(default_factory=dict)
    stragglers: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, str], float] = field(default_factory=dict)
    jitter: float = 0.0
    steady: bool | None = None

    def __post_init__(self) -> None:
        for name in ("what_if", "stragglers", "slow_links"):
            for what, factor in getattr(self, name).items():
                if not isinstance(factor, int | float) or isinstance(factor, bool):
                    problem = f"{name} of {what!r} is {factor!r}"
                    raise InputError("bad-value", problem, hint="a factor is a number: 2.0 is twice as fast or slow")
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "jitter", check_jitter(self.jitter))

    def __reduce__(self) -> tuple[type[Scenario], tuple[object, ...]]:
        # Read-only mappings cannot be pickled.
        return Scenario, (dict(self.what_if), dict(self.stragglers), dict(self.slow_links), self.jitter, self.steady)

    def __bool__(self) -> bool:
        return self.changes_times or self.steady is not None

    @property
    def changes_times(self) -> bool:
        """Whether anything takes another time than normal."""
        return bool(self.what_if or self.stragglers or self.slow_links or self.jitter)

    def describe(self) -> list[str]:
        """Returns each change in words."""
        return [
            *(f"{what} {factor:g}× as fast" for what, factor in self.what_if.items()),
            *(f"rank {rank} computes {factor:g}× as slowly" for rank, factor in self.stragglers.items()),
            *(f"{axis} of rank {rank} {factor:g}× as slow" for (rank, axis), factor in self.slow_links.items()),
            *([f"compute jitters by {100 * self.jitter:g} %"] if self.jitter else []),
        ]

    def applied_to(self, ops: Ops, prices: Prices) -> Prices:
        """Returns the prices with all changes except jitter, which adds waits instead (see `readings/jitter.py`)."""
        resources = {resource.name for resource in prices.draws.resources}
        for text, factor in self.what_if.items():
            _check_factor(text, factor)
            if text in resources:
                prices = prices.widened(text, factor)
            else:
                prices = prices.scaled(np.where(select(ops, text), 1 / factor, 1.0))
        for rank, factor in self.stragglers.items():
            _check_rank(ops, rank)
            _check_factor(f"rank {rank}", factor)
            prices = prices.slowed([rank], factor, ops.ints("kind") == Kind.COMPUTE)
        for (rank, axis), factor in self.slow_links.items():
            _check_factor(f"{axis} of rank {rank}", factor)
            prices = _slow_link(ops, prices, rank, axis, factor)
        return prices


def _check_rank(ops: Ops, rank: int) -> None:
    world = ops.program.world
    if not 0 <= rank < world:
        raise InputError("no-such-rank", f"there is no rank {rank}; the job has ranks 0 to {world - 1}")


def _check_factor(text: str, factor: float) -> None:
    if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
        problem = f"{text} cannot be {factor:g} times as fast or slow"
        raise InputError("out-of-range", problem, hint=f"factors lie between 1e-6 and {MAX_FACTOR:g}")


def _slow_link(ops: Ops, prices: Prices, rank: int, axis: str, factor: float) -> Prices:
    """Slows what a rank communicates over an axis, for all who take part in it: members of a group end together."""
    _check_rank(ops, rank)
    program, communicator = ops.program, ops.ints("communicator")
    chosen: Mask = select(ops, axis) & (communicator >= 0)
    groups = {
        int(number): program.communicators[number].group_of(program.mesh, program.world)
        for number in distinct(communicator[chosen])
    }
    groups = {number: group for number, group in groups.items() if group[rank] >= 0}
    if not groups:
        raise InputError("unknown-name", f"rank {rank} does not communicate over {axis}")
    for number, group in groups.items():
        partners = np.flatnonzero(group == group[rank]).tolist()
        prices = prices.slowed(partners, factor, chosen & (communicator == number))
    return prices
