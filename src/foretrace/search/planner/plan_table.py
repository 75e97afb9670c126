"""Defines `PlanTable`: many plans as columns, so that a search handles millions of them without Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Longs, Mask, distinct_keys
from foretrace.workload.check_plan import NUMBER_FIELDS
from foretrace.workload.plan import Plan

Codes = NDArray[np.int16]
"""For each plan, the position of a value among the values of a field."""

_MAX_RADIX: Final = 2**62
"""The largest mixed-radix number that fits 64 bits with room to spare."""


@dataclass(frozen=True, eq=False)
class PlanTable:
    """Plans as columns.

    Attributes:
        base: The plan that every row starts from; it has the fields that do not vary.
        values: The values of each field that varies, as a `Plan` has them.
        codes: For each field that varies, the position in `values` of each row's value, [rows].
        rows: How many plans there are.
    """

    base: Plan
    values: dict[str, tuple[Any, ...]]
    codes: dict[str, Codes]
    rows: int

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> PlanTable:
        """Returns the table of plans that are given one by one; there is at least one."""
        values: dict[str, tuple[Any, ...]] = {}
        codes: dict[str, Codes] = {}
        for field in _FIELDS:
            column = [getattr(plan, field) for plan in plans]
            numbers = {value: code for code, value in enumerate(dict.fromkeys(column))}
            if len(numbers) > 1:
                values[field] = tuple(numbers)
                codes[field] = np.array([numbers[value] for value in column], dtype=np.int16)
        return cls(plans[0], values, codes, len(plans))

    @classmethod
    def concatenate(cls, tables: Sequence[PlanTable]) -> PlanTable:
        """Returns the rows of several tables, one table after the other; there is at least one table."""
        if len(tables) == 1:
            return tables[0]
        base = tables[0].base
        varying = [field for field in _FIELDS if any(table._varies_from(base, field) for table in tables)]
        values = {
            field: tuple(dict.fromkeys(v for table in tables for v in table.values_of(field))) for field in varying
        }
        codes = {field: np.concatenate([table._recoded(field, values[field]) for table in tables]) for field in varying}
        return cls(base, values, codes, sum(map(len, tables)))

    def __len__(self) -> int:
        return self.rows

    def values_of(self, field: str) -> tuple[Any, ...]:
        """Returns the values of a field: those among which it varies, or its only value."""
        return self.values[field] if field in self.values else (getattr(self.base, field),)

    def codes_of(self, field: str) -> Codes:
        """Returns for each row the position of its value in `values_of(field)`, [rows]."""
        codes = self.codes.get(field)
        return np.zeros(self.rows, dtype=np.int16) if codes is None else codes

    def plan(self, row: int) -> Plan:
        """Returns the plan of a row."""
        return replace(self.base, **{field: self.values[field][code[row]] for field, code in self.codes.items()})

    def column(self, field: str, absent: int = -1) -> Longs:
        """Returns a field as numbers, [rows], read-only: whole numbers and flags as such, any other field as codes.

        Args:
            field: A field of `Plan`.
            absent: The number that stands for None among whole numbers and flags.
        """
        cached = self._columns.get((field, absent))
        if cached is None:
            if field in NUMBER_FIELDS:
                cached = self.gather(field, lambda value: absent if value is None else int(value))
            else:
                cached = self.codes_of(field).astype(np.int64)
            cached.setflags(write=False)
            self._columns[(field, absent)] = cached
        return cached

    def gather(self, field: str, function: Callable[[Any], Any]) -> NDArray[Any]:
        """Returns a function of a field's value for each row, [rows]; it is called once for each distinct value."""
        results = np.array([function(value) for value in self.values_of(field)])
        return results[self.codes_of(field)] if field in self.codes else np.repeat(results, self.rows)

    def select(self, rows: NDArray[np.integer] | Mask) -> PlanTable:
        """Returns the table of some rows: by number, in the order given, or where a mask is true."""
        codes = {field: code[rows] for field, code in self.codes.items()}
        count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return PlanTable(self.base, self.values, codes, count)

    def fixed(self, **values: Any) -> PlanTable:
        """Returns the table with some fields the same in all rows."""
        kept = {name: each for name, each in self.values.items() if name not in values}
        return PlanTable(replace(self.base, **values), kept, {name: self.codes[name] for name in kept}, self.rows)

    def keys(self, *names: str) -> tuple[Longs, Longs]:
        """Returns which rows have the same values of some fields.

        Returns:
            examples: The first row of each distinct combination of values, [combinations]. Combinations are in the
                order of codes, the first field that is named slowest.
            numbers: The number of each row's combination, [rows].
        """
        key, radix = np.zeros(self.rows, dtype=np.int64), 1
        for name in names:
            size = len(self.values_of(name))
            if name not in self.codes or size == 1:
                continue
            if radix * size > _MAX_RADIX:
                examples, key = distinct_keys(key, radix)
                radix = len(examples)
            key = key * size + self.codes[name]
            radix *= size
        return distinct_keys(key, radix)

    @cached_property
    def _columns(self) -> dict[tuple[str, int], Longs]:
        return {}

    def _varies_from(self, base: Plan, field: str) -> bool:
        return field in self.codes or getattr(self.base, field) != getattr(base, field)

    def _recoded(self, field: str, values: tuple[Any, ...]) -> Codes:
        """Returns the codes of a field by its positions in other values."""
        numbers = {value: code for code, value in enumerate(values)}
        places = np.array([numbers[value] for value in self.values_of(field)], dtype=np.int16)
        recoded: Codes = places[self.codes_of(field)]
        return recoded


_FIELDS: Final = tuple(field.name for field in fields(Plan))


def combined(*numbers: Longs) -> tuple[Longs, Longs]:
    """Returns the first row of each distinct combination of numbers from 0 on, and the number of each row's."""
    key, radix = np.zeros(len(numbers[0]), dtype=np.int64), 1
    for number in numbers:
        size = int(number.max(initial=0)) + 1
        if radix * size > _MAX_RADIX:
            examples, key = distinct_keys(key, radix)
            radix = len(examples)
        key, radix = key * size + number, radix * size
    return distinct_keys(key, radix)
