"""Answers as one screen of text: the answer first, every number with its unit, every guess said once."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import (
    MINUS,
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_time,
)
from foretrace.program.columns import label
from foretrace.readings.answer.answer import Answer
from foretrace.readings.breakdown import Breakdown
from foretrace.report.answer_words import (
    BOUND_BY,
    KERNEL_LIMITS,
    LIMIT_WORDS,
    MIN_SHOWN_PART,
    ROUNDING,
    answer_band_text,
    band_text,
    gain_text,
    helpful_remedies,
    job_text,
    part_text,
    place_text,
    remedy_effect_text,
    remedy_gain_s,
    sharing_text,
    sorted_diagnostics,
    source_texts,
    step_difference,
    utilisation_text,
    with_band,
)
from foretrace.report.design import part_style
from foretrace.report.plots.gantt import COMMUNICATION, LETTERS, MAX_ROWS, WAITING, gantt, legend
from foretrace.report.wrap import Span as Span
from foretrace.report.wrap import fit, line_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretrace.cost.network.interface import LimitKind

BAR_WIDTH = 24
_PIPE_WIDTH = 100
"""How wide pictures are where the stream is not a terminal."""
MAX_BOTTLENECKS = 6
MAX_REMEDIES = 6
MAX_DIAGNOSTICS = 8
MAX_SLOWED = 5
MAX_HOT = 3
SEE = "--json · --perfetto out.pftrace · --what-if compute=1.1x · foretrace inspect FILE"
SEE_MODEL = "--json · --perfetto out.pftrace · --what-if compute=1.1x · foretrace memory, with the same options"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LETTER_STYLES = {
    **{letter: part_style(label(phase)) for phase, letter in LETTERS.items()},
    COMMUNICATION: part_style("communication"),
    WAITING: "bright_black",
}


@dataclass(frozen=True, slots=True)
class Screen:
    """Where text goes: a person's terminal, with bars and colour, or a pipe, without.

    Lines are folded at `fold` columns, where that is known; `width` is how wide pictures may be.
    """

    stream: TextIO
    rich: bool
    width: int
    fold: int | None

    @classmethod
    def of(cls, stream: TextIO) -> Screen:
        """Reads width and colour off a stream; FORCE_COLOR and NO_COLOR take precedence."""
        forced = bool(os.environ.get("FORCE_COLOR"))
        rich = (forced or stream.isatty()) and not os.environ.get("NO_COLOR")
        fold = line_width(stream)
        return cls(stream, rich, fold or _PIPE_WIDTH, fold)


def print_answer(answer: Answer, stream: TextIO | None = None) -> None:
    """Prints the screen of an answer."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[]]
    lines += _headline(answer)
    limits = {} if answer.network is None else {f"{limit.axis} exposed": limit.kind for limit in answer.network.limits}
    lines += [[], *breakdown_lines(answer.breakdown, answer.step_time_s, screen, limits=limits)]
    lines += _remedies(answer) or _bottlenecks(answer)
    lines += _network(answer)
    lines += _gantt(answer, screen)
    see = SEE if answer.model is None else SEE_MODEL
    lines += [[], *_footer(answer), [(f"  see      {see}", "bright_black")]]
    show(screen, lines)


def show(screen: Screen, lines: list[list[Span]]) -> None:
    """Prints styled lines, folded at the width of the screen, without style where the stream is not a terminal.

    Control characters in the names of files, kernels and ops are replaced, so that none reaches the terminal.
    """
    lines = fit(lines, screen.fold)
    if not screen.rich:
        print("\n".join("".join(text for text, _ in line).rstrip() for line in lines), file=screen.stream)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=screen.stream, width=screen.width, highlight=False, force_terminal=True)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)


def _headline(simulation: Answer) -> list[list[Span]]:
    band = answer_band_text(simulation)
    kind = "" if simulation.repeats else "  makespan of one step"
    lines: list[list[Span]] = [
        [
            ("  Step   ", ""),
            (format_time(simulation.step_time_s), "bold"),
            (f"{'  ' if band else ''}{band}{kind}", ""),
            (f"     {place_text(simulation)}", ""),
        ]
    ]
    facts = []
    if simulation.step_time_unprofiled_s is not None and simulation.step_time_unprofiled_s != simulation.step_time_s:
        limits = simulation.step_time_unprofiled_band_s
        off = "" if limits is None else band_text(simulation.step_time_unprofiled_s, *limits)
        words = (format_time(simulation.step_time_unprofiled_s), off, "without the profiler")
        facts.append(" ".join(word for word in words if word))
    if simulation.tokens_per_s_per_gpu is not None:
        rate = simulation.tokens_per_s_per_gpu
        facts.append(f"{format_number(rate)} tokens/s per GPU, {format_number(rate * simulation.world_size)} in all")
    if simulation.peak_memory is not None:
        peak, memory = simulation.peak_memory, simulation.memory
        held = f"peak memory {format_bytes(peak.bytes)} (rank {peak.rank}, {peak.role})"
        if memory is not None:
            held = f"memory {format_bytes(memory.needed_bytes)} of {format_bytes(memory.capacity_bytes)} ({peak.role})"
        facts.append(held)
    if facts:
        lines.append([("         " + "     ".join(facts), "")])
    if simulation.model is not None:
        lines.append([("         " + utilisation_text(simulation.model, simulation.step_time_s), "")])
    lines += _changes(simulation)
    if simulation.title:
        lines.append([(f"  Job    {job_text(simulation)}", "")])
    return lines


