"""What `foretrace simulate` and `foretrace predict` do once their options are read."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.analysis.answer import Simulation
from foretrace.analysis.job import Job
from foretrace.errors import InputError, UsageError
from foretrace.files import write_text
from foretrace.lower.choices import Choices
from foretrace.report.json import simulation_json, write_json

if TYPE_CHECKING:
    from foretrace.analysis.links import LinkLoads


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the answer goes: JSON to the screen or a file, a timeline of some ranks, as rank traces too."""

    as_json: bool
    json_file: Path | None
    perfetto: Path | None
    traces: Path | None
    ranks: list[int] | None

    def write(self, answer: Simulation | None, result: dict[str, Any]) -> bool:
        """Writes the files and the JSON; whether a screen is wanted still."""
        if self.perfetto is not None and answer is not None:
            from foretrace.report.perfetto import write_perfetto

            summary = write_perfetto(answer.timeline, self.perfetto, ranks=self.ranks, memory=answer.memory_by_rank())
            print(f"{self.perfetto}: {summary}", file=sys.stderr)
        if self.traces is not None and answer is not None:
            _write_traces(answer, self.traces, self.ranks)
        if self.json_file is not None:
            write_json(result, self.json_file)
        if self.as_json:
            print(json.dumps(result, allow_nan=False))
        return not self.as_json


def _write_traces(answer: Simulation, folder: Path, ranks: list[int] | None) -> None:
    """Writes the timeline as rank traces, and says what was written and left out."""
    from foretrace.formats.megatron_trace import write_runs
    from foretrace.report.traces import timeline_facts, timeline_traces

    traces = timeline_traces(answer.timeline, ranks)
    written = write_runs(traces, folder, timeline_facts(answer.timeline))
    print(f"{folder}: {len(written.paths)} traces of {answer.world_size:,} ranks", file=sys.stderr)
    for one in dict.fromkeys(
        note.message for note in (*written.diagnostics, *(n for t in traces for n in t.diagnostics))
    ):
        print(f"note: {one}", file=sys.stderr)


def map_links(answer: Simulation, heatmap: Path | None, placement: Path | None) -> LinkLoads | None:
    """Draws how busy every link is under a step of a job, where that is asked for."""
    if heatmap is None:
        return None
    from foretrace.analysis.links import link_loads
    from foretrace.placement import Placement
    from foretrace.report.heatmap import heatmap_svg
    from foretrace.units import format_time

    placed = None if placement is None else Placement.load(placement, answer.world_size)
    loads = link_loads(answer, placement=placed)
    title = f"a step of {format_time(answer.step_time_s)} on {answer.world_size:,} GPUs of {loads.fabric.name}"
    write_text(heatmap, heatmap_svg(loads, title))
    print(f"{heatmap}: {loads.fabric.links:,} links", file=sys.stderr)
    return loads


def run_job(job: Job, outputs: Outputs, heatmap: Path | None = None) -> None:
    """Simulates a program, a workload or traces."""
    answer = job.simulate()
    loads = map_links(answer, heatmap, job.placement)
    if outputs.write(answer, simulation_json(answer)):
        from foretrace.report.terminal import print_simulation

        print_simulation(answer)
        if loads is not None:
            from foretrace.report.heatmap import print_heatmap

            print_heatmap(loads)


def run_simai(
    file: Path,
    choices: Choices,
    arguments: list[str],
    tables: Path | None,
    csv: Path | None,
    explained: bool,
    outputs: Outputs,
    silicon: bool | None = None,
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
    comparison = compare(workload, flags, ratios, choices, explained=explained, silicon=silicon)
    if csv is not None:
        write_text(csv, end_to_end_csv(workload, flags, ratios))
    own = comparison.own if isinstance(comparison.own, Simulation) else None
    if own is None and (outputs.perfetto or outputs.traces):
        raise InputError(f"no timeline to write: {comparison.own}", where=str(outputs.perfetto or outputs.traces))
    if outputs.write(own, comparison_json(comparison, explained=explained)):
        print_comparison(comparison, explained=explained)
