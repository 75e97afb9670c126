"""Reports about the file that `foretrace generate` wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrace.basics.units import format_time
from foretrace.export.generate import FileStep, GeneratedFile
from foretrace.export.launch import Launch
from foretrace.report.json import to_json
from foretrace.report.terminal import Screen, Span, show

MIN_SHOWN_S = 1e-9
"""Changes of less than a nanosecond are rounding of sums."""

GENERATED_SCHEMA = "foretrace.generated/1"


def generated_json(kind: str, path: Path, generated: GeneratedFile) -> dict[str, Any]:
    """Returns what was written, and what should be known about it."""
    file = {"format": kind, "path": path}
    return to_json(GENERATED_SCHEMA, file, generated.facts, {"diagnostics": generated.diagnostics})


def print_generated(path: Path, generated: GeneratedFile) -> None:
    """Prints a line for the file, how its step differs from the plan's, and a line for each note."""
    texts = [f"{path}: {generated.summary}"]
    if generated.step is not None:
        texts += _step(generated.step)
    texts += [f"{diagnostic.level}: {diagnostic.message}" for diagnostic in generated.diagnostics]
    lines: list[list[Span]] = [[(text, "")] for text in texts]
    show(Screen.of(sys.stdout), lines)


def print_launch(generated: GeneratedFile) -> None:
    """Prints the files of a launch to be copied: the script, then each file that it names behind its name."""
    print(Launch(generated.facts["framework"], generated.facts["files"], generated.diagnostics).text, end="")


def _step(step: FileStep) -> Iterator[str]:
    """Yields how long the step of the file is, and what each change to the plan takes."""
    file, planned = format_time(step.step_time_s), format_time(step.planned_step_time_s)
    read = f" (simulate it with {' '.join(step.options)})" if step.options else ""
    yield (f"step: {file} as the file has it{read}, {planned} as planned")
    for change in step.changes:
        if abs(change.seconds) >= MIN_SHOWN_S:
            sign = "−" if change.seconds < 0 else "+"
            yield (f"  {sign}{format_time(abs(change.seconds)):<10} {change.change}")
    if step.overlapped_step_time_s is not None:
        options = " ".join([*step.options, f"--overlap {step.overlap}"])
        yield (f"      {format_time(step.overlapped_step_time_s)} if simulated with {options}")