def _changes(simulation: Answer) -> list[list[Span]]:
    change = step_difference(simulation)
    if change is None:
        return []
    return [[(f"  With   {change.changes}: ", ""), (change.by, "bold"), (f" {change.remark}", "")]]


def breakdown_lines(
    breakdown: Breakdown,
    step: float,
    screen: Screen,
    of: str = "mean over ranks",
    limits: Mapping[str, LimitKind] | None = None,
) -> list[list[Span]]:
    """Returns the parts of a step, the largest first; `of` says which step, and of which ranks, and `limits` what
    limits some parts."""
    parts = [(name, seconds) for name, seconds in breakdown.mean_s.items() if seconds > ROUNDING * step]
    parts.sort(key=lambda part: -part[1])
    name_width = max([len(name) for name, _ in parts] + [12])
    if not parts:
        return [[("  nothing in this job takes time", "")]]
    lines: list[list[Span]] = [[("  where the time goes", "bold"), (f" ({of})", "")]]
    for name, seconds in parts:
        share = seconds / step if step > 0 else 0.0
        bar = f"{share_bar(share):<{BAR_WIDTH}}  " if screen.rich else ""
        style = part_style(name)
        lines.append(
            [
                (f"  {name:<{name_width}}  {format_time(seconds):>9}  ", ""),
                (bar, style),
                (f"{format_percent(share):>7}", ""),
                (f"  limit: {LIMIT_WORDS[limits[name]]}" if limits and name in limits else "", "bright_black"),
            ]
        )
    return lines


def share_bar(share: float) -> str:
    """Returns a bar of blocks for a share of 1."""
    eighths = round(min(max(share, 0.0), 1.0) * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _bottlenecks(simulation: Answer) -> list[list[Span]]:
    rounding = ROUNDING * simulation.step_time_s
    helpful = [bottleneck for bottleneck in simulation.bottlenecks if bottleneck.gain_if_free_s > rounding]
    shown = helpful[:MAX_BOTTLENECKS]
    if not shown:
        return []
    name_width = max([len(bottleneck.name) for bottleneck in shown] + [len("what would help")])
    head = f"{'10 % faster':>15}  {'for free':>10}"
    lines: list[list[Span]] = [[], [(f"  {'what would help':<{name_width}}", "bold"), (f"  {head}", "")]]
    for bottleneck in shown:
        faster = "" if bottleneck.gain_10_percent_s is None else gain_text(bottleneck.gain_10_percent_s, rounding)
        free = gain_text(bottleneck.gain_if_free_s, rounding)
        lines.append([(f"  {bottleneck.name:<{name_width}}  {faster:>15}  {free:>10}", "")])
    more = f"; {len(helpful) - len(shown)} more in --json" if len(helpful) > len(shown) else ""
    lines.append(
        [(f"  each but the bubble is the step run again: gains overlap and do not add up{more}", "bright_black")]
    )
    if simulation.step_time_unprofiled_s not in (None, simulation.step_time_s):
        lines.append([("  of the step as profiled; without the profiler: --what-if unprofiled", "bright_black")])
    return lines


def _remedies(answer: Answer) -> list[list[Span]]:
    """Returns the changes that shorten the step, the best first; nothing where none was tried."""
    if not answer.remedies:
        return []
    lines: list[list[Span]] = [[], [("  what would help", "bold"), (" (each one simulated)", "")]]
    helpful = helpful_remedies(answer)[:MAX_REMEDIES]
    if not helpful:
        tried = " · ".join(remedy.option for remedy in answer.remedies)
        return [*lines, [(f"  none of the changes tried: {tried}", "")]]
    width = max(len(remedy.option) for remedy in helpful)
    for remedy in helpful:
        gain = f"{MINUS}{format_time(remedy_gain_s(remedy))}"
        lines.append([(f"  {remedy.option:<{width}}  {gain:>9}   {remedy_effect_text(remedy)}", "")])
    return lines


def _network(simulation: Answer) -> list[list[Span]]:
    """Returns the effect of sharing links, and the hottest links; nothing where each communication ran alone."""
    use = simulation.network
    if use is None or use.mode == "analytic":
        return []
    lines: list[list[Span]] = [[], [("  links shared", "bold"), (f"  {sharing_text(simulation.step_time_s, use)}", "")]]
    slower = " · ".join(
        f"{slowed.axis} {format_time(slowed.analytic_s)} → {format_time(slowed.flow_s)}"
        for slowed in use.slowed[:MAX_SLOWED]
    )
    lines.append([("  slowed   " + (slower + " per rank" if slower else "nothing"), "")])
    for number, link in enumerate(use.hot[:MAX_HOT]):
        whole, in_use = format_percent(link.utilisation), format_percent(link.utilisation_in_use)
        shares = f"{whole} of the step, {in_use} while in use"
        lines.append([(f"  {'' if number else 'hot':<8} {link.resource} of rank {link.ranks}: {shares}", "")])
    return lines


def _gantt(simulation: Answer, screen: Screen) -> list[list[Span]]:
    roles = simulation.timeline.graph.program.roles
    label = max((len(role) for role in roles), default=0)
    rows = gantt(simulation, max(min(screen.width - label - 6, 100), 20))
    if not rows:
        if len(roles) > MAX_ROWS:
            return [[], [(f"  {len(roles)} roles are too many to draw here: see --perfetto", "")]]
        return []
    lines: list[list[Span]] = [[]]
    for role, letters in rows:
        lines.append([(f"  {role:<{label}}  ", ""), *_coloured(letters)])
    end = format_time(simulation.step_time_s)
    lines.append([(f"  {'':<{label}}  0{end:>{max(len(rows[0][1]) - 1, 1)}}", "bright_black")])
    lines.append([(f"  {'':<{label}}  {legend(rows)}", "bright_black")])
    return lines


def _coloured(letters: str) -> list[Span]:
    spans: list[Span] = []
    for letter in letters:
        style = _LETTER_STYLES.get(letter, "")
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + letter, style)
        else:
            spans.append((letter, style))
    return spans


