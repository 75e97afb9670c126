"""Widens the band of a model's step by what its prices do not tell: how far whole predictions have been off.

Prices have bands of their own. What no price knows is whether the step does what real software does. `WIDTHS` says how
far that moves a step, by what the answer depends on, as found on published runs (`benchmarks/fit_bands.py`, which also
says how bands hold for models and GPUs that were left out).
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log
from typing import Final

from foretrace.readings.answer.answer import Answer, BandPart
from foretrace.workload.plan import NARROW_PRECISIONS
from foretrace.workload.setting import Setting
from foretrace.workload.stacks import nearest_version

WIDTHS: Final[dict[str, float]] = {
    "model of the step": 0.05,
    "experts": 0.17,
    "8-bit products": 0.12,
    "context parallelism": 0.10,
    "PyTorch's ring over 4 ranks or more": 0.70,
    "host": 0.21,
    "experts across nodes": 0.32,
    "version of the software": 0.05,
    "lists of tensors": 0.85,
}
"""Half of the central 90 % interval of the step, as a logarithm: as `benchmarks/fit_bands.py` prints them."""

MIN_WARNED: Final = 0.15
"""The least of an answer with a warning."""

HOST_BUSY: Final = 0.7
"""The share of a step from which on launches may decide how long it takes: what is counted may be off by as much."""

MANY_RING_RANKS: Final = 4
"""Ranks of context parallelism from which on published runs of torchtitan are slower than can be explained."""

PRICES: Final = "prices"


def with_model_error(answer: Answer, setting: Setting) -> Answer:
    """Returns the answer of a model with the band of its step widened, and what it is made of."""
    if answer.step_time_band_s is None:
        return answer
    step_s, (low_s, high_s) = answer.step_time_s, answer.step_time_band_s
    prices = (log(step_s / max(low_s, 1e-3 * step_s)), log(high_s / step_s))
    parts = [BandPart(PRICES, exp(-prices[0]), exp(prices[1]))]
    parts += [BandPart(name, exp(-WIDTHS[name]), exp(WIDTHS[name])) for name in reasons(answer, setting)]
    widths = [hypot(*(abs(log(part.low)) for part in parts)), hypot(*(log(part.high) for part in parts))]
    if any(note.level == "warning" for note in answer.diagnostics):
        widths = [max(width, MIN_WARNED) for width in widths]
    parts.sort(key=lambda part: -max(part.high, 1 / part.low))
    band = step_s * exp(-widths[0]), step_s * exp(widths[1])
    return replace(answer, step_time_band_s=band, band_parts=tuple(parts))


def reasons(answer: Answer, setting: Setting) -> tuple[str, ...]:
    """Returns the names of `WIDTHS` that an answer depends on."""
    plan = setting.plan
    experts = setting.model.has_experts
    asked = {
        "model of the step": True,
        "experts": experts,
        "8-bit products": plan.precision in NARROW_PRECISIONS,
        "context parallelism": plan.cp > 1,
        "host": _host_busy(answer) > HOST_BUSY,
        "experts across nodes": experts and plan.ep > 1 and _leaves_domain(answer, setting),
        "PyTorch's ring over 4 ranks or more": plan.cp >= MANY_RING_RANKS and setting.stack.pytorch_ring,
        "version of the software": _unknown_version(plan.stack),
        "lists of tensors": setting.stack.lists_tensors,
    }
    return tuple(name for name, counts in asked.items() if counts)


def _unknown_version(stack: str | None) -> bool:
    return stack is not None and nearest_version(stack) is not None


def _host_busy(answer: Answer) -> float:
    return max((lane.busy for lane in answer.lanes if lane.lane == "host"), default=0.0)


def _leaves_domain(answer: Answer, setting: Setting) -> bool:
    """Returns whether an expert group has ranks that links do not join."""
    cluster = answer.cluster
    if cluster is None:
        return False
    chosen = None if answer.domains is None else answer.domains.most_gpus
    domains = setting.mesh.groups("ep") // (chosen or cluster.domain_gpus or cluster.node.island_gpus)
    return bool((domains != domains[:, :1]).any())
