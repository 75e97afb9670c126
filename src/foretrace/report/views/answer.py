"""The view of a simulated, predicted or recorded step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from foretrace.basics.errors import ForetraceError
from foretrace.basics.units import (
    MINUS,
    format_bandwidth,
    format_count,
    format_flops,
    format_number,
    format_percent,
    format_time,
)
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.answer_record import ModelRecord, SimulationRecord, answer_dict
from foretrace.readings.breakdown import COMPUTE_PARTS
from foretrace.readings.links import MAX_GPUS, link_loads
from foretrace.readings.roofline import roofline
from foretrace.report.answer_words import (
    BOUND_BY,
    KERNEL_LIMITS,
    LIMIT_WORDS,
    MIN_SHOWN_PART,
    ROUNDING,
    answer_band_text,
    band_text,
    change_text,
    effect_text,
    factor_band_text,
    gain_text,
    helpful_remedies,
    job_text,
    place_text,
    remedy_gain_s,
    sharing_text,
    sorted_diagnostics,
)
from foretrace.report.design import part_colour
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Fold,
    Gantt,
    KeyFigure,
    KeyFigures,
    Notes,
    Picture,
    Row,
    Section,
    StackedBar,
    StackedBars,
    Table,
    Text,
    View,
)
from foretrace.report.page.gantt_chart import gantt_chart
from foretrace.report.page.origin import with_saved_origin
from foretrace.report.plots.heatmap import heatmap_svg
from foretrace.report.plots.roofline_plot import roofline_svg
from foretrace.report.views import AnswerKind
from foretrace.report.views.stage_memory import memory_figure, memory_section

MAX_ROLES: Final = 64
"""Stages whose breakdown is drawn; beyond them a table has all."""
MAX_PATH_ROWS: Final = 200
MAX_KERNELS: Final = 60


def answer_view(answer: Answer, *, quick: bool = False) -> View:
    """Makes the view of an answer.

    Args:
        answer: The answer.
        quick: Whether only the step, its breakdown and the memory are shown.
    """
    sections = [_step(answer), _breakdown(answer)]
    if quick:
        sections += memory_section(answer, pictures=False)
    else:
        sections += [
            *_gains(answer),
            *_pipeline(answer),
            *_stages(answer),
            *_path(answer),
            *_prices(answer),
            *memory_section(answer),
            *_roofline(answer),
            *_links(answer),
        ]
    sections += _notes(answer)
    kind = "recorded step" if answer.timeline.recorded else "prediction" if answer.model else "simulation"
    view = View(job_text(answer) or "a step", kind, sections, place_text(answer))
    return view if answer.origin is None else with_saved_origin(view, answer.origin)


def _step(answer: Answer) -> Section:
    """Returns the headline numbers."""
    band = answer_band_text(answer)
    period = "" if answer.repeats else "makespan of one step"
    remark = " · ".join(word for word in (band, period) if word)
    figures = [KeyFigure("Step", format_time(answer.step_time_s), remark)]
    changed = change_text(answer)
    if changed is not None:
        words, by, of = changed
        tone = "good" if by.startswith(MINUS) else "bad" if by.startswith("+") else ""
        figures.append(KeyFigure("Change", by, f"{of}: {words}", tone=tone))  # type: ignore[arg-type]
    if answer.step_time_unprofiled_s not in (None, answer.step_time_s):
        assert answer.step_time_unprofiled_s is not None
        limits = answer.step_time_unprofiled_band_s
        off = "" if limits is None else band_text(answer.step_time_unprofiled_s, *limits)
        figures.append(KeyFigure("Without the profiler", format_time(answer.step_time_unprofiled_s), off))
    rate = answer.tokens_per_s_per_gpu
    if rate is not None:
        total = f"{format_number(rate * answer.world_size)} in all"
        figures.append(KeyFigure("Tokens per second and GPU", format_number(rate), total))
    if answer.model is not None and answer.mfu is not None and answer.hfu is not None:
        model = answer.model
        rate_text = f"{format_flops(model.flops_per_s_per_gpu(answer.step_time_s))} of {format_flops(model.peak_flops)}"
        remark = f"{rate_text} ({model.peak_dtype}) · HFU {format_percent(answer.hfu)}"
        figures.append(KeyFigure("MFU", format_percent(answer.mfu), remark, share=answer.mfu))
    figures += memory_figure(answer)
    return Section("step", "The answer", (KeyFigures(figures),))


def _breakdown(answer: Answer) -> Section:
    step_s = answer.step_time_s
    limits = {} if answer.network is None else {f"{limit.axis} exposed": limit.kind for limit in answer.network.limits}
    parts = sorted(answer.breakdown.mean_s.items(), key=lambda part: -part[1])
    bars = [
        Bar(
            name,
            seconds,
            format_time(seconds),
            part_colour(name),
            f"limit: {LIMIT_WORDS[limits[name]]}" if limits.get(name, "none") != "none" else "",
            format_percent(seconds / step_s),
        )
        for name, seconds in parts
        if seconds > ROUNDING * step_s
    ]
    blocks: list[Block] = [Bars(bars, whole=step_s)] if bars else [Text("Nothing in this job takes time.")]
    if answer.kernel_limits_s:
        total = sum(answer.kernel_limits_s.values()) or 1.0
        words = (f"{KERNEL_LIMITS[name]} {format_percent(s / total)}" for name, s in answer.kernel_limits_s.items())
        blocks.append(Text(f"Kernels are limited by {' · '.join(words)}.", "muted"))
    return Section("breakdown", "Where the time goes", blocks, "mean over ranks; the parts sum to the step", wide=False)


def _gains(answer: Answer) -> Iterator[Section]:
    """Yields what each change would gain: those that a person can make, and those of families of ops."""
    blocks: list[Block] = []
    helpful = helpful_remedies(answer)
    if helpful:
        bars = [
            Bar(
                remedy.option,
                remedy_gain_s(remedy),
                f"{MINUS}{format_time(remedy_gain_s(remedy))}",
                "green",
                effect_text(remedy),
                options=remedy.option,
            )
            for remedy in helpful
        ]
        blocks.append(Bars(bars, ("change", "step", "effect")))
    elif answer.remedies:
        tried = " · ".join(remedy.option for remedy in answer.remedies)
        blocks.append(Text(f"None of the changes that were tried shortens the step: {tried}."))
    rounding = ROUNDING * answer.step_time_s
    rows: list[Row] = [
        [
            gain.name,
            _time_cell(gain.busy_s),
            _gain_cell(gain.gain_10_percent_s, rounding),
            _gain_cell(gain.gain_if_free_s, rounding),
        ]
        for gain in answer.bottlenecks
        if gain.gain_if_free_s > rounding
    ]
    if rows:
        head = ("ops", "busy per rank", "10 % faster", "for free")
        words = "what faster ops would gain" if helpful else ""
        blocks.append(Table(head, rows, right=(1, 2, 3), summary=words))
    if blocks:
        remark = "each one simulated; gains overlap and do not add up"
        yield Section("gains", "What would help", blocks, remark, wide=False)


def _time_cell(seconds: float | None) -> Cell:
    return Cell("") if seconds is None else Cell(format_time(seconds), seconds)


def _gain_cell(seconds: float | None, rounding: float) -> Cell:
    return Cell("") if seconds is None else Cell(gain_text(seconds, rounding), seconds)


def _pipeline(answer: Answer) -> Iterator[Section]:
    chart = gantt_chart(answer)
    if chart is not None:
        yield Section("pipeline", "The step over time", (Gantt(chart),))


def _stages(answer: Answer) -> Iterator[Section]:
    """Yields the breakdown of each role, where there are several."""
    graph, parts = answer.timeline.graph, answer.breakdown
    program, classes = graph.program, graph.classes
    role = program.role_of[classes.representative]
    weight = classes.count.astype(np.float64)
    numbers = np.unique(role)
    if len(numbers) < 2 or answer.step_time_s <= 0:
        return
    used = [column for column, name in enumerate(parts.parts) if name in parts.mean_s]
    stacks = []
    for number in numbers[:MAX_ROLES].tolist():
        mine = role == number
        seconds = (weight[mine, None] * parts.per_class_s[mine]).sum(axis=0) / weight[mine].sum()
        computes = sum(seconds[column] for column in used if parts.parts[column] in COMPUTE_PARTS)
        share = format_percent(float(computes) / answer.step_time_s)
        lengths = [float(seconds[column]) for column in used]
        stacks.append(StackedBar(program.roles[number], lengths, f"{share} computing"))
    names = [(parts.parts[column], part_colour(parts.parts[column])) for column in used]
    blocks: list[Block] = [StackedBars(names, stacks)]
    if len(numbers) > MAX_ROLES:
        blocks.append(Text(f"{len(numbers) - MAX_ROLES} more roles are in --json.", "muted"))
    lanes: list[Row] = [
        [lane.lane, Cell(format_count(lane.ranks), lane.ranks), _share_cell(lane.busy), _share_cell(lane.waiting)]
        for lane in answer.lanes
    ]
    blocks.append(Table(("lane", "ranks", "busy", "waiting"), lanes, right=(1, 2, 3), summary="how busy each lane is"))
    yield Section("stages", "Stage by stage", blocks, "mean over the ranks of each stage")


def _share_cell(share: float) -> Cell:
    return Cell(format_percent(share), share)


def _path(answer: Answer) -> Iterator[Section]:
    """Yields what the critical path consists of, and where it runs."""
    path = answer.critical_path
    if not path.parts_s:
        return
    total = path.length_s or 1.0
    bars = [
        Bar(name, seconds, format_time(seconds), _path_colour(name), share=format_percent(seconds / total))
        for name, seconds in path.parts_s.items()
    ]
    table = _path_table(answer)
    words = f"{BOUND_BY[path.bound]}; {format_count(len(path.node))} ops make the step as long as it is"
    yield Section("path", "Critical path", (Bars(bars), table), words, wide=False)


def _path_colour(part: str) -> str:
    phases = ("compute", "forward", "backward", "backward_input", "backward_weight")
    return "green" if part in phases else part_colour(part)


def _path_table(answer: Answer) -> Table:
    """Returns the stretches of the path: ops of one rank and one part that follow each other."""
    path, graph = answer.critical_path, answer.timeline.graph
    owner = graph.rank_class[path.node]
    part = np.array([list(path.parts_s).index(name) if name in path.parts_s else -1 for name in path.part])
    begins = np.flatnonzero(np.diff(owner, prepend=-1).astype(bool) | np.diff(part, prepend=-2).astype(bool))
    ends = np.append(begins[1:], len(path.node))
    program, strings = graph.program, graph.program.strings
    names = graph.ops.ints("name")[graph.op[path.node]]
    rows: list[Row] = []
    for first, last in list(zip(begins.tolist(), ends.tolist(), strict=True))[:MAX_PATH_ROWS]:
        rank = int(graph.classes.representative[owner[first]])
        seconds = float((path.end_s[first:last] - path.start_s[first:last]).sum())
        longest = first + int(np.argmax(path.end_s[first:last] - path.start_s[first:last]))
        rows.append(
            [
                Cell(format_time(float(path.start_s[first])), float(path.start_s[first])),
                f"{program.roles[int(program.role_of[rank])]}, rank {rank}",
                path.part[first],
                Cell(format_count(last - first), last - first),
                Cell(format_time(seconds), seconds),
                strings[int(names[longest])],
            ]
        )
    left_out = len(begins) - len(rows)
    caption = f"the first {format_count(len(rows))} of {format_count(len(begins))} stretches" if left_out else ""
    head = ("from", "where", "part", "ops", "time", "longest op")
    return Table(head, rows, caption, right=(0, 3, 4), summary="stretch by stretch")


def _roofline(answer: Answer) -> Iterator[Section]:
    """Yields the kernels under the roofline of the GPU, where their sizes are known."""
    if answer.cluster is None:
        return
    points, gpu = roofline(answer.timeline)[:MAX_KERNELS], answer.cluster.gpu
    if not points:
        return
    rows: list[Row] = [
        [
            point.name,
            Cell(format_time(point.seconds), point.seconds),
            Cell(format_time(point.duration_s), point.duration_s),
            Cell(format_flops(point.flops_per_s), point.flops_per_s) if point.dtype else "",
            Cell(format_bandwidth(point.bytes_per_s), point.bytes_per_s),
            _share_cell(point.roof_share(gpu)),
            point.kernels,
        ]
        for point in points
    ]
    head = ("ops", "per step and rank", "each", "rate", "memory", "of the roof", "kernels")
    svg = roofline_svg(points, gpu, f"Kernels of a step on {gpu.title}")
    alt = f"{len(points)} kinds of ops by FLOPs per byte and rate, under the roofline of {gpu.title}"
    remark = f"ops of {gpu.title}; a larger dot takes more of the step; frequency and launches are part of the gap"
    blocks = (Picture(svg, alt), Table(head, rows, right=(1, 2, 3, 4, 5), summary="the numbers"))
    yield Section("roofline", "Kernels under the roofline", blocks, remark)


def _links(answer: Answer) -> Iterator[Section]:
    """Yields how communications share links, and the map of the links where the network is explicit."""
    use = answer.network
    if use is None or use.mode == "analytic":
        return
    blocks: list[Block] = [Text(f"The step takes {sharing_text(answer.step_time_s, use)}.")]
    slowed: list[Row] = [[each.axis, _time_cell(each.analytic_s), _time_cell(each.flow_s)] for each in use.slowed]
    if slowed:
        blocks.append(Table(("axis", "alone", "sharing links"), slowed, "per rank", right=(1, 2)))
    hot: list[Row] = [
        [f"{link.resource} of rank {link.ranks}", _share_cell(link.utilisation), _share_cell(link.utilisation_in_use)]
        for link in use.hot
    ]
    if hot:
        blocks.append(Table(("link", "of the step", "while in use"), hot, "the busiest links", right=(1, 2), shown=5))
    if answer.cluster is not None and answer.world_size <= MAX_GPUS:
        try:
            loads = link_loads(answer)
        except ForetraceError as error:
            blocks.append(Text(f"No map of the links: {error.message}", "muted"))
        else:
            svg = heatmap_svg(loads, f"Links of {loads.fabric.name}")
            blocks.append(Picture(svg, f"how busy each of {loads.fabric.links:,} links of {loads.fabric.name} is"))
    yield Section("links", "Shared links", blocks)


def _prices(answer: Answer) -> Iterator[Section]:
    """Yields where prices come from, and what makes the band."""
    blocks: list[Block] = []
    bars = [
        Bar(
            part.source,
            part.share,
            format_percent(part.share),
            "sky",
            factor_band_text(part.low, part.high).strip(" ()"),
        )
        for part in sorted(answer.provenance, key=lambda part: -part.share)
    ]
    if bars:
        blocks.append(Bars(bars, ("source", "of op time", "band")))
    wide = [part for part in answer.band_parts if max(part.high, 1 / part.low) >= MIN_SHOWN_PART]
    if wide:
        reasons: list[Row] = [[part.name, _band_words(part.low, part.high)] for part in wide]
        blocks.append(Table(("reason for the band", "90 %"), reasons, right=(1,)))
    if blocks:
        yield Section("prices", "Where the prices come from", blocks, wide=False)


def _band_words(low: float, high: float) -> str:
    return factor_band_text(low, high).strip(" ()")


def _notes(answer: Answer) -> Iterator[Section]:
    if answer.diagnostics:
        ordered = sorted_diagnostics(answer.diagnostics)
        warnings = [note for note in ordered if note.level == "warning"]
        rest = [note for note in ordered if note.level != "warning"]
        blocks: list[Block] = [Notes(warnings)] if warnings else []
        if rest:
            blocks.append(Notes(rest) if len(rest) <= 6 or not warnings else Fold(f"{len(rest)} notes", [Notes(rest)]))
        yield Section("notes", "Assumptions and warnings", blocks)


KINDS: Final = (
    AnswerKind(
        Answer,
        answer_view,
        answer_dict,
        main_table="breakdown_s",
        notebook_sections=("step", "breakdown", "gains", "notes"),
        records=(SimulationRecord, ModelRecord),
    ),
)
