"""From an input to an answer: its program is run on a machine, and what only some inputs know is added."""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import TYPE_CHECKING, Final

import numpy as np

from foretrace.basics.errors import Diagnostic, ForetraceError, InputError, UsageError
from foretrace.basics.progress import doing
from foretrace.basics.units import format_bytes
from foretrace.cost.machine import Machine
from foretrace.program.columns import Kind
from foretrace.program.program import Program
from foretrace.readings.answer.answer import Answer
from foretrace.readings.lanes import host_notes, stage_notes
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate import Executor, Explain, simulate_program

if TYPE_CHECKING:
    from foretrace.inputs.base import Input, Unprofiled
    from foretrace.workload.setting import Setting
    from foretrace.workload.stack import HostPace

MAX_REPLAY_RATIO: Final = 3.0
"""How many times the recorded step its replay may take, or the reverse, before neither can be trusted."""

REPLAY_SPREAD: Final = 0.02
"""How far a replay may be from the recorded step, as a share, before it is reported."""


def simulate_input(
    job: Input,
    machine: Machine,
    scenario: Scenario,
    *,
    executor: Executor = "auto",
    folded: bool = True,
    explain: Explain = True,
    even_if_oom: bool = False,
    try_changes: bool = False,
) -> Answer:
    """Simulates an input on a machine under a scenario.

    Args:
        job: What to run.
        machine: What it runs on. With a cluster, recorded communication is priced again.
        scenario: What is different from normal.
        executor: See `simulate_program`.
        folded: See `simulate_program`.
        explain: Whether to find the band and what each family of ops would gain, which takes further runs.
        even_if_oom: Whether to answer for a model that does not fit into memory too.
        try_changes: Whether to simulate changes that may shorten the step (`Answer.remedies`).

    Raises:
        InfeasibleError: The model does not fit into memory; the error names changes by which it would.
    """
    question = _Question(job, machine, scenario, executor, folded)
    answer = question.answer(explain, even_if_oom)
    if not try_changes:
        return answer
    from foretrace.simulation.remedies import remedies  # which simulates too

    return replace(answer, remedies=remedies(question.job, machine, question.scenario, answer))


def host_machine(machine: Machine, scenario: Scenario) -> Machine:
    """Returns the machine whose hosts launch kernels: the one that a what-if names, where it names a cluster."""
    cluster = scenario.what_if.get("cluster")
    return machine if cluster is None else machine.changed({"cluster": cluster})


def on_machine(job: Input, machine: Machine) -> Input:
    """Returns a job as a machine runs it: with a cluster, communication is priced and a calibration sets the host."""
    if machine.cluster is None:
        return job
    job, pace = job.priced().on_nodes(machine.cluster.node.gpus), _pace(machine)
    return job if pace is None else job.on_host(pace)


def on_host(setting: Setting, machine: Machine) -> Setting:
    """Returns a setting with the pace of a machine's host, as `on_machine` gives it to a job."""
    pace = _pace(machine)
    return setting if pace is None else setting.on_host(pace)


def _pace(machine: Machine) -> HostPace | None:
    """Returns how fast a machine's host launches kernels; None: as usual."""
    from foretrace.workload.stack import HostPace  # most jobs are not models, and start faster

    calibration = machine.calibration
    if calibration is None or calibration.host is None:
        if machine.cluster is None:
            return None
        node = machine.cluster.node
        if node.launch_factor == 1 and node.torch_launch_factor in (None, 1):
            return None
        return HostPace(node.launch_factor, f"host launches of {node.name}", node.torch_launch_factor)
    from foretrace.workload.stacks import TORCH_COMPILE, TORCH_EAGER

    usual_s = (TORCH_EAGER if calibration.host.style == "eager" else TORCH_COMPILE).launch_s
    source = f"host launches, calibration {calibration.name}"
    return HostPace(calibration.host.launch_s / usual_s, source)


