"""`foretrace predict`: predict the step of a model under a plan, from its name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.api import simulate
from foretrace.cli.emit import emit, write_files
from foretrace.cli.groups import JOB, MACHINE, OUTPUT, SCENARIO, TIMELINE, OutputOptions, TimelineOptions, ask, takes
from foretrace.cost.machine_texts import MachineOptions
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.terminal import print_answer
from foretrace.report.views import view_of

EXAMPLES = """Examples:

foretrace predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

foretrace predict llama3-8b --gpus 8 --cluster h100-dgx --stack fsdp --zero 3 --recompute selective --what-if dp=2x"""

EXPLAINED = "A model's name (foretrace list models), a Hugging Face config.json, or a job.yaml of foretrace init."


@takes(JOB, MACHINE, SCENARIO, OUTPUT, TIMELINE)
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    files: TimelineOptions,
    even_if_oom: Annotated[
        bool, typer.Option("--even-if-oom", help="Predict the time of a job that does not fit too.")
    ] = False,
) -> None:
    """Predict the step of a model: its time, utilisation, memory, and where the time goes."""
    question = ask([model], options, machine, scenario, model=True)
    answer = simulate(
        question.job,
        question.machine,
        question.scenario,
        explain=True if output.as_json or output.file or files.save else "band",
        even_if_oom=even_if_oom,
        try_changes=True,
    )
    print_links = write_files(answer, files)

    def screen() -> None:
        print_answer(answer)
        print_links()

    emit(answer.to_dict, screen, output, lambda: view_of(answer))
