"""`foretrace memory`: show what every stage of a job holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.api import memory
from foretrace.cli.emit import emit, fail_after_answer
from foretrace.cli.groups import (
    JOB,
    MACHINE,
    OUTPUT,
    SCENARIO,
    MachineOptions,
    OutputOptions,
    ScenarioOptions,
    ask,
    check_outputs,
    takes,
)
from foretrace.cli.predict import EXPLAINED
from foretrace.report.memory import memory_json, print_memory
from foretrace.simulation.relief import misfit

EXAMPLES = """Examples:

foretrace memory llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

foretrace memory llama3-8b --gpus 8 --cluster h100-dgx --zero 3 --json"""


@takes(JOB, MACHINE, SCENARIO, OUTPUT)
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
) -> None:
    """Show what each stage holds at its peak, by kind, and whether it fits; exit code 4 where it does not."""
    check_outputs([model], [output.file])
    question = ask([model], options, machine, scenario, model=True)
    answer, relief = memory(question.job, question.machine, question.scenario)
    emit(lambda: memory_json(answer, relief), lambda: print_memory(answer), output)
    if answer.memory is not None and not answer.memory.fits:
        fail_after_answer(misfit(answer, relief), output)
