"""A table of plans gives back the plans that it was made of, and numbers equal combinations equally."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from foretrace.basics.arrays import distinct_keys
from foretrace.search.planner.plan_table import PlanTable
from foretrace.workload.plan import Plan

PLANS = [
    replace(recomputed, tp=tp, pp=pp, sequence_parallel=flag)
    for tp, pp, recomputed, flag in product(
        (1, 2, 8),
        (1, 4),
        (Plan(64), Plan(64, recompute="selective", recompute_modules=("mlp",)), Plan(64, recompute="full")),
        (None, False, True),
    )
]


def test_each_row_is_its_plan() -> None:
    table = PlanTable.of(PLANS)
    assert len(table) == len(PLANS)
    assert [table.plan(row) for row in range(len(table))] == PLANS
    assert set(table.values) == {"tp", "pp", "recompute", "recompute_modules", "sequence_parallel"}


def test_columns_are_numbers_flags_or_codes() -> None:
    table = PlanTable.of(PLANS)
    assert table.column("tp").tolist() == [plan.tp for plan in PLANS]
    assert table.column("gpus").tolist() == [64] * len(PLANS)
    flags = {None: -1, False: 0, True: 1}
    assert table.column("sequence_parallel").tolist() == [flags[plan.sequence_parallel] for plan in PLANS]
    words = table.values["recompute"]
    assert [words[code] for code in table.column("recompute")] == [plan.recompute for plan in PLANS]
    assert not table.column("schedule").any()
    assert table.column("gbs", absent=7).tolist() == [7] * len(PLANS)
    assert table.gather("recompute", len).tolist() == [len(plan.recompute) for plan in PLANS]


def test_a_column_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        PlanTable.of(PLANS).column("tp")[0] = 3


def test_rows_are_chosen_by_number_or_mask() -> None:
    table = PlanTable.of(PLANS)
    rows = np.array([7, 3, 3])
    assert [table.select(rows).plan(row) for row in range(3)] == [PLANS[row] for row in rows]
    mask = table.column("tp") == 8
    chosen = table.select(mask)
    assert [chosen.plan(row) for row in range(len(chosen))] == [plan for plan in PLANS if plan.tp == 8]


def test_tables_with_other_values_and_bases_are_joined() -> None:
    others = [Plan(64, tp=4, cp=2), Plan(64, tp=8, cp=2)]
    alone = [Plan(128, tp=16)]
    joined = PlanTable.concatenate([PlanTable.of(plans) for plans in (PLANS, others, alone)])
    assert [joined.plan(row) for row in range(len(joined))] == [*PLANS, *others, *alone]


@pytest.mark.parametrize("names", [(), ("gpus",), ("tp",), ("recompute", "tp"), ("pp", "sequence_parallel", "tp")])
def test_rows_with_equal_values_have_one_number(names: tuple[str, ...]) -> None:
    table = PlanTable.of(PLANS)
    examples, numbers = table.keys(*names)
    combinations = [tuple(getattr(plan, name) for name in names) for plan in PLANS]
    assert len(examples) == len(set(combinations))
    assert [combinations[examples[number]] for number in numbers] == combinations
    assert [combinations.index(combinations[row]) for row in examples] == examples.tolist()


def test_keys_are_the_same_by_sorting_and_by_places() -> None:
    key = np.array([5, 3, 5, 0, 9, 3])
    by_places, by_sorting = distinct_keys(key, 10), distinct_keys(key, 2**40)
    for left, right in zip(by_places, by_sorting, strict=True):
        assert left.tolist() == right.tolist()


def test_more_combinations_than_a_number_holds() -> None:
    rng = np.random.default_rng(0)
    fields = ("gpus", "mbs", "gbs", "seq_len", "tp", "cp")
    columns = rng.integers(1, 3000, (4000, len(fields)))
    columns[2000:] = columns[:2000]
    rows: list[dict[str, Any]] = [dict(zip(fields, row, strict=True)) for row in columns.tolist()]
    table = PlanTable.of([Plan(**row) for row in rows])
    examples, numbers = table.keys(*fields)
    assert len(examples) == len({tuple(row) for row in columns.tolist()})
    assert (columns[examples[numbers]] == columns).all()
