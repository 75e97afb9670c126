"""Finds changes of a plan by which a job fits into memory, and how long a step takes with each.

Changes come in families, such as more recomputation or more GPUs. The mildest of a family that fits is taken; whether
it fits is found from the schedule alone, so that many plans can be tried. Those that fit are then simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from foretrace.workload.settle import MIN_DROPPED, settle
from foretrace.workload.step_spec import step_spec

if TYPE_CHECKING:
    from foretrace.readings.answer.answer import Answer
    from foretrace.workload.plan import Plan, RecomputeModule
    from foretrace.workload.setting import Setting

MAX_SIMULATED: Final = 10
"""Changes that are simulated at most."""

MAX_NAMED: Final = 3
"""Changes that an error names; `memory` and JSON have all."""

FACTORS: Final = (2, 4, 8)
"""By how much an axis may grow."""

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


def find_relief(setting: Setting, machine: Machine) -> tuple[Relief, ...]:
    """Returns changes that make a job fit, those with the fewest GPUs first, then the shortest step."""
    search = _Search(setting, machine)
    plans = search.fitting()
    with doing("simulating what would fit"):
        tried = [relief for plan in plans[:MAX_SIMULATED] if (relief := search.simulated(plan)) is not None]
    return tuple(sorted(tried, key=lambda relief: (relief.plan.gpus, relief.step_time_s)))


def misfit(answer: Answer, relief: Sequence[Relief]) -> InfeasibleError:
    """Returns the error of a job that does not fit, with the changes by which it would."""
    hint = "no change of recomputation, ZeRO, axes, offloading or GPUs makes it fit; predict --even-if-oom for the time"
    if relief:
        named = "; ".join(f"{each.options} ({format_time(each.step_time_s)} a step)" for each in relief[:MAX_NAMED])
        hint = f"would fit: {named}; or predict --even-if-oom"
    memory, cluster = answer.memory, answer.cluster
    assert answer.model is not None and memory is not None and memory.worst is not None
    worst = memory.worst
    kinds = ", ".join(f"{name} {format_bytes(size)}" for name, size in worst.by_category.items())
    message = (
        f"{answer.model.name} needs at least {format_bytes(memory.needed_band_bytes[0])} of the "
        f"{format_bytes(memory.capacity_bytes)} that {cluster.gpu.title if cluster is not None else 'a GPU'} has: "
        f"{format_bytes(worst.peak_bytes)} allocated on {worst.role} ({kinds}), and "
        f"{format_bytes(memory.outside_bytes)} outside the allocator"
    )
    return InfeasibleError("out-of-memory", message, hint=hint)


class _Search:
    """Tries changes of one plan on one machine."""

    def __init__(self, setting: Setting, machine: Machine) -> None:
        self._setting = setting
        self._plan = replace(setting.plan, gbs=setting.gbs, seq_len=setting.seq_len)
        cluster = machine.needed_cluster()
        # A placement and measured collectives are of the GPUs that the job has now.
        self._machine = Machine(cluster, prices=machine.prices)
        self._domain_gpus = cluster.node.domain_gpus

    def fitting(self) -> list[Plan]:
        """Returns the mildest plan of each family that fits; where none does, those that recompute all layers too."""
        plain = self._of_families({})
        if plain:
            return plain
        return self._of_families(ALL_LAYERS) or self._of_families({**ALL_LAYERS, "zero": 3})

    def simulated(self, plan: Plan) -> Relief | None:
        """Returns what a plan makes of the step; None where it cannot be run or does not fit after all."""
        try:
            setting = self._settled(plan)
            answer = simulate_program(build_step(step_spec(setting)), self._machine, Scenario(), explain=False)
        except ForetraceError:
            return None
        memory = memory_fit(answer, process_memory(setting, self._machine))
        if not memory.fits:
            return None
        return Relief(option_words(self._plan, plan), plan, memory, answer.step_time_s)

    def _of_families(self, base: Changes) -> list[Plan]:
        families = [*self._modules(base), *self._listed(), *self._counted(base), *self._larger()]
        plans = (self._mildest([{**base, **changes} for changes in family]) for family in families)
        return list(dict.fromkeys(plan for plan in plans if plan is not None and plan != self._plan))

    def _mildest(self, changes: Sequence[Changes]) -> Plan | None:
        return next((plan for each in changes if self._fits(plan := replace(self._plan, **each))), None)

    def _fits(self, plan: Plan) -> bool:
        try:
            return static_memory(self._settled(plan), self._machine).fits
        except ForetraceError:
            return False

    def _settled(self, plan: Plan) -> Setting:
        given = self._setting
        same = plan.stack == given.plan.stack and (plan.zero == 3) == (given.plan.zero == 3)
        return settle(given.model, plan, given.stack if same and given.plan.stack is None else None)

    def _listed(self) -> Iterator[list[Changes]]:
        """Yields families whose members are few."""
        plan = self._plan
        yield [{"zero": zero} for zero in range(self._setting.zero + 1, 4)]
        yield [{"mbs": plan.mbs // factor} for factor in FACTORS if plan.mbs % factor == 0]
        yield [{"tp": plan.tp * factor} for factor in FACTORS if plan.tp * factor <= self._domain_gpus]
        yield [{"cp": plan.cp * factor} for factor in FACTORS]
        yield [{"pp": plan.pp * factor} for factor in FACTORS]
        if not plan.offload_optimizer:
            yield [{"offload_optimizer": True}]

    def _larger(self) -> Iterator[list[Changes]]:
        """Yields families with more GPUs: more data parallelism, or more stages."""
        plan = self._plan
        yield [{"gpus": plan.gpus * factor} for factor in FACTORS]
        yield [{"gpus": plan.gpus * factor, "pp": plan.pp * factor} for factor in FACTORS]

    def _counted(self, base: Changes) -> Iterator[list[Changes]]:
        """Yields families of one plan: as few layers as are needed recomputed, or offloaded."""
        layers = max(map(len, self._setting.chunks)) * self._setting.chunks_per_stage
        if "recompute" not in base and self._plan.recompute != "full":
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
