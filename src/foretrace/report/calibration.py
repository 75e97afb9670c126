"""Screens and JSON of a calibration: its contents, how it covers a job, and how it changes predictions."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from foretrace.basics.errors import Diagnostic
from foretrace.basics.plain import to_plain
from foretrace.basics.units import format_bytes, format_percent, format_time
from foretrace.calibrate.coverage import (
    CoveredCalls,
    CoveredFamily,
    JobCoverage,
    KernelCoverage,
    covered_calls,
    covered_families,
)
from foretrace.cost.calibration import Calibration, HostFit, MadeOf, StepFit
from foretrace.report.json import read_record, to_json, with_properties
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, show
from foretrace.report.validate import signed_error, validation_json
from foretrace.validate.calibrated import CalibratedValidation

CALIBRATION_SCHEMA = "foretrace.calibration/1"
MAX_KERNELS = 12
OWN_STEPS = "* the calibration was made of this step: not counted"
ALL_COVERED = "every kernel of it was measured, or lies between those that were"
_HOW = ("measured", "interpolated", "corrected", "not covered")


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """Everything a calibration holds, and how it covers a job; `kernels` counts the measured ones."""

    file: str
    gpu: str
    device: str
    software: Mapping[str, str]
    made_of: tuple[MadeOf, ...]
    kernels: int
    families: list[dict[str, Any]]
    collectives: tuple[CoveredCalls, ...]
    host: HostFit | None
    steps: StepFit | None
    coverage: dict[str, Any] | None
    notes: list[str]


def calibration_json(
    calibration: Calibration, coverage: JobCoverage | None = None, notes: Sequence[Diagnostic] = ()
) -> dict[str, Any]:
    """Returns everything a calibration holds, and how it covers a job where one is given."""
    fits = {family.name: to_plain(family) for family in calibration.families}
    families = [
        {**fits.get(family.name, {"name": family.name}), "kernels": family.kernels, "ranges": family.ranges}
        for family in covered_families(calibration)
    ]
    record = read_record(
        CalibrationRecord,
        calibration,
        file=calibration.path,
        software=calibration.software or {},
        kernels=0 if calibration.kernels is None else len(calibration.kernels.kernels),
        families=families,
        collectives=covered_calls(calibration),
        coverage=None if coverage is None else coverage_json(coverage),
        notes=[note.message for note in notes],
    )
    return to_json(CALIBRATION_SCHEMA, record)


def coverage_json(coverage: JobCoverage) -> dict[str, Any]:
    """Returns the kernels of a job, and how each is priced; a distance is null where no family of it was measured."""
    kernels = [with_properties(kernel, "how") for kernel in coverage.kernels]
    for kernel in kernels:
        kernel["distance"] = kernel["distance"] if math.isfinite(kernel["distance"]) else None
    shares = {how.replace(" ", "_"): coverage.share(how) for how in _HOW}
    return {"job": coverage.title, "shares": shares, "kernels": kernels}


def print_calibration(
    calibration: Calibration,
    coverage: JobCoverage | None = None,
    notes: Sequence[Diagnostic] = (),
    stream: TextIO | None = None,
) -> None:
    """Prints the screen of `foretrace calibrate` and `foretrace calibration show`."""
    lines: list[list[Span]] = [[], *_headline(calibration), []]
    lines += [*made_of_table(calibration).lines(), []]
    families = families_table(calibration)
    if families.rows:
        lines += [*families.lines(), []]
    if calibration.collectives is not None:
        lines += [*collectives_table(calibration).lines(), []]
    if coverage is not None:
        lines += [*_coverage(coverage), []]
    lines += [
        [(f"  {'note' if note.level == 'note' else 'warning':<8} ", ""), (_with_place(note), "")] for note in notes
    ]
    show(Screen.of(stream or sys.stdout), lines if notes else lines[:-1])


def _with_place(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.message} ({diagnostic.where})" if diagnostic.where else diagnostic.message


def _headline(calibration: Calibration) -> list[list[Span]]:
    lines: list[list[Span]] = [
        [("  Calibration   ", ""), (calibration.name, "bold"), (f" of {calibration.device or calibration.gpu}", "")]
    ]
    lines[0].append((f" ({calibration.gpu})", ""))
    lines.append([(f"  holds         {holds_text(calibration)}", "")])
    return [*lines, *([(f"  {name:<13} {text}", "")] for name, text in fit_facts(calibration))]


def holds_text(calibration: Calibration) -> str:
    """Returns how many kernels, collectives and other measurements a calibration holds."""
    count = 0 if calibration.kernels is None else len(calibration.kernels.kernels)
    known = [f"{count:,} kernel{'s' * (count != 1)}"] if count else []
    if calibration.collectives is not None:
        known.append(f"{len(calibration.collectives.rows):,} measured calls of collectives")
    if calibration.host is not None:
        host = calibration.host
        known.append(f"{1e6 * host.launch_s:.1f} µs of the host per launch ({host.style}, unprofiled)")
    return " · ".join(known) or "a factor"


def fit_facts(calibration: Calibration) -> list[tuple[str, str]]:
    """Returns the factor of whole steps and the software that was measured, as far as they are known."""
    facts, fit = [], calibration.steps
    if fit is not None:
        text = (
            f"all kernels × {fit.factor:.3f}, from {fit.rows} rows: "
            f"mean error {format_percent(fit.before)} before, {format_percent(fit.error)} after"
        )
        facts.append(("whole steps", text))
    software = " · ".join(f"{name} {value}" for name, value in (calibration.software or {}).items())
    return [*facts, ("software", software)] if software else facts


def made_of_table(calibration: Calibration) -> TextTable:
    """Returns the files that a calibration was made of."""
    rows = [[source.file, source.kind, _count(source), _time(source), _clock(source)] for source in calibration.made_of]
    return TextTable(["made of", "", "gives", "step", "products"], rows)


def _count(source: MadeOf) -> str:
    counts = ((source.kernels, "kernels"), (source.collectives, "calls"), (source.rows, "rows"))
    return ", ".join(f"{number:,} {word[: -(number == 1) or None]}" for number, word in counts if number)


def _time(source: MadeOf) -> str:
    return f"{format_time(source.step_s)}, GPU busy {format_percent(source.busy)}" if source.step_s else ""


def _clock(source: MadeOf) -> str:
    return f"{source.slower:.2f}× as long as at full clocks" if source.slower else ""


def families_table(calibration: Calibration) -> TextTable:
    """Returns the families of kernels, with their fits."""
    families = covered_families(calibration)
    fits = {family.name: family for family in calibration.families}
    rows = []
    for family in families:
        fit = fits.get(family.name)
        figures = ["", "", ""]
        if fit is not None:
            figures[0] = f"{fit.factor:.2f}"
        if fit is not None and fit.kernels > 1:
            figures[1:] = [f"{fit.low:.2f} to {fit.high:.2f}", f"± {format_percent(math.expm1(fit.error))}"]
        rows.append([family.name, str(family.kernels), *figures, _ranges(family)])
    width = max((len(row[-1]) for row in rows), default=0)
    rows = [[*row[:-1], f"{row[-1]:<{width}}"] for row in rows]
    heads = ["measured over modelled time", "shapes", "mean", "nine in ten", "left out", f"{'sizes':<{width}}"]
    note = "left out: how far nine in ten shapes are off when each is priced by the others"
    return TextTable(heads, rows, note)


def _ranges(family: CoveredFamily) -> str:
    words = []
    for name, (least, most) in family.ranges.items():
        sizes = [format_bytes(size) if name == "bytes" else f"{size:,}" for size in (least, most)]
        words.append(f"{name} {sizes[0]}" if least == most else f"{name} {sizes[0]} to {sizes[1]}")
    return " · ".join(words)


def collectives_table(calibration: Calibration) -> TextTable:
    """Returns the collectives that were measured."""
    rows = [
        [
            call.collective,
            f"{call.gpus:,}",
            f"{call.nodes:,}",
            f"{call.sizes:,}",
            f"{format_bytes(call.least_bytes)} to {format_bytes(call.most_bytes)}",
        ]
        for call in covered_calls(calibration)
    ]
    return TextTable(["collectives", "GPUs", "nodes", "sizes", "from, to"], rows)


def _coverage(coverage: JobCoverage) -> list[list[Span]]:
    lines: list[list[Span]] = [
        [("  Covers        ", ""), (f"of {coverage.title}, by time: {covered_text(coverage)}", "")],
        [],
    ]
    missing = [kernel for kernel in coverage.kernels if kernel.how in ("corrected", "not covered")]
    if not missing:
        return [*lines, [(f"  {ALL_COVERED}", "")]]
    shown = replace(kernels_table(missing[:MAX_KERNELS]), hidden=max(len(missing) - MAX_KERNELS, 0))
    return [*lines, *shown.lines()]


def covered_text(coverage: JobCoverage) -> str:
    """Returns the share of a job's time that is priced in each way."""
    return " · ".join(f"{how} {format_percent(coverage.share(how))}" for how in _HOW)


