"""Answers as one screen of text: the answer first, every number with its unit, every guess said once."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from foretrace.basics.codes import RECORDED_TIMES
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import (
    MINUS,
    format_bytes,
    format_count,
    format_difference,
    format_flops,
    format_number,
    format_percent,
    format_time,
)
from foretrace.readings.answer.answer import Answer, Remedy
from foretrace.readings.breakdown import Breakdown
from foretrace.readings.critical_path import Bound
from foretrace.report.plots.gantt import MAX_ROWS, gantt, legend
from foretrace.report.wrap import Span as Span
from foretrace.report.wrap import fit, line_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretrace.cost.network.interface import LimitKind
    from foretrace.readings.answer.model_figures import ModelFigures

BAR_WIDTH = 24
_PIPE_WIDTH = 100
"""How wide pictures are where the stream is not a terminal."""
MAX_BOTTLENECKS = 6
MAX_REMEDIES = 6
MIN_GAIN = 0.001
"""The share of the step below which a change does not count as a help."""
BOUND_BY: Final[dict[Bound, str]] = {
    "host": "bound by the host",
    "compute": "bound by computation",
    "communication": "bound by communication",
    "mixed": "bound by no part alone",
}
"""Words for what more than half of a critical path consists of."""
LIMIT_WORDS: Final[dict[LimitKind, str]] = {
    "nic": "NICs",
    "uplink": "uplinks",
    "nvlink": "GPU links",
    "pcie": "PCIe",
    "channels": "channels",
    "latency": "latency",
    "none": "",
}
"""Words for the limit of the exposed communication of an axis."""
KERNEL_LIMITS: Final = {"flops": "tensor cores", "hbm": "memory bandwidth", "fixed": "launches and latency"}
"""Words for the limits of kernels."""
MAX_DIAGNOSTICS = 8
MAX_SLOWED = 5
MAX_HOT = 3
MIN_SHOWN_PART = 1.005
"""Parts of a band that reach less far are left out; --json has them."""
ROUNDING = 1e-9
"""A smaller share of the step than this is rounding, not a change."""
SEE = "--json · --perfetto out.pftrace · --what-if compute=1.1x · foretrace inspect FILE"
SEE_MODEL = "--json · --perfetto out.pftrace · --what-if compute=1.1x · foretrace memory, with the same options"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {
    "compute": "green",
    "recompute": "dark_green",
    "optimizer": "cyan",
    "bubble": "red",
    "imbalance": "magenta",
    "straggler": "magenta",
    "host": "yellow",
    "idle": "bright_black",
}
_LETTER_STYLES = {
    "F": "green",
    "B": "blue",
    "I": "blue",
    "W": "cyan",
    "O": "cyan",
    "R": "dark_green",
    "-": "red",
    ".": "bright_black",
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
    band = _band(simulation.step_time_s, *simulation.step_time_band_s) if simulation.step_time_band_s else ""
    unsure = {part.source.partition(" ")[0] for part in simulation.provenance if part.low != part.high}
    if band and unsure and any(part.low == part.high for part in simulation.provenance):
        # A price without a band is not thereby certain.
        band += " (recorded times carry no band)"
    kind = "" if simulation.repeats else "  makespan of one step"
    single = simulation.world_size == 1
    what = "rank" if simulation.cluster is None else "GPU"
    ranks = (what if single else f"{what}s") + (f" of {simulation.cluster.name}" if simulation.cluster else "")
    axes = simulation.mesh.replace(",", " · ").replace("=", " ")
    job = f"{format_count(simulation.world_size)} {ranks} · {axes}"
    lines: list[list[Span]] = [
        [("  Step   ", ""), (format_time(simulation.step_time_s), "bold"), (band + kind, ""), (f"     {job}", "")]
    ]
    facts = []
    if simulation.step_time_unprofiled_s is not None and simulation.step_time_unprofiled_s != simulation.step_time_s:
        limits = simulation.step_time_unprofiled_band_s
        off = "" if limits is None else _band(simulation.step_time_unprofiled_s, *limits).replace("  ", " ")
        facts.append(f"{format_time(simulation.step_time_unprofiled_s)}{off} without the profiler")
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
        lines.append([("         " + _utilisation(simulation.model, simulation.step_time_s), "")])
    lines += _changes(simulation)
    if simulation.title:
        software = "" if simulation.model is None else f" · {simulation.model.plan['stack'].replace('@', ' ')}"
        lines.append([(f"  Job    {simulation.title}{software}", "")])
    return lines


def _changes(simulation: Answer) -> list[list[Span]]:
    """Returns what a scenario changes; for a profiler trace, without the profiler."""
    step, before, what = simulation.step_time_s, simulation.unchanged_step_time_s, ""
    if simulation.step_time_unprofiled_s is not None and simulation.unchanged_step_time_unprofiled_s is not None:
        step, before = simulation.step_time_unprofiled_s, simulation.unchanged_step_time_unprofiled_s
        what = " without the profiler"
    if before is None:
        return []
    changes = " · ".join(simulation.describe_changes())
    by = step - before
    sign = "+" if by > 0 else MINUS
    gain, on = (f"{sign}{format_time(abs(by))}", "on") if abs(by) > ROUNDING * before else ("no change", "from")
    return [[(f"  With   {changes}: ", ""), (gain, "bold"), (f" {on} {format_time(before)}{what}", "")]]


def _utilisation(model: ModelFigures, step_s: float) -> str:
    """Returns how fast the model is computed, and what share of the peak that is."""
    peak = f"of {format_flops(model.peak_flops)} ({model.peak_dtype})"
    of_bf16 = model.mfu_bf16(step_s)
    if of_bf16 is not None and model.bf16_peak_flops is not None:
        peak += f", {format_percent(of_bf16)} of bf16's {format_flops(model.bf16_peak_flops)}"
    used = f"MFU {format_percent(model.mfu(step_s))} {peak}, HFU {format_percent(model.hfu(step_s))}"
    return f"{format_flops(model.flops_per_s_per_gpu(step_s))} per GPU: {used}"


def _band(step: float, low: float, high: float) -> str:
    """Returns the band as ± where it is even, otherwise both ends; nothing where the prices have none."""
    below, above = step - low, high - step
    if abs(above - below) <= 0.05 * (above + below):
        return f"  ± {format_time((above + below) / 2)}" if above > ROUNDING * step else ""
    ends = ((above, "+"), (below, MINUS))
    shown = [f"{sign}{format_time(off)}" for off, sign in ends if off > ROUNDING * step]
    return "  " + " ".join(shown) if shown else ""


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
        style = _STYLES.get(name, "blue")
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
        faster = "" if bottleneck.gain_10_percent_s is None else _gain(bottleneck.gain_10_percent_s, rounding)
        free = _gain(bottleneck.gain_if_free_s, rounding)
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
    helpful = [remedy for remedy in answer.remedies if remedy.change < -MIN_GAIN][:MAX_REMEDIES]
    if not helpful:
        tried = " · ".join(remedy.option for remedy in answer.remedies)
        return [*lines, [(f"  none of the changes tried: {tried}", "")]]
    width = max(len(remedy.option) for remedy in helpful)
    for remedy in helpful:
        gain = f"{MINUS}{format_time(remedy.before_s - remedy.after_s / remedy.microbatches)}"
        lines.append([(f"  {remedy.option:<{width}}  {gain:>9}   {_effect(remedy)}", "")])
    return lines


def _effect(remedy: Remedy) -> str:
    """Returns what a change does to the part that it is aimed at, and to memory."""
    words = [f"{remedy.part} {format_time(remedy.part_before_s)} → {format_time(remedy.part_after_s)}"]
    if remedy.microbatches != 1:
        words = [f"of {remedy.microbatches:g} times the batch, for as much of it"]
    if remedy.memory_bytes:
        sign = "+" if remedy.memory_bytes > 0 else MINUS
        words.append(f"memory {sign}{format_bytes(abs(remedy.memory_bytes))}")
    return f"{remedy.why}: {', '.join(words)}" if remedy.why else ", ".join(words)


def _network(simulation: Answer) -> list[list[Span]]:
    """Returns the effect of sharing links, and the hottest links; nothing where each communication ran alone."""
    use = simulation.network
    if use is None or use.mode == "analytic":
        return []
    longer = format_difference(simulation.step_time_s, use.analytic_step_time_s)
    step = f"{longer} on {format_time(use.analytic_step_time_s)} with each as if alone"
    lines: list[list[Span]] = [[], [("  links shared", "bold"), (f"  {step}", "")]]
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


def _gain(seconds: float, rounding: float) -> str:
    return f"{MINUS}{format_time(seconds)}" if seconds > rounding else "nothing"


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
    several = len(simulation.provenance) > 1
    sources = [
        part.source + (f" {format_percent(part.share)}" if several else "") + _limits(part.low, part.high)
        for part in simulation.provenance
    ]
    unsure = any(part.low != 1.0 or part.high != 1.0 for part in simulation.provenance)
    band = "" if unsure or not sources else "; they carry no band"
    base = " (of all op time)" if several else ""
    lines: list[list[Span]] = [[("  prices   " + (" · ".join(sources) or "none") + base + band, "")]]
    if simulation.band_parts:
        wide = [part for part in simulation.band_parts if max(part.high, 1 / part.low) >= MIN_SHOWN_PART]
        reasons = [f"{part.name}{_limits(part.low, part.high)}" for part in wide]
        lines.append([("  band     90 %: " + " · ".join(reasons), "")])
    path = simulation.critical_path
    if path.parts_s:
        total = path.length_s or 1.0
        parts = " · ".join(f"{name} {format_percent(s / total)}" for name, s in list(path.parts_s.items())[:5])
        words = f"{BOUND_BY[path.bound]}: {parts}"
        lines.append([(f"  path     {words} (critical path, {format_count(len(path.node))} ops)", "")])
    limits_s = simulation.kernel_limits_s
    if limits_s:
        total = sum(limits_s.values()) or 1.0
        parts = " · ".join(f"{KERNEL_LIMITS[name]} {format_percent(s / total)}" for name, s in limits_s.items())
        lines.append([(f"  kernels  limited by {parts}", "")])
    return [*lines, *diagnostic_lines(simulation.diagnostics, MAX_DIAGNOSTICS)]


def _limits(low: float, high: float) -> str:
    """Returns the band of a source, as how far it may be off."""
    if low == high == 1.0:
        return ""
    below = f"{(1 - low) * 100:.0f}"
    return f" ({MINUS * (below != '0')}{below} to +{(high - 1) * 100:.0f} %)"


def _urgency(diagnostic: Diagnostic) -> tuple[bool, int, bool]:
    """Returns what diagnostics are sorted by; those to read first are the least."""
    warns = diagnostic.level == "warning"
    on_times = warns and diagnostic.code in RECORDED_TIMES
    order = RECORDED_TIMES.index(diagnostic.code) if on_times else len(RECORDED_TIMES)
    return not warns, order, diagnostic.where is not None


def diagnostic_lines(diagnostics: tuple[Diagnostic, ...], most: int | None = None) -> list[list[Span]]:
    """Returns notes and warnings, one line each.

    Warnings come first, of these the ones on recorded times. Then come notes on no line of a file; those beyond `most`
    are only counted. Where all are about one file, its name is left out: `line 9`. The file of a cluster is named: it
    is not the one that a screen is about.
    """
    shown = sorted(diagnostics, key=_urgency)
    files = {diagnostic.where.rpartition(":")[0] for diagnostic in diagnostics if diagnostic.where}
    lines: list[list[Span]] = []
    for diagnostic in shown[:most]:
        place = diagnostic.where or ""
        is_input = diagnostic.code != "unusual-hardware"
        if is_input and len(files) == 1 and place.rpartition(":")[2].isdecimal():
            place = f"line {place.rpartition(':')[2]}"
        style = "yellow" if diagnostic.level == "warning" else ""
        text = f"{place}: {diagnostic.message}" if place else diagnostic.message
        lines.append([(f"  {diagnostic.level:<8} ", style), (text, "")])
    if most is not None and len(shown) > most:
        lines.append([(f"  {'':<8} {len(shown) - most} more in --json", "bright_black")])
    return lines
