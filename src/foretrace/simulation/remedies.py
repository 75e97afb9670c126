"""Tries what could shorten a step: simulates the job again with each change that a person can make.

A change is aimed at a part of the breakdown, such as the bubble. It is tried only where that part is a noticeable share
of the step. Changes that the job does not admit, or that do not fit into memory, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Final

from foretrace.basics.errors import ForetraceError
from foretrace.basics.progress import doing
from foretrace.cost.machine import Machine
from foretrace.hardware.changes import FIGURES
from foretrace.program.program import Program
from foretrace.readings.answer.answer import Answer, Remedy
from foretrace.readings.answer.memory_fit import memory_fit
from foretrace.readings.breakdown import EXPOSED
from foretrace.readings.scenario import Scenario
from foretrace.simulation.balance import balance_stages
from foretrace.simulation.job_memory import process_memory
from foretrace.simulation.simulate import simulate_program

if TYPE_CHECKING:
    from foretrace.inputs.base import Input
    from foretrace.workload.setting import Setting

MAX_OPS: Final = 3_000_000
"""Ops of one rank of every role; a larger job takes longer to run several times than a person waits."""

MAX_NODES: Final = 1_000_000
"""Nodes of all simulations together: about two seconds on one core. A larger job is tried with fewer changes, those
first that are aimed at the largest parts."""

MIN_TRIED: Final = 3
"""Changes that are tried however large the job is."""

MIN_SHARE: Final = 0.01
"""The share of the step from which on a part is worth a change."""

MIN_CHUNK_LAYERS: Final = 2
"""Layers below which a model chunk is not proposed: every chunk adds transfers and launches."""

OVERLAPS: Final = {"tp": "tp exposed", "moe": "ep exposed", "pp": "pp exposed"}
"""The words of `--overlap` that stacks leave off, and what each is aimed at."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change as options of the job and what-ifs of the machine, all as texts.

    `part` is the part of the breakdown that it is aimed at. `microbatches` says how many times as many the step has.
    `instead_of` names fields of the plan that it replaces, and `why` what it remedies or takes for granted. `otherwise`
    is tried where the change does not fit into memory. `always` changes are tried before all others.
    """

    part: str
    options: Mapping[str, str] = field(default_factory=dict)
    what_if: Mapping[str, str] = field(default_factory=dict)
    microbatches: float = 1.0
    instead_of: tuple[str, ...] = ()
    why: str = ""
    otherwise: _Change | None = None
    always: bool = False

    @property
    def option(self) -> str:
        """The change as a command line has it."""
        from foretrace.inputs.option_texts import flag_of

        replaced = " and ".join(flag_of(name) for name in self.instead_of)
        return " ".join(
            [
                *(f"{flag_of(name)} {quote(value)}" for name, value in self.options.items()),
                *(f"--what-if {name}={value}" for name, value in self.what_if.items()),
                *([f"instead of {replaced}"] if replaced else []),
            ]
        )


def remedies(
    job: Input, machine: Machine, scenario: Scenario | None = None, answer: Answer | None = None
) -> tuple[Remedy, ...]:
    """Returns what each change would make of the step, the shortest time of a microbatch first.

    Args:
        job: The job. A recorded run is built again, so that both sides leave out the same.
        machine: The machine that it runs on.
        scenario: Differences from normal, with and without each change.
        answer: The job simulated on the machine; None if that has not been done.
    """
    base = job.schedulable()
    if base is None:
        return ()
    try:
        trial = _Trial(base, machine, scenario or Scenario(), answer)
    except ForetraceError:
        return ()
    if trial.is_too_large:
        return ()
    tried = [remedy for change in trial.changes() if (remedy := trial.remedy(change)) is not None]
    return tuple(sorted(tried, key=lambda remedy: remedy.change))


class _Trial:
    """A job on a machine, simulated once as it is and once with each change."""

    def __init__(self, job: Input, machine: Machine, scenario: Scenario, answer: Answer | None) -> None:
        from foretrace.simulation.simulate_input import host_machine, on_machine

        self._job, self._machine = on_machine(job, host_machine(machine, scenario)), machine
        self._scenario = scenario
        self._setting: Setting | None = job.setting()
        self._refused = _launcher_problems(self._setting)
        self._changed = scenario.machine_for(self._job.program(), machine)
        if answer is None or answer.timeline.graph.program is not self._job.program():
            answer = self._simulated(self._job.program(), {})
        self._before = answer

    @property
    def is_too_large(self) -> bool:
        """Whether the job takes too long to be simulated several times."""
        program = self._before.timeline.graph.program
        of_roles = program.op_count / max(program.world / max(len(program.roles), 1), 1)
        return of_roles > MAX_OPS

    def changes(self) -> list[_Change]:
        """Returns the changes that may help: those aimed at a noticeable part of the step, the largest part first."""
        mean_s, step_s = self._before.breakdown.mean_s, self._before.step_time_s
        if step_s <= 0:
            return []
        asked = self._scenario.what_if.keys()
        every = _of_job(self._job)
        if self._setting is not None:
            every = _of_model(self._setting, self._changed, self._before)
        useful = [
            change
            for change in (*every, *self._of_machine())
            if mean_s.get(change.part, 0.0) >= MIN_SHARE * step_s and not change.what_if.keys() & asked
        ]
        useful.sort(key=lambda change: (not change.always, -mean_s[change.part]))
        useful = list({change.option: change for change in reversed(useful)}.values())[::-1]  # the larger part counts
        useful = [change for change in useful if self._may_be_launched(change)]
        return useful[: max(MIN_TRIED, MAX_NODES // len(self._before.timeline.graph))]

    def remedy(self, change: _Change) -> Remedy | None:
        """Returns what a change makes of the step; None where it cannot be made or does not fit."""
        try:
            with doing(f"trying {change.option}"):
                job = self._changed_job(change)
                program = job.program() if change.options else self._before.timeline.graph.program
                after = self._simulated(program, change.what_if)
        except ForetraceError:
            return None
        if not self._fits(job, after):
            return None if change.otherwise is None else self.remedy(change.otherwise)
        before_s, after_s = self._before.breakdown.mean_s, after.breakdown.mean_s
        part = max(before_s, key=lambda name: before_s[name] - after_s.get(name, 0.0))
        return Remedy(
            change.option,
            self._before.step_time_s,
            after.step_time_s,
            change.microbatches,
            part,
            before_s[part],
            after_s.get(part, 0.0),
            _more_memory(self._before, after),
            change.why,
        )

    def _changed_job(self, change: _Change) -> Input:
        job = self._job.with_options(**dict.fromkeys(change.instead_of)) if change.instead_of else self._job
        return job.read_options(change.options)

    def _may_be_launched(self, change: _Change) -> bool:
        """Returns whether the launcher refuses nothing in the changed job that it does not refuse in the job itself."""
        try:
            return not change.options or _launcher_problems(self._changed_job(change).setting()) <= self._refused
        except ForetraceError:
            return False

    def _fits(self, job: Input, after: Answer) -> bool:
        """Returns whether a changed job fits into memory; True where it is not a model, which states none."""
        setting = job.setting()
        if setting is None:
            return True
        return memory_fit(after, process_memory(setting, self._changed)).fits

    def _simulated(self, program: Program, what_if: Mapping[str, str]) -> Answer:
        machine = self._machine.changed(what_if) if what_if else self._machine
        return simulate_program(program, machine, self._scenario, explain=False)

    def _of_machine(self) -> Iterator[_Change]:
        """Yields what-ifs of the machine: more of what limits exposed communication, more power."""
        cluster = self._before.cluster
        if cluster is None:
            return
        network = self._before.network
        for limit in () if network is None else network.limits:
            if limit.kind in FIGURES:
                yield _Change(f"{limit.axis}{EXPOSED}", what_if={limit.kind: "2x"})
        if cluster.gpu.power_w and self._setting is not None:  # others carry the times of their computation
            yield _Change("compute", what_if={"power": "1.2x"})


def _of_job(job: Input) -> Iterator[_Change]:
    """Yields changes of a job that is not a model: workload files, rank traces."""
    program = job.program()
    count = int(program.instances.microbatch.max(initial=0)) + 1
    if program.mesh.ep > 1 and job.has_option("routing") and job.options is not None and job.options.routing is None:
        yield _Change("compute", {"routing": "1x"})
    if program.mesh.pp > 1:
        yield _Change("bubble", {"schedule": "zb-h1"})
        yield _Change("bubble", {"schedule": "interleaved-1f1b"})
        if job.has_option("microbatches"):
            yield _Change("bubble", {"microbatches": str(2 * count)}, microbatches=2.0)


def _of_model(setting: Setting, machine: Machine, before: Answer) -> Iterator[_Change]:
    """Yields changes of a model's plan."""
    plan = setting.plan
    if plan.pp > 1:
        yield from _other_layout(setting, before)
        yield from _pipelines(setting)
    words = {word for word in OVERLAPS if getattr(plan, f"{word}_overlap")}
    for word, part in OVERLAPS.items():
        if word not in words:
            why = "all-to-alls taken to be as fast as alone" if word == "moe" else ""
            yield _Change(part, {"overlap": ",".join(sorted({*words, word}))}, why=why)
    if not (setting.grad_overlap and setting.param_overlap):
        yield _Change("dp exposed", {"overlap": ",".join(sorted({*words, "grad", "param"}))})
    if plan.recompute == "full":
        yield _Change("recompute", {"recompute": "selective"})
    if plan.recompute != "none":
        modules = {"recompute_modules": "none"} if plan.recompute_modules else {}
        yield _Change("recompute", {"recompute": "none", **modules})
    for module in plan.recompute_modules or ():
        if rest := [other for other in plan.recompute_modules or () if other != module]:
            yield _Change("recompute", {"recompute_modules": ",".join(rest)})
    if plan.dispatcher == "alltoall":
        yield _Change("ep exposed", {"dispatcher": "hybridep" if plan.ep > 8 else "deepep"})
    if setting.routing_of() > 1:
        why = f"the busiest expert rank receives {setting.routing_of():.3g} times the mean"
        yield _Change("compute", {"routing": "1x"}, why=why, always=True)
    if plan.cuda_graphs == "none":
        graphs = "partial" if setting.model.has_experts and not setting.stack.fuses_experts else "full"
        yield _Change("host", {"cuda_graphs": graphs}, always=True)
    if plan.precision in ("bf16", "fp16"):
        yield from _narrower(machine)


