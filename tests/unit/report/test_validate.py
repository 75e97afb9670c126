"""The screen and the JSON of a validation."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from foretrace.report.validate import print_validation, validation_json, validation_svg
from foretrace.validate.results import Compared, RowResult, Validation
from foretrace.validate.training_runs import SkippedRun


def row(name: str, family: str, measured: float, predicted: float, grade: str = "A") -> RowResult:
    return RowResult(
        id=name,
        family=family,
        grade=grade,
        gpu="h200-sxm",
        axes=("tp", "dp"),
        step=Compared(measured, predicted),
        band_s=(0.9 * predicted, 1.1 * predicted),
        memory=Compared(40e9, 42e9) if grade == "A" else None,
        parts={"forward": Compared(0.3 * measured, 0.3 * predicted)} if grade == "A" else {},
        fits=True,
        reason="compute 92 %; 80 % of op time by kernel model",
        notes=("a guess",),
    )


@pytest.fixture
def validation() -> Validation:
    rows = (row("a#1", "one", 1.0, 1.04), row("b#2", "two", 2.0, 1.7), row("c#3", "two", 3.0, 3.0, "B"))
    skipped = tuple(SkippedRun(f"s{number}", f"runs.csv:{number}", "no step time was measured") for number in range(5))
    return Validation(rows, skipped)


def screen(validation: Validation) -> str:
    stream = io.StringIO()
    print_validation(validation, stream)
    return stream.getvalue()


def test_the_screen_says_errors_by_grade_and_group(validation: Validation) -> None:
    text = screen(validation)
    assert "Grade A   9.5 % mean absolute error of 2 rows" in text
    assert "9.5 % mean over families" in text
    assert "Grade B   0.0 % mean absolute error of 1 rows" in text
    assert "family one" in text
    assert "gpu h200-sxm" in text
    assert "axis tp" in text
    assert "peak memory off by 5.0 % over 2 rows" in text
    assert "50.0 % of rows lie in their band" in text
    assert "skipped  5: no step time was measured (s0, s1, s2 and 2 more)" in text
    assert "│" not in text  # a pipe gets no plot


def test_the_worst_come_first_with_what_they_rest_on(validation: Validation) -> None:
    lines = screen(validation).splitlines()
    start = next(number for number, line in enumerate(lines) if "furthest off" in line)
    assert lines[start + 1].split()[0] == "b#2"
    assert "−15.0 %" in lines[start + 1]
    assert "kernel model" in lines[start + 1]


def test_a_terminal_gets_a_plot(validation: Validation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    text = screen(validation)
    assert "│" in text
    assert "a one · b two" in text


def test_the_json(validation: Validation) -> None:
    result = json.loads(json.dumps(validation_json(validation), allow_nan=False))
    assert result["schema"] == "foretrace.validation/1"
    assert result["graded"] == "A"
    assert result["mape"] == pytest.approx(0.095)
    assert result["bias"] == pytest.approx(-0.055)
    assert result["mean_of_families"] == pytest.approx(0.095)
    assert result["coverage"] == 0.5
    assert result["half_width"] == pytest.approx(0.1)
    assert result["memory"] == {"mape": pytest.approx(0.05), "rows": 2}
    first = result["rows"][0]
    assert first["id"] == "a#1"
    assert first["error"] == pytest.approx(0.04)
    assert first["memory"]["error"] == pytest.approx(0.05)
    assert first["parts"]["forward"]["predicted_s"] == pytest.approx(0.312)
    assert len(result["skipped"]) == 5


def test_memory_is_said_with_what_it_counts(validation: Validation) -> None:
    peaks = {"memory_kind": "reserved", "more_memory": {"used": Compared(40e9, 50e9)}}
    rows = (replace(validation.rows[0], step=None, band_s=None, parts={}, **peaks), *validation.rows[1:])
    text = screen(replace(validation, rows=rows))
    (line,) = (line.split() for line in text.splitlines() if line.startswith("  a#1"))
    assert line == ["a#1", "+5.0", "%", "+25.0", "%"]
    first, second, _ = validation_json(replace(validation, rows=rows))["rows"]
    assert (first["measured_s"], first["predicted_s"], first["error"]) == (None, None, None)
    assert (first["memory"]["kind"], second["memory"]["kind"]) == ("reserved", "allocated")
    assert [(peak["kind"], peak["error"]) for peak in first["more_memory"]] == [("used", pytest.approx(0.25))]
    assert second["more_memory"] == []


def test_a_table_of_memory_alone(validation: Validation) -> None:
    alone = replace(validation, rows=(replace(validation.rows[0], step=None, parts={}),))
    assert "a#1" in screen(alone)
    result = validation_json(alone)
    assert (result["mape"], result["bias"], result["mean_of_families"]) == (None, None, None)
    assert result["memory"] == {"mape": pytest.approx(0.05), "rows": 1}
    assert "0 measured steps" in validation_svg(alone)


def test_the_groups_of_the_json(validation: Validation) -> None:
    groups = validation_json(validation)["groups"]
    assert [(group["kind"], group["name"], group["grade"]) for group in groups] == [
        ("family", "one", "A"),
        ("family", "two", "A"),
        ("gpu", "h200-sxm", "A"),
        ("axis", "dp", "A"),
        ("axis", "tp", "A"),
        ("family", "two", "B"),
        ("gpu", "h200-sxm", "B"),
        ("axis", "dp", "B"),
        ("axis", "tp", "B"),
    ]
    assert groups[1] == {
        "kind": "family",
        "name": "two",
        "grade": "A",
        "rows": 1,
        "mape": pytest.approx(0.15),
        "bias": pytest.approx(-0.15),
        "worst": pytest.approx(-0.15),
        "coverage": 0.0,
        "half_width": pytest.approx(0.1),
        "memory_mape": pytest.approx(0.05),
        "memory_rows": 1,
    }


def test_rows_of_grade_b_count_where_none_is_of_grade_a(validation: Validation) -> None:
    result = validation_json(replace(validation, rows=validation.graded("B")))
    assert (result["graded"], result["mape"], result["coverage"], result["memory"]) == ("B", 0.0, 1.0, None)


def test_rows_that_ran_but_are_said_not_to_fit(validation: Validation) -> None:
    rows = (replace(validation.rows[0], fits=False), *validation.rows[1:])
    assert "1 of the rows ran, but are predicted not to fit in memory (a#1)" in screen(replace(validation, rows=rows))


def test_nothing_predicted() -> None:
    empty = Validation((), (SkippedRun("a", "runs.csv:2", "no reason"),))
    assert "no row could be predicted" in screen(empty)
    result = validation_json(empty)
    assert (result["graded"], result["mape"], result["coverage"], result["mean_of_families"]) == (None,) * 4
    assert result["groups"] == []
    assert "0 measured steps" in validation_svg(empty)
