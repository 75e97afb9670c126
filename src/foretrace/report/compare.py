"""Two answers side by side, as a screen, as JSON and as one Perfetto trace."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from foretrace.basics.plain import to_plain
from foretrace.basics.units import format_bytes, format_count, format_percent, format_time
from foretrace.export.perfetto import NamedTimeline, PerfettoSummary, write_timelines
from foretrace.inputs.inventory import mesh_text
from foretrace.readings.answer.answer import Answer
from foretrace.readings.compare import (
    MEASURED,
    PREDICTED,
    A,
    B,
    CauseRow,
    ComparedPart,
    Comparison,
    GroupRow,
    KindRow,
    Pair,
    RankRow,
    StageRow,
)
from foretrace.report.answer_words import signed_percent, value_text
from foretrace.report.json import read_record, to_json
from foretrace.report.table import table
from foretrace.report.terminal import MAX_DIAGNOSTICS, Screen, Span, diagnostic_lines, show

COMPARISON_SCHEMA = "foretrace.comparison/1"
DIFFERENCE_SCHEMA = "foretrace.difference/1"
"""The schema of two predictions, A and B; the other is that of a prediction and a measurement."""
MAX_PARTS = 6
MAX_CAUSES = 10
MAX_TEXT = 32
"""Characters of an op's name or a value in a table."""
_MINOR = ("shard", "padded_vocab")
"""Differences that follow from others and are in the JSON alone."""
WORST = 3
"""Ranks, stages and groups shown; all are in the JSON."""

_ROUNDING = 1e-6
"""The share of the step from which on a difference may be among the worst."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One side of a comparison."""

    title: str
    world_size: int
    mesh: str
    cluster: str | None
    step_time_s: float
    step_time_band_s: tuple[float, float] | None
    step_time_is: str
    recorded: bool
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    peak_memory_bytes: int | None

    @classmethod
    def of(cls, answer: Answer) -> RunRecord:
        """Reads an answer."""
        return read_record(
            cls,
            answer,
            cluster=None if answer.cluster is None else answer.cluster.name,
            step_time_is="steady period" if answer.repeats else "makespan of one step",
            recorded=answer.timeline.recorded,
            peak_memory_bytes=None if answer.peak_memory is None else answer.peak_memory.bytes,
        )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Returns all of a comparison: seconds, and shares of the step of the base."""
    measured = comparison.with_measured
    names = (PREDICTED, MEASURED) if measured else (A.lower(), B.lower())

    def both(of_subject: Any, of_base: Any, ending: str = "") -> dict[str, Any]:
        values = comparison.in_columns(of_subject, of_base)
        return {f"{name}{ending}": value for name, value in zip(names, values, strict=True)}

    def pair(seconds: Pair) -> dict[str, Any]:
        sides = both(seconds.subject_s, seconds.base_s, "_s")
        return {**sides, "difference_s": seconds.difference_s, "share_of_step": share_of_base(comparison, seconds)}

    def part(row: ComparedPart) -> dict[str, Any]:
        return {"part": row.name, **pair(row.seconds)}

    change = "error" if measured else "change"
    until = comparison.until_optimizer
    only: dict[str, Any] = {"band_contains_measured": comparison.band_contains_base}
    if not measured:
        causes = [{**to_plain(row.cause), **pair(row.seconds)} for row in comparison.causes]
        only = {"differences": comparison.differences, "causes": causes}
    return to_json(
        COMPARISON_SCHEMA if measured else DIFFERENCE_SCHEMA,
        {
            **both(RunRecord.of(comparison.subject), RunRecord.of(comparison.base)),
            "step": pair(comparison.step),
            change: comparison.step.error,
            **only,
            "until_optimizer": None if until is None else {**pair(until), change: until.error},
            "breakdown": [part(row) for row in comparison.breakdown],
            "kinds": [
                {"kind": row.name, "running": pair(row.running), "wait": pair(row.wait)} for row in comparison.kinds
            ],
            "critical_path": [part(row) for row in comparison.critical_path],
            "ranks": [
                {"ranks": row.ranks, "compute": pair(row.compute), "held_up": pair(row.held_up), "end": pair(row.end)}
                for row in comparison.ranks
            ],
            "stages": [
                {
                    "stage": row.stage,
                    "pass": row.direction,
                    **both(row.subject, row.base),
                    change: None if row.mean is None else row.mean.error,
                }
                for row in comparison.stages
            ],
            "groups": [
                {"axis": row.axis, "groups": row.groups, "running": pair(row.running), "wait": pair(row.wait)}
                for row in comparison.groups
            ],
            "diagnostics": comparison.diagnostics,
        },
    )


def share_of_base(comparison: Comparison, pair: Pair) -> float | None:
    """Returns a difference as a share of the base's step; None where that takes no time."""
    step = comparison.base.step_time_s
    return pair.difference_s / step if step > 0 else None


