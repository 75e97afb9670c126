"""`foretrace simulate --compat simai`: show SimAI's figures, with our own answer next to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.files import GivenPath
from foretrace.basics.outputs import write_text
from foretrace.cli.emit import emit, write_files
from foretrace.cli.groups import OutputOptions, TimelineOptions
from foretrace.compat.simai.compare import compare
from foretrace.compat.simai.csv import end_to_end_csv
from foretrace.compat.simai.flags import parse_flags
from foretrace.compat.simai.tables import load_tables
from foretrace.cost.machine_texts import MachineOptions
from foretrace.inputs.aicb.input import WorkloadInput
from foretrace.readings.answer.answer import Answer
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.simai import comparison_json, print_comparison
from foretrace.report.views import view_of


@dataclass(frozen=True, slots=True)
class SimaiOptions:
    """SimAI's own flags, its tables, where its CSV goes, whether defects are listed, and options that it excludes."""

    flags: list[str]
    tables: Path | None
    csv: Path | None
    explained: bool
    refused: dict[str, Any]


def run_simai(
    path: str,
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    simai: SimaiOptions,
    output: OutputOptions,
    files: TimelineOptions,
) -> None:
    """Reproduces SimAI's figures for a workload file."""
    _refuse(machine, scenario, simai)
    if simai.tables is None:
        raise UsageError(
            "missing-argument",
            "--compat simai needs SimAI's ratio tables",
            hint="--simai-tables DIR, the folder with nvlink_ratio.csv, nic_ratio.csv and ata_ratio.csv",
        )
    if "gpus" in options:
        hint = "give it after --, as in -- -g 128"
        raise UsageError("conflicting-options", "--gpus: SimAI's own flag is -g", hint=hint)
    job = WorkloadInput.open([GivenPath(path)]).read_options(options)
    flags, ratios = parse_flags(simai.flags, workload=path), load_tables(simai.tables)
    prices = machine.details["prices"]
    comparison = compare(job.workload, flags, ratios, job.options, explained=simai.explained, prices=prices)
    if simai.csv is not None:
        write_text(simai.csv, end_to_end_csv(job.workload, flags, ratios), "CSV file")
    if isinstance(comparison.own, Answer):
        write_files(comparison.own, files)
    elif files.perfetto or files.traces or files.save:
        output_file = str(files.perfetto or files.traces or files.save)
        raise InputError("cannot-simulate", f"no timeline to write: {comparison.own.message}", where=output_file)
    emit(
        lambda: comparison_json(comparison, explained=simai.explained),
        lambda: print_comparison(comparison, explained=simai.explained),
        output,
        lambda: view_of(comparison),
    )


def _refuse(machine: MachineOptions, scenario: ScenarioOptions, simai: SimaiOptions) -> None:
    """Raises an error where something is given that SimAI's flags decide."""
    details = dict(machine.details)
    prices = details.pop("prices")
    given = {
        "--cluster": machine.cluster,
        "--prices": prices.source != "best",
        "--network": details.pop("network") != "analytic",
        "--no-overlap-cost": not details.pop("overlap_cost"),
        **{f"--{name}": value for name, value in details.items()},
        "--what-if, --straggler, --slow-link, --jitter, --steady": scenario.scenario or scenario.options,
        **simai.refused,
    }
    names = [name for name, value in given.items() if value]
    if names:
        raise UsageError(
            "conflicting-options",
            "--compat simai runs the job as SimAI's flags have it",
            hint=f"leave out {', '.join(names)}",
        )