def _pipelines(setting: Setting) -> Iterator[_Change]:
    """Yields other schedules and more chunks."""
    plan, layers = setting.plan, len(setting.model.layers)
    chunks = [
        vpp
        for vpp in range(plan.vpp + 1, layers // plan.pp + 1)
        if layers % (plan.pp * vpp) == 0 and layers // (plan.pp * vpp) >= MIN_CHUNK_LAYERS
    ]
    for vpp in dict.fromkeys((*chunks[:1], *chunks[-1:])):
        yield _Change("bubble", {"vpp": str(vpp)})
    yield _Change("bubble", {"schedule": "zb-h1"})


def _other_layout(setting: Setting, before: Answer) -> Iterator[_Change]:
    """Yields the division of the layers by which stages take more nearly equally long, if there is one.

    Where it does not fit, another one adds no layer to the stage that holds most.
    """
    peak, mesh = before.peak_memory, setting.mesh
    stages = [None] if peak is None else [int(mesh.coordinate("pp")[peak.rank]), None]
    others = ("stage_layers", "account_for", "first_stage_layers", "last_stage_layers")
    given = tuple(name for name in others if getattr(setting.plan, name) not in (None, ()))
    change: _Change | None = None
    for full in stages:
        balance = balance_stages(setting, before.timeline, full)
        if balance is not None:
            why = f"stage {balance.slowest} is the slowest"
            options = {"layout": str(balance.layout)}
            other = None if change is None or change.options == options else change
            change = _Change("bubble", options, instead_of=given, why=why, otherwise=other)
    if change is not None:
        yield change


def _narrower(machine: Machine) -> Iterator[_Change]:
    """Yields the precision in 8 bits that the GPU's own recipes use."""
    gpu = machine.needed_cluster().gpu
    if "fp8" in gpu.peak_flops:
        yield _Change("compute", {"precision": "mxfp8" if gpu.architecture.startswith("Blackwell") else "fp8"})


def _launcher_problems(setting: Setting | None) -> frozenset[str]:
    """Returns what the launcher of a model's software refuses in its plan; of other jobs nothing is known."""
    if setting is None:
        return frozenset()
    from foretrace.workload.rules.launchers import launcher_problems
    from foretrace.workload.rules.sizes import PlanSizes

    return launcher_problems(PlanSizes.of(setting.model, setting.plan))


def _more_memory(before: Answer, after: Answer) -> int | None:
    if before.peak_memory is None or after.peak_memory is None:
        return None
    return after.peak_memory.bytes - before.peak_memory.bytes
