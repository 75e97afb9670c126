"""The view of a calibration: its contents, how well it fits, and which kernels of a job it does not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_count, format_percent
from foretrace.calibrate.coverage import JobCoverage
from foretrace.cost.calibration import Calibration
from foretrace.report.calibration import (
    ALL_COVERED,
    CalibrationRecord,
    calibration_json,
    collectives_table,
    covered_text,
    families_table,
    fit_facts,
    holds_text,
    kernels_table,
    made_of_table,
)
from foretrace.report.page.blocks import Bar, Bars, Block, FactList, KeyFigure, KeyFigures, Section, Text, View
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import notes_section, page_table, sentence


def calibration_view(
    calibration: Calibration, coverage: JobCoverage | None = None, notes: Sequence[Diagnostic] = ()
) -> View:
    """Makes the view of a calibration.

    Args:
        calibration: The calibration.
        coverage: How it covers the kernels of a job.
        notes: What is odd about it.
    """
    sections = [
        _step(calibration, coverage),
        *_coverage(coverage),
        *_contents(calibration),
        *notes_section(notes),
    ]
    gpu = f"{calibration.device or calibration.gpu} ({calibration.gpu})"
    return View(calibration.name, "calibration", sections, gpu)


def _step(calibration: Calibration, coverage: JobCoverage | None) -> Section:
    count = 0 if calibration.kernels is None else len(calibration.kernels.kernels)
    figures = []
    if coverage is not None:
        share = coverage.share("measured") + coverage.share("interpolated")
        remark = f"of {coverage.title}, by time: measured, or between measurements"
        figures.append(KeyFigure("Covers", format_percent(share), remark, share=share))
    figures.append(KeyFigure("Kernels", format_count(count)))
    if calibration.collectives is not None:
        figures.append(KeyFigure("Calls of collectives", format_count(len(calibration.collectives.rows))))
    facts = FactList([("holds", holds_text(calibration)), *fit_facts(calibration)])
    return Section("step", "The answer", (KeyFigures(figures), facts))


def _coverage(coverage: JobCoverage | None) -> Iterator[Section]:
    if coverage is None:
        return
    missing = [kernel for kernel in coverage.kernels if kernel.how in ("corrected", "not covered")]
    colours = {"measured": "green", "interpolated": "sky", "corrected": "orange", "not covered": "vermillion"}
    bars = [
        Bar(how, coverage.share(how), format_percent(coverage.share(how)), colour) for how, colour in colours.items()
    ]
    blocks: list[Block] = [Bars(bars)]
    blocks.append(page_table(kernels_table(missing)) if missing else Text(sentence(ALL_COVERED)))
    yield Section("coverage", f"How it covers {coverage.title}", blocks, covered_text(coverage))


def _contents(calibration: Calibration) -> Iterator[Section]:
    families = families_table(calibration)
    if families.rows:
        yield Section("families", "Families of kernels", (page_table(families, shown=30),))
    if calibration.collectives is not None:
        yield Section("collectives", "Collectives", (page_table(collectives_table(calibration), shown=30),))
    yield Section("made-of", "What it was made of", (page_table(made_of_table(calibration)),))


KINDS: Final = (
    AnswerKind(
        Calibration,
        lambda calibration: calibration_view(calibration, notes=calibration.notes),
        lambda calibration: calibration_json(calibration, notes=calibration.notes),
        main_table="families",
        notebook_sections=("step", "families", "collectives", "notes"),
        records=(CalibrationRecord,),
    ),
)
