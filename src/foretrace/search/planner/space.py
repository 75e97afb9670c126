"""Defines `Space`: the axes of a search with their values, and the plans among their combinations that can be launched.

A space is a grid. Combinations are never made one by one: rules are evaluated over the axes that they read, and the
plans that are left become rows of a `PlanTable`. `default_axes.py` says which values are searched unless others are
asked for, and `asked_axes.py` reads what a user asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError
from foretrace.models.model import Model
from foretrace.search.planner.plan_table import PlanTable
from foretrace.workload.constraints import CONSTRAINTS
from foretrace.workload.plan import Plan
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.idle_fields import IDLE, first_equal_order
from foretrace.workload.rules.launchers import LAUNCH_CONSTRAINTS, launcher_of
from foretrace.workload.rules.sizes import JobSizes, ModelSizes, PlanColumns, plan_stack
from foretrace.workload.stack import Stack

MAX_CELLS: Final = 1_000_000
"""Combinations that are held at a time: a few tens of MB."""
MAX_COMBINATIONS: Final = 100_000_000
"""Combinations of a space: some ten seconds, and a gigabyte where a third of them can be launched."""

OUTER: Final = ("tp", "pp", "cp", "ep")
"""The axes that choices of others may depend on."""

Outer = Mapping[str, Any]
"""Values of the `OUTER` axes."""
Progress = Callable[[int, int], None]
"""Is told how many combinations of how many are done."""


@dataclass(frozen=True, slots=True)
class SpaceAxis:
    """One axis of a space: fields of a plan that vary together, and their values.

    Attributes:
        name: What a user calls it.
        fields: The fields of a plan; most axes have one.
        choices: The values of `fields`, one tuple for each point of the axis. Those without effect where the axis
            does not matter, such as 1 or off, come first.
        within: Returns whether a choice is searched next to values of the `OUTER` axes; None: always.
    """

    name: str
    fields: tuple[str, ...]
    choices: tuple[tuple[Any, ...], ...]
    within: Callable[[tuple[Any, ...], Outer], bool] | None = None

    @classmethod
    def of(
        cls, name: str, values: Sequence[Any], within: Callable[[tuple[Any, ...], Outer], bool] | None = None
    ) -> SpaceAxis:
        """Returns the axis of the field that has its name."""
        return cls(name, (name,), tuple((value,) for value in dict.fromkeys(values)), within)

    def rank(self) -> int:
        """Returns where the axis belongs: first, between, or last."""
        return 0 if self.fields[0] in OUTER else 1 + self.may_be_idle()

    def may_be_idle(self) -> bool:
        """Returns whether the axis is without effect in some plans."""
        return self.fields[0] in IDLE or self.fields[0] == "rank_order"

    def points(self, outer: Outer) -> Longs:
        """Returns the positions of the choices that are searched next to values of other axes."""
        if self.within is None:
            return np.arange(len(self.choices))
        searched = [number for number, choice in enumerate(self.choices) if self.within(choice, outer)]
        return np.array(searched, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The plans of a space that can be launched.

    Attributes:
        table: The plans that differ in what they do, in the order of the axes.
        searched: How many combinations of values there are.
        launchable: How many of them break no constraint. Some are the same plan, written differently.
        rejected: For the name of each constraint, how many combinations break it and none before it.
    """

    table: PlanTable
    searched: int
    launchable: int
    rejected: dict[str, int]

    @property
    def distinct(self) -> int:
        """How many plans differ in what they do."""
        return len(self.table)


