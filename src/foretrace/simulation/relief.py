"""Reports a job that does not fit into memory, with a change of its plan by which it would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foretrace.basics.errors import ForetraceError, InfeasibleError
from foretrace.basics.units import format_bytes
from foretrace.cost.machine import Machine
from foretrace.readings.answer.memory_fit import memory_fit
from foretrace.readings.scenario import Scenario
from foretrace.simulation.outside_memory import process_memory
from foretrace.simulation.simulate import simulate_program
from foretrace.step import build_step
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Cluster
    from foretrace.readings.answer.answer import Answer
    from foretrace.workload.plan import Plan
    from foretrace.workload.setting import Setting


@dataclass(frozen=True, slots=True)
class Relief:
    """A change of the plan in words, and the peak it would have."""

    words: str
    plan: Plan
    peak_bytes: int


def find_relief(setting: Setting, machine: Machine) -> Relief | None:
    """Returns the first change of a short list that makes a job fit; None where none does.

    Plans that cannot be settled or run are left out.
    """
    cluster = machine.needed_cluster()
    alone = Machine(cluster, prices=machine.prices)
    for words, plan in _changes(setting, cluster):
        try:
            changed = settle(setting.model, plan)
            answer = simulate_program(build_step(step_spec(changed)), alone, Scenario(), explain=False)
        except ForetraceError:
            continue
        memory = memory_fit(answer, process_memory(changed, alone))
        if memory.fits:
            return Relief(words, plan, memory.peak_bytes)
    return None


def misfit(answer: Answer, relief: Relief | None) -> InfeasibleError:
    """Returns the error of a job that does not fit, with the change by which it would."""
    hint = "no single change of recomputation, ZeRO, tp or pp makes it fit: use more GPUs, or predict --even-if-oom"
    if relief is not None:
        size = format_bytes(relief.peak_bytes)
        hint = f"{relief.words} would: {size} at the peak; or predict --even-if-oom for the time"
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


def _changes(setting: Setting, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """Yields changes in words and as plans, the cheapest in time first.

    State is split further, microbatches get smaller, more is recomputed, model parallelism grows; then the last two
    together.
    """
    plan = replace(setting.plan, gbs=setting.gbs, seq_len=setting.seq_len)
    if setting.zero == 0 and setting.dp > 1:
        yield "--zero 1", replace(plan, zero=1)
    if plan.mbs > 1:
        yield f"--mbs {plan.mbs // 2}", replace(plan, mbs=plan.mbs // 2)
    layers = None if plan.recompute_layers is None else len(setting.model.layers)
    full = replace(plan, recompute="full", recompute_layers=layers, recompute_modules=None)
    fully = "--recompute full" + ("" if layers is None else f" --recompute-layers {layers}")
    fully += " --recompute-modules none" if plan.recompute_modules else ""
    if plan.recompute == "none":
        yield "--recompute selective", replace(plan, recompute="selective")
    if plan.recompute != "full" or plan.recompute_layers is not None:
        yield fully, full
    for base, words in ((plan, ""), (full, f"{fully} ")):
        for factor in (2, 4, 8):
            if plan.tp * factor <= cluster.node.domain_gpus:
                yield f"{words}--tp {plan.tp * factor}", replace(base, tp=plan.tp * factor)
            yield f"{words}--pp {plan.pp * factor}", replace(base, pp=plan.pp * factor)
    if setting.zero != 3 and setting.dp > 1:
        yield "--zero 3", replace(plan, zero=3)
        yield f"--zero 3 {fully}", replace(full, zero=3)
