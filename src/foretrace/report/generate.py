"""What `foretrace generate` reports about the file it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrace.basics.units import format_time
from foretrace.export.generate import FileStep, GeneratedFile
from foretrace.report.json import to_json

MIN_SHOWN_S = 1e-9
"""Changes of less than a nanosecond are rounding of sums."""

GENERATED_SCHEMA = "foretrace.generated/1"


def generated_json(kind: str, path: Path, generated: GeneratedFile) -> dict[str, Any]:
    """Returns what was written, and what should be known about it."""
    file = {"format": kind, "path": path}
    return to_json(GENERATED_SCHEMA, file, generated.facts, {"diagnostics": generated.diagnostics})


def print_generated(path: Path, generated: GeneratedFile) -> None:
    """Prints a line for the file, how its step differs from the plan's, and a line for each note."""
    print(f"{path}: {generated.summary}")
    if generated.step is not None:
        _print_step(generated.step)
    for diagnostic in generated.diagnostics:
        print(f"{diagnostic.level}: {diagnostic.message}")


def _print_step(step: FileStep) -> None:
    file, planned = format_time(step.step_time_s), format_time(step.planned_step_time_s)
    read = f" (simulate it with {' '.join(step.options)})" if step.options else ""
    print(f"step: {file} as the file has it{read}, {planned} as planned")
    for change in step.changes:
        if abs(change.seconds) >= MIN_SHOWN_S:
            sign = "−" if change.seconds < 0 else "+"
            print(f"  {sign}{format_time(abs(change.seconds)):<10} {change.change}")
    if step.overlapped_step_time_s is not None:
        options = " ".join([*step.options, f"--overlap {step.overlap}"])
        print(f"      {format_time(step.overlapped_step_time_s)} if simulated with {options}")