@dataclass(frozen=True)
class Space:
    """The axes of a search and their values.

    Attributes:
        model: The model.
        base: The plan that has all fields that are not axes; it names the software.
        axes: The axes in the order in which plans are listed, the first slowest: `OUTER` axes are put first, and those
            that may be without effect last.
        own_stack: The software where it is given apart from the plan.
        constraints: The rules, in the order in which they are checked.
    """

    model: Model
    base: Plan
    axes: tuple[SpaceAxis, ...]
    own_stack: Stack | None = None
    constraints: tuple[Constraint, ...] = field(default=(*CONSTRAINTS, *LAUNCH_CONSTRAINTS), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(sorted(self.axes, key=SpaceAxis.rank)))

    @property
    def stack(self) -> Stack:
        """The software of the base plan."""
        return self.own_stack or plan_stack(self.base)

    @cached_property
    def hypothetical(self) -> dict[str, tuple[Any, ...]]:
        """The values that the launcher of the stack does not have, for each field that has some."""
        launcher = launcher_of(self.stack)
        beyond: dict[str, tuple[Any, ...]] = {}
        for axis in self.axes:
            for position, name in enumerate(axis.fields):
                values = dict.fromkeys(choice[position] for choice in axis.choices)
                unknown = tuple(value for value in values if not launcher.offers(name, value))
                if unknown:
                    beyond[name] = unknown
        return beyond

    @cached_property
    def searched(self) -> int:
        """How many combinations of values there are."""
        return sum(math.prod(len(points) for points in grid.points) for grid in self._grids(None))

    def enumerate(self, progress: Progress | None = None, max_cells: int = MAX_CELLS) -> Enumeration:
        """Returns the plans that can be launched.

        Args:
            progress: Is told how far the work is.
            max_cells: Combinations that are held at a time. The result does not depend on it.

        Raises:
            InputError: No plan can be launched; the message names the constraints that leave none. Or there are more
                than `MAX_COMBINATIONS` combinations.
        """
        facts = ModelSizes.of(self.model)
        total = self.searched
        if total > MAX_COMBINATIONS:
            longest = sorted(self.axes, key=lambda axis: -len(axis.choices))[:3]
            hint = f"ask for fewer values, first of {', '.join(axis.name for axis in longest)}"
            raise InputError("too-large", f"{total:,} combinations are more than {MAX_COMBINATIONS:,}", hint=hint)
        counts = np.zeros(len(self.constraints) + 1, dtype=np.int64)
        parts: list[_Part] = []
        done = 0
        for grid in self._grids(max_cells):
            columns = self._columns(facts, grid)
            runs, broken = _checked(columns, grid, self.constraints)
            counts += broken
            if runs is not None:
                kept = np.flatnonzero(_distinct(columns, grid, self.axes, runs))
                parts.append(_Part(grid, kept.astype(np.int32 if grid.cells < MAX_CELLS else np.int64)))
            done += grid.cells
            if progress is not None:
                progress(done, total)
        rejected = {rule.name: int(count) for rule, count in zip(self.constraints, counts, strict=False) if count}
        if not counts[-1]:
            raise self._nothing(rejected, done)
        return Enumeration(self._table(parts), done, int(counts[-1]), rejected)

    def _grids(self, max_cells: int | None) -> Iterator[_Grid]:
        """Yields the grids that the space is made of, in order, each of at most about `max_cells` cells."""
        depends = any(axis.within is not None for axis in self.axes)
        outer = sum(axis.rank() == 0 for axis in self.axes) if depends else 0
        yield from self._fixed((), {}, outer, max_cells)

    def _fixed(self, codes: tuple[int, ...], values: Outer, outer: int, max_cells: int | None) -> Iterator[_Grid]:
        """Yields the grids in which the first axes have some choices; at least `outer` axes are fixed in each."""
        number = len(codes)
        if number >= outer:
            points = tuple(axis.points(values) for axis in self.axes[number:])
            cells = math.prod(map(len, points))
            # Plans that differ in idle fields only are compared within a grid, so these axes are never fixed.
            divisible = number < len(self.axes) and not self.axes[number].may_be_idle()
            if max_cells is None or cells <= max_cells or not divisible:
                if cells:
                    yield _Grid(codes, points)
                return
        axis = self.axes[number]
        for code in axis.points(values).tolist():
            chosen = dict(zip(axis.fields, axis.choices[code], strict=True))
            yield from self._fixed((*codes, code), {**values, **chosen}, outer, max_cells)

    def _columns(self, facts: ModelSizes, grid: _Grid) -> PlanColumns:
        fixed = len(grid.codes)
        same: dict[str, Any] = {}
        values: dict[str, tuple[Any, ...]] = {}
        codes = {}
        for axis, code in zip(self.axes[:fixed], grid.codes, strict=True):
            same.update(zip(axis.fields, axis.choices[code], strict=True))
        for number, (axis, points) in enumerate(zip(self.axes[fixed:], grid.points, strict=True)):
            for position, name in enumerate(axis.fields):
                choices = [axis.choices[point][position] for point in points.tolist()]
                known = {value: code for code, value in enumerate(dict.fromkeys(choices))}
                if len(known) == 1:
                    same[name] = choices[0]
                    continue
                values[name] = tuple(known)
                codes[name] = np.array([known[value] for value in choices]).reshape(grid.shape_of(number))
        return PlanColumns(facts, replace(self.base, **same), values, codes, self.own_stack)

    def _table(self, parts: Sequence[_Part]) -> PlanTable:
        """Returns the rows of all grids."""
        base, values, codes = self.base, {}, {}
        for number, axis in enumerate(self.axes):
            if len(axis.choices) == 1:
                base = replace(base, **dict(zip(axis.fields, axis.choices[0], strict=True)))
                continue
            points = np.concatenate([part.points(number) for part in parts])
            for position, name in enumerate(axis.fields):
                known = {value: code for code, value in enumerate(dict.fromkeys(c[position] for c in axis.choices))}
                if len(known) == 1:
                    base = replace(base, **{name: axis.choices[0][position]})
                    continue
                places = np.array([known[choice[position]] for choice in axis.choices], dtype=np.int16)
                values[name], codes[name] = tuple(known), places[points]
        return PlanTable(base, values, codes, sum(len(part.rows) for part in parts))

    def _nothing(self, rejected: Mapping[str, int], searched: int) -> InputError:
        """Returns the error of a space without plans, with the constraints that no combination satisfies."""
        facts = ModelSizes.of(self.model)
        possible = [False] * len(self.constraints)
        for grid in self._grids(MAX_CELLS):
            columns = self._columns(facts, grid)
            possible = [
                held or bool(np.any(rule.holds(columns))) for rule, held in zip(self.constraints, possible, strict=True)
            ]
        never = [rule for rule, held in zip(self.constraints, possible, strict=True) if not held]
        if never:
            rule = never[0]
            message = f"none of {searched:,} combinations can be launched: all break the rule '{rule.name}'"
            hint = f"ask for other values of {', '.join(rule.fields)}"
            return InputError("no-plans", message, hint=f"{hint}; {rule.why}" if rule.why else hint)
        counts = ", ".join(
            f"{name} ({count:,})" for name, count in sorted(rejected.items(), key=lambda item: -item[1])[:3]
        )
        message = f"none of {searched:,} combinations can be launched; most break: {counts}"
        return InputError("no-plans", message, hint="ask for more values of these axes, or for fewer axes")