def _footer(simulation: Answer) -> list[list[Span]]:
    sources = source_texts(simulation)
    unsure = any(part.low != 1.0 or part.high != 1.0 for part in simulation.provenance)
    band = "" if unsure or not sources else "; they carry no band"
    base = " (of all op time)" if len(sources) > 1 else ""
    lines: list[list[Span]] = [[("  prices   " + (" · ".join(sources) or "none") + base + band, "")]]
    if simulation.band_parts:
        wide = [part for part in simulation.band_parts if max(part.high, 1 / part.low) >= MIN_SHOWN_PART]
        reasons = [with_band(part.name, part.low, part.high) for part in wide]
        lines.append([("  band     90 %: " + " · ".join(reasons), "")])
    path = simulation.critical_path
    if path.parts_s:
        total = path.length_s or 1.0
        parts = " · ".join(
            f"{part_text(name)} {format_percent(s / total)}" for name, s in list(path.parts_s.items())[:5]
        )
        words = f"{BOUND_BY[path.bound]}: {parts}"
        lines.append([(f"  path     {words} (critical path, {format_count(len(path.node))} ops)", "")])
    limits_s = simulation.kernel_limits_s
    if limits_s:
        total = sum(limits_s.values()) or 1.0
        parts = " · ".join(f"{KERNEL_LIMITS[name]} {format_percent(s / total)}" for name, s in limits_s.items())
        lines.append([(f"  kernels  limited by {parts}", "")])
    return [*lines, *diagnostic_lines(simulation.diagnostics, MAX_DIAGNOSTICS)]


def diagnostic_lines(diagnostics: tuple[Diagnostic, ...], most: int | None = None) -> list[list[Span]]:
    """Returns notes and warnings, one line each.

    Warnings come first, of these the ones on recorded times. Then come notes on no line of a file; those beyond `most`
    are only counted. Where all are about one file, its name is left out: `line 9`. The file of a cluster is named: it
    is not the one that a screen is about.
    """
    shown = sorted_diagnostics(diagnostics)
    lines: list[list[Span]] = []
    for diagnostic in shown[:most]:
        style = "yellow" if diagnostic.level == "warning" else ""
        text = f"{diagnostic.where}: {diagnostic.message}" if diagnostic.where else diagnostic.message
        lines.append([(f"  {diagnostic.level:<8} ", style), (text, "")])
    if most is not None and len(shown) > most:
        lines.append([(f"  {'':<8} {len(shown) - most} more in --json", "bright_black")])
    return lines
