"""`foretrace memory`: show what every stage of a job holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.api import memory
from foretrace.cli.emit import emit, fail_after_answer, write_picture
from foretrace.cli.groups import JOB, MACHINE, OUTPUT, SCENARIO, OutputOptions, ask, check_svg, takes
from foretrace.cli.predict import EXPLAINED
from foretrace.cost.machine_texts import MachineOptions
from foretrace.readings.scenario_texts import ScenarioOptions
from foretrace.report.memory import MeasuredMemory, memory_json, memory_plot, print_memory
from foretrace.simulation.relief import misfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foretrace.inputs.memory_snapshot import MemorySnapshot
    from foretrace.readings.answer.answer import Answer
    from foretrace.report.page.blocks import View
    from foretrace.simulation.relief import Relief

EXAMPLES = """Examples:

foretrace memory llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

foretrace memory llama3-8b --gpus 8 --cluster h100-dgx --zero 3 --plot memory.svg

foretrace memory llama3-8b --gpus 8 --cluster h100-dgx --zero 3 --snapshot snapshot.pickle"""


@takes(JOB, MACHINE, SCENARIO, OUTPUT)
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    snapshot: Annotated[
        Path | None,
        typer.Option("--snapshot", metavar="FILE", help="Compare with a memory snapshot of PyTorch (pickle or JSON)."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.svg", help="Draw the fullest stage's memory over the step.")
    ] = None,
) -> None:
    """Show what each stage holds at its peak, by kind, and whether it fits; exit code 4 where it does not."""
    check_svg(plot)
    question = ask([model], options, machine, scenario, model=True)
    recorded = None if snapshot is None else _read_snapshot(snapshot)
    answer, relief = memory(question.job, question.machine, question.scenario)
    measured = None
    if recorded is not None and answer.memory is not None:
        measured = MeasuredMemory(str(snapshot), recorded, answer.memory)
    write_picture(plot, lambda: memory_plot(answer), "the fullest stage over the step")
    emit(
        lambda: memory_json(answer, relief, measured),
        lambda: print_memory(answer, measured=measured, relief=relief),
        output,
        lambda: _page(answer, relief, measured),
    )
    if answer.memory is not None and not answer.memory.fits:
        fail_after_answer(misfit(answer, relief), output)


def _page(answer: Answer, relief: Sequence[Relief] | None, measured: MeasuredMemory | None) -> View:
    from foretrace.report.views.memory_answer import memory_view

    return memory_view(answer, relief, measured)


def _read_snapshot(path: Path) -> MemorySnapshot:
    from foretrace.inputs.memory_snapshot import read_memory_snapshot  # most questions do without, and start faster

    return read_memory_snapshot(path)
