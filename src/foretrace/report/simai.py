"""SimAI's figures next to ours, as a screen and as JSON."""

from __future__ import annotations

import sys
from typing import Any

from foretrace.basics.errors import Diagnostic
from foretrace.basics.plain import to_plain
from foretrace.basics.units import MINUS
from foretrace.compat.simai.compare import SimaiComparison
from foretrace.compat.simai.defects import Defect
from foretrace.compat.simai.totals import figures_json
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.answer_record import SIMULATION_SCHEMA
from foretrace.report.json import to_json
from foretrace.report.terminal import Screen, Span, diagnostic_lines, print_answer, show

EXPOSED_WORDS = "ours: communication as far as it is exposed, mean over ranks"
_PARTS = {
    "compute_us": "compute",
    "bubble_us": "bubble",
    "tp_us": "tp",
    "ep_us": "ep",
    "dp_us": "dp",
    "dp_ep_us": "dp of experts",
    "pp_us": "pp",
}

_OWN_PARTS = {
    "compute_us": ("compute", "recompute", "optimizer"),
    "bubble_us": ("bubble",),
    "tp_us": ("tp exposed",),
    "ep_us": ("ep exposed",),
    "dp_us": ("dp exposed",),
    "dp_ep_us": ("edp exposed",),
    "pp_us": ("pp exposed",),
}


def comparison_json(comparison: SimaiComparison, *, explained: bool) -> dict[str, Any]:
    """Returns our answer, with SimAI's figures in whole microseconds under `simai` (null where it prints NaN)."""
    own = comparison.own
    if isinstance(own, Answer):
        result = own.to_dict()
    else:
        result = to_json(SIMULATION_SCHEMA, {"step_time_s": None, "diagnostics": refusal_notes(comparison)})
    result["simai"] = {**figures_json(comparison.figures), "failure": comparison.figures.failure}
    if explained:
        result["simai"]["defects"] = to_plain(comparison.defects)
    return result


def refusal_notes(comparison: SimaiComparison) -> tuple[Diagnostic, ...]:
    """Returns why there is no answer of ours, and the notes on the comparison; nothing where there is one."""
    own = comparison.own
    if isinstance(own, Answer):
        return ()
    refused = Diagnostic("warning", own.code, f"not simulated: {own.message}", own.where)
    return (refused, *comparison.diagnostics)


def print_comparison(comparison: SimaiComparison, *, explained: bool) -> None:
    """Prints our screen, then SimAI's figures and why they differ."""
    own, screen = comparison.own, Screen.of(sys.stdout)
    lines: list[list[Span]] = []
    if isinstance(own, Answer):
        print_answer(own)
    else:
        lines += [[], *diagnostic_lines(refusal_notes(comparison))]
    lines += [[], *_figures(comparison)]
    if explained:
        lines += [[], *_defects(comparison)]
    else:
        lines.append([("  why they differ: --explain", "bright_black")])
    show(screen, lines)


def _figures(comparison: SimaiComparison) -> list[list[Span]]:
    own = comparison.own
    lines: list[list[Span]] = [
        [(f"  {'µs':<14} {'SimAI-Analytical':>16} {'ours' if isinstance(own, Answer) else '':>16}", "bold")]
    ]
    for word, theirs, mine in figure_rows(comparison):
        lines.append([(f"  {word:<14} {theirs:>16} {mine:>16}", "bold" if word == "total" else "")])
    lines.append([(f"  {EXPOSED_WORDS}", "bright_black")] if isinstance(own, Answer) else [])
    failure = failure_text(comparison)
    return [*lines, [(f"  {failure}", "yellow")]] if failure else lines


def failure_text(comparison: SimaiComparison) -> str:
    """Returns why SimAI prints no figures; empty where it does."""
    failure = comparison.figures.failure
    return f"SimAI prints no figures here: {failure}" if failure else ""


def figure_rows(comparison: SimaiComparison) -> list[tuple[str, str, str]]:
    """Returns each part of the step, SimAI's figure of it and ours, in whole microseconds."""
    printed, own = figures_json(comparison.figures), comparison.own
    ours = _own_parts(own) if isinstance(own, Answer) else {}
    rows = []
    for key, word in {**_PARTS, "other_us": "other", "total_us": "total"}.items():
        if key in printed or ours.get(key):
            theirs = _whole(printed[key]) if key in printed else ""
            rows.append((word, theirs, f"{round(ours[key]):,}" if key in ours else ""))
    return rows


def _own_parts(own: Answer) -> dict[str, float]:
    """Returns our breakdown under SimAI's headings, in microseconds; parts without a heading are `other_us`."""
    seconds = dict(own.breakdown.mean_s)
    parts = {key: sum(seconds.pop(part, 0.0) for part in ours) for key, ours in _OWN_PARTS.items()}
    parts |= {"other_us": sum(seconds.values()), "total_us": own.step_time_s}
    return {key: 1e6 * value for key, value in parts.items()}


def _defects(comparison: SimaiComparison) -> list[list[Span]]:
    lines: list[list[Span]] = [
        [("  why they differ", "bold"), (" (µs: SimAI's total with only this mended, minus it)", "")]
    ]
    for defect in comparison.defects:
        lines.append([(f"  {defect.id:<4} {defect_effect_text(defect):>14}  {defect.title}", "")])
        lines += [[(f"  {'':<4} {'':>14}  {defect.touches}", "bright_black")]] if defect.touches else []
    return lines


def defect_effect_text(defect: Defect) -> str:
    """Returns what a defect changes in SimAI's total, in microseconds."""
    if defect.effect_us is None:
        return "no number"
    sign = MINUS if defect.effect_us < 0 else "+"
    return f"{sign}{abs(defect.effect_us):,.0f}"


def _whole(value: int | None) -> str:
    return "NaN" if value is None else f"{value:,}"
