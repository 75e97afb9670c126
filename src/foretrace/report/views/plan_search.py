"""The view of a search for plans: the best, the front of time and memory, what was rejected, how to launch it.

A search that runs has a view of the plans that it has found so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foretrace.basics.units import (
    MINUS,
    format_bytes,
    format_count,
    format_difference,
    format_number,
    format_percent,
    format_time,
)
from foretrace.inputs.inventory import counted_text
from foretrace.report.design import change_colour
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Fold,
    KeyFigure,
    KeyFigures,
    Picture,
    Row,
    Section,
    Table,
    Text,
    View,
)
from foretrace.report.plan import (
    MIN_PART,
    PlanSearchRecord,
    cost_per_million,
    days_text,
    fit_text,
    goal_text,
    gpu_hours_per_million,
    no_best_text,
    plan_json,
    proof_text,
    reason_words,
    request_of,
    robust_text,
    spare_text,
    training_s_of,
)
from foretrace.report.plan_words import common_words, plan_notes, plan_text, plan_words, varying_fields
from foretrace.report.plots.plan_front import plan_front_svg, searched_plans_svg
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import notes_section
from foretrace.search.planner.result import PlanSearch, RankedPlan
from foretrace.search.progress import SearchedPlans


def plan_search_view(search: PlanSearch, next_command: str = "") -> View:
    """Makes the view of a search.

    Args:
        search: The result.
        next_command: The command that predicts the best plan; empty where it is not known.
    """
    sections = [_best(search, next_command), *_plans(search), *_why(search), *_rejected(search), *_launch(search)]
    sections += notes_section(search.diagnostics)
    job = f"{search.model} on {format_count(search.gpus)} GPUs of {search.cluster}"
    batch = f"{format_count(search.gbs)} sequences of {format_count(search.seq_len)} tokens"
    return View(f"Plans of {job}", "plan search", sections, batch)


def _best(search: PlanSearch, next_command: str) -> Section:
    best, blocks = search.best, list[Block]()
    if best is None:
        blocks.append(KeyFigures([KeyFigure("Best plan", "none", no_best_text(search), "bad")]))
    else:
        name = plan_text(best.plan, varying_fields([each.plan for each in search.plans]))
        kind = "" if best.evidence == "simulated" else "estimated"
        figures = [
            KeyFigure("Step of the best plan", format_time(best.step_time_s), kind),
            KeyFigure("Tokens per second and GPU", format_number(best.tokens_per_s_per_gpu)),
            KeyFigure("Memory", format_bytes(best.needed_memory_bytes), spare_text(best.headroom_bytes)),
            KeyFigure(
                "Plans",
                format_count(search.feasible),
                f"{fit_text(search)}, of {format_count(search.distinct)} distinct ones",
            ),
        ]
        code = Code(next_command) if next_command else Code(best.options, "options of the best plan")
        blocks += [KeyFigures(figures), Text(name), code]
        goal = goal_text(search, best)
        if goal:
            blocks.append(Text(goal))
    blocks.append(Text(f"Proof: {proof_text(search)}"))
    robust = robust_text(search)
    if robust:
        blocks.append(Text(f"Robust: {robust}"))
    return Section("best", "The best plan", blocks)


def _plans(search: PlanSearch) -> Iterator[Section]:
    """Yields the plans in order, with those that cannot be told from the best, and the front."""
    if not search.plans:
        return
    svg = plan_front_svg(search, "Plans by step time and memory")
    alt = f"{len(search.plans)} plans by predicted step time and memory; {len(search.front)} are on the front"
    yield Section("front", "Time against memory", (Picture(svg, alt), _table(search, search.front, "the front")))
    others = [each for each in search.indistinguishable if each not in search.plans]
    yield Section("plans", "The best plans", (_table(search, [*search.plans, *others]),))


def _table(search: PlanSearch, plans: Sequence[RankedPlan], summary: str = "") -> Table:
    varying = varying_fields([each.plan for each in plans])
    words = [plan_words(each.plan, varying) for each in plans]
    common = common_words(words)
    equal_plans = [each.plan for each in search.indistinguishable]
    measured = [each.plan for each in search.measure_first]
    rows: list[Row] = []
    for ranked, own in zip(plans, words, strict=True):
        marks = []
        if ranked.plan in equal_plans:
            marks.append("≈ best")
        if ranked.plan in measured:
            marks.append(f"measure {measured.index(ranked.plan) + 1}.")
        rows.append(
            [
                Cell(" · ".join(word for word in own if word not in common), options=ranked.options),
                Cell(format_time(ranked.step_time_s), ranked.step_time_s),
                Cell(format_number(ranked.tokens_per_s_per_gpu), ranked.tokens_per_s_per_gpu),
                Cell(format_bytes(ranked.needed_memory_bytes), ranked.needed_memory_bytes),
                Cell(format_bytes(ranked.headroom_bytes), ranked.headroom_bytes),
                Cell(format_percent(ranked.wins) if ranked.wins else "", ranked.wins),
                *_goal_cells(search, ranked),
                ranked.evidence,
                ", ".join(marks),
            ]
        )
    goals, price = _goal_heads(search), request_of(search).price_per_gpu_hour
    head = (
        "plan",
        "step",
        "tokens/s per GPU",
        "memory",
        "spare",
        "fastest in draws",
        *goals,
        "evidence",
        "against the best",
    )
    notes = plan_notes(plans, common)
    notes += ["≈ best: predictions cannot tell it from the best"] if equal_plans else []
    notes += [] if price is None else [f"cost at {price:g} a GPU-hour"]
    return Table(head, rows, "; ".join(notes), right=range(1, 6 + len(goals)), shown=15, summary=summary)


def _goal_heads(search: PlanSearch) -> list[str]:
    """Returns the heads of the columns of cost and of the time of the training, where the search asked for them."""
    request = request_of(search)
    heads = []
    if request.price_per_gpu_hour is not None:
        heads.append("cost of 1M tokens")
    elif search.objective == "cost":
        heads.append("GPU-hours of 1M tokens")
    if request.tokens is not None:
        heads.append("training")
    return heads


def _goal_cells(search: PlanSearch, ranked: RankedPlan) -> list[Cell]:
    """Returns the cells of a plan below `_goal_heads`."""
    request = request_of(search)
    cost, training_s = cost_per_million(ranked, request), training_s_of(ranked, request)
    if cost is None and search.objective == "cost":
        cost = gpu_hours_per_million(ranked)
    cells = [] if cost is None else [Cell(f"{cost:.3g}", cost)]
    return cells if training_s is None else [*cells, Cell(days_text(training_s), training_s)]


def _why(search: PlanSearch) -> Iterator[Section]:
    why, best = search.why, search.best
    if why is None or best is None:
        return
    runner_up = why.runner_up
    behind = format_difference(runner_up.step_time_s, best.step_time_s)
    name = plan_text(runner_up.plan, varying_fields([best.plan, runner_up.plan]))
    parts = sorted(why.parts_s.items(), key=lambda part: (-abs(part[1]), part[0]))
    bars = [
        Bar(part, size, f"{'+' if size > 0 else MINUS}{format_time(abs(size))}", change_colour(size))
        for part, size in parts
        if abs(size) > MIN_PART * best.step_time_s
    ]
    block: Block = Bars(bars) if bars else Text("No part of the step differs.")
    remark = f"seconds of each part, best less {name} ({format_time(runner_up.step_time_s)}, {behind})"
    yield Section("why", "Why it beats the next plan that was simulated", (block,), remark)


def _rejected(search: PlanSearch) -> Iterator[Section]:
    blocks: list[Block] = []
    if search.rejected:
        counts = sorted(search.rejected.items(), key=lambda item: (-item[1], item[0]))
        blocks.append(Bars([Bar(reason_words(reason), count, format_count(count), "grey") for reason, count in counts]))
    if search.near_misses:
        varying = varying_fields([miss.plan for miss in search.near_misses])
        rows: list[Row] = [
            [
                Cell(plan_text(miss.plan, varying), options=miss.options),
                "" if miss.step_time_s is None else Cell(format_time(miss.step_time_s), miss.step_time_s),
                reason_words(miss.reason),
                Cell(format_bytes(miss.short_bytes), miss.short_bytes) if miss.short_bytes else "",
                miss.saved_by or "",
            ]
            for miss in search.near_misses
        ]
        head = ("nearest misses", "step", "rejected by", "lacks", "would be saved by")
        blocks.append(Table(head, rows, "the best plan of each family that was rejected", right=(1, 3), shown=5))
    if blocks:
        remark = f"{format_count(search.searched)} combinations were considered"
        yield Section("rejected", "What was rejected, and why", blocks, remark)


def _launch(search: PlanSearch) -> Iterator[Section]:
    scripts = [Fold(framework, (Code(script, "launch script"),)) for framework, script in search.launch.items()]
    if scripts:
        yield Section("launch", "How to launch it", scripts)


def running_search_view(plans: SearchedPlans, model: str) -> View:
    """Makes the view of the plans that a search of a model has found so far: the front, and the fastest others."""
    title = f"{counted_text(plans.estimated, 'plan')} estimated, {format_count(plans.simulated)} simulated so far"
    blocks: list[Block] = []
    if plans.front:
        alternative = "Step time and memory of the front and of the fastest other plans found so far."
        blocks = [Picture(searched_plans_svg(plans, title), alternative), _running_table(plans)]
    return View(f"{model}: {title}", "plan search", (Section("front", "The front so far", blocks),))


def _running_table(plans: SearchedPlans) -> Table:
    marked = [(plan, "on the front") for plan in plans.front] + [(plan, "") for plan in plans.others]
    rows: list[Row] = [
        (
            Cell(plan.options, options=plan.options),
            Cell(format_time(plan.step_time_s), plan.step_time_s),
            Cell(format_bytes(plan.needed_memory_bytes), plan.needed_memory_bytes),
            "simulated" if plan.is_simulated else "estimated",
            mark,
        )
        for plan, mark in sorted(marked, key=lambda row: row[0].step_time_s)
    ]
    return Table(("options", "step", "memory needed", "evidence", ""), rows, right=(1, 2))


KINDS: Final = (
    AnswerKind(
        PlanSearch,
        plan_search_view,
        plan_json,
        main_table="plans",
        notebook_sections=("best", "plans", "notes"),
        records=(PlanSearchRecord,),
    ),
)