def _labels(comparison: Comparison) -> tuple[str, str]:
    first, second = comparison.sides
    return first.label, second.label


def write_comparison_perfetto(
    comparison: Comparison, path: str | os.PathLike[str], *, ranks: Sequence[int] | None = None
) -> PerfettoSummary:
    """Writes both timelines into one Perfetto trace, each rank's first process above the other one."""
    named = [NamedTimeline(name, answer.timeline, answer.memory_by_rank()) for name, answer in comparison.sides]
    return write_timelines(named, path, ranks=ranks)


def print_comparison(comparison: Comparison, stream: TextIO | None = None) -> None:
    """One screen: the difference first, then where it comes from."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[], *_headline(comparison)]
    if comparison.with_measured:
        lines += [[], *_breakdown(comparison)]
        lines += [[], *_kinds(comparison)]
    else:
        lines += _differences(comparison)
        lines += [[], *_figures(comparison)]
        lines += [[], *_breakdown(comparison)]
        lines += _causes(comparison)
    lines += [[], *_critical_path(comparison)]
    if comparison.with_measured:
        lines += _stages(comparison) + _ranks(comparison) + _groups(comparison)
    lines += [[], *diagnostic_lines(comparison.diagnostics, MAX_DIAGNOSTICS)]
    more = "" if comparison.with_measured else ": ranks, stages, groups"
    lines.append([(f"  see      --json{more} · --perfetto out.pftrace: both runs", "bright_black")])
    show(screen, lines)


def _headline(comparison: Comparison) -> list[list[Span]]:
    base, measured = comparison.base, comparison.with_measured
    job = f"     {format_count(base.world_size)} ranks · {mesh_text(base.mesh)}" if measured else ""
    lines: list[list[Span]] = [[("  Step   ", ""), *_versus(comparison, comparison.step), (job, "")]]
    different = different_work(comparison)
    if different:
        lines.append([(f"         not the same work: {different}", "yellow")])
    if measured:
        lines.append(_band(comparison))
    if comparison.until_optimizer is not None:
        lines.append([("         up to the optimizer ", ""), *_versus(comparison, comparison.until_optimizer)])
    return lines + [[(f"         {side}: {answer.title}", "")] for side, answer in comparison.sides if answer.title]


def different_work(comparison: Comparison) -> str:
    """Returns how the steps of the two differ in work; empty where they do the same, or may."""
    if comparison.with_measured:
        return "; ".join(comparison.unlike)
    a, b = (None if answer.model is None else answer.model.tokens_per_step for _, answer in comparison.sides)
    if a is None or b is None or a == b:
        return ""
    first, second = _labels(comparison)
    return f"{format_count(a)} tokens a step in {first}, {format_count(b)} in {second}"


def _band(comparison: Comparison) -> list[Span]:
    band, contains = comparison.subject.step_time_band_s, comparison.band_contains_base
    if band is None or contains is None:
        return [("         the prediction carries no band", "")]
    verdict = f"{'contains' if contains else 'does not contain'} the {MEASURED}"
    return [(f"         its band, {format_time(band[0])} to {format_time(band[1])}, {verdict}", "")]


def _versus(comparison: Comparison, pair: Pair) -> list[Span]:
    times = zip(_labels(comparison), _both(comparison, pair), strict=True)
    first, second = (f"{label} {time}" for label, time in times)
    change = "" if comparison.with_measured else f"{signed_difference(comparison, pair)}, "
    return [(f"{first}, {second}: {change}", ""), (relative_text(pair), "bold")]


def relative_text(pair: Pair) -> str:
    """Returns a difference as a share of the base, in words where the base takes no time."""
    return signed_percent(pair.error) or "a share of nothing"


def _differences(comparison: Comparison) -> list[list[Span]]:
    """Returns the different choices and what follows from them; sources of prices are counted, the JSON names them."""
    rows: list[tuple[str, ...]] = [
        (each.of, _cut(each.name), difference_value(each.a), difference_value(each.b))
        for each in comparison.differences
        if each.of != "prices" and each.name not in _MINOR
    ]
    sources = [each for each in comparison.differences if each.of == "prices"]
    if sources:
        counts = [sum(side is not None for side in sides) for sides in zip(*((s.a, s.b) for s in sources), strict=True)]
        rows.append(("prices", "sources that only one has", *map(str, counts)))
    if not rows:
        return [[], [("  nothing differs in plan, hardware, scenario and sources of prices", "")]]
    return [[], *table(("what differs", "", *_labels(comparison)), rows, text_columns=4)]


def difference_value(value: Any) -> str:
    """Returns one side of a difference as a table has it."""
    return _cut(value_text(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _figures(comparison: Comparison) -> list[list[Span]]:
    """The figures of both steps, with how far B is from A."""
    a, b = (answer for _, answer in comparison.sides)
    peaks = [None if answer.peak_memory is None else float(answer.peak_memory.bytes) for answer in (a, b)]
    needs = [None if answer.memory is None else float(answer.memory.needed_bytes) for answer in (a, b)]
    rows = [
        ("step", *_both(comparison, comparison.step), signed_percent(comparison.step.error)),
        *_figure("tokens/s per GPU", [a.tokens_per_s_per_gpu, b.tokens_per_s_per_gpu], rate_text),
        *_figure("MFU", [a.mfu, b.mfu], format_percent),
        *_figure("peak memory", peaks, format_bytes),
        *_figure("needs of a GPU", needs, format_bytes),
    ]
    return table(("", *_labels(comparison), "change"), rows)


def rate_text(rate: float) -> str:
    """Returns tokens per second."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def _figure(name: str, values: list[float | None], text: Callable[[float], str]) -> list[tuple[str, ...]]:
    if all(value is None for value in values):
        return []
    shown = ["" if value is None else text(value) for value in values]
    a, b = values
    return [(name, *shown, signed_percent((b - a) / a) if a and b is not None else "")]


