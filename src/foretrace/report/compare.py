"""A prediction next to a measurement, as a screen, as JSON and as one Perfetto trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from foretrace.basics.units import format_count, format_percent, format_time
from foretrace.export.perfetto import NamedTimeline, PerfettoSummary, write_timelines
from foretrace.readings.answer.answer import Answer
from foretrace.readings.compare import ComparedPart, Comparison, GroupRow, KindRow, Pair, RankRow, StageRow
from foretrace.report.json import read_record, to_json, with_properties
from foretrace.report.table import table
from foretrace.report.terminal import MAX_DIAGNOSTICS, Screen, Span, diagnostic_lines, show

COMPARISON_SCHEMA = "foretrace.comparison/1"
MAX_PARTS = 6
WORST = 3
"""Ranks, stages and groups shown; all are in the JSON."""

_ROUNDING = 1e-6
"""What differs by a smaller share of the step is not among the worst."""


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

    @classmethod
    def of(cls, answer: Answer) -> RunRecord:
        """Reads an answer."""
        return read_record(
            cls,
            answer,
            cluster=None if answer.cluster is None else answer.cluster.name,
            step_time_is="steady period" if answer.repeats else "makespan of one step",
            recorded=answer.timeline.recorded,
        )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Returns all of a comparison: seconds, and shares of the measured step."""

    def pair(seconds: Pair) -> dict[str, Any]:
        return {**with_properties(seconds, "difference_s"), "share_of_step": _share(comparison, seconds)}

    def part(row: ComparedPart) -> dict[str, Any]:
        return {"part": row.name, **pair(row.seconds)}

    until = comparison.until_optimizer
    return to_json(
        COMPARISON_SCHEMA,
        {
            "predicted": RunRecord.of(comparison.predicted),
            "measured": RunRecord.of(comparison.measured),
            "step": pair(comparison.step),
            "error": comparison.step.error,
            "band_contains_measured": comparison.band_contains_measured,
            "until_optimizer": None if until is None else {**pair(until), "error": until.error},
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
                    "predicted": row.predicted,
                    "measured": row.measured,
                    "error": None if row.mean is None else row.mean.error,
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


def _share(comparison: Comparison, pair: Pair) -> float | None:
    step = comparison.measured.step_time_s
    return pair.difference_s / step if step > 0 else None


def write_comparison_perfetto(
    comparison: Comparison, path: str | os.PathLike[str], *, ranks: Sequence[int] | None = None
) -> PerfettoSummary:
    """Writes both timelines into one Perfetto trace, each rank's predicted process above the other one."""
    sides = {"predicted": comparison.predicted, comparison.measured_word: comparison.measured}
    named = [NamedTimeline(name, answer.timeline, answer.memory_by_rank()) for name, answer in sides.items()]
    return write_timelines(named, path, ranks=ranks)


def print_comparison(comparison: Comparison, stream: TextIO | None = None) -> None:
    """One screen: the error first, then where it comes from."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[], *_headline(comparison)]
    lines += [[], *_breakdown(comparison)]
    lines += [[], *_kinds(comparison)]
    lines += [[], *_critical_path(comparison)]
    lines += _stages(comparison) + _ranks(comparison) + _groups(comparison)
    lines += [[], *diagnostic_lines(comparison.diagnostics, MAX_DIAGNOSTICS)]
    lines.append([("  see      --json · --perfetto out.pftrace: both timelines in one file", "bright_black")])
    show(screen, lines)


def _headline(comparison: Comparison) -> list[list[Span]]:
    measured = comparison.measured
    axes = measured.mesh.replace(",", " · ").replace("=", " ")
    job = f"     {format_count(measured.world_size)} ranks · {axes}"
    lines: list[list[Span]] = [[("  Step   ", ""), *_versus(comparison, comparison.step), (job, "")]]
    if comparison.unlike:
        lines.append([(f"         not the same work: {'; '.join(comparison.unlike)}", "yellow")])
    band, contains = comparison.predicted.step_time_band_s, comparison.band_contains_measured
    if band is None or contains is None:
        lines.append([("         the prediction carries no band", "")])
    else:
        verdict = f"{'contains' if contains else 'does not contain'} the {comparison.measured_word}"
        lines.append([(f"         its band, {format_time(band[0])} to {format_time(band[1])}, {verdict}", "")])
    if comparison.until_optimizer is not None:
        lines.append([("         up to the optimizer ", ""), *_versus(comparison, comparison.until_optimizer)])
    titles = {"predicted": comparison.predicted.title, comparison.measured_word: measured.title}
    return lines + [[(f"         {side}: {title}", "")] for side, title in titles.items() if title]


def _versus(comparison: Comparison, pair: Pair) -> list[Span]:
    second = comparison.measured_word
    text = f"predicted {format_time(pair.predicted_s)}, {second} {format_time(pair.measured_s)}: "
    return [(text, ""), (_percent(pair.error) or "a share of nothing", "bold")]


_RANK_TIMES = ("compute", "held up", "end")


def _heads(comparison: Comparison) -> tuple[str, ...]:
    return ("predicted", comparison.measured_word, "difference", "of step")


def _cells(comparison: Comparison, pair: Pair) -> tuple[str, ...]:
    rounding = 1e-9 * max(comparison.step.predicted_s, comparison.step.measured_s)
    change = pair.difference_s if abs(pair.difference_s) > rounding else 0.0
    text = f"+{format_time(change)}" if change > 0 else format_time(change)
    return (*_both(pair), text, _percent(_share(comparison, pair)))


def _both(pair: Pair) -> tuple[str, str]:
    return format_time(pair.predicted_s), format_time(pair.measured_s)


def _breakdown(comparison: Comparison) -> list[list[Span]]:
    rows = [(row.name, *_cells(comparison, row.seconds)) for row in comparison.breakdown]
    rows.append(("step", *_cells(comparison, comparison.step)))
    return table(
        ("where the error comes from", *_heads(comparison)), rows, "mean over ranks; the differences sum to the step's"
    )


def _kinds(comparison: Comparison) -> list[list[Span]]:
    def row(kind: KindRow) -> tuple[str, ...]:
        waits = kind.wait.predicted_s > 0 or kind.wait.measured_s > 0
        return (kind.name, *_cells(comparison, kind.running), *(_both(kind.wait) if waits else ("", "")))

    heads = ("what ops do", *_heads(comparison), "waits, predicted", comparison.measured_word)
    note = "mean over ranks; waits are for late partners, and may pass while the rank computes"
    return table(heads, [row(kind) for kind in comparison.kinds], note)


def _critical_path(comparison: Comparison) -> list[list[Span]]:
    rows = [(row.name, *_cells(comparison, row.seconds)) for row in comparison.critical_path[:MAX_PARTS]]
    hidden = len(comparison.critical_path) - len(rows)
    return table(("critical path", *_heads(comparison)), rows, f"{hidden} more in --json" if hidden else "")


def _stages(comparison: Comparison) -> list[list[Span]]:
    def row(stage: StageRow) -> tuple[str, ...]:
        sides = []
        for side in (stage.predicted, stage.measured):
            sides += ["", ""] if side is None else [format_time(side.mean_s), _spread(side.least_s, side.most_s)]
        return (f"stage {stage.stage} {stage.direction}", *sides, _percent(stage.mean.error) if stage.mean else "")

    second = comparison.measured_word
    heads = ("compute of a microbatch", "predicted", "least to most", second, "least to most", "error")
    ordered = sorted(comparison.stages, key=lambda stage: -_size(stage.mean))
    return _worst(comparison, heads, [_size(stage.mean) for stage in ordered], [row(stage) for stage in ordered])


def _ranks(comparison: Comparison) -> list[list[Span]]:
    def row(rank: RankRow) -> tuple[str, ...]:
        others = f" and {len(rank.ranks) - 1:,} alike" if len(rank.ranks) > 1 else ""
        return (f"rank {rank.ranks[0]}{others}", *_both(rank.compute), *_both(rank.held_up), *_both(rank.end))

    # What holds a rank up is mostly another's doing: those that compute otherwise than predicted are named first.
    ordered = sorted(comparison.ranks, key=lambda rank: -_size(rank.compute))
    sizes = [_size(rank.compute) + _size(rank.held_up) for rank in ordered]
    sides = [word for what in _RANK_TIMES for word in (f"{what}, predicted", comparison.measured_word)]
    return _worst(comparison, ("ranks furthest off", *sides), sizes, [row(rank) for rank in ordered])


def _groups(comparison: Comparison) -> list[list[Span]]:
    def row(group: GroupRow) -> tuple[str, ...]:
        others = f" and {len(group.groups) - 1:,} alike" if len(group.groups) > 1 else ""
        return (f"{group.axis} {_ranks_text(group.groups[0])}{others}", *_both(group.running), *_both(group.wait))

    ordered = sorted(comparison.groups, key=lambda group: -(_size(group.running) + _size(group.wait)))
    sizes = [_size(group.running) + _size(group.wait) for group in ordered]
    second = comparison.measured_word
    heads = ("groups furthest off", "running, predicted", second, "waits, predicted", second)
    return _worst(comparison, heads, sizes, [row(group) for group in ordered])


def _worst(
    comparison: Comparison, heads: tuple[str, ...], sizes: list[float], rows: list[tuple[str, ...]]
) -> list[list[Span]]:
    """A table of the few rows that differ most, those that do not differ left out; nothing where none do."""
    rounding = _ROUNDING * comparison.measured.step_time_s
    shown = [row for row, size in zip(rows, sizes, strict=True) if size > rounding][:WORST]
    if not shown:
        return []
    hidden = len(rows) - len(shown)
    return [[], *table(heads, shown, f"{hidden:,} more in --json" if hidden else "")]


def _size(pair: Pair | None) -> float:
    return 0.0 if pair is None else abs(pair.difference_s)


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    text = format_percent(share)
    return f"+{text}" if share > 0 and text != format_percent(0.0) else text


def _spread(least_s: float, most_s: float) -> str:
    return f"{format_time(least_s)} to {format_time(most_s)}"


def _ranks_text(ranks: tuple[int, ...]) -> str:
    """`0 4 8 12`; of many the first two and the last."""
    return " ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]} {ranks[1]} … {ranks[-1]}"