def kernels_table(kernels: Sequence[KernelCoverage]) -> TextTable:
    """Returns how some kernels of a job are priced."""
    width = max((len(kernel.kernel) for kernel in kernels), default=0)
    rows = [
        [kernel.how, format_percent(kernel.share), _away(kernel.distance), f"{kernel.kernel:<{width}}"]
        for kernel in kernels
    ]
    return TextTable(["least covered", "of the time", "octaves away", f"{'kernel':<{width}}"], rows)


def _away(distance: float) -> str:
    return f"{distance:.1f}" if math.isfinite(distance) else "no family"


def calibrated_json(validation: CalibratedValidation) -> dict[str, Any]:
    """Returns everything about a validation with a calibration, and the errors without it under `calibration`."""
    return {**validation_json(validation.validation), "calibration": _before_after_json(validation)}


def _before_after_json(validation: CalibratedValidation) -> dict[str, Any]:
    """Returns the errors without the calibration and with it, by row and in the mean; errors are signed shares."""
    rows = [
        {
            "id": row.after.id,
            "own": row.own,
            "before": {"step": row.before.error, **{name: part.error for name, part in row.before.parts.items()}},
            "after": {"step": row.after.error, **{name: part.error for name, part in row.after.parts.items()}},
        }
        for row in validation.rows
    ]
    means = {name: {"before": before, "after": after} for name, (before, after) in validation.mean_errors().items()}
    return {"name": validation.calibration.name, "rows": rows, "mean_absolute": means}


