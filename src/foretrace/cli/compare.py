"""`foretrace compare`: a prediction next to a measurement."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.api import compare
from foretrace.basics.errors import UsageError
from foretrace.cli.emit import emit, wrote
from foretrace.cli.groups import (
    JOB,
    MACHINE,
    OUTPUT,
    SCENARIO,
    TIMELINE,
    MachineOptions,
    OutputOptions,
    ScenarioOptions,
    TimelineOptions,
    ask,
    check_outputs,
    takes,
)
from foretrace.inputs.registry import open_input
from foretrace.report.compare import comparison_json, print_comparison, write_comparison_perfetto

EXAMPLES = """Examples:

foretrace compare predicted.foretrace measured.foretrace

foretrace compare scaling_a scaling_b real --cluster a100-dgx --microbatches 8 --perfetto both.pftrace

foretrace compare predicted.answer real"""


@takes(JOB, MACHINE, SCENARIO, OUTPUT, TIMELINE)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PREDICTED… MEASURED",
            help="What to predict from (several trace folders are campaigns of one job), or a saved answer; last, what "
            "was measured.",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
    files: TimelineOptions,
) -> None:
    """Compare a prediction with a measured step: the error, and where it comes from."""
    if len(paths) < 2:
        problem = "what is to be compared with what?"
        raise UsageError("missing-argument", problem, hint="foretrace compare PREDICTED… MEASURED")
    if files.traces or files.heatmap or files.save:
        problem = "--traces, --heatmap and --save are of one run"
        raise UsageError("option-not-for-command", problem, hint="use foretrace simulate")
    check_outputs(paths, [files.perfetto, output.file])
    *predicted, last = paths
    question = ask(predicted, options, machine, scenario)
    measured = open_input([last])
    if "mesh" in options and measured.has_option("mesh"):
        measured = measured.read_options({"mesh": options["mesh"]})
    comparison = compare(question.job, measured, question.machine, question.scenario)
    if files.perfetto is not None:
        wrote(files.perfetto, write_comparison_perfetto(comparison, files.perfetto, ranks=files.ranks))
    emit(lambda: comparison_json(comparison), lambda: print_comparison(comparison), output)
