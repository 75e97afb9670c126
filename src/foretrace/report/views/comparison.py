"""The view of two answers next to each other: the difference as a waterfall, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from foretrace.basics.units import format_bytes, format_percent, format_time
from foretrace.readings.compare import MEASURED, PREDICTED, ComparedPart, Comparison, Pair
from foretrace.report.answer_words import place_text, signed_percent
from foretrace.report.compare import (
    cause_names,
    comparison_json,
    difference_value,
    different_work,
    range_text,
    ranks_text,
    rate_text,
    relative_text,
    share_of_base,
    signed_difference,
)
from foretrace.report.page.blocks import (
    Block,
    Cell,
    Gantt,
    KeyFigure,
    KeyFigures,
    Picture,
    Row,
    Section,
    Table,
    Text,
    Tone,
    View,
)
from foretrace.report.page.gantt_chart import gantt_chart
from foretrace.report.plots.waterfall import waterfall_svg
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import MAX_ROWS, change_tone, left_out_text, notes_section

_ROUNDING: Final = 1e-6
"""The share of the step below which a part is not a step of the waterfall."""


def comparison_view(comparison: Comparison) -> View:
    """Makes the view of a comparison."""
    sections = [
        _step(comparison),
        _waterfall(comparison),
        *_differences(comparison),
        *_causes(comparison),
        *_pipelines(comparison),
        *_details(comparison),
    ]
    sections += notes_section(comparison.diagnostics)
    first, second = comparison.sides
    title = f"{first.label}: {first.answer.title or 'a job'} · {second.label}: {second.answer.title or 'a job'}"
    return View(title, "comparison", sections, place_text(comparison.base))


def _step(comparison: Comparison) -> Section:
    pair = comparison.step
    times = comparison.in_columns(format_time(pair.subject_s), format_time(pair.base_s))
    difference = signed_difference(comparison, pair)
    tone: Tone = "" if comparison.with_measured else change_tone(pair.subject_s, pair.base_s)
    what = "Error" if comparison.with_measured else "Difference"
    figures = [KeyFigure(what, relative_text(pair), difference, tone)]
    figures += [
        KeyFigure(
            side.label.capitalize() if side.label in (PREDICTED, MEASURED) else side.label,
            time,
            place_text(side.answer),
        )
        for side, time in zip(comparison.sides, times, strict=True)
    ]
    if comparison.until_optimizer is not None:
        until = comparison.until_optimizer
        remark = signed_difference(comparison, until)
        figures.append(KeyFigure("Up to the optimizer", relative_text(until), remark))
    blocks: list[Block] = [KeyFigures(figures)]
    band, contains = comparison.subject.step_time_band_s, comparison.band_contains_base
    if comparison.with_measured and band is not None and contains is not None:
        verdict = "contains" if contains else "does not contain"
        blocks.append(Text(f"The band, {format_time(band[0])} to {format_time(band[1])}, {verdict} the measured step."))
    different = different_work(comparison)
    if different:
        blocks.append(Text(f"Not the same work: {different}.", "bad"))
    return Section("step", "The difference", blocks)


def _waterfall(comparison: Comparison) -> Section:
    subject, base = comparison.subject_label, comparison.base_label
    rounding = _ROUNDING * max(comparison.step.subject_s, comparison.step.base_s)
    steps = [
        (row.name, row.seconds.difference_s) for row in comparison.breakdown if abs(row.seconds.difference_s) > rounding
    ]
    first, last = (base, comparison.step.base_s), (subject, comparison.step.subject_s)
    svg = waterfall_svg(first, last, steps, "From one step to the other")
    alt = f"from {base}, {format_time(first[1])}, to {subject}, {format_time(last[1])}, part by part"
    table = _parts_table(comparison, (*comparison.breakdown, ComparedPart("step", comparison.step)), "part")
    return Section(
        "waterfall",
        "Where the difference comes from",
        (Picture(svg, alt), table),
        "mean over ranks; the parts sum to it",
    )


def _pair_cells(comparison: Comparison, pair: Pair) -> list[str | Cell]:
    sides = comparison.in_columns(pair.subject_s, pair.base_s)
    share = share_of_base(comparison, pair)
    return [
        *(Cell(format_time(side), side) for side in sides),
        Cell(signed_difference(comparison, pair), pair.difference_s),
        Cell(signed_percent(share), share or 0.0),
    ]


def _heads(comparison: Comparison) -> tuple[str, ...]:
    first, second = comparison.sides
    return (first.label, second.label, "difference", "of step" if comparison.with_measured else f"of {first.label}")


def _parts_table(comparison: Comparison, rows: tuple[ComparedPart, ...], what: str, summary: str = "") -> Table:
    cells: list[Row] = [[row.name, *_pair_cells(comparison, row.seconds)] for row in rows]
    return Table((what, *_heads(comparison)), cells, right=range(1, 5), shown=20, summary=summary)


def _differences(comparison: Comparison) -> Iterator[Section]:
    """Yields what differs between two predictions: the figures of both, and their choices."""
    if comparison.with_measured:
        return
    yield Section("figures", "Both in figures", (_figures(comparison),), wide=False)
    rows: list[Row] = [
        [f"{each.of} {each.name}".strip(), difference_value(each.a), difference_value(each.b)]
        for each in comparison.differences
    ]
    block: Block = (
        Table(("what", *_heads(comparison)[:2]), rows)
        if rows
        else Text("Nothing differs in plan, hardware and prices.")
    )
    yield Section("choices", "What differs", (block,), wide=False)


def _figures(comparison: Comparison) -> Table:
    a, b = (side.answer for side in comparison.sides)
    step_s = (a.step_time_s, b.step_time_s)
    needs = tuple(None if answer.memory is None else float(answer.memory.needed_bytes) for answer in (a, b))
    peaks = tuple(None if answer.peak_memory is None else float(answer.peak_memory.bytes) for answer in (a, b))
    figures: list[tuple[str, tuple[float | None, ...], Callable[[float], str]]] = [
        ("step", step_s, format_time),
        ("tokens/s per GPU", (a.tokens_per_s_per_gpu, b.tokens_per_s_per_gpu), rate_text),
        ("MFU", (a.mfu, b.mfu), format_percent),
        ("peak memory", peaks, format_bytes),
        ("needs of a GPU", needs, format_bytes),
    ]
    rows: list[Row] = []
    for name, (first, second), text in figures:
        if first is None and second is None:
            continue
        share = (second - first) / first if first and second is not None else None
        change = "" if share is None else Cell(signed_percent(share), share)
        rows.append([name, *("" if value is None else Cell(text(value), value) for value in (first, second)), change])
    return Table(("", *_heads(comparison)[:2], "change"), rows, right=(1, 2, 3))


def _causes(comparison: Comparison) -> Iterator[Section]:
    if not comparison.causes:
        return
    shown = comparison.causes[:MAX_ROWS]
    rows: list[Row] = [
        [row.cause.part, name, *_pair_cells(comparison, row.seconds)]
        for row, name in zip(shown, cause_names(shown), strict=True)
    ]
    caption = left_out_text(len(comparison.causes) - len(shown))
    table = Table(("part", "op that differs", *_heads(comparison)), rows, caption, right=range(2, 6))
    yield Section("causes", "Which ops differ", (table,), "time that ops take, or that ranks wait for them")


def _pipelines(comparison: Comparison) -> Iterator[Section]:
    """Yields the steps of both over time."""
    for number, side in enumerate(comparison.sides, 1):
        chart = gantt_chart(side.answer)
        if chart is not None:
            yield Section(f"pipeline-{number}", f"The step over time, {side.label}", (Gantt(chart),))


def _details(comparison: Comparison) -> Iterator[Section]:
    """Yields kinds of ops, critical paths, and single stages, ranks and groups."""
    blocks: list[Block] = []
    if comparison.kinds:
        kinds = tuple(ComparedPart(row.name, row.running) for row in comparison.kinds)
        waiting = [row for row in comparison.kinds if row.wait.subject_s or row.wait.base_s]
        waits = tuple(ComparedPart(row.name, row.wait) for row in waiting)
        blocks.append(_parts_table(comparison, kinds, "ops of this kind, running", "by kind of op"))
        if waits:
            blocks.append(_parts_table(comparison, waits, "ops of this kind, waiting", "waits by kind of op"))
    blocks.append(_parts_table(comparison, comparison.critical_path, "critical path", "critical paths"))
    if comparison.stages:
        blocks.append(_stages(comparison))
    if comparison.ranks:
        blocks.append(_ranks(comparison))
    if comparison.groups:
        blocks.append(_groups(comparison))
    yield Section("details", "In detail", blocks)


def _stages(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for stage in comparison.stages:
        cells: list[str | Cell] = [f"stage {stage.stage} {stage.direction}"]
        for side in comparison.in_columns(stage.subject, stage.base):
            if side is None:
                cells += ["", ""]
            else:
                least_to_most = Cell(range_text(side.least_s, side.most_s), side.least_s)
                cells += [Cell(format_time(side.mean_s), side.mean_s), least_to_most]
        error = None if stage.mean is None else stage.mean.error
        rows.append([*cells, Cell(signed_percent(error), error or 0.0)])
    first, second = comparison.sides
    head = ("compute of a microbatch", first.label, "least to most", second.label, "least to most", "change")
    return Table(head, rows, right=range(1, 6), summary="by stage")


def _ranks(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for rank in comparison.ranks[:MAX_ROWS]:
        others = f" and {len(rank.ranks) - 1:,} identical" if len(rank.ranks) > 1 else ""
        sides = [
            Cell(format_time(side), side)
            for pair in (rank.compute, rank.held_up, rank.end)
            for side in comparison.in_columns(pair.subject_s, pair.base_s)
        ]
        rows.append([f"rank {rank.ranks[0]}{others}", *sides])
    first, second = comparison.sides
    names = ("compute", "held up", "end")
    head = ("ranks", *(word for name in names for word in (f"{name}, {first.label}", second.label)))
    return Table(head, rows, left_out_text(len(comparison.ranks) - len(rows)), right=range(1, 7), summary="by rank")


def _groups(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for group in comparison.groups[:MAX_ROWS]:
        others = f" and {len(group.groups) - 1:,} identical" if len(group.groups) > 1 else ""
        sides = [
            Cell(format_time(side), side)
            for pair in (group.running, group.wait)
            for side in comparison.in_columns(pair.subject_s, pair.base_s)
        ]
        rows.append([f"{group.axis} {ranks_text(group.groups[0])}{others}", *sides])
    first, second = comparison.sides
    head = ("groups", f"running, {first.label}", second.label, f"waiting, {first.label}", second.label)
    return Table(head, rows, left_out_text(len(comparison.groups) - len(rows)), right=range(1, 5), summary="by group")


KINDS: Final = (
    AnswerKind(
        Comparison,
        comparison_view,
        comparison_json,
        main_table="breakdown",
        notebook_sections=("step", "waterfall", "figures", "notes"),
    ),
)
