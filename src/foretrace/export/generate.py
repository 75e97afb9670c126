"""Writes a model and a plan as a file of another kind: `foretrace generate` as functions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foretrace.basics.errors import Diagnostic, UsageError
from foretrace.basics.file_registry import tracked_files
from foretrace.basics.outputs import claim_output, old_content, write_text
from foretrace.basics.progress import doing
from foretrace.basics.units import format_time
from foretrace.cost.machine import Machine
from foretrace.cost.sources import kernel_prices
from foretrace.export.aicb.express import file_overlaps, reading_options
from foretrace.export.aicb.reduce import reductions
from foretrace.export.aicb.workload import aicb_workload
from foretrace.export.launch import SCRIPT_START, launch_text
from foretrace.inputs.aicb.format import write_workload
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.inputs.base import Input
from foretrace.inputs.option_values import Overlap
from foretrace.program.file import save
from foretrace.readings.answer.model_figures import peak_flops
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate import simulate_program
from foretrace.simulation.simulate_input import on_machine, simulate_input
from foretrace.step import StepSpec, build_step
from foretrace.workload.step_spec import step_spec

if TYPE_CHECKING:
    from foretrace.export.aicb.workload import Generated
    from foretrace.readings.answer.answer import Answer
    from foretrace.workload.setting import Setting


@dataclass(frozen=True, slots=True)
class StepChange:
    """A change of the step that a file needs, and the seconds that it adds."""

    change: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FileStep:
    """The step of a file against that of the plan it was made from.

    Attributes:
        planned_step_time_s: The step of the plan.
        step_time_s: The step of the file, simulated with `options`.
        changes: What leads from one to the other; the seconds add up to the difference.
        options: The schedule and the chunks of the plan, where the file does not say them.
        overlap: What overlaps in the plan and can be overlapped in the file with `--overlap`.
        overlapped_step_time_s: The step of the file with that; None where nothing overlaps.
    """

    planned_step_time_s: float
    step_time_s: float
    changes: tuple[StepChange, ...]
    options: tuple[str, ...]
    overlap: str
    overlapped_step_time_s: float | None


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """A file that was written.

    Attributes:
        summary: What it is in a line.
        facts: Its figures by name.
        diagnostics: What should be known about it.
        step: How its step differs from the plan's, where a cluster prices both.
    """

    summary: str
    facts: dict[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    step: FileStep | None = None


def generate_aicb(job: Input, machine: Machine, path: Path, *, exposed_only: bool = False) -> GeneratedFile:
    """Writes a SimAI/AICB workload; without a cluster its computation has no times."""
    setting, kernels, times = _setting(on_machine(job, machine)), None, "computation not priced"
    if machine.cluster is not None:
        gpu = machine.cluster.gpu
        peak_flops(gpu, setting.plan.precision)  # an error where the GPU has no such units
        kernels, times = kernel_prices(machine.cluster, setting.mesh.world, machine.prices), f"times of {gpu.title}"
    made = aicb_workload(setting, kernels, exposed_only=exposed_only)
    write_workload(made.workload, path)
    count = f"{made.microbatches:,} microbatch{'' if made.microbatches == 1 else 'es'}"
    summary = f"{len(made.workload.rows):,} rows, {count}, {made.parameters:,} parameters a rank"
    if made.expert_parameters:
        summary += f" and {made.expert_parameters:,} of experts"
    notes = (*job.diagnostics, *made.diagnostics, *(kernels.notes if kernels is not None else ()))
    step = None if kernels is None else _file_step(setting, made, machine, exposed_only=exposed_only)
    facts = _aicb_facts(made) | ({} if step is None else asdict(step))
    return GeneratedFile(f"{summary}, {times}", facts, notes, step)


def _file_step(setting: Setting, made: Generated, machine: Machine, *, exposed_only: bool) -> FileStep:
    """Simulates the plan, and again after each thing that the file cannot say."""

    def step_s(spec: StepSpec, on: Machine) -> float:
        return simulate_program(build_step(spec), on, Scenario(), explain=False).step_time_s

    planned, bare = step_spec(setting), machine.with_(overlap_cost=False)
    read, overlap = reading_options(setting, made.layers_per_stage), file_overlaps(setting)
    with doing("comparing the file with the plan"):
        times = [("", step_s(planned, machine))]
        if machine.overlap_cost:
            times.append(("no cost of overlap", step_s(planned, bare)))
        simpler = reductions(planned, made.spec, made.pieces, exposed_only=exposed_only)
        times += [(name, step_s(spec, bare)) for name, spec in simpler]
        overlapped_s = None
        if overlap:
            again = lower_workload(made.workload, WorkloadOptions(overlap=frozenset(map(Overlap, overlap)), **read))
            overlapped_s = simulate_program(again, bare, Scenario(), explain=False).step_time_s
    changes = [StepChange(name, after - before) for (_, before), (name, after) in pairwise(times)]
    options = tuple(f"--{name} {value}" for name, value in read.items())
    return FileStep(times[0][1], times[-1][1], tuple(changes), options, ",".join(overlap), overlapped_s)


def generate_program(
    job: Input, machine: Machine, path: Path, detail: Literal["segment", "kernel"] = "segment"
) -> GeneratedFile:
    """Writes a program of Foretrace, in which nothing is priced but the machine's host."""
    program = build_step(step_spec(_setting(on_machine(job, machine))), detail=detail)
    save(program, path)
    roles = f"{len(program.roles)} role{'' if len(program.roles) == 1 else 's'}"
    summary = f"{roles} of {program.world:,} ranks, {program.op_count:,} ops, not priced"
    facts = {"world_size": program.world, "roles": len(program.roles), "ops": program.op_count, "detail": detail}
    return GeneratedFile(summary, facts, (*job.diagnostics, *program.diagnostics))


