"""`foretrace simulate`: run a job and show the answer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.api import simulate
from foretrace.basics.errors import UsageError
from foretrace.cli.emit import emit, write_files
from foretrace.cli.groups import JOB, MACHINE, OUTPUT, SCENARIO, TIMELINE, OutputOptions, TimelineOptions, ask, takes
from foretrace.cost.machine_texts import MachineOptions
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.terminal import print_answer
from foretrace.report.views import view_of

EXAMPLES = """Examples:

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx

foretrace simulate examples/llama405b_1024gpu.txt --cluster h100-dgx --schedule zb-h1 --overlap dp --gpus 16384

foretrace simulate scaling_a scaling_b --cluster examples/clusters/a100_2x8.yaml --microbatches 8

foretrace simulate real_run --what-if ep=2x --perfetto real.pftrace

foretrace simulate trace.json.gz --what-if cuda-graphs

foretrace simulate job.foretrace --straggler 3=1.2x --json -o result.json

foretrace simulate FILE --compat simai --simai-tables SIMAI_DIR -- -g 128 -g_p_s 8 -n_p_s 8 -g_type H100 -nic_t cx7"""


class Executor(StrEnum):
    """Which executor runs the job."""

    AUTO = "auto"
    FIXED = "fixed"
    SHARED = "shared"


class Compat(StrEnum):
    """Whose figures to reproduce."""

    SIMAI = "simai"


@takes(JOB, MACHINE, SCENARIO, OUTPUT, TIMELINE)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A SimAI/AICB workload; Megatron rank traces, or several folders of them that are campaigns of one "
            "job; a PyTorch profiler table, or profiler traces of one or many ranks; a program (.foretrace); a saved "
            "answer; a model's name or job.yaml; a training script (.py), whose own arguments follow after --. With "
            "--compat simai, SimAI's own flags follow after --.",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    files: TimelineOptions,
    even_if_oom: Annotated[
        bool, typer.Option("--even-if-oom", help="Of a model: the time of a job that does not fit too.")
    ] = False,
    executor: Annotated[
        Executor, typer.Option("--executor", help="Whether ops divide what they share.")
    ] = Executor.AUTO,
    unfolded: Annotated[
        bool, typer.Option("--unfolded", help="Simulate every rank on its own (slower, same times).")
    ] = False,
    compat: Annotated[
        Compat | None, typer.Option("--compat", help="Also reproduce another simulator's figures.")
    ] = None,
    simai_tables: Annotated[
        Path | None, typer.Option("--simai-tables", metavar="DIR", help="Where SimAI's *_ratio.csv tables are.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="OUT", help="Write what SimAI would: its EndToEnd.csv.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List SimAI's defects that touch this file, with their effect.")
    ] = False,
) -> None:
    """Run a job and show its step time, where the time goes and what would help."""
    inputs = paths if compat is None else paths[:1]
    if compat is not None:
        from foretrace.cli.simai import SimaiOptions, run_simai

        own = {"--unfolded": unfolded, "--executor": executor != Executor.AUTO, "--heatmap": files.heatmap}
        simai = SimaiOptions(paths[1:], simai_tables, csv, explain, own)
        run_simai(paths[0], options, machine, scenario, simai, output, files)
        return
    flags = " ".join(path for path in paths if path.startswith("-"))
    for name, value in {"--simai-tables": simai_tables, "--csv": csv, "--explain": explain, flags: flags}.items():
        if value:
            problem = f"{name}: only with --compat simai"
            raise UsageError("option-not-for-command", problem, hint="see foretrace simulate --help")
    question = ask(inputs, options, machine, scenario)
    answer = simulate(
        question.job,
        question.machine,
        question.scenario,
        executor=executor.value,
        folded=not unfolded,
        even_if_oom=even_if_oom,
        try_changes=True,
    )
    print_links = write_files(answer, files)

    def screen() -> None:
        print_answer(answer)
        print_links()

    emit(answer.to_dict, screen, output, lambda: view_of(answer))
