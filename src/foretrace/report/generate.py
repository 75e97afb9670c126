"""What `foretrace generate` says about the file it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrace.analysis.generate.write import GeneratedFile
from foretrace.report.json import diagnostics_json

GENERATED_SCHEMA = "foretrace.generated/1"


def generated_json(kind: str, path: Path, generated: GeneratedFile) -> dict[str, Any]:
    """Returns what was written, and what should be known about it."""
    notes = diagnostics_json(generated.diagnostics)
    return {"schema": GENERATED_SCHEMA, "format": kind, "path": str(path), **generated.facts, "diagnostics": notes}


def print_generated(path: Path, generated: GeneratedFile) -> None:
    """Prints a line for the file, and one for each note."""
    print(f"{path}: {generated.summary}")
    for one in generated.diagnostics:
        print(f"{one.level}: {one.message}")