def print_before_after(validation: CalibratedValidation, stream: TextIO | None = None) -> None:
    """Prints the errors without the calibration and with it."""
    lines: list[list[Span]] = [[], *before_after_table(validation).lines()]
    if len(validation.counted) < len(validation.rows):
        lines.append([(f"  {OWN_STEPS}", "")])
    show(Screen.of(stream or sys.stdout), lines)


def before_after_table(validation: CalibratedValidation) -> TextTable:
    """Returns the errors of each row without the calibration and with it."""
    names = list(dict.fromkeys(name for row in validation.rows for name in row.before.parts))
    rows = []
    for row in validation.rows:
        cells = [row.after.id + (" *" if row.own else "")]
        cells += [_both(row.before.parts, row.after.parts, name) for name in names]
        rows.append([*cells, _pair_of_errors(row.before.error, row.after.error)])
    means = validation.mean_errors()
    last = [f"mean absolute, {len(validation.counted)} rows"]
    last += [_pair(means.get(name)) for name in names]
    rows.append([*last, _pair(means.get("step"))])
    return TextTable([f"without → with {validation.calibration.name}", *names, "step"], rows)


def _pair_of_errors(before: float | None, after: float | None) -> str:
    return "" if before is None or after is None else f"{signed_error(before)} → {signed_error(after)}"


def _both(before: dict[str, Any], after: dict[str, Any], name: str) -> str:
    if name not in before or name not in after:
        return ""
    return _pair_of_errors(before[name].error, after[name].error)


def _pair(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{format_percent(pair[0])} → {format_percent(pair[1])}"