def generate_answer(job: Input, machine: Machine, *, even_if_oom: bool = False) -> tuple[Answer, GeneratedFile]:
    """Simulates a step that is then written as rank traces."""
    _setting(job)
    answer = simulate_input(job, machine, Scenario(), explain=False, even_if_oom=even_if_oom)
    summary = f"traces of a step of {format_time(answer.step_time_s)}"
    return answer, GeneratedFile(summary, {"step_time_s": answer.step_time_s}, answer.diagnostics)


def generate_launch(
    job: Input, machine: Machine, path: Path | None, framework: str | None, *, force: bool = False
) -> GeneratedFile:
    """Writes the script that starts a job, and next to it the files that it names.

    Args:
        job: A model with a plan.
        machine: Where it runs.
        path: The script; None: nothing is written, and the texts are among the facts.
        framework: The framework that starts the job; None: the one that the plan's stack is.
        force: Whether files next to the script are replaced that were not written together with such a script.

    Raises:
        UsageError: No cluster is named, a file would be written over the input or over another one, or a file next to
            the script is there already.
    """
    setting = _setting(job)
    if machine.cluster is None:
        problem = "a launch script is for nodes of some size"
        raise UsageError("needs-cluster", problem, hint="name a cluster: --cluster h100-dgx")
    launch = launch_text(setting, machine.cluster, framework)
    script, *others = launch.files
    places = {} if path is None else {script: path, **{name: path.parent / name for name in others}}
    with tracked_files() as files:
        for name, place in places.items():
            if name != script or not files.is_claimed(place):
                claim_output(place, "launch script")
            for each in job.paths:
                files.check_input(each)
        if path is not None and not force:
            _check_replaceable(path, {places[name]: launch.files[name] for name in others})
        for name, place in places.items():
            write_text(place, launch.files[name], "launch script")
    summary = f"launch script of {launch.framework}" + "".join(f", with {name}" for name in others)
    return GeneratedFile(summary, {"framework": launch.framework, "files": launch.files}, launch.diagnostics)


def _check_replaceable(script: Path, texts: dict[Path, str]) -> None:
    """Raises UsageError where a file next to a launch script is there, and not as such a script or its file."""
    before = (old_content(script) or b"").decode("utf-8", "replace")
    for place, text in texts.items():
        old = old_content(place)
        if old is None or old == text.encode() or (before.startswith(SCRIPT_START) and place.name in before):
            continue
        hint = "write the script to a folder of its own, or add --force"
        raise UsageError("file-exists", f"{place.name} is there already, next to {script.name}", hint=hint)


def _setting(job: Input) -> Setting:
    setting = job.setting()
    if setting is None:
        problem = f"{job.title} is {job.noun}: only a model with a plan can be written as another file"
        raise UsageError("option-not-for-input", problem, hint="name a model: foretrace list models")
    return setting


def _aicb_facts(generated: Generated) -> dict[str, Any]:
    """Counts the contents of a workload; bytes and seconds are of one rank's rows, all microbatches."""
    workload = generated.workload
    passes = ("forward", "input_grad", "weight_grad")
    traffic: dict[str, int] = {}
    for row in workload.rows:
        for which in passes:
            part = getattr(row, which)
            if part.collective != "NONE":
                key = f"{'step' if which == 'weight_grad' else 'microbatches'} {part.collective}"
                traffic[key] = traffic.get(key, 0) + int(part.size_bytes)
    return {
        "rows": len(workload.rows),
        "microbatches": generated.microbatches,
        "layers_per_stage": generated.layers_per_stage,
        "parameters_per_rank": generated.parameters,
        "expert_parameters_per_rank": generated.expert_parameters,
        "compute_s": {which: 1e-9 * sum(getattr(row, which).compute_ns for row in workload.rows) for which in passes},
        "traffic_bytes": traffic,
    }
