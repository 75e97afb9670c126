"""The view of a simulated, predicted or recorded step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
from foretrace.readings.answer.answer_record import (
    ModelRecord,
    RankClassRecord,
    SimulationRecord,
    answer_dict,
    rank_classes,
)
from foretrace.readings.breakdown import COMPUTE_PARTS
from foretrace.readings.critical_path import PathStretch, path_stretches
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
    factor_band_text,
    gain_text,
    helpful_remedies,
    job_text,
    misfit_text,
    part_text,
    place_text,
    remedy_effect_text,
    remedy_gain_s,
    sharing_text,
    signed_percent,
    step_difference,
    utilised_peak_text,
    value_text,
    work_text,
)
from foretrace.report.design import SHORTER, part_colour
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    FactList,
    Gantt,
    KeyFigure,
    KeyFigures,
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
from foretrace.report.plots.heatmap import heatmap_svg, tiers_table
from foretrace.report.plots.roofline_plot import roofline_svg
from foretrace.report.views import AnswerKind
from foretrace.report.views.stage_memory import memory_figure, memory_section, relief_section
from foretrace.report.views.text_table import (
    MAX_ROWS,
    change_tone,
    left_out_text,
    notes_section,
    page_table,
    without_empty,
)
from foretrace.simulation.relief import Relief

MAX_ROLES: Final = 64
"""Stages whose breakdown is drawn; the JSON has the others."""
MAX_KERNELS: Final = 60
"""Kinds of ops that are drawn under the roofline, those that take most time."""


def answer_view(answer: Answer, relief: Sequence[Relief] | None = None, *, quick: bool = False) -> View:
    """Makes the view of an answer.

    Args:
        answer: The answer.
        relief: Changes of the plan by which the job would fit; None: none were looked for.
        quick: Whether only the step, its breakdown and the memory are shown.
    """
    sections = [_step(answer), *relief_section(relief), _breakdown(answer)]
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
            _inputs(answer),
        ]
    sections += notes_section(answer.diagnostics)
    kind = "recorded step" if answer.timeline.recorded else "prediction" if answer.model else "simulation"
    return View(job_text(answer) or "a step", kind, sections, place_text(answer), answer.origin)


def _step(answer: Answer) -> Section:
    """Returns the headline numbers."""
    band = answer_band_text(answer)
    period = "" if answer.repeats else "makespan of one step"
    remark = " · ".join(word for word in (band, period) if word)
    figures = [KeyFigure("Step", format_time(answer.step_time_s), remark)]
    change = step_difference(answer)
    if change is not None:
        tone = change_tone(change.after_s, change.before_s)
        figures.append(KeyFigure("Change", change.by, f"{change.remark}: {change.changes}", tone))
    if answer.step_time_unprofiled_s not in (None, answer.step_time_s):
        assert answer.step_time_unprofiled_s is not None
        limits = answer.step_time_unprofiled_band_s
        off = "" if limits is None else band_text(answer.step_time_unprofiled_s, *limits)
        figures.append(KeyFigure("Without the profiler", format_time(answer.step_time_unprofiled_s), off))
    rate = answer.tokens_per_s_per_gpu
    if rate is not None:
        total = f"{format_number(rate * answer.world_size)} in all"
        figures.append(KeyFigure("Tokens per second and GPU", format_number(rate), total))
    model, step_s = answer.model, answer.step_time_s
    if model is not None:
        remark = f"{utilised_peak_text(model, step_s)}; {format_flops(model.flops_per_s_per_gpu(step_s))} per GPU"
        figures.append(KeyFigure("MFU", format_percent(model.mfu(step_s)), remark, share=model.mfu(step_s)))
    figures += memory_figure(answer)
    blocks: list[Block] = [Text(work_text(answer))] if model is not None else []
    misfit = misfit_text(answer)
    blocks += [Text(misfit, "bad")] if misfit else []
    return Section("step", "The answer", [*blocks, KeyFigures(figures)])


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
    if answer.until_optimizer_s is not None:
        blocks.append(
            Text(f"Every rank has reached its optimizer after {format_time(answer.until_optimizer_s)}.", "muted")
        )
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
                SHORTER,
                remedy_effect_text(remedy),
                options=remedy.option,
            )
            for remedy in helpful
        ]
        blocks.append(Bars(bars, ("change", "step", "effect")))
    elif answer.remedies:
        blocks.append(Text("None of the changes that were tried shortens the step."))
    without_gain: list[Row] = [
        [remedy.option, _time_cell(remedy.after_s / remedy.microbatches), signed_percent(remedy.change)]
        for remedy in sorted(answer.remedies or (), key=lambda remedy: remedy.change)
        if remedy not in helpful
    ]
    if without_gain:
        tried = ("change", "step", "difference")
        blocks.append(Table(tried, without_gain, right=(1, 2), summary="tried, without a gain"))
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
    """Yields the breakdown of each role and of each group of identical ranks, where there are several."""
    classes = rank_classes(answer)
    if len(classes) < 2 or answer.step_time_s <= 0:
        return
    blocks: list[Block] = []
    roles = len({each.role for each in classes})
    if roles > 1:
        blocks.append(_role_stacks(answer))
    if roles > MAX_ROLES:
        blocks.append(Text(f"{roles - MAX_ROLES} more roles are in the JSON.", "muted"))
    if roles < len(classes):
        blocks.append(_classes_table(answer, classes, is_folded=roles > 1))
    lanes: list[Row] = [
        [lane.lane, Cell(format_count(lane.ranks), lane.ranks), _share_cell(lane.busy), _share_cell(lane.waiting)]
        for lane in answer.lanes
    ]
    summary, caption = "how busy each lane is", "calls that a stage waits for run in its compute lane"
    blocks.append(Table(("lane", "ranks", "busy", "waiting"), lanes, caption, right=(1, 2, 3), summary=summary))
    if roles > 1:
        yield Section("stages", "Stage by stage", blocks, "mean over the ranks of each stage")
    else:
        yield Section("stages", "Groups of ranks", blocks, "ranks of a group behave identically")


def _role_stacks(answer: Answer) -> StackedBars:
    """Returns the parts of the step of each role."""
    graph, parts = answer.timeline.graph, answer.breakdown
    program, classes = graph.program, graph.classes
    role = program.role_of[classes.representative]
    weight = classes.count.astype(np.float64)
    used = [column for column, name in enumerate(parts.parts) if name in parts.mean_s]
    stacks = []
    for number in np.unique(role)[:MAX_ROLES].tolist():
        in_role = role == number
        seconds = (weight[in_role, None] * parts.per_class_s[in_role]).sum(axis=0) / weight[in_role].sum()
        computes = sum(seconds[column] for column in used if parts.parts[column] in COMPUTE_PARTS)
        share = format_percent(float(computes) / answer.step_time_s)
        lengths = [float(seconds[column]) for column in used]
        stacks.append(StackedBar(program.roles[number], lengths, f"{share} computing"))
    names = [(parts.parts[column], part_colour(parts.parts[column])) for column in used]
    return StackedBars(names, stacks)


def _classes_table(answer: Answer, classes: Sequence[RankClassRecord], *, is_folded: bool) -> Table:
    """Returns a row for each group of ranks that behave identically."""
    parts = list(answer.breakdown.mean_s)
    rows: list[Row] = [
        [
            each.role,
            Cell(format_count(each.first_rank), each.first_rank),
            Cell(format_count(each.ranks), each.ranks),
            *(_time_cell(each.breakdown_s.get(part)) for part in parts),
        ]
        for each in classes[:MAX_ROWS]
    ]
    head = ("stage", "first rank", "ranks", *parts)
    caption = left_out_text(len(classes) - len(rows))
    summary = "groups of ranks that behave identically" if is_folded else ""
    return Table(head, rows, caption, right=range(1, len(head)), summary=summary)


def _share_cell(share: float) -> Cell:
    return Cell(format_percent(share), share)


def _path(answer: Answer) -> Iterator[Section]:
    """Yields what the critical path consists of, and where it runs."""
    path = answer.critical_path
    if not path.parts_s:
        return
    total = path.length_s or 1.0
    bars = [
        Bar(part_text(name), seconds, format_time(seconds), part_colour(name), share=format_percent(seconds / total))
        for name, seconds in path.parts_s.items()
    ]
    stretches = path_stretches(path, answer.timeline.graph)
    tables = (_path_by_role(answer, stretches), _path_table(answer, stretches))
    words = f"{BOUND_BY[path.bound]}; {format_count(len(path.node))} ops make the step as long as it is"
    yield Section("path", "Critical path", (Bars(bars), *tables), words)


def _parts_text(stretch: PathStretch) -> str:
    total = stretch.seconds or 1.0
    return " · ".join(
        f"{part_text(part)} {format_percent(seconds / total)}" for part, seconds in stretch.parts_s.items()
    )


def _path_by_role(answer: Answer, stretches: Sequence[PathStretch]) -> Table:
    """Returns how long the path runs on each stage, part by part, the longest first."""
    program, seconds_of = answer.timeline.graph.program, Counter[tuple[str, str]]()
    for stretch in stretches:
        role = program.roles[int(program.role_of[stretch.rank])]
        for part, seconds in stretch.parts_s.items():
            seconds_of[role, part] += seconds  # type: ignore[assignment]
    total = answer.critical_path.length_s or 1.0
    rows: list[Row] = [
        [role, part_text(part), _time_cell(seconds), _share_cell(seconds / total)]
        for (role, part), seconds in seconds_of.most_common(MAX_ROWS)
        if seconds > ROUNDING * total
    ]
    return Table(("stage", "part", "time", "of the path"), rows, right=(2, 3), summary="by stage and part")


def _path_table(answer: Answer, stretches: Sequence[PathStretch]) -> Table:
    """Returns the stretches of the path in order of time, the longest of them where there are too many."""
    program, total = answer.timeline.graph.program, answer.critical_path.length_s or 1.0
    longest = sorted(range(len(stretches)), key=lambda number: -stretches[number].seconds)[:MAX_ROWS]
    shown = [stretches[number] for number in sorted(longest)]
    rows: list[Row] = [
        [
            _time_cell(stretch.start_s),
            f"{program.roles[int(program.role_of[stretch.rank])]}, rank {stretch.rank}",
            "" if stretch.microbatch < 0 else Cell(str(stretch.microbatch), stretch.microbatch),
            "" if stretch.phase == "none" else stretch.phase,
            _time_cell(stretch.seconds),
            Cell(format_count(stretch.ops), stretch.ops),
            _parts_text(stretch),
            stretch.longest,
        ]
        for stretch in shown
    ]
    caption = ""
    if len(shown) < len(stretches):
        share = format_percent(sum(stretch.seconds for stretch in shown) / total)
        caption = f"the longest {format_count(len(shown))} of {format_count(len(stretches))}, {share} of the path"
    head = ("from", "where", "microbatch", "pass", "time", "ops", "parts", "longest op")
    return without_empty(Table(head, rows, caption, right=(0, 2, 4, 5), summary="pass by pass, in order of time"))


def _roofline(answer: Answer) -> Iterator[Section]:
    """Yields the kernels under the roofline of the GPU, where their sizes are known."""
    if answer.cluster is None:
        return
    kinds, gpu = roofline(answer.timeline), answer.cluster.gpu
    points = kinds[:MAX_KERNELS]
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
    caption = ""
    if len(kinds) > len(points):
        share = format_percent(sum(point.seconds for point in points) / sum(point.seconds for point in kinds))
        caption = f"{len(points)} of {format_count(len(kinds))} kinds of ops, with {share} of the time of all of them"
        remark += f"; {caption}"
    blocks = (Picture(svg, alt), Table(head, rows, caption, right=(1, 2, 3, 4, 5), summary="the numbers"))
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
            blocks.append(page_table(tiers_table(loads), summary="the links of each tier"))
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
            factor_band_text(part.low, part.high),
        )
        for part in sorted(answer.provenance, key=lambda part: -part.share)
    ]
    if bars:
        blocks.append(Bars(bars, ("source", "of op time", "band")))
    wide = [part for part in answer.band_parts if max(part.high, 1 / part.low) >= MIN_SHOWN_PART]
    if wide:
        reasons: list[Row] = [[part.name, factor_band_text(part.low, part.high)] for part in wide]
        blocks.append(Table(("reason for the band", "90 %"), reasons, right=(1,)))
    if blocks:
        yield Section("prices", "Where the estimates come from", blocks, wide=False)


def _inputs(answer: Answer) -> Section:
    """Returns what was asked: the plan with every choice made, and what differs from a normal run."""
    changes = answer.describe_changes() or ["nothing differs from a normal run"]
    facts = [("scenario", change) for change in changes]
    if answer.cluster is not None:
        facts.insert(0, ("cluster", answer.cluster.name))
    if answer.domains is not None:
        use = answer.domains
        words = f"{format_count(use.domains)} of {use.domain_gpus} GPUs each, of which {use.gpus_text} are used"
        facts.append(("link domains", f"{words}; segments of {use.segment} nodes"))
    blocks: list[Block] = [FactList(facts)]
    if answer.model is not None:
        rows = [[name, value_text(value)] for name, value in answer.model.plan.items()]
        blocks.append(Table(("field of the plan", "value"), rows, summary=f"all {len(rows)} fields of the plan"))
    return Section("inputs", "Plan and scenario" if answer.model else "Scenario", blocks, wide=False)


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
