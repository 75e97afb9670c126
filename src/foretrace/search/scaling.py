"""Strong and weak scaling: how many sequences a step holds when the GPUs of a job vary.

Strong scaling keeps the sequences of a step (`gbs`), so that every GPU does less. Weak scaling keeps those of each GPU,
so that a step grows with its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from foretrace.basics.errors import Diagnostic, InputError, UsageError
from foretrace.basics.units import format_count, parse_count
from foretrace.inputs.base import Input
from foretrace.inputs.model.input import ModelInput
from foretrace.search.axes import SweepAxis

Scale = Literal["strong", "weak"]

SCALED_BY = "gpus"
"""The axis along which a job is scaled."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a job is scaled; `base_gpus` are the GPUs that its `gbs` is for, None where the batch follows by itself."""

    scale: Scale
    base_gpus: int | None
    note: Diagnostic

    def applied_to(self, job: Input) -> Input:
        """Returns a job on its number of GPUs with the batch that the scaling has it run."""
        if self.scale == "strong" or self.base_gpus is None or not isinstance(job, ModelInput) or job.plan.gbs is None:
            return job
        plan = job.plan
        gbs = Fraction(job.plan.gbs * plan.gpus, self.base_gpus)
        if gbs.denominator != 1:
            problem = f"gbs {job.plan.gbs} at {self.base_gpus} GPUs would be {float(gbs):.6g} at {plan.gpus}"
            raise InputError("not-divisible", problem, hint="--scale strong keeps gbs as it is")
        return job.with_options(gbs=int(gbs))


def find_scaling(job: Input, axes: Sequence[SweepAxis], scale: Scale | None) -> Scaling | None:
    """Returns how a sweep scales its job; None where its GPUs do not vary.

    Args:
        job: The job without the values of any axis.
        axes: The axes of the sweep.
        scale: What was asked for; None is strong for a model whose `gbs` is given, and weak for all other jobs.

    Raises:
        UsageError: The scaling means nothing for this sweep.
    """
    axis = next((axis for axis in axes if axis.name == SCALED_BY), None)
    if axis is None:
        if scale is not None:
            hint = "for example --over gpus=64:1024:x2"
            raise UsageError("option-not-for-command", "--scale is for a sweep over gpus", hint=hint)
        return None
    if not isinstance(job, ModelInput):
        if scale == "strong":
            problem = f"{job.title} is {job.noun}: its microbatches per rank stay, so that a step grows with its GPUs"
            raise UsageError("option-not-for-input", problem, where="--scale strong", hint="vary microbatches as well")
        return Scaling("weak", None, _note("weak scaling: the microbatches of a rank stay, the batch grows with GPUs"))
    first = parse_count(axis.values[0].text, where="--over gpus")
    own = job.given("gpus")
    base_gpus = first if own is None else int(own)
    gbs = job.given("gbs")
    varied = any(axis.name == "gbs" for axis in axes)
    if gbs is None and not varied:
        if scale == "strong":
            raise UsageError("missing-argument", "--scale strong keeps gbs: which?", hint="for example --gbs 1024")
        text = "weak scaling: gbs is not given and grows with the GPUs (--gbs N keeps it)"
        return Scaling("weak", None, _note(text))
    shown = "" if varied else f" {format_count(int(gbs or 0))}"
    if scale == "weak":
        text = f"weak scaling: gbs{shown} at {format_count(base_gpus)} GPUs grows with them"
        return Scaling("weak", base_gpus, _note(text))
    text = f"strong scaling: gbs stays{shown} (--scale weak: it grows with the GPUs)"
    return Scaling("strong", base_gpus, _note(text))


def _note(text: str) -> Diagnostic:
    return Diagnostic("note", "scaling", text)
