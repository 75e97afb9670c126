"""What `foretrace simulate` does once its options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from foretrace.analysis.answer import Simulation
from foretrace.analysis.simulate import Executor, simulate
from foretrace.cli.progress import Progress
from foretrace.errors import InputError, UsageError
from foretrace.files import write_text
from foretrace.lower.aicb import Choices
from foretrace.lower.load import file_kind, load
from foretrace.report.json import simulation_json, write_json


@dataclass(frozen=True, slots=True)
class Scenarios:
    """What is different from the job as it is."""

    what_if: Mapping[str, float] = field(default_factory=dict)
    stragglers: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, str], float] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether anything is."""
        return bool(self.what_if or self.stragglers or self.slow_links)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the answer goes: JSON to the screen or a file, a timeline of some ranks."""

    as_json: bool
    json_file: Path | None
    perfetto: Path | None
    ranks: list[int] | None

    def write(self, answer: Simulation | None, result: dict[str, Any]) -> bool:
        """Writes the files and the JSON; whether a screen is wanted still."""
        if self.perfetto is not None and answer is not None:
            from foretrace.report.perfetto import write_perfetto

            summary = write_perfetto(answer.timeline, self.perfetto, ranks=self.ranks, memory=answer.memory_by_rank())
            print(f"{self.perfetto}: {summary}", file=sys.stderr)
        if self.json_file is not None:
            write_json(result, self.json_file)
        if self.as_json:
            print(json.dumps(result, allow_nan=False))
        return not self.as_json


def run_job(
    file: Path,
    choices: Choices,
    cluster_name: str | None,
    placement_file: Path | None,
    scenarios: Scenarios,
    outputs: Outputs,
    *,
    executor: Executor,
    folded: bool,
) -> None:
    """Simulates a program or a workload."""
    from foretrace.hardware.presets import cluster as load_cluster
    from foretrace.placement import Placement
    from foretrace.report.terminal import print_simulation

    is_workload = file_kind(file) == "aicb"
    if not is_workload and choices != Choices():
        changed = [one.name for one in fields(Choices) if getattr(choices, one.name) != getattr(Choices(), one.name)]
        raise UsageError(
            f"{file} is a program, in which {', '.join(changed)} are settled",
            hint="make the program anew, or simulate the workload it was made of",
        )
    with Progress(f"reading {file}"):
        program = load(file, choices)
    if is_workload and cluster_name is None:
        raise UsageError(
            f"{file} says how many bytes are sent, not how long that takes: on what cluster?",
            hint="for example --cluster h100-dgx; see foretrace list clusters",
        )
    cluster = None if cluster_name is None else load_cluster(cluster_name)
    if cluster is not None:
        cluster.check_fits(program.world, f"{file}:1" if is_workload else str(file))
    placement = None if placement_file is None else Placement.load(placement_file, program.world)
    with Progress(f"simulating {program.op_count:,} ops on {program.world:,} ranks"):
        answer = simulate(
            program,
            cluster=cluster,
            placement=placement,
            what_if=scenarios.what_if,
            stragglers=scenarios.stragglers,
            slow_links=scenarios.slow_links,
            executor=executor,
            folded=folded,
        )
    if outputs.write(answer, simulation_json(answer)):
        print_simulation(answer)


def run_simai(
    file: Path,
    choices: Choices,
    arguments: list[str],
    tables: Path | None,
    csv: Path | None,
    explained: bool,
    outputs: Outputs,
) -> None:
    """Reproduces SimAI's figures, with our own answer beside them."""
    from foretrace.compat.simai.compare import compare
    from foretrace.compat.simai.csv import end_to_end_csv
    from foretrace.compat.simai.flags import parse_flags
    from foretrace.compat.simai.tables import load_tables
    from foretrace.formats.aicb import read_workload
    from foretrace.report.simai import comparison_json, print_comparison

    if tables is None:
        raise UsageError(
            "--compat simai needs SimAI's ratio tables",
            hint="--simai-tables DIR, the folder with nvlink_ratio.csv, nic_ratio.csv and ata_ratio.csv",
        )
    if choices.gpus is not None:
        raise UsageError("--gpus: SimAI's own flag is -g", hint="give it after --, as in -- -g 128")
    workload = read_workload(file)
    flags = parse_flags(arguments, workload=str(file))
    ratios = load_tables(tables)
    comparison = compare(workload, flags, ratios, choices, explained=explained)
    if csv is not None:
        write_text(csv, end_to_end_csv(workload, flags, ratios))
    own = comparison.own if isinstance(comparison.own, Simulation) else None
    if own is None and outputs.perfetto is not None:
        raise InputError(f"no timeline to write: {comparison.own}", where=str(outputs.perfetto))
    if outputs.write(own, comparison_json(comparison, explained=explained)):
        print_comparison(comparison, explained=explained)
