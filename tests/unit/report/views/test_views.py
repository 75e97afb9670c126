"""The sections of pages say what the terminal and --json say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from foretrace import Answer, Machine, Mesh, Plan, ProgramBuilder, Scenario, model, simulate
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_count, format_time
from foretrace.readings.answer.answer import Remedy
from foretrace.readings.compare import CauseRow, compare
from foretrace.readings.explain import explain
from foretrace.report.answer_words import utilisation_text, utilised_peak_text
from foretrace.report.compare import cause_names
from foretrace.report.page.blocks import (
    Block,
    Cell,
    FactList,
    Fold,
    KeyFigure,
    KeyFigures,
    Picture,
    Section,
    StackedBars,
    Table,
    Text,
    View,
)
from foretrace.report.plan import fit_text, no_best_text
from foretrace.report.plan_words import plan_notes
from foretrace.report.views.answer import answer_view
from foretrace.report.views.comparison import comparison_view
from foretrace.report.views.explanation import explanation_view
from foretrace.report.views.memory_answer import memory_view
from foretrace.report.views.plan_search import plan_search_view
from foretrace.report.views.text_table import MAX_ROWS
from foretrace.search.planner.result import PlanSearch
from plan_searches import BEST, REQUEST, search


@cache
def prediction(slowdown: float = 1.2) -> Answer:
    """A model with sixteen stages, in fp8, with a straggler."""
    plan = Plan(gpus=64, tp=4, pp=16, gbs=16, precision="fp8")
    return simulate(model("llama3-70b", plan), Machine("h100-dgx", prices="model"), Scenario(stragglers={5: slowdown}))


def section(view: View, key: str) -> Section:
    (chosen,) = (each for each in view.sections if each.key == key)
    return chosen


def blocks_of(view: View, key: str, kind: type[Block]) -> list[Block]:
    return [block for block in section(view, key).blocks if isinstance(block, kind)]


def figures(view: View, key: str = "step") -> dict[str, KeyFigure]:
    return {
        figure.name: figure
        for block in section(view, key).blocks
        if isinstance(block, KeyFigures)
        for figure in block.figures
    }


def table(view: View, key: str, head: str) -> Table:
    (chosen,) = (
        block
        for block in section(view, key).blocks
        if isinstance(block, Table) and head in (*block.head, block.summary)
    )
    return chosen


def texts(row: Sequence[str | Cell]) -> list[str]:
    return [cell.text if isinstance(cell, Cell) else cell for cell in row]


def numbers(rows: Sequence[Sequence[str | Cell]], column: int) -> list[float]:
    cells = [row[column] for row in rows]
    return [cell.sort for cell in cells if isinstance(cell, Cell) and cell.sort is not None]


def one_op(seconds: float) -> Answer:
    build = ProgramBuilder(Mesh(dp=1), repeats=False)
    build.role("rank 0", [0]).compute("op", seconds)
    return simulate(build.program())


def test_a_difference_from_a_step_of_no_time_is_no_percentage() -> None:
    figure = figures(comparison_view(compare(one_op(1e-3), one_op(0.0))))["Difference"]
    assert figure.value and "%" not in figure.value
    assert figures(comparison_view(compare(one_op(1.0), one_op(1.0))))["Difference"].value == "0.0 %"


def test_an_answer_compared_with_itself_has_two_sides() -> None:
    answer = one_op(1.0)
    comparison = compare(answer, answer)
    assert (comparison.subject_label, comparison.base_label) == ("B", "A")
    (picture,) = blocks_of(comparison_view(comparison), "waterfall", Picture)
    assert isinstance(picture, Picture)
    assert "from A, " in picture.alt and "to B, " in picture.alt


def test_causes_have_names_by_what_they_share() -> None:
    comparison = compare(prediction(), prediction(1.5))
    rows = table(comparison_view(comparison), "causes", "op that differs").rows
    assert [texts(row)[1] for row in rows] == cause_names(comparison.causes[: len(rows)])
    first = comparison.causes[0]
    assert isinstance(first, CauseRow)
    nameless = [replace(first, cause=replace(first.cause, name="", kind=kind)) for kind in ("", "all_reduce")]
    assert cause_names(nameless) == ["", "other all_reduce"]
    twins = [replace(first, cause=replace(first.cause, name="op", kind=kind)) for kind in ("gemm", "copy")]
    assert cause_names(twins) == ["op, gemm", "op, copy"]
    assert cause_names(twins[:1]) == ["op"]


def test_both_tables_of_the_critical_path_cover_it() -> None:
    answer = prediction()
    length_s = answer.critical_path.length_s
    by_part = table(answer_view(answer), "path", "of the path")
    seconds = numbers(by_part.rows, 2)
    assert sum(seconds) == pytest.approx(length_s)
    assert seconds == sorted(seconds, reverse=True)
    passes = table(answer_view(answer), "path", "pass")
    covered = sum(numbers(passes.rows, list(passes.head).index("time")))
    assert covered == pytest.approx(length_s) or f"{100 * covered / length_s:.1f} %" in passes.caption


def test_a_long_path_shows_its_longest_stretches_also_where_many_tie() -> None:
    build = ProgramBuilder(Mesh(dp=1), repeats=False)
    role = build.role("rank 0", [0])
    seconds = [1e-3] * (MAX_ROWS + 50) + [2e-3] * 50
    for microbatch, duration_s in enumerate(seconds):
        role.compute(f"op {microbatch}", duration_s, microbatch=microbatch, phase="forward")
    passes = table(answer_view(simulate(build.program())), "path", "pass")
    shown = numbers(passes.rows, list(passes.head).index("time"))
    assert len(shown) == MAX_ROWS
    assert sum(shown) == pytest.approx(sum(sorted(seconds)[-MAX_ROWS:]))
    starts = numbers(passes.rows, 0)
    assert starts == sorted(starts)


def test_utilisation_has_the_words_of_the_terminal() -> None:
    figures_of_model, step_s = prediction().model, prediction().step_time_s
    assert figures_of_model is not None
    remark = figures(answer_view(prediction()))["MFU"].remark
    assert "bf16" in remark and "fp8" in remark
    words = utilised_peak_text(figures_of_model, step_s)
    assert words in remark and words in utilisation_text(figures_of_model, step_s)


def test_the_time_up_to_the_optimizer_and_identical_ranks_are_shown() -> None:
    view, values = answer_view(prediction()), prediction().to_dict()
    assert values["until_optimizer_s"] is not None
    shown = [block.text for block in section(view, "breakdown").blocks if isinstance(block, Text)]
    assert any(format_time(values["until_optimizer_s"]) in text for text in shown)
    classes = table(view, "stages", "first rank")
    assert numbers(classes.rows, 1) == [each["first_rank"] for each in values["rank_classes"]]


def test_every_field_of_the_plan_and_the_scenario_are_shown() -> None:
    view, values = answer_view(prediction()), prediction().to_dict()
    fields = {row[0]: row[1] for row in map(texts, table(view, "inputs", "field of the plan").rows)}
    assert set(fields) == set(values["plan"])
    assert (fields["tp"], fields["precision"]) == ("4", "fp8")
    (facts,) = blocks_of(view, "inputs", FactList)
    assert isinstance(facts, FactList)
    for change in prediction().describe_changes():
        assert ("scenario", change) in facts.facts
    assert section(answer_view(one_op(1.0)), "inputs").title == "Scenario"


@pytest.mark.parametrize("gain", [-0.1, 0.0])
def test_changes_without_a_gain_are_listed_too(gain: float) -> None:
    remedies = (Remedy("--vpp 5", 1.0, 1.0 + gain), Remedy("--overlap tp", 1.0, 1.02), Remedy("--zero 3", 1.0, 1.01))
    view = answer_view(replace(prediction(), remedies=remedies))
    rows = [texts(row) for row in table(view, "gains", "tried, without a gain").rows]
    shown = ["--vpp 5"] if gain == 0.0 else []
    assert [row[0] for row in rows] == [*shown, "--zero 3", "--overlap tp"]
    assert rows[-1][1:] == ["1.02 s", "+2.0 %"]


def test_stages_that_are_not_drawn_are_counted_and_have_numbers() -> None:
    view = answer_view(prediction())
    (fold,) = blocks_of(view, "memory", Fold)
    assert isinstance(fold, Fold)
    assert f"{len(fold.blocks)} of 15 " in fold.summary
    moments = table(view, "memory", "where the most is")
    assert len(moments.rows) == 16
    memory = prediction().memory
    assert memory is not None
    assert numbers(moments.rows, 1) == [stage.peak_bytes for stage in memory.stages]


def test_a_page_on_memory_has_each_part_outside_the_allocator_once() -> None:
    memory = prediction().memory
    assert memory is not None and memory.outside
    view = memory_view(prediction())
    names = [
        texts(row)[0]
        for each in view.sections
        for block in each.blocks
        if isinstance(block, Table)
        for row in block.rows
    ]
    for part in memory.outside:
        assert names.count(part.name) == 1


def test_parts_of_stacks_have_the_colours_of_the_breakdown() -> None:
    (stacks,) = blocks_of(answer_view(prediction()), "stages", StackedBars)
    assert isinstance(stacks, StackedBars)
    colours = [colour for name, colour in stacks.parts if name.endswith("exposed")]
    assert len(colours) == len(set(colours)) > 1


@pytest.mark.parametrize("seconds", [1.0, 0.0])
def test_sections_of_an_explanation_have_their_places_with_and_without_a_pipeline(seconds: float) -> None:
    keys = [section.key for section in explanation_view(explain(one_op(seconds))).sections]
    assert len(keys) == len(set(keys))
    assert ("pipeline" in keys) == (seconds > 0)
    order = [key for key in ("step", "breakdown", "pipeline", "facts", "path", "inputs") if key in keys]
    assert [key for key in keys if key in order] == order


def test_an_explained_prediction_has_its_kernels_under_the_roofline() -> None:
    assert section(explanation_view(explain(prediction())), "roofline").blocks


class TestPlans:
    def test_a_deadline_that_is_missed_is_not_a_lack_of_memory(self) -> None:
        late = search(best=None, request=REQUEST, diagnostics=(Diagnostic("warning", "deadline-missed", "late"),))
        assert late.misses_deadline
        remark = figures(plan_search_view(late), "best")["Best plan"].remark
        assert remark == no_best_text(late) != fit_text(late)

    def test_plans_of_a_stopped_search_fit_so_far(self) -> None:
        def plans(result: PlanSearch) -> str:
            return figures(plan_search_view(result), "best")["Plans"].remark

        whole = search(request=REQUEST)
        stopped = replace(whole, search=replace(whole.search, complete=False, stopped_by="time"))
        assert fit_text(whole) in plans(whole) and fit_text(stopped) in plans(stopped)
        assert plans(whole) != plans(stopped)

    def test_a_negative_spare_is_explained_as_on_a_screen(self) -> None:
        tight = replace(BEST, headroom_bytes=-(1 << 30))
        (note,) = plan_notes([tight], ())
        assert note in table(plan_search_view(search(plans=(BEST, tight), request=REQUEST)), "plans", "plan").caption
        assert note not in table(plan_search_view(search(request=REQUEST)), "plans", "plan").caption

    @pytest.mark.parametrize(("price", "column"), [(2.5, "cost of 1M tokens"), (None, "GPU-hours of 1M tokens")])
    def test_costs_are_a_column(self, price: float | None, column: str) -> None:
        request = replace(REQUEST, objective="cost", price_per_gpu_hour=price)
        plans = table(plan_search_view(search(objective="cost", request=request)), "plans", "plan")
        hours = 1e6 / BEST.tokens_per_s_per_gpu / 3600
        assert numbers(plans.rows, list(plans.head).index(column))[0] == pytest.approx(hours * (price or 1.0))

    def test_the_time_of_a_training_is_a_column(self) -> None:
        request = replace(REQUEST, tokens=10**12, deadline_s=1e9)
        plans = table(plan_search_view(search(request=request)), "plans", "plan")
        seconds = 1e12 / (BEST.tokens_per_s_per_gpu * BEST.plan.gpus)
        assert numbers(plans.rows, list(plans.head).index("training"))[0] == pytest.approx(seconds)

    def test_without_a_goal_there_is_no_such_column(self) -> None:
        plans = table(plan_search_view(search(request=REQUEST)), "plans", "plan")
        assert not {"training", "cost of 1M tokens", "GPU-hours of 1M tokens"} & set(plans.head)
        assert (
            format_count(search().feasible) == figures(plan_search_view(search(request=REQUEST)), "best")["Plans"].value
        )
