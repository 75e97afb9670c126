"""Widens the band of a model's step by what its prices do not tell: how far whole predictions have been off.

Prices have bands of their own. They do not cover whether the step does what real software does. `WIDTHS` says how much
each reason adds, fitted to published runs (`benchmarks/fit_bands.py`, which also tests bands on models and GPUs that
were left out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Final

from foretrace.cost.machine import Machine
from foretrace.cost.network.peers import Places
from foretrace.readings.answer.answer import Answer, BandPart
from foretrace.workload.plan import NARROW_PRECISIONS
from foretrace.workload.setting import Setting
from foretrace.workload.stacks import nearest_version

MIN_WARNED: Final = 0.15
"""The smallest half width, as a logarithm, of the band of an answer with a warning."""

IDLE_HOST: Final = 0.5
BUSY_HOST: Final = 0.9
"""Host launches that fill less than `IDLE_HOST` of the step add nothing to the band. From `BUSY_HOST` on they add the
full width, since the count of launches may be off. Both are judgements."""

PRICES: Final = "prices"
"""The part of a band that is the band of the prices; the others are reasons of `WIDTHS`, and those below."""

WARNING: Final = "a warning"
"""The part that widens the band of an answer with a warning to `MIN_WARNED`."""

ROUTING: Final = "routing"
"""The part of a routing that is assumed: from a balanced router to the least even published one."""

OVERLAP: Final = "overlap of experts"
"""The part of all-to-alls that run next to computation: up to the step that hides none of them."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """An answer of a model, with what it was predicted from."""

    answer: Answer
    setting: Setting
    machine: Machine

    @property
    def host_busy(self) -> float:
        """The share of the step in which the host launches."""
        return max((lane.busy for lane in self.answer.lanes if lane.lane == "host"), default=0.0)

    @property
    def experts_leave_domain(self) -> bool:
        """Whether an expert group has ranks that links do not join."""
        cluster, mesh = self.machine.cluster, self.setting.mesh
        if cluster is None or mesh.ep == 1 or not self.setting.model.has_experts:
            return False
        domain = Places.of(cluster.node, self.machine.placed(mesh.world, mesh)).island[mesh.groups("ep")]
        return bool((domain != domain[:, :1]).any())


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a step may take longer or shorter than predicted, whatever its prices.

    Attributes:
        name: What the answer depends on.
        width: Half of the central 90 % interval of the step, as a logarithm: as `benchmarks/fit_bands.py` prints it.
        share: Returns how far an answer depends on it: the share of the width that counts.
    """

    name: str
    width: float
    share: Callable[[Predicted], float]


REASONS: Final = (
    Reason("model of the step", 0.05, lambda _: True),
    Reason("experts", 0.17, lambda predicted: predicted.setting.model.has_experts),
    Reason(
        "products in 8 bits or fewer", 0.14, lambda predicted: predicted.setting.plan.precision in NARROW_PRECISIONS
    ),
    Reason("context parallelism", 0.08, lambda predicted: predicted.setting.plan.cp > 1),
    Reason(
        "PyTorch's ring over 4 ranks or more",
        0.59,
        lambda predicted: predicted.setting.has_slow_ring,
    ),
    Reason("host", 0.26, lambda predicted: min(max((predicted.host_busy - IDLE_HOST) / (BUSY_HOST - IDLE_HOST), 0), 1)),
    Reason("experts across nodes", 0.36, lambda predicted: predicted.experts_leave_domain),
    Reason("version of the software", 0.09, lambda predicted: _is_unknown(predicted.setting.plan.stack)),
    Reason(
        "lists of tensors",
        0.71,
        lambda predicted: predicted.setting.stack.lists_tensors and predicted.setting.splits_parameters,
    ),
)
"""All reasons."""

WIDTHS: Final[dict[str, float]] = {reason.name: reason.width for reason in REASONS}
"""The widths of reasons by name."""


def with_model_error(answer: Answer, setting: Setting, machine: Machine, tried: Sequence[BandPart] = ()) -> Answer:
    """Returns the answer of a model with the band of its step widened, and what it is made of.

    Args:
        answer: The answer of the model.
        setting: The model under its plan.
        machine: Where it runs, with the placement of its ranks.
        tried: Further parts, which `tried_parts` found.
    """
    if answer.step_time_band_s is None:
        return answer
    step_s, (low_s, high_s) = answer.step_time_s, answer.step_time_band_s
    prices = (log(step_s / max(low_s, 1e-3 * step_s)), log(high_s / step_s))
    parts = [BandPart(PRICES, exp(-prices[0]), exp(prices[1]))]
    for name, share in reasons(answer, setting, machine).items():
        parts.append(BandPart(name, exp(-share * WIDTHS[name]), exp(share * WIDTHS[name])))
    parts += tried
    widths = [hypot(*(abs(log(part.low)) for part in parts)), hypot(*(log(part.high) for part in parts))]
    if any(note.level == "warning" for note in answer.diagnostics) and min(widths) < MIN_WARNED:
        missing = [sqrt(max(MIN_WARNED**2 - width**2, 0.0)) for width in widths]
        parts.append(BandPart(WARNING, exp(-missing[0]), exp(missing[1])))
        widths = [max(width, MIN_WARNED) for width in widths]
    parts.sort(key=lambda part: -max(part.high, 1 / part.low))
    band = step_s * exp(-widths[0]), step_s * exp(widths[1])
    return replace(answer, step_time_band_s=band, band_parts=tuple(parts))


def reasons(answer: Answer, setting: Setting, machine: Machine) -> dict[str, float]:
    """Returns the reasons on which an answer depends, by name, each with the share of its width that counts.

    Args:
        answer: The answer of a model.
        setting: The model under its plan.
        machine: Where it runs, with the placement of its ranks.
    """
    predicted = Predicted(answer, setting, machine)
    shares = {reason.name: float(reason.share(predicted)) for reason in REASONS}
    return {name: share for name, share in shares.items() if share > 0}


def tried_parts(setting: Setting, step_s: float, step_with: Callable[..., float]) -> list[BandPart]:
    """Returns the parts of a band that are simulated: what a plan assumes, and what is known to be too good.

    Args:
        setting: The model under its plan.
        step_s: Its step.
        step_with: Returns the step with other fields of the plan, which it takes by name.
    """
    parts, plan = [], setting.plan
    if plan.moe_overlap and setting.mesh.ep > 1 and setting.model.has_experts:
        parts.append(BandPart(OVERLAP, 1.0, max(step_with(moe_overlap=False) / step_s, 1.0)))
    if plan.routing is None and setting.routing_of() > 1:
        ends = step_with(routing=1.0), step_with(routing=setting.least_even_routing)
        parts.append(BandPart(ROUTING, min(ends[0] / step_s, 1.0), max(ends[1] / step_s, 1.0)))
    return parts


def _is_unknown(stack: str | None) -> bool:
    """Returns whether a version of a stack is asked for that is not known."""
    return stack is not None and nearest_version(stack) is not None
