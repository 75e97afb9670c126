"""The functions behind the commands, for use from Python.

import foretrace

job = foretrace.open("examples/llama405b_1024gpu.txt")
answer = foretrace.simulate(job, foretrace.Machine("h100-dgx"), foretrace.Scenario(what_if={"compute": 1.1}))
print(answer.step_time_s, answer.breakdown.mean_s)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.basics.errors import Diagnostic, InputError, UsageError
from foretrace.basics.files import GivenPath
from foretrace.basics.progress import doing
from foretrace.cost.machine import Machine
from foretrace.inputs.base import Input
from foretrace.inputs.option_values import changed_options
from foretrace.inputs.registry import open_input
from foretrace.program.program import Program
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.recorded import recorded_answer
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate import Executor, Explain
from foretrace.simulation.simulate_input import simulate_input

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Cluster
    from foretrace.models.model import Model
    from foretrace.readings.compare import Comparison
    from foretrace.readings.explain import Explanation
    from foretrace.readings.profiler_table import ExplainedTables
    from foretrace.readings.profiler_views import ProfilerTrace
    from foretrace.search.planner.request import PlanRequest
    from foretrace.search.planner.result import PlanSearch
    from foretrace.search.progress import PlansWatch
    from foretrace.simulation.relief import Relief
    from foretrace.workload.plan import Plan
    from foretrace.workload.setting import Setting

Job = Input | Program | Answer | str | Path
"""What can be simulated: an input, a program built in Python, an answer whose program is run again, or a path or model
name to open."""


def open(path: str | Path | Sequence[str | Path], **options: Any) -> Input | Answer:
    """Opens any file or folder that Foretrace can read, or a model by its name.

    Args:
        path: A file, folder, pattern or model name; several where they belong to one job.
        options: What the input leaves open, by the fields of its `Options`: `open("job.txt", gpus=2048)`.

    Returns:
        An input; for a saved answer, the answer.
    """
    job = open_input([path] if isinstance(path, str | Path) else path)
    job = job.with_options(**options) if options else job
    if job.answer_file is None:
        return job
    from foretrace.readings.answer.answer_file import open_answer

    return open_answer(job.answer_file)


def model(name: Model | str | Path, plan: Plan) -> Input:
    """Makes an input of a model and a plan.

    Args:
        name: A `Model`, a preset's name (`foretrace list models`), or the path of a Hugging Face config.json.
        plan: How the model is parallelised and run.
    """
    from foretrace.inputs.model.input import ModelInput
    from foretrace.models.load import read_model
    from foretrace.models.model import Model
    from foretrace.workload.check_plan import check_plan

    plan = check_plan(plan)
    if isinstance(name, Model):
        return ModelInput(name, plan)
    spec, guesses = read_model(name)
    return ModelInput(spec, plan, diagnostics=guesses)


def simulate(
    job: Job,
    machine: Machine | Cluster | str | Path | None = None,
    scenario: Scenario | None = None,
    *,
    executor: Executor = "auto",
    folded: bool = True,
    explain: Explain = True,
    even_if_oom: bool = False,
    try_changes: bool = False,
) -> Answer:
    """Simulates a job: how long a step takes, where the time goes, and what would help.

    Args:
        job: What to run.
        machine: What it runs on, or a cluster or its name; None where the job carries all its times.
        scenario: What is different from normal.
        executor: Whether ops that draw on one resource at once divide it (`shared`), or run as if alone (`fixed`);
            `auto` chooses `shared` where there are such draws.
        folded: Whether ranks that behave identically are run once.
        explain: Whether to find the band and what each family of ops would gain, which takes further runs; "band"
            leaves the families out.
        even_if_oom: Whether to answer for a model that does not fit into memory too.
        try_changes: Whether to simulate changes that may shorten the step (`Answer.remedies`).

    Raises:
        ForetraceError: One of its subclasses says what is wrong: bad input, a deadlock, or a model that does not fit.
    """
    machine = machine if isinstance(machine, Machine) else Machine(machine)
    scenario = Scenario() if scenario is None else scenario
    if isinstance(job, Answer):
        if machine.cluster is None and not scenario:
            return job
        job = job.timeline.graph.program
    if isinstance(job, Program):
        from foretrace.simulation.simulate import simulate_program

        return simulate_program(job, machine, scenario, executor=executor, folded=folded, explain=explain)
    job = open_input([job]) if isinstance(job, str | Path) else job
    if job.answer_file is not None and machine.cluster is None and not scenario:
        from foretrace.readings.answer.answer_file import open_answer

        return open_answer(job.answer_file)
    return simulate_input(
        job,
        machine,
        scenario,
        executor=executor,
        folded=folded,
        explain=explain,
        even_if_oom=even_if_oom,
        try_changes=try_changes,
    )


def memory(job: Input, machine: Machine, scenario: Scenario | None = None) -> tuple[Answer, tuple[Relief, ...] | None]:
    """Simulates a model for its memory, and looks for changes by which it fits where it does not.

    The answer of a model that was saved is taken as it is, and None stands for the changes, which are not looked for.
    """
    from foretrace.simulation.relief import find_relief

    setting = job.setting()
    answer = None
    if setting is not None or job.answer_file is not None:
        answer = simulate(job, machine, scenario, explain=False, even_if_oom=True)
    if answer is None or answer.memory is None:
        problem = f"{job.title} is {job.noun}, and the memory of stages is shown of models"
        hint = "name a model: foretrace list models; foretrace simulate shows the peak of a job that states memory"
        if answer is not None:
            problem = f"{job.title} has the memory of a model only as it was saved, and none of another job"
            hint = "leave out --cluster and what-ifs, or name the model with its plan"
        raise UsageError("nothing-to-do", problem, hint=hint)
    if setting is None:
        return answer, None
    if answer.memory.fits:
        return answer, ()
    with doing("looking for what would fit"):
        return answer, find_relief(setting, machine, scenario)


def plan(
    name: Model | str | Path,
    machine: Machine | Cluster | str | Path,
    request: PlanRequest,
    *,
    framework: str | None = None,
    watch: PlansWatch | None = None,
) -> PlanSearch:
    """Searches for the plan of a model that is predicted to be best on a machine.

    Args:
        name: A `Model`, a preset's name, or the path of a Hugging Face config.json.
        machine: What the model runs on, or a cluster or its name.
        request: What is fixed, which axes are pinned or widened, the objective, and when to stop.
        framework: The framework whose launch script is written; None: that of the stack, where it has one.
        watch: Is offered the plans that were found so far, again and again while the search runs.

    Returns:
        The best plans, what the search has shown about all others, and which to measure first. Where nothing fits,
        `best` is None. An interrupt keeps what is finished: `search.stopped_by` is then `interrupt`.

    Raises:
        InputError: The request contradicts itself, the model or the cluster; or the framework is not known.
    """
    from foretrace.export.launch import launch_problem
    from foretrace.models.load import read_model
    from foretrace.models.model import Model
    from foretrace.search.progress import SearchProgress
    from foretrace.workload.plan import Plan
    from foretrace.workload.settle import settle

    # The search is imported by name: it is large, and only this function needs it.
    search_plans = import_module("foretrace.search.planner.search").search_plans
    machine = machine if isinstance(machine, Machine) else Machine(machine)
    cluster = machine.needed_cluster()
    spec, guesses = (name, ()) if isinstance(name, Model) else read_model(name)
    if framework is not None:
        launch_problem(settle(spec, Plan(gpus=1)), framework)  # refuses an unknown one before the search
    with doing(f"plan {spec.name}") as work:
        result: PlanSearch = search_plans(spec, machine, request, progress=SearchProgress(work, watch=watch))
    result = replace(result, diagnostics=(*guesses, *result.diagnostics))
    if result.best is not None:
        return _with_launch(result, settle(spec, result.best.plan), cluster, framework)
    return result if result.feasible else _with_relief(result, spec, machine)


def _with_relief(result: PlanSearch, spec: Model, machine: Machine) -> PlanSearch:
    """Returns a search in which nothing fits with the change that makes the plan fit which lacks least memory."""
    from foretrace.simulation.relief import find_relief
    from foretrace.workload.settle import settle

    nearest = result.nearest_miss
    if nearest is None or nearest.saved_by:
        return result
    with doing("looking for what would fit"):
        relief = find_relief(settle(spec, nearest.plan), machine)
    if not relief:
        return result
    saved = replace(nearest, saved_by=relief[0].options)
    return replace(result, near_misses=tuple(saved if miss is nearest else miss for miss in result.near_misses))


def _with_launch(result: PlanSearch, setting: Setting, cluster: Cluster, framework: str | None) -> PlanSearch:
    """Returns a search with the launch script of its best plan, or with the reason why there is none."""
    from foretrace.export.launch import WRITERS, launch_text

    try:
        launch = launch_text(setting, cluster, framework)
    except InputError as error:
        note = Diagnostic("note" if framework is None else "warning", error.code, f"no launch script: {error.message}")
        return replace(result, launch={}, launch_options={}, diagnostics=(*result.diagnostics, note))
    layout, _ = WRITERS[launch.framework]
    options = {name: value for name, value in layout.options(setting).items() if value not in (None, False)}
    notes = () if framework is None else launch.diagnostics  # the script itself has them as comments
    return replace(
        result,
        launch={launch.framework: launch.text},
        launch_options=options,
        diagnostics=(*result.diagnostics, *notes),
    )


def compare(
    first: Input, second: Input, machine: Machine, scenario: Scenario, second_machine: Machine | None = None
) -> Comparison:
    """Compares a prediction with a measured step, or two predictions.

    Where the second input holds a measured step, the first is predicted and compared with it; where only the first
    does, they change places. Otherwise both are predicted, and the second is compared with the first. Saved answers are
    taken as they were saved.

    Args:
        first: A job. If it is compared with a measured run and its number of microbatches is left open, it is that of
            the run.
        second: Another job, or the measured run.
        machine: What predictions run on.
        scenario: What is different from normal in predictions.
        second_machine: What the second job runs on, where that is another machine.
    """
    from foretrace.readings.compare import compare as compare_answers

    second_machine = second_machine or machine
    known_second = _known(second)
    if known_second is not None and known_second.timeline.recorded:
        return _compare_with_measured(first, second, known_second, machine, scenario)
    known_first = _known(first)
    if known_first is not None and known_first.timeline.recorded:
        return _compare_with_measured(second, first, known_first, second_machine, scenario)
    return compare_answers(
        known_second or simulate(second, second_machine, scenario, explain="band"),
        known_first or simulate(first, machine, scenario, explain="band"),
    )


def _compare_with_measured(
    predicted: Input, run: Input, measured: Answer, machine: Machine, scenario: Scenario
) -> Comparison:
    from foretrace.readings.compare import compare as compare_answers

    notes = _reads_measured(predicted, run)
    is_open = getattr(predicted.options, "microbatches", 0) is None
    count = run.measured_microbatches if is_open else None
    if count is not None:
        predicted = predicted.with_options(microbatches=count)
        text = f"{count} microbatches predicted, as many as the measured run has (choose with --microbatches)"
        notes.append(Diagnostic("note", "assumed", text))
    comparison = compare_answers(simulate(predicted, machine, scenario, explain="band"), measured)
    return replace(comparison, diagnostics=(*notes, *comparison.diagnostics))


def measured_or_simulated(job: Input, machine: Machine) -> Answer:
    """Returns what was measured, where the input holds it; otherwise the result of a simulation.

    A saved answer is returned as it was saved, whatever the machine is.
    """
    return _known(job) or simulate(job, machine)


def _known(job: Input) -> Answer | None:
    """Returns the answer that was saved, or the step that was measured; None where neither is there."""
    if job.answer_file is None:
        return recorded_answer(job)
    from foretrace.readings.answer.answer_file import open_answer

    return open_answer(job.answer_file)


def _reads_measured(predicted: Input, measured: Input) -> list[Diagnostic]:
    """Returns a warning where the prediction reads what it is compared with."""
    measured_files = {file.path.resolve() for path in map(GivenPath, measured.paths) for file in path.files}
    for path in map(GivenPath, predicted.paths):
        if measured_files & {file.path.resolve() for file in path.files}:
            text = "the prediction reads what was measured: this shows how well it is repeated, not predicted"
            return [Diagnostic("warning", "reads-measured", text, path.text)]
    return []


def explain(
    job: Input, machine: Machine, scenario: Scenario, *, hta_steps: bool = False
) -> Explanation | ProfilerTrace | ExplainedTables:
    """Explains why a step takes as long as it does: the measured one, or a simulated one.

    Args:
        job: The input. Profiler traces and tables are explained as they were recorded.
        machine: What a prediction runs on.
        scenario: What is different from normal in a prediction.
        hta_steps: Whether what profiler traces show is counted over the steps that Holistic Trace Analysis counts.

    Raises:
        UsageError: The job was recorded, and something would change it.
    """
    from foretrace.readings.explain import explain as explain_answer
    from foretrace.simulation.remedies import remedies

    if job.is_profile:
        _refuse_changes(job, machine, scenario, kept=frozenset())
        return _explain_profile(job, hta_steps)
    recorded = recorded_answer(job)
    if recorded is None:
        answer = simulate(job, machine, scenario, explain="band", try_changes=True)
        return replace(explain_answer(answer), remedies=answer.remedies or ())
    # The mesh says what was recorded; any other option would make it another job.
    _refuse_changes(job, machine, scenario, kept=frozenset(("mesh", "traced")))
    again = simulate(job, machine, explain=False)
    explanation = explain_answer(recorded)
    return replace(explanation, replay_step_s=again.step_time_s, remedies=remedies(job, machine))


def _refuse_changes(job: Input, machine: Machine, scenario: Scenario, kept: frozenset[str]) -> None:
    """Raises an error where a recorded job would be changed by anything but the options that are named `kept`."""
    if machine.cluster is not None or scenario or changed_options(job.options) - kept:
        raise UsageError(
            "option-not-for-command",
            f"{job.title} is {job.noun}, which is explained as it was recorded",
            hint="leave out --cluster and what changes the job; what else it could be: foretrace simulate",
        )


def _explain_profile(job: Input, hta_steps: bool) -> ProfilerTrace | ExplainedTables:
    from foretrace.inputs.profiler_table.input import ProfilerTableInput
    from foretrace.inputs.profiler_trace.input import ProfilerTraceInput

    if isinstance(job, ProfilerTableInput):
        from foretrace.readings.profiler_table import ExplainedTables, explain_tables

        return ExplainedTables(explain_tables(job.tables), job.title)
    from foretrace.readings.profiler_views import ProfilerTrace

    assert isinstance(job, ProfilerTraceInput)
    if not job.traces:
        hint = "give the profiler's trace of the same run with it"
        raise InputError("missing-argument", "an execution trace has no times", where=job.title, hint=hint)
    return ProfilerTrace(job.traces, hta_steps=hta_steps)