_RANK_TIMES = ("compute", "held up", "end")


def _heads(comparison: Comparison) -> tuple[str, ...]:
    return (
        *_labels(comparison),
        "difference",
        "of step" if comparison.with_measured else f"of {comparison.sides[0].label}",
    )


def _cells(comparison: Comparison, pair: Pair) -> tuple[str, ...]:
    return (
        *_both(comparison, pair),
        signed_difference(comparison, pair),
        signed_percent(share_of_base(comparison, pair)),
    )


def signed_difference(comparison: Comparison, pair: Pair) -> str:
    """Returns a difference with its sign; one that is rounding, next to the steps, is zero."""
    rounding = 1e-9 * max(comparison.step.subject_s, comparison.step.base_s)
    change = pair.difference_s if abs(pair.difference_s) > rounding else 0.0
    return f"+{format_time(change)}" if change > 0 else format_time(change)


def _both(comparison: Comparison, pair: Pair) -> tuple[str, str]:
    return comparison.in_columns(format_time(pair.subject_s), format_time(pair.base_s))


def _breakdown(comparison: Comparison) -> list[list[Span]]:
    rows = [(row.name, *_cells(comparison, row.seconds)) for row in comparison.breakdown]
    rows.append(("step", *_cells(comparison, comparison.step)))
    what = "error" if comparison.with_measured else "difference"
    heads = (f"where the {what} comes from", *_heads(comparison))
    return table(heads, rows, "mean over ranks; the differences sum to the step's")


def _causes(comparison: Comparison) -> list[list[Span]]:
    """The ops whose differences are largest, the others added up, so that the rows sum to the step's difference."""
    rounding = _ROUNDING * max(comparison.step.subject_s, comparison.step.base_s)
    rows = [row for row in comparison.causes if abs(row.seconds.difference_s) > rounding]
    if not rows:
        return []
    shown = rows[:MAX_CAUSES] if len(rows) > MAX_CAUSES + 1 else rows
    names = map(_cut, cause_names(shown))
    cells = [
        (row.cause.part, name, *_cells(comparison, row.seconds)[:-1]) for row, name in zip(shown, names, strict=True)
    ]
    others = [row.seconds for row in comparison.causes if row not in shown]
    rest = Pair(sum(pair.subject_s for pair in others), sum(pair.base_s for pair in others))
    count = len(comparison.causes) - len(shown)
    if count:
        cells.append((f"{count} others", "", *_cells(comparison, rest)[:-1]))
    cells.append(("step", "", *_cells(comparison, comparison.step)[:-1]))
    heads = ("part", "op that differs", *_heads(comparison)[:-1])
    note = "time that ops take, or that ranks wait for them; all are in --json"
    return [[], *table(heads, cells, note, text_columns=2)]


def cause_names(rows: Sequence[CauseRow]) -> list[str]:
    """Returns the names of ops, with what they do where others share it; without a name, all that do the same."""
    uses = Counter((row.cause.part, row.cause.name) for row in rows)
    names = []
    for row in rows:
        cause = row.cause
        if not cause.name:
            names.append(f"other {cause.kind}" if cause.kind else "")
        else:
            names.append(f"{cause.name}, {cause.kind}" if uses[cause.part, cause.name] > 1 else cause.name)
    return names


