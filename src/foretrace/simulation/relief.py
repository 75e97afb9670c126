"""Finds changes of a plan by which a job fits into memory, and how long a step takes with each.

Changes come in families, such as more recomputation or more GPUs. The mildest of a family that fits is taken. Whether a
plan fits is found from its schedule alone, so that many can be tried. Those that fit are then simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.errors import ForetraceError, InfeasibleError
from foretrace.basics.progress import doing
from foretrace.basics.units import format_bytes, format_time
from foretrace.cost.machine import Machine
from foretrace.readings.answer.memory_fit import MemoryFit, memory_fit
from foretrace.readings.scenario import Scenario
from foretrace.simulation.job_memory import process_memory, static_memory
from foretrace.simulation.simulate import simulate_program
from foretrace.step import build_step
from foretrace.workload.layers import dropped_share
from foretrace.workload.nearest_plans import option_words
from foretrace.workload.rules.launchers import launcher_problems
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.settle import MIN_DROPPED, settle
from foretrace.workload.step_spec import step_spec

if TYPE_CHECKING:
    from foretrace.readings.answer.answer import Answer
    from foretrace.workload.plan import Plan, RecomputeModule
    from foretrace.workload.setting import Setting

MAX_SIMULATED: Final = 12
"""Changes that are simulated at most."""

MAX_NODES: Final = 2_500_000
"""Nodes after which no further change is simulated: some four seconds on one core. Large jobs are tried with fewer
changes, those first that take few microbatches."""

MAX_NAMED: Final = 3
"""Changes that an error names; `memory` and JSON have all."""

FACTORS: Final = (2, 4, 8, 16)
"""By how much an axis or the number of GPUs may grow, and a microbatch may shrink."""

USUAL_TP: Final = 8
"""Tensor parallelism of plans for models that need several axes: the GPUs of a usual node, as in Llama 3's report."""

MODULE_SETS: Final = (
    ("layernorm", "moe_act"),
    ("mla_up_proj",),
    ("layernorm", "moe_act", "mla_up_proj"),
    ("mlp",),
    ("layernorm", "moe_act", "mla_up_proj", "mlp", "shared_experts"),
    ("layernorm", "mla_up_proj", "mlp", "moe"),
)
"""Parts of a layer to recompute, those first that take little time for what they save."""

Changes = Mapping[str, Any]
"""Fields of a plan with their new values."""

ALL_LAYERS: Final[Changes] = {"recompute": "full", "recompute_layers": None, "recompute_modules": None}
"""Recomputes all layers."""


@dataclass(frozen=True, slots=True)
class Relief:
    """A change of the plan by which a job fits: its options, and what it makes of memory and step."""

    options: str
    plan: Plan
    memory: MemoryFit
    step_time_s: float


def find_relief(setting: Setting, machine: Machine, scenario: Scenario | None = None) -> tuple[Relief, ...]:
    """Returns changes that make a job fit, those with the fewest GPUs first, then the shortest step.

    Args:
        setting: The job.
        machine: What it runs on.
        scenario: What is different from normal, with and without each change.
    """
    search = _Search(setting, machine, scenario or Scenario())
    plans = sorted(search.fitting(), key=lambda plan: (plan.gpus, search.microbatches(plan)))
    tried: list[Relief] = []
    for plan in plans[:MAX_SIMULATED]:
        if search.nodes > MAX_NODES:
            break
        with doing(f"simulating what would fit: {search.options(plan)}"):
            relief = search.simulated(plan)
        if relief is not None:
            tried.append(relief)
    return tuple(sorted(tried, key=lambda relief: (relief.plan.gpus, relief.step_time_s)))


def misfit(answer: Answer, relief: Sequence[Relief] | None) -> InfeasibleError:
    """Returns the error of a job that does not fit, with the changes by which it would; None: none were looked for."""
    hint = "foretrace memory of the model with its plan names changes by which it would fit"
    if relief:
        named = "; ".join(f"{each.options} ({format_time(each.step_time_s)} a step)" for each in relief[:MAX_NAMED])
        order = "fastest first" if len({each.plan.gpus for each in relief[:MAX_NAMED]}) == 1 else "fewest GPUs first"
        hint = f"would fit, {order}: {named}; or predict --even-if-oom"
    elif relief is not None:
        hint = (
            "no change that was tried of recomputation, ZeRO, axes, microbatches, offloading or GPUs makes it fit; "
            "predict --even-if-oom for the time"
        )
    memory, cluster = answer.memory, answer.cluster
    assert answer.model is not None and memory is not None and memory.worst is not None
    worst = memory.worst
    kinds = ", ".join(f"{name} {format_bytes(size)}" for name, size in worst.by_category.items())
    message = (
        f"{answer.model.name} needs at least {format_bytes(memory.needed_band_bytes[0])} a GPU, and "
        f"{cluster.gpu.title if cluster is not None else 'a GPU'} has {format_bytes(memory.capacity_bytes)}: "
        f"{format_bytes(worst.peak_bytes)} allocated on {worst.role} ({kinds}), and "
        f"{format_bytes(memory.outside_bytes)} outside the allocator"
    )
    return InfeasibleError("out-of-memory", message, hint=hint)


