"""`foretrace generate`: a job's file for other tools, or our own, from a model's name and a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from foretrace.cli import arguments
from foretrace.cli.plan_options import EXPLAINED, with_plan_options

if TYPE_CHECKING:
    from foretrace.errors import Diagnostic

EXAMPLES = """Examples:

foretrace generate llama3-70b --gpus 512 --tp 8 --pp 4 --gbs 1024 --cluster h100-dgx -o llama3-70b.txt

foretrace generate llama3-8b --gpus 8 --tp 2 --format program -o llama3-8b.foretrace"""

FORMATS: Final = ("aicb", "megatron-trace", "program")
DETAILS: Final = ("segment", "kernel")

_Said = tuple[str, dict[str, Any], tuple["Diagnostic", ...]]


@with_plan_options
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    cluster: arguments.Cluster = None,
    format_: Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="What to write.")] = "aicb",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Where: a file, or a folder of traces.")
    ] = None,
    detail: Annotated[
        str, typer.Option("--detail", metavar="|".join(DETAILS), help="program: what is one op.")
    ] = "segment",
    exposed_only: Annotated[
        bool, typer.Option("--exposed-only", help="aicb: leave out collectives that run beside gradients.")
    ] = False,
    even_if_oom: Annotated[
        bool, typer.Option("--even-if-oom", help="megatron-trace: of a job that does not fit too.")
    ] = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Write a job as a SimAI/AICB workload, as Megatron rank traces, or as a program of Foretrace."""
    import json

    from foretrace.errors import UsageError
    from foretrace.report.generate import generated_json, print_generated

    _check_word("--format", format_, FORMATS)
    _check_word("--detail", detail, DETAILS)
    if output is None:
        raise UsageError("where to?", hint="for example -o job.txt")
    if format_ == "aicb":
        said, facts, notes = _aicb(model, options, cluster, output, exposed_only)
    elif format_ == "program":
        said, facts, notes = _program(model, options, output, detail)
    else:
        said, facts, notes = _traces(model, options, cluster, output, even_if_oom)
    if as_json:
        print(json.dumps(generated_json(format_, output, facts, notes), allow_nan=False))
    else:
        print_generated(output, said, notes)


def _check_word(flag: str, value: str, known: tuple[str, ...]) -> None:
    from foretrace.errors import UsageError, did_you_mean

    if value not in known:
        raise UsageError(
            f'{flag} "{value}" is not known{did_you_mean(value, known)}', hint=f"known: {', '.join(known)}"
        )


def _aicb(model: str, options: dict[str, Any], cluster: str | None, output: Path, exposed_only: bool) -> _Said:
    from foretrace.analysis.generate import aicb_workload
    from foretrace.analysis.predict import peak_flops
    from foretrace.cli.plan_options import read_job, read_plan
    from foretrace.cost.sources import kernel_prices
    from foretrace.formats.aicb import write_workload
    from foretrace.hardware.presets import cluster as load_cluster
    from foretrace.report.generate import aicb_facts
    from foretrace.workload.settle import settle

    job = read_job(model)
    setting = settle(job.model, read_plan(options, job.fields))
    name, kernels, of = cluster or job.cluster, None, "computation not priced"
    if name is not None:
        found = load_cluster(name)
        peak_flops(found.gpu, setting.plan.precision)  # an error where the GPU has no such units
        kernels, of = kernel_prices(found, setting.mesh.world), f"times of {found.gpu.title}"
    made = aicb_workload(setting, kernels, exposed_only=exposed_only)
    write_workload(made.workload, output)
    said = f"{len(made.workload.rows):,} rows, {_count(made.microbatches)}, {made.parameters:,} parameters a rank"
    if made.expert_parameters:
        said += f" and {made.expert_parameters:,} of experts"
    notes = (*job.diagnostics, *made.diagnostics, *(kernels.notes if kernels is not None else ()))
    return f"{said}, {of}", aicb_facts(made), notes


def _count(microbatches: int) -> str:
    return f"{microbatches:,} microbatch{'' if microbatches == 1 else 'es'}"


def _program(model: str, options: dict[str, Any], output: Path, detail: Any) -> _Said:
    from foretrace.cli.plan_options import read_job, read_plan
    from foretrace.program.file import save
    from foretrace.workload.assemble import program_of
    from foretrace.workload.settle import settle

    job = read_job(model)
    program = program_of(settle(job.model, read_plan(options, job.fields)), detail=detail)
    save(program, output)
    roles = f"{len(program.roles)} role{'' if len(program.roles) == 1 else 's'}"
    said = f"{roles} of {program.world:,} ranks, {program.op_count:,} ops, not priced"
    facts = {"world_size": program.world, "roles": len(program.roles), "ops": program.op_count, "detail": detail}
    return said, facts, (*job.diagnostics, *program.diagnostics)


def _traces(model: str, options: dict[str, Any], cluster: str | None, output: Path, even_if_oom: bool) -> _Said:
    from foretrace.cli.predict import predicted
    from foretrace.cli.run import Outputs
    from foretrace.units import format_time

    answer = predicted(model, options, cluster, "best", even_if_oom, explain=False)
    Outputs(False, None, None, output, None).write(answer.simulation, {})
    said = f"traces of a step of {format_time(answer.step_time_s)}"
    return said, {"step_time_s": answer.step_time_s}, answer.simulation.diagnostics
