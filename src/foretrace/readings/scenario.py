"""A scenario: what is different from normal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from foretrace.basics.arguments import check_fields, checked_methods
from foretrace.basics.arrays import Mask, distinct
from foretrace.basics.errors import InputError
from foretrace.basics.numbers import python_number
from foretrace.cost.machine import KERNEL_KINDS, Machine
from foretrace.cost.prices import Prices
from foretrace.hardware.changes import CHANGES, Change, describe_change
from foretrace.program.columns import Kind
from foretrace.program.expand import Ops
from foretrace.program.program import Program
from foretrace.readings.families import select
from foretrace.readings.jitter import check_jitter

MAX_FACTOR = 1e6
"""No part of a machine gets a million times as fast, or as slow."""


@checked_methods
@dataclass(frozen=True, slots=True)
class Scenario:
    """The differences from a normal run.

    Attributes:
        what_if: How many times as fast families of ops, kernels or resources are: `{"compute": 1.1, "gemm": 1.2,
            "name:attention*": 2}`; or another machine: `{"nic": 2, "power": "500W", "gpu": "h200-sxm"}` (see
            `hardware/changes.py`).
        stragglers: How many times as slowly ranks compute: `{5: 1.2}`.
        slow_links: How many times as slow the communication of a rank over an axis is: `{(5, "dp"): 2}`.
        jitter: By which share of its time every computation varies: 0.03 is a standard deviation of 3 %.
        steady: Whether steps repeat, so that the time of a step is their period; else it is the makespan of one step
            from a standstill. None: as the input has it.
    """

    what_if: Mapping[str, Change] = field(default_factory=dict)
    stragglers: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, str], float] = field(default_factory=dict)
    jitter: float = 0.0
    steady: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("what_if", "stragglers", "slow_links"):
            factors = {python_number(what): python_number(factor) for what, factor in getattr(self, name).items()}
            for what, factor in factors.items():
                if isinstance(factor, str) and name == "what_if" and what in CHANGES:
                    continue
                if not isinstance(factor, int | float) or isinstance(factor, bool):
                    problem = f"{name} of {what!r} is {factor!r}"
                    raise InputError("bad-value", problem, hint="a factor is a number: 2.0 is twice as fast or slow")
            object.__setattr__(self, name, MappingProxyType(factors))
        object.__setattr__(self, "jitter", check_jitter(python_number(self.jitter)))

    def __hash__(self) -> int:
        mappings = (self.what_if, self.stragglers, self.slow_links)
        return hash((*(frozenset(mapping.items()) for mapping in mappings), self.jitter, self.steady))

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
            *(
                describe_change(what, change) if what in CHANGES else f"{what} {change:g}× as fast"
                for what, change in self.what_if.items()
            ),
            *(f"rank {rank} computes {factor:g}× as slowly" for rank, factor in self.stragglers.items()),
            *(f"{axis} of rank {rank} {factor:g}× as slow" for (rank, axis), factor in self.slow_links.items()),
            *([f"compute jitters by {100 * self.jitter:g} %"] if self.jitter else []),
        ]

    def machine_for(self, program: Program, machine: Machine) -> Machine:
        """Returns the machine with the what-ifs that change its figures or its kernels.

        A resource that the program itself declares goes by its own name, such as `nic`: it is not the machine's.
        """
        changes = self.of_machine(program)
        for what in changes.keys() - set(CHANGES):
            _check_factor(what, changes[what])
        return machine.changed(changes) if changes else machine

    def applied_to(self, ops: Ops, prices: Prices) -> Prices:
        """Returns the prices with all changes except those of the machine, and except jitter, which adds waits instead
        (see `readings/jitter.py`)."""
        resources = {resource.name for resource in prices.draws.resources}
        of_machine = self.of_machine(ops.program)
        for text, change in self.what_if.items():
            if text in CHANGES and text in of_machine:
                continue
            factor = _check_factor(text, change)
            if text in resources:
                prices = prices.widened(text, factor)
            elif text in of_machine:
                prices = _faster_kernels(ops, prices, text, factor)
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

    def of_machine(self, program: Program) -> dict[str, Change]:
        """Returns the what-ifs that change a machine, or how fast it runs kernels."""
        names = {*CHANGES, *KERNEL_KINDS} - {resource.name for resource in program.resources}
        return {what: change for what, change in self.what_if.items() if what in names}


def _faster_kernels(ops: Ops, prices: Prices, kind: str, factor: float) -> Prices:
    """Returns the prices with kernels of a kind faster where ops carry their times. The machine has priced the others
    so; an error where there are neither."""
    from foretrace.inputs.torch_ops.kinds import WorkKind, kinds_of_text  # few ask

    kernel, by_machine = ops.ints("kernel"), prices.mix >= 0
    texts = distinct(kernel[by_machine & (kernel >= 0)]).tolist()
    kinds = {WorkKind(kind), *([WorkKind.MOE_EXPERT] if kind == WorkKind.GEMM else [])}
    acts = any(kinds & kinds_of_text(ops.program.strings[number]) for number in texts)
    if acts and by_machine[ops.ints("kind") == Kind.COMPUTE].all():
        return prices
    try:
        chosen = select(ops, kind) & ~by_machine
    except InputError:
        if acts:
            return prices
        raise
    return prices.scaled(np.where(chosen, 1 / factor, 1.0))


def _check_rank(ops: Ops, rank: int) -> None:
    world = ops.program.world
    if not 0 <= rank < world:
        raise InputError("no-such-rank", f"there is no rank {rank}; the job has ranks 0 to {world - 1}")


def _check_factor(text: str, factor: Change) -> float:
    if isinstance(factor, str):
        raise InputError("bad-value", f"what-if {text}: {factor!r} is not a factor", hint=f"for example {text}=2x")
    if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
        problem = f"{text} cannot be {factor:g} times as fast or slow"
        raise InputError("out-of-range", problem, hint=f"factors lie between 1e-6 and {MAX_FACTOR:g}")
    return float(factor)


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