class _Search:
    """Tries changes of one plan on one machine; `nodes` is how many were simulated."""

    def __init__(self, setting: Setting, machine: Machine, scenario: Scenario) -> None:
        self._setting = setting
        self._plan = replace(setting.plan, gbs=setting.gbs, seq_len=setting.seq_len)
        self._scenario = scenario
        # Links that communications divide would take far longer to simulate.
        self._machine = machine.with_(network="analytic")
        self._changed = self._machine
        if scenario.what_if:
            self._changed = scenario.machine_for(build_step(step_spec(setting)), self._machine)
        self._domain_gpus = self._changed.needed_cluster().node.domain_gpus
        self._is_enough = _surely_fits
        self._beyond = launcher_problems(PlanSizes.of(setting.model, self._plan))
        self.nodes = 0

    def fitting(self) -> list[Plan]:
        """Returns the mildest plan of each family that fits; if none does, those that fit unless memory fragments."""
        plans = self._mildest_plans()
        if not plans:
            self._is_enough = _may_fit
            plans = self._mildest_plans()
        return plans

    def microbatches(self, plan: Plan) -> int:
        """Returns the microbatches of a step, to which the time of its simulation is about proportional."""
        return self._settled(plan).microbatches

    def options(self, plan: Plan) -> str:
        """Returns the options that make a plan of the one given, the global batch among them if it would change."""
        words = option_words(self._plan, plan)
        if self._setting.plan.gbs is None and self._settled(replace(plan, gbs=None)).gbs != plan.gbs:
            words += f" --gbs {plan.gbs}"
        return words

    def simulated(self, plan: Plan) -> Relief | None:
        """Returns what a plan makes of the step; None where it cannot be run or does not fit after all."""
        from foretrace.simulation.simulate_input import host_machine, on_host  # which imports this module

        try:
            setting = on_host(self._settled(plan), host_machine(self._machine, self._scenario))
            machine = self._for(plan, self._machine)
            answer = simulate_program(build_step(step_spec(setting)), machine, self._scenario, explain=False)
        except ForetraceError:
            return None
        self.nodes += len(answer.timeline.graph)
        memory = memory_fit(answer, process_memory(setting, self._for(plan, self._changed)))
        if not memory.fits:
            return None
        return Relief(self.options(plan), plan, memory, answer.step_time_s)

    def _mildest_plans(self) -> list[Plan]:
        """Returns plans of as many GPUs, with several changes if no single one will do, and then those of more GPUs."""
        plans = self._of_families(self._same_size({}))
        if not plans:
            plans = self._of_families([*self._deeper({}), *self._same_size(ALL_LAYERS), *self._deeper(ALL_LAYERS)])
        if not plans:
            plans = self._of_families(self._same_size({**ALL_LAYERS, "zero": 3}))
        larger = self._of_families(self._larger({}))
        return plans + larger or self._of_families(self._larger(ALL_LAYERS))

    def _of_families(self, families: Iterable[Sequence[Changes]]) -> list[Plan]:
        plans = map(self._mildest, families)
        return list(dict.fromkeys(plan for plan in plans if plan is not None and plan != self._plan))

    def _same_size(self, base: Changes) -> Iterator[Sequence[Changes]]:
        """Yields families of plans with as many GPUs, each with the changes of `base` too."""
        yield from self._modules(base)
        for family in self._listed():
            yield [{**base, **changes} for changes in family]
        yield from self._counted(base)

    def _mildest(self, changes: Sequence[Changes]) -> Plan | None:
        return next((plan for each in changes if self._fits(plan := replace(self._plan, **each))), None)

    def _fits(self, plan: Plan) -> bool:
        try:
            if launcher_problems(PlanSizes.of(self._setting.model, plan)) - self._beyond:
                return False
            return self._is_enough(static_memory(self._settled(plan), self._for(plan, self._changed)))
        except ForetraceError:
            return False

    def _for(self, plan: Plan, machine: Machine) -> Machine:
        """Returns a machine as a plan uses it: a placement is of the GPUs that the job has now."""
        if machine.placement is None or plan.gpus == self._plan.gpus:
            return machine
        return machine.with_(placement=None)

    def _settled(self, plan: Plan) -> Setting:
        given = self._setting
        same = plan.stack == given.plan.stack and (plan.zero == 3) == (given.plan.zero == 3)
        return settle(given.model, plan, given.stack if same and given.plan.stack is None else None)

    def _listed(self) -> Iterator[list[Changes]]:
        """Yields families whose members are few."""
        plan = self._plan
        yield [{"zero": zero} for zero in range(self._setting.zero + 1, 4)]
        smaller = [plan.mbs // factor for factor in FACTORS if plan.mbs % factor == 0 and plan.mbs > factor]
        yield [{"mbs": mbs} for mbs in ([*smaller, 1] if plan.mbs > 1 else [])]
        yield [{"tp": plan.tp * factor} for factor in FACTORS if plan.tp * factor <= self._domain_gpus]
        yield [{"cp": plan.cp * factor} for factor in FACTORS]
        yield [{"pp": plan.pp * factor} for factor in FACTORS]
        if self._setting.model.has_experts:
            yield [{"ep": plan.ep << times} for times in range(1, (plan.gpus // plan.ep).bit_length())]
        if not plan.offload_optimizer:
            yield [{"offload_optimizer": True}]
        yield from ([changes] for changes in self._causes())

    def _causes(self) -> Iterator[Changes]:
        """Yields what undoes a choice of the plan that takes memory."""
        plan, stack = self._plan, self._setting.stack
        if plan.tp > 1 and not self._setting.sequence_parallel:
            yield {"sequence_parallel": True}
        if plan.layout is not None or plan.stage_layers is not None:
            yield {"layout": None, "stage_layers": None}
        if self._setting.schedule == "dualpipe":  # which holds every part of the model twice
            yield {"schedule": "dualpipe-v"}
        if plan.ep > 1 and plan.dispatcher == "alltoall":
            yield {"dispatcher": "hybridep" if plan.ep > 8 else "deepep"}
        if stack.precision_aware_optimizer and stack.gradient_dtype == "fp32":
            yield {"grad_dtype": "bf16"}
            yield {"grad_dtype": "bf16", "moment_dtype": "bf16"}

    def _deeper(self, base: Changes) -> Iterator[list[Changes]]:
        """Yields the family with the usual tensor parallelism of large models and more stages."""
        if self._plan.tp < USUAL_TP <= self._domain_gpus:
            yield [{**base, "tp": USUAL_TP, "pp": self._plan.pp * factor} for factor in FACTORS]

    def _larger(self, base: Changes) -> Iterator[list[Changes]]:
        """Yields families with more GPUs: more data parallelism, or more stages."""
        plan = self._plan
        yield [{**base, "gpus": plan.gpus * factor} for factor in FACTORS]
        yield [{**base, "gpus": plan.gpus * factor, "pp": plan.pp * factor} for factor in FACTORS]

    def _counted(self, base: Changes) -> Iterator[list[Changes]]:
        """Yields families of one plan: as few layers as are needed recomputed, or offloaded."""
        layers = self._setting.stage_layers
        recomputes_all = self._plan.recompute == "full" and self._plan.recompute_layers is None
        if "recompute" not in base and not recomputes_all:
            yield from self._fewest(lambda count: {**base, **ALL_LAYERS, "recompute_layers": count}, layers)
        if not self._plan.offload_modules:
            already = self._plan.offload_layers
            yield from self._fewest(lambda count: {**base, "offload_layers": already + count}, layers - already)

    def _fewest(self, changes: Callable[[int], Changes], most: int) -> Iterator[list[Changes]]:
        """Yields the change with the smallest count that fits: more never need more memory."""
        low, high = 0, most
        if most <= 0 or not self._fits(replace(self._plan, **changes(most))):
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(replace(self._plan, **changes(middle))) else (middle, high)
        yield [changes(high)]

    def _modules(self, base: Changes) -> Iterator[list[Changes]]:
        """Yields the mildest set of parts of a layer that fits beyond the plan's own, and the stack's own choice."""
        plan, stack = self._plan, self._setting.stack
        if plan.recompute == "full" or "recompute" in base:
            return
        if stack.selective != "core":
            yield [{**base, "recompute": "selective"}] if plan.recompute == "none" else []
            return
        own = plan.recompute_modules or ()
        useful = [
            module for module in stack.recompute_modules if dropped_share(self._with(module), module) > MIN_DROPPED
        ]
        sets = (tuple(module for module in each if module in useful) for each in MODULE_SETS)
        larger = dict.fromkeys(tuple(dict.fromkeys((*own, *each))) for each in sets)
        yield [{**base, "recompute_modules": modules} for modules in larger if set(modules) > set(own)]

    def _with(self, module: RecomputeModule) -> Setting:
        """Returns the setting with one part of a layer recomputed."""
        return replace(self._setting, plan=replace(self._plan, recompute="selective", recompute_modules=(module,)))


def _surely_fits(memory: MemoryFit) -> bool:
    return memory.verdict == "fits"


def _may_fit(memory: MemoryFit) -> bool:
    return memory.fits
