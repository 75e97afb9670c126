"""`foretrace sweep`: a job over a range of one thing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli import arguments

if TYPE_CHECKING:
    from foretrace.analysis.answer import Simulation
    from foretrace.analysis.job import Job
    from foretrace.analysis.sweep import Axis, Sweep, Value
    from foretrace.lower.choices import Choices
    from foretrace.mesh import Mesh

EXAMPLES = """Examples:

foretrace sweep examples/llama405b_1024gpu.txt --over microbatches=16:128:x2 --cluster h100-dgx

foretrace sweep examples/llama405b_1024gpu.txt --over gpus=1024:16384:x2 --cluster h100-dgx --overlap dp --json

foretrace sweep job.foretrace --over compute=1x,1.5x,2x"""


def command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="A workload, a program, or traces of one job.", show_default=False),
    ],
    over: Annotated[
        str,
        typer.Option(
            "--over",
            metavar="NAME=VALUES",
            help="What to vary: microbatches, gpus, dp, pp, ep, cluster, jitter, routing, straggler:RANK, of a "
            "profiler's trace batch or gpu, or anything of --what-if; v1,v2,… or low:high:x2.",
            show_default=False,
        ),
    ],
    cluster: arguments.Cluster = None,
    gpus: arguments.Gpus = None,
    mesh: arguments.Mesh = None,
    schedule: arguments.Schedule = None,
    vpp: arguments.Vpp = None,
    overlap: arguments.Overlap = None,
    microbatches: arguments.Microbatches = None,
    pp_comm: arguments.PpComm = None,
    routing: arguments.Routing = None,
    placement: arguments.PlacementFile = None,
    network: arguments.Network = arguments.NetworkMode.ANALYTIC,
    collectives: arguments.Collectives = None,
    calibration: arguments.Calibration = None,
    what_if: arguments.TraceWhatIf = None,
    steps: arguments.Steps = None,
    sizes: arguments.Sizes = None,
    straggler: arguments.Straggler = None,
    jitter: arguments.Jitter = None,
    as_json: arguments.AsJson = False,
    output: arguments.Output = None,
) -> None:
    """Run a job over a range of one thing: microbatches, GPUs, clusters, what-ifs."""
    from foretrace.analysis.job import Job
    from foretrace.analysis.scenario import Scenario
    from foretrace.analysis.sweep import parse_axis
    from foretrace.cli.choices import read_choices
    from foretrace.cli.options import check_outputs, read_jitter, read_rebuilds, read_stragglers, read_what_ifs
    from foretrace.cli.progress import Progress

    axis = parse_axis(over)
    choices = read_choices(
        gpus=gpus,
        mesh=mesh,
        schedule=schedule,
        vpp=vpp,
        overlap=overlap,
        microbatches=microbatches,
        pp_comm=pp_comm,
        routing=routing,
        what_if=what_if,
        steps=steps,
        sizes=sizes,
    )
    what_ifs = read_what_ifs(read_rebuilds(what_if or [])[1])
    scenario = Scenario(what_ifs, read_stragglers(straggler or []), {}, read_jitter(jitter))
    for file in files:
        check_outputs(file, [output])
    job = Job(
        tuple(files),
        choices,
        cluster,
        placement,
        collectives,
        scenario,
        watch=Progress,
        network=network.value,
        calibration=calibration,
    )
    _check(job, axis)
    show(_run(job, axis), as_json, output)


def _check(job: Job, axis: Axis) -> None:
    """Refuses what no value of the axis could mean."""
    from foretrace.errors import UsageError
    from foretrace.lower.load import file_kind

    if axis.kind == "cluster" and job.cluster is not None:
        raise UsageError("--over cluster=… names the clusters", hint="leave out --cluster")
    kind = file_kind(job.paths[0])
    if axis.kind in ("batch", "gpu"):
        if kind != "profile":
            text = f"--over {axis.name}: {job.name} is no profiler's trace"
            raise UsageError(text, hint="see foretrace sweep --help")
        if axis.name in job.choices.made():
            raise UsageError(f"--over {axis.name} names them all", hint=f"leave out --what-if {axis.name}=…")
    if axis.kind == "gpu":
        from foretrace.cli.options import check_gpu

        for value in axis.values:
            check_gpu(str(value), "--over gpu")
    if kind == "program" and (axis.kind == "routing" or axis.kind == "count"):
        raise UsageError(
            f"{job.name} is a program, in which {axis.name} is settled",
            hint="sweep over what-ifs, stragglers, jitter or clusters, or sweep the workload it was made of",
        )
    if kind == "aicb" and axis.name in ("pp", "ep"):
        raise UsageError(
            f"--over {axis.name}: the layers of {job.name} are written for its own {axis.name}",
            hint="sweep over gpus, dp or microbatches, or write the workload anew",
        )


def _run(job: Job, axis: Axis) -> Sweep:
    from foretrace.analysis.sweep import sweep
    from foretrace.cli.progress import Progress

    mesh = job.mesh() if axis.name in ("dp", "pp", "ep") else None
    with Progress(f"sweep over {axis.name}") as progress:

        def starts(number: int, found: Sweep) -> None:
            best = f", best so far {found.best.label}" if found.best is not None else ""
            what = f"{axis.name} {axis.label(axis.values[number])}"
            progress.text = f"sweep: {what}, {number + 1} of {len(axis.values)}{best}"

        return _said(job, sweep(axis, lambda value: _with(job, axis, value, mesh), starts))


def _said(job: Job, found: Sweep) -> Sweep:
    """With a note where the steps are as a profiler recorded them."""
    from dataclasses import replace

    from foretrace.errors import Diagnostic
    from foretrace.lower.load import file_kind

    if file_kind(job.paths[0]) != "profile" or job.choices.host != "profiled":
        return found
    text = "steps as recorded, slowed by the profiler; without it: --what-if unprofiled"
    return replace(found, warnings=(*found.warnings, Diagnostic("note", text)))


def _with(job: Job, axis: Axis, value: Value, mesh: Mesh | None) -> Simulation:
    """The job at one value; `mesh` is its mesh where an axis of it varies."""
    from dataclasses import replace

    scenario, choices = job.scenario, job.choices
    match axis.kind:
        case "cluster":
            return replace(job, cluster=str(value)).simulate()
        case "count":
            return replace(job, choices=_counted(job, axis.name, int(value), mesh)).simulate()
        case "batch":
            return replace(job, choices=replace(choices, batch=float(value))).simulate()
        case "gpu":
            return replace(job, choices=replace(choices, gpu=str(value))).simulate()
        case "routing":
            return replace(job, choices=replace(choices, routing=float(value))).simulate()
        case "jitter":
            scenario = replace(scenario, jitter=float(value))
        case "straggler":
            scenario = replace(scenario, stragglers={**scenario.stragglers, axis.rank: float(value)})
        case "what-if":
            scenario = replace(scenario, what_if={**scenario.what_if, axis.what: float(value)})
    return replace(job, scenario=scenario).simulate()


def _counted(job: Job, name: str, count: int, mesh: Mesh | None) -> Choices:
    """The choices with one count: microbatches or GPUs as asked for, or an axis of the mesh, the others as they are."""
    from dataclasses import replace

    from foretrace.lower.load import file_kind
    from foretrace.mesh import Mesh

    choices = job.choices
    if name == "microbatches":
        return replace(choices, microbatches=count)
    if name == "gpus":
        return replace(choices, gpus=count)
    assert mesh is not None
    if name == "dp" and file_kind(job.paths[0]) == "aicb":
        return replace(choices, gpus=mesh.world // mesh.dp * count)
    traced = choices.mesh if choices.traced is None else choices.traced
    changed = Mesh.parse(f"{name}={count}", where="--over", base=mesh)
    return replace(choices, mesh=changed, traced=traced, gpus=None)


def show(found: Sweep, as_json: bool, output: Path | None) -> None:
    """Prints and writes a sweep; what an interrupt left of it as well, before the interrupt goes on."""
    import json

    from foretrace.errors import InputError
    from foretrace.report.json import write_json
    from foretrace.report.sweep import print_sweep, sweep_json

    if found.outcomes and all(one.error is not None for one in found.outcomes) and not found.interrupted:
        raise InputError(
            f"no value of {found.axis.name} can be run; {found.outcomes[0].label}: {found.outcomes[0].error}"
        )
    result = sweep_json(found)
    if output is not None:
        write_json(result, output)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_sweep(found)
    if found.interrupted:
        raise KeyboardInterrupt