@dataclass(frozen=True, slots=True)
class _Grid:
    """A part of a space: one choice of each of the first axes, and some choices of each of the others."""

    codes: tuple[int, ...]
    points: tuple[Longs, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.points))

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    def shape_of(self, number: int) -> list[int]:
        """Returns the shape of an array over one axis, which broadcasts against those over others."""
        return [-1 if other == number else 1 for other in range(len(self.points))]


@dataclass(frozen=True, slots=True)
class _Part:
    """The cells of a grid that are plans."""

    grid: _Grid
    rows: NDArray[np.integer]

    def points(self, number: int) -> NDArray[np.integer]:
        """Returns the choice of an axis of the space for each row."""
        fixed = len(self.grid.codes)
        if number < fixed:
            return np.full(len(self.rows), self.grid.codes[number], dtype=np.int16)
        shape = self.grid.shape
        stride = math.prod(shape[number - fixed + 1 :])
        choices = self.grid.points[number - fixed].astype(np.int16)
        chosen: NDArray[np.integer] = choices[self.rows // stride % shape[number - fixed]]
        return chosen


def _checked(columns: JobSizes, grid: _Grid, rules: Sequence[Constraint]) -> tuple[Mask | None, Longs]:
    """Returns which cells of a grid break no rule (None: none), and how many break each rule and none before it."""
    counts = np.zeros(len(rules) + 1, dtype=np.int64)
    broken: list[tuple[int, Mask]] = []
    for number, rule in enumerate(rules):
        holds = rule.holds(columns)
        if np.all(holds):
            continue
        broken.append((number, np.logical_not(holds)))
        if not np.any(holds):
            break
    first = np.full(grid.shape, len(rules), dtype=np.uint8)
    for number, mask in reversed(broken):
        np.copyto(first, np.uint8(number), where=np.broadcast_to(mask, grid.shape))
    counts += np.bincount(first.ravel(), minlength=len(counts))
    return (first == len(rules) if counts[-1] else None), counts


def _distinct(columns: JobSizes, grid: _Grid, axes: Sequence[SpaceAxis], runs: Mask) -> Mask:
    """Returns the cells that are plans, without those that differ from an earlier one in fields without effect only."""
    for number, (axis, points) in enumerate(zip(axes[len(grid.codes) :], grid.points, strict=True)):
        if len(points) == 1 or not axis.may_be_idle():
            continue
        own = np.arange(len(points)).reshape(grid.shape_of(number))
        if axis.fields == ("rank_order",):
            orders = [axis.choices[point][0] for point in points.tolist()]
            fields = ("rank_order", "gpus", "tp", "cp", "pp", "ep", "etp")
            runs = runs & (columns.each(partial(first_equal_order, orders=orders), *fields) == own)
            continue
        idle = np.broadcast_to(IDLE[axis.fields[0]](columns), grid.shape)
        if idle.any():
            same = runs & idle
            runs = runs & (np.logical_not(idle) | (own == np.expand_dims(same.argmax(axis=number), number)))
    return runs