class _Question:
    """An input on a machine, and how it is run."""

    def __init__(
        self, job: Input, machine: Machine, scenario: Scenario, executor: Executor = "auto", folded: bool = True
    ) -> None:
        job, scenario = _with_gpu(job, scenario)
        moved = host_machine(machine, scenario)
        self.job = on_machine(job, moved)
        self._before = on_machine(job, machine) if _pace(moved) != _pace(machine) else None
        """The job on the machine as it is, where a what-if names another host."""
        self.machine = machine
        self.scenario = scenario
        self._changed = machine
        self._executor: Executor = executor
        self._folded = folded

    def answer(self, explain: Explain, even_if_oom: bool) -> Answer:
        """Runs the job and adds what only its kind of input knows."""
        if self.job.is_untimed and self.machine.cluster is None:
            raise self._needs_cluster()
        with doing(f"reading {self.job.title}"):
            program = self._rebuilt(self.job.program())
        self._changed = self.scenario.machine_for(program, self.machine)
        self._check_machine()
        if self._changed.cluster is not None:
            self._changed.cluster.check_fits(program.world, self.job.size_place)
        answer = self._run(program, self.scenario, explain)
        answer = replace(answer, diagnostics=(*self.job.diagnostics, *answer.diagnostics))
        if self._before is not None:
            answer = replace(answer, unchanged_step_time_s=self._step_s(self._before.program()))
        answer = self._with_model(answer, even_if_oom, explain)
        answer = self._with_memory_warning(answer)
        answer = self._with_unprofiled(answer, program, explain)
        return self._with_baseline(answer)

    def _run(self, program: Program, scenario: Scenario, explain: Explain) -> Answer:
        what = f"simulating {program.op_count:,} ops on {program.world:,} ranks"
        try:
            with doing(what):
                return simulate_program(
                    program, self.machine, scenario, executor=self._executor, folded=self._folded, explain=explain
                )
        except ForetraceError as error:
            if error.code != "unpriced-op" or self.machine.cluster is not None:
                raise self.job.located(error) from None
            raise self._needs_cluster() from None

    def _needs_cluster(self) -> UsageError:
        problem = f"{self.job.title} says what is sent and computed, not how long that takes; no cluster is named"
        hint = "for example --cluster h100-dgx; see foretrace list clusters"
        return UsageError("needs-cluster", problem, hint=hint)

    def _step_s(self, program: Program) -> float:
        """Returns the step of a program without the scenario."""
        return self._run(program, Scenario(), explain=False).step_time_s

    def _rebuilt(self, program: Program) -> Program:
        """Rescales computation to another batch or GPU, where options say so."""
        rebuild = self.job.rebuild
        if rebuild is None:
            return program
        from foretrace.simulation.rebatch import rebuilt  # most jobs do without, and start faster

        return rebuilt(program, batch=rebuild.batch, gpu=rebuild.gpu)

    def _check_machine(self) -> None:
        """Raises an error where a model has no cluster, or one with too few GPUs or whose GPUs lack its precision."""
        setting = self.job.setting()
        if setting is None:
            return
        from foretrace.readings.answer.model_figures import peak_flops  # most jobs are not models, and start faster

        cluster = self._changed.needed_cluster()
        cluster.check_fits(setting.plan.gpus)
        peak_flops(cluster.gpu, setting.plan.precision)

    def _with_model(self, answer: Answer, even_if_oom: bool, explain: Explain) -> Answer:
        """Adds the figures of a model, and refuses one that does not fit into memory."""
        setting = self.job.setting()
        if setting is None:
            return answer
        from foretrace.readings.answer.memory_fit import memory_fit  # most jobs are not models, and start faster
        from foretrace.readings.answer.model_figures import model_figures
        from foretrace.simulation.job_memory import process_memory

        cluster = self._changed.needed_cluster()
        memory = memory_fit(answer, process_memory(setting, self._changed))
        figures = model_figures(setting, cluster, answer.timeline, memory)
        answer = replace(
            answer,
            model=figures,
            tokens_per_s_per_gpu=figures.tokens_per_step / answer.step_time_s / figures.gpus,
            diagnostics=(
                *answer.diagnostics,
                *self._calibration_notes(setting),
                *_launcher_notes(setting),
                *host_notes(answer.timeline),
                *stage_notes(answer.timeline),
            ),
        )
        if figures.mfu(answer.step_time_s) > 1:
            text = "the model is computed faster than the GPU's peak: what-ifs have made kernels faster than it"
            answer = replace(answer, diagnostics=(*answer.diagnostics, Diagnostic("warning", "beats-peak", text)))
        if not memory.fits and not even_if_oom:
            from foretrace.simulation.relief import find_relief, misfit

            raise misfit(answer, find_relief(setting, self.machine, self.scenario))
        if memory.warning is not None:
            answer = replace(answer, diagnostics=(*answer.diagnostics, memory.warning))
        from foretrace.simulation.model_error import tried_parts, with_model_error

        if not explain or answer.step_time_band_s is None:
            return with_model_error(answer, setting, self._changed)
        # Links that communications divide would take far longer to simulate.
        machine = self.machine.with_(network="analytic")

        def step_with(**options: object) -> float:
            job = self.job.with_options(**options) if options else self.job
            return simulate_program(job.program(), machine, self.scenario, explain=False).step_time_s

        step_s = answer.step_time_s if self.machine.network == "analytic" else step_with()
        return with_model_error(answer, setting, self._changed, tried_parts(setting, step_s, step_with))

    def _with_memory_warning(self, answer: Answer) -> Answer:
        """Adds a warning where a program that is not a model's holds more than a GPU has."""
        peak, cluster = answer.peak_memory, self._changed.cluster
        if peak is None or cluster is None or answer.model is not None or peak.bytes <= cluster.gpu.memory_bytes:
            return answer
        text = (
            f"rank {peak.rank} holds {format_bytes(peak.bytes)} at its peak, and a GPU has "
            f"{format_bytes(cluster.gpu.memory_bytes)}: the step is that of GPUs with more memory"
        )
        note = Diagnostic("warning", "out-of-memory", text, f'role "{peak.role}"')
        return replace(answer, diagnostics=(*answer.diagnostics, note))

    def _calibration_notes(self, setting: Setting) -> tuple[Diagnostic, ...]:
        """Returns a note where a calibration was made of kernels that the plan's stack does not run."""
        calibration = self.machine.calibration
        if calibration is None or not calibration.is_of_eager_kernels or setting.stack.pointwise == "eager":
            return ()
        text = (
            f"calibration {calibration.name} holds kernels of eager PyTorch, and {setting.stack.name} runs others next "
            "to its products: these keep their usual prices (--stack torch-eager, if that is what you run)"
        )
        return (Diagnostic("note", "calibration-of-other-stack", text),)

    def _with_unprofiled(self, answer: Answer, program: Program, explain: Explain) -> Answer:
        """Adds what the step takes without the profiler."""
        unprofiled = self.job.unprofiled()
        if unprofiled is None:
            return answer
        without, without_program = answer, program
        if unprofiled.program is not None:
            has_band = any(source.low != source.high for source in answer.provenance)
            without_program = self._rebuilt(unprofiled.program)
            without = self._run(without_program, self.scenario, bool(explain) and has_band)
        band = self._unprofiled_band(unprofiled, without, without_program) if explain else None
        return replace(
            answer,
            step_time_unprofiled_s=without.step_time_s,
            step_time_unprofiled_band_s=band,
            unchanged_step_time_unprofiled_s=without.unchanged_step_time_s,
            step_time_band_s=answer.step_time_band_s if unprofiled.program is not None else band,
            diagnostics=(*self._recording_notes(program), *self._replay_note(answer), *answer.diagnostics),
        )

    def _unprofiled_band(self, unprofiled: Unprofiled, without: Answer, program: Program) -> tuple[float, float] | None:
        """Returns the band of a step without the profiler: its host at either end of its own band, and by how much the
        device may be off and prices are."""
        step_s = without.step_time_s
        if step_s <= 0:
            return None
        low, high = without.step_time_band_s or (step_s, step_s)
        fast = slow = step_s
        if unprofiled.host_spread is not None:
            spread = unprofiled.host_spread
            fast, slow = (
                self._run(_paced(program, times), self.scenario, False).step_time_s
                for times in (1 - spread, 1 + spread)
            )
        below = hypot(1 - fast / step_s, unprofiled.device_spread, 1 - low / step_s)
        above = hypot(slow / step_s - 1, unprofiled.device_spread, high / step_s - 1)
        return step_s * max(1 - below, 0.0), step_s * (1 + above)

    def _with_baseline(self, answer: Answer) -> Answer:
        """Adds what the job takes without the options that change it."""
        baseline = self.job.baseline()
        if baseline is None:
            return answer
        before_s = self._step_s(baseline.job.program())
        answer = replace(answer, changes=baseline.changes, unchanged_step_time_s=before_s)
        unprofiled = baseline.job.unprofiled()
        if unprofiled is None:
            return answer
        as_is = before_s if unprofiled.program is None else self._step_s(unprofiled.program)
        return replace(answer, unchanged_step_time_unprofiled_s=as_is)

    def _recording_notes(self, program: Program) -> tuple[Diagnostic, ...]:
        """Returns what a reader of a recording on a cluster should know: its GPU, and what few ranks do not tell."""
        cluster = self.machine.cluster
        recorded, rebuild = self.job.recorded_gpu, self.job.rebuild
        notes = [] if rebuild is not None else self._recorded_rates(program, recorded)
        if cluster is None:
            return tuple(notes)
        asked = None if rebuild is None else rebuild.gpu
        runs_on = _preset_name(asked or recorded)
        if runs_on != cluster.gpu.name and (asked or recorded):
            how = f"as if on {asked} (--what-if gpu={cluster.gpu.name}" if asked else f"as recorded on {recorded}"
            if not asked:
                how += f" (--what-if gpu={cluster.gpu.name}" if runs_on else " (a GPU that is not known here"
            text = f"{cluster.name} has {cluster.gpu.title}: computation stays {how})"
            notes.append(Diagnostic("warning", "compute-of-other-gpu", text))
        traced = self.job.traced_ranks
        if traced is not None and program.world > traced:
            text = (
                f"left out, since a trace does not tell it: the slowest of {program.world:,} GPUs, which the others "
                "wait for, and what kernels lose to collectives next to them; foretrace predict counts both"
            )
            notes.append(Diagnostic("note", "slowest-not-modelled", text))
        return tuple(notes)

    def _recorded_rates(self, program: Program, recorded: str | None) -> list[Diagnostic]:
        """Returns a warning on products that the GPU of a recording, where it is known, cannot have run."""
        name = _preset_name(recorded)
        if name is None:
            return []
        from foretrace.cost.kernels.plausible import recorded_rates
        from foretrace.hardware.presets import gpu

        return recorded_rates(gpu(name), program, self.job.title)

    def _replay_note(self, answer: Answer) -> tuple[Diagnostic, ...]:
        """Returns a warning where the replay of a step, with nothing changed, does not take what was recorded."""
        recorded_s, step_s = self.job.recorded_step_s, answer.step_time_s
        if recorded_s is None or recorded_s <= 0 or self.scenario or self.machine.cluster is not None:
            return ()
        off = step_s / recorded_s - 1
        if abs(off) <= REPLAY_SPREAD:
            return ()
        if not 1 / MAX_REPLAY_RATIO < step_s / recorded_s < MAX_REPLAY_RATIO:
            raise InputError(
                "replay-differs",
                f"the replay takes {step_s * 1e3:.4g} ms, the recorded step {recorded_s * 1e3:.4g} ms: times of the "
                "recording contradict each other",
                where=self.job.title,
                hint="foretrace explain shows what is odd in it; --steps chooses other steps",
            )
        text = (
            f"the replay takes {step_s * 1e3:.4g} ms, the recorded step {recorded_s * 1e3:.4g} ms ({off:+.1%}): what "
            "waits for what is not understood here, or steps vary; what-ifs may be off by as much"
        )
        return (Diagnostic("warning", "replay-differs", text),)


