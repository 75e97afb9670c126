"""Errors of rows and of groups of rows, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.validate.results import (
    Compared,
    RowResult,
    Validation,
    by_axis,
    by_family,
    by_gpu,
    errors_by_quantity,
    group_of,
)


def result(
    name: str,
    measured: float,
    predicted: float,
    *,
    family: str = "one",
    grade: str = "A",
    axes: tuple[str, ...] = ("tp",),
    band: tuple[float, float] | None = None,
    memory: Compared | None = None,
) -> RowResult:
    step = Compared(measured, predicted)
    return RowResult(name, family, grade, "h100-sxm", axes, step, band, memory, {}, True, "compute 90 %", ())


ROWS = (
    result("a", 10.0, 11.0, band=(9.5, 12.5), memory=Compared(50.0, 45.0)),
    result("b", 10.0, 8.0, axes=("tp", "pp"), band=(7.0, 9.0)),
    result("c", 4.0, 4.0, family="two", axes=("fsdp",)),
    result("d", 1.0, 2.0, family="two", grade="B"),
)


def test_a_group() -> None:
    group = group_of("all", ROWS[:3])
    assert group.rows == 3
    assert group.mape == pytest.approx(0.1)
    assert group.bias == pytest.approx(-0.1 / 3)
    assert group.worst == pytest.approx(-0.2)
    assert group.coverage == pytest.approx(0.5)
    assert group.half_width == pytest.approx((1.5 / 11 + 1 / 8) / 2)
    assert (group.memory_mape, group.memory_rows) == (pytest.approx(0.1), 1)


def test_a_group_without_bands_or_memory() -> None:
    group = group_of("all", ROWS[2:3])
    assert (group.coverage, group.half_width, group.memory_mape) == (None, None, None)


def test_errors_by_what_was_measured() -> None:
    timed = replace(ROWS[1], parts={"forward": Compared(2.0, 1.0)})
    errors = errors_by_quantity((ROWS[0], timed))
    assert errors == {"step": pytest.approx(0.15), "memory": pytest.approx(0.1), "forward": pytest.approx(0.5)}


def test_rows_without_a_step_time() -> None:
    untimed = replace(ROWS[0], step=None, more_memory={"used": Compared(50.0, 60.0)})
    assert (untimed.error, untimed.inside) == (None, None)
    assert errors_by_quantity((untimed,)) == {"memory": pytest.approx(0.1), "used": pytest.approx(0.2)}
    group = group_of("all", (untimed,))
    assert (group.rows, group.mape, group.bias, group.worst, group.half_width) == (1, None, None, None, None)
    assert group.memory_mape == pytest.approx(0.1)
    both = Validation((untimed, ROWS[1]), ())
    assert [row.id for row in both.worst] == ["b"]
    assert group_of("all", both.rows).mape == both.mean_of_families("A") == pytest.approx(0.2)
    assert Validation((untimed,), ()).mean_of_families("A") is None


def test_the_grade_that_counts() -> None:
    assert Validation(ROWS, ()).best_grade == "A"
    assert Validation(ROWS[3:], ()).best_grade == "B"
    assert Validation((), ()).best_grade is None


def test_grades_are_apart_and_families_count_alike() -> None:
    found = Validation(ROWS, ())
    assert found.grades == ("A", "B")
    assert found.mean_of_families("A") == pytest.approx((0.15 + 0.0) / 2)
    assert found.mean_of_families("B") == pytest.approx(1.0)
    assert found.mean_of_families("C") is None
    assert [row.id for row in found.worst] == ["d", "b", "a", "c"]


def test_groups_by_what_rows_have_in_common() -> None:
    assert [(group.name, group.rows) for group in by_family(ROWS)] == [("one", 2), ("two", 2)]
    assert [(group.name, group.rows) for group in by_gpu(ROWS)] == [("h100-sxm", 4)]
    assert [(group.name, group.rows) for group in by_axis(ROWS[:3])] == [("fsdp", 1), ("pp", 1), ("tp", 2)]
