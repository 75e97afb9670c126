"""`foretrace sweep`: run a job over a range of one quantity."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.basics.errors import UsageError
from foretrace.cli.emit import emit
from foretrace.cli.groups import (
    JOB,
    MACHINE,
    OUTPUT,
    SCENARIO,
    MachineOptions,
    OutputOptions,
    ScenarioOptions,
    check_outputs,
    takes,
)
from foretrace.inputs.option_texts import flag_of
from foretrace.inputs.registry import open_input
from foretrace.report.sweep import print_sweep, sweep_json
from foretrace.search.sweep import parse_axis, sweep

EXAMPLES = """Examples:

foretrace sweep examples/llama405b_1024gpu.txt --over microbatches=16:128:x2 --cluster h100-dgx

foretrace sweep examples/llama405b_1024gpu.txt --over gpus=1024:16384:x2 --cluster h100-dgx --overlap dp --json

foretrace sweep llama3-70b --gpus 512 --pp 4 --gbs 1024 --over tp=2,4,8 --cluster h100-dgx

foretrace sweep job.foretrace --over compute=1x,1.5x,2x"""


@takes(JOB, MACHINE, SCENARIO, OUTPUT)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Anything that foretrace simulate runs: a workload, a program, traces of one job, a model's name.",
            show_default=False,
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="NAME=VALUES",
            help="What to vary: gpus, microbatches, dp, pp, ep, tp, mbs and other counts of the job; cluster, jitter, "
            "routing, straggler:RANK; of a profiler trace batch or gpu; or anything of --what-if. v1,v2,… or "
            "low:high:x2.",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    machine: MachineOptions,
    scenario: ScenarioOptions,
    output: OutputOptions,
) -> None:
    """Run a job over a range of one thing: microbatches, GPUs, clusters, what-ifs."""
    if len(over) > 1:
        raise UsageError("repeated-option", "one --over at a time", hint=f"for example --over {over[0]}")
    axis = parse_axis(over[0])
    if axis.name in options:
        problem = f"--over {axis.name} names the values"
        raise UsageError("conflicting-options", problem, hint=f"leave out {flag_of(axis.name)}")
    check_outputs(paths, [output.file])
    job = open_input(paths, {**options, **scenario.options})
    on = machine.machine_of_clusters() if axis.kind == "cluster" else machine.machine(job)
    outcome = sweep(job, axis, on, scenario.scenario)
    emit(lambda: sweep_json(outcome), lambda: print_sweep(outcome), output)
    if outcome.interrupted:
        raise KeyboardInterrupt