def _launcher_notes(setting: Setting) -> tuple[Diagnostic, ...]:
    """Returns a note where the launcher of the plan's software does not start the plan."""
    from foretrace.workload.rules.launchers import beyond_launcher
    from foretrace.workload.rules.sizes import PlanSizes

    beyond = beyond_launcher(PlanSizes.of(setting.model, setting.plan))
    return () if beyond is None else (Diagnostic("note", "beyond-launcher", f"a hypothetical plan: {beyond}"),)


def _with_gpu(job: Input, scenario: Scenario) -> tuple[Input, Scenario]:
    """Moves the what-if of another GPU to the job where computation was recorded and has to be rescaled."""
    gpu = scenario.what_if.get("gpu")
    if gpu is None or not hasattr(job.options, "gpu"):
        return job, scenario
    rest = {what: change for what, change in scenario.what_if.items() if what != "gpu"}
    return job.with_options(gpu=gpu), replace(scenario, what_if=rest)


def _preset_name(gpu: str | None) -> str | None:
    """Returns the preset that a GPU's name means; None where there is none."""
    from foretrace.hardware.presets import gpu as preset

    try:
        return preset(gpu).name if gpu else None
    except InputError:
        return None


def _paced(program: Program, times: float) -> Program:
    """Returns a recorded program whose host takes `times` its time."""
    templates = program.templates
    columns = dict(templates.columns)
    threads = np.array([lane.kind == "host" for lane in program.lanes])
    of_host = (columns["kind"] == Kind.HOST) & threads[columns["lane"].astype(np.int64)]
    duration_s = columns["duration_s"].astype(np.float64)
    columns["duration_s"] = np.where(of_host, duration_s * times, duration_s)
    return replace(program, templates=replace(templates, columns=columns))