def _kinds(comparison: Comparison) -> list[list[Span]]:
    def row(kind: KindRow) -> tuple[str, ...]:
        waits = kind.wait.subject_s > 0 or kind.wait.base_s > 0
        return (kind.name, *_cells(comparison, kind.running), *(_both(comparison, kind.wait) if waits else ("", "")))

    first, second = _labels(comparison)
    heads = ("what ops do", *_heads(comparison), f"waits, {first}", second)
    note = "mean over ranks; waits are for late partners, and may pass while the rank computes"
    return table(heads, [row(kind) for kind in comparison.kinds], note)


def _critical_path(comparison: Comparison) -> list[list[Span]]:
    rows = [(row.name, *_cells(comparison, row.seconds)) for row in comparison.critical_path[:MAX_PARTS]]
    hidden = len(comparison.critical_path) - len(rows)
    return table(("critical path", *_heads(comparison)), rows, f"{hidden} more in --json" if hidden else "")


def _stages(comparison: Comparison) -> list[list[Span]]:
    def row(stage: StageRow) -> tuple[str, ...]:
        sides = []
        for side in (stage.subject, stage.base):
            sides += ["", ""] if side is None else [format_time(side.mean_s), range_text(side.least_s, side.most_s)]
        return (
            f"stage {stage.stage} {stage.direction}",
            *sides,
            signed_percent(stage.mean.error) if stage.mean else "",
        )

    first, second = _labels(comparison)
    heads = ("compute of a microbatch", first, "least to most", second, "least to most", "error")
    ordered = sorted(comparison.stages, key=lambda stage: -_size(stage.mean))
    return _worst(comparison, heads, [_size(stage.mean) for stage in ordered], [row(stage) for stage in ordered])


def _ranks(comparison: Comparison) -> list[list[Span]]:
    def row(rank: RankRow) -> tuple[str, ...]:
        others = f" and {len(rank.ranks) - 1:,} identical" if len(rank.ranks) > 1 else ""
        return (
            f"rank {rank.ranks[0]}{others}",
            *(text for pair in (rank.compute, rank.held_up, rank.end) for text in _both(comparison, pair)),
        )

    # Delays of a rank are mostly another's doing: ranks that compute otherwise than predicted are named first.
    ordered = sorted(comparison.ranks, key=lambda rank: -_size(rank.compute))
    sizes = [_size(rank.compute) + _size(rank.held_up) for rank in ordered]
    first, second = _labels(comparison)
    sides = [word for what in _RANK_TIMES for word in (f"{what}, {first}", second)]
    return _worst(comparison, ("ranks furthest off", *sides), sizes, [row(rank) for rank in ordered])


def _groups(comparison: Comparison) -> list[list[Span]]:
    def row(group: GroupRow) -> tuple[str, ...]:
        others = f" and {len(group.groups) - 1:,} identical" if len(group.groups) > 1 else ""
        return (
            f"{group.axis} {ranks_text(group.groups[0])}{others}",
            *_both(comparison, group.running),
            *_both(comparison, group.wait),
        )

    ordered = sorted(comparison.groups, key=lambda group: -(_size(group.running) + _size(group.wait)))
    sizes = [_size(group.running) + _size(group.wait) for group in ordered]
    first, second = _labels(comparison)
    heads = ("groups furthest off", f"running, {first}", second, f"waits, {first}", second)
    return _worst(comparison, heads, sizes, [row(group) for group in ordered])


def _worst(
    comparison: Comparison, heads: tuple[str, ...], sizes: list[float], rows: list[tuple[str, ...]]
) -> list[list[Span]]:
    """A table of the few rows that differ most, those that do not differ left out; nothing where none do."""
    rounding = _ROUNDING * comparison.base.step_time_s
    shown = [row for row, size in zip(rows, sizes, strict=True) if size > rounding][:WORST]
    if not shown:
        return []
    hidden = len(rows) - len(shown)
    return [[], *table(heads, shown, f"{hidden:,} more in --json" if hidden else "")]


def _size(pair: Pair | None) -> float:
    return 0.0 if pair is None else abs(pair.difference_s)


def range_text(least_s: float, most_s: float) -> str:
    """Returns two ends of a range of times."""
    return f"{format_time(least_s)} to {format_time(most_s)}"


def ranks_text(ranks: tuple[int, ...]) -> str:
    """`0 4 8 12`; of many the first two and the last."""
    return " ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]} {ranks[1]} … {ranks[-1]}"
