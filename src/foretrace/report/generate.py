"""What `foretrace generate` says about the file it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrace.analysis.generate import Generated
from foretrace.errors import Diagnostic
from foretrace.report.json import diagnostics_json

GENERATED_SCHEMA = "foretrace.generated/1"


def generated_json(
    format_: str, path: Path, facts: dict[str, Any], diagnostics: tuple[Diagnostic, ...]
) -> dict[str, Any]:
    """What was written, and what should be known about it."""
    return {
        "schema": GENERATED_SCHEMA,
        "format": format_,
        "path": str(path),
        **facts,
        "diagnostics": diagnostics_json(diagnostics),
    }


def aicb_facts(generated: Generated) -> dict[str, Any]:
    """The contents of a workload, counted; bytes and seconds are of one rank's rows, all microbatches."""
    workload = generated.workload
    passes = ("forward", "input_grad", "weight_grad")
    traffic: dict[str, int] = {}
    for row in workload.rows:
        for which in passes:
            part = getattr(row, which)
            if part.collective != "NONE":
                key = f"{'step' if which == 'weight_grad' else 'microbatches'} {part.collective}"
                traffic[key] = traffic.get(key, 0) + int(part.size_bytes)
    return {
        "rows": len(workload.rows),
        "microbatches": generated.microbatches,
        "layers_per_stage": generated.layers_per_stage,
        "parameters_per_rank": generated.parameters,
        "expert_parameters_per_rank": generated.expert_parameters,
        "compute_s": {which: 1e-9 * sum(getattr(row, which).compute_ns for row in workload.rows) for which in passes},
        "traffic_bytes": traffic,
    }


def print_generated(path: Path, said: str, diagnostics: tuple[Diagnostic, ...]) -> None:
    """A line for the file, and one for each note."""
    print(f"{path}: {said}")
    for one in diagnostics:
        print(f"{one.level}: {one.message}")
