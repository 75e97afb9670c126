"""Defines `PlanRequest`: what a search for plans is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, get_args

from foretrace.basics.arguments import check_fields, checked_methods
from foretrace.basics.errors import InputError, did_you_mean
from foretrace.workload.check_plan import check_plan
from foretrace.workload.plan import Plan

Objective = Literal["step", "tokens", "cost", "memory", "pareto"]
"""Step time, tokens per second, cost per token, head-room of memory, or the front of time and memory."""

Largest = Literal["gbs", "seq"]
"""The quantity of which the largest that fits is looked for: sequences of a step, or tokens of a sequence."""

LARGEST_FIELDS: Final[dict[Largest, str]] = {"gbs": "gbs", "seq": "seq_len"}
"""The field of a plan that each of them is."""

GIVEN_FIELDS: Final = (
    *("gpus", "gbs", "seq_len", "precision", "stack", "grad_dtype", "master_dtype", "moment_dtype"),
    *(
        "fp8_params",
        "fp8_activation_input",
        "cuda_graphs",
        "documents",
        "routing",
        "prefetch",
        "reshard",
        "stage_layers",
    ),
)
"""Fields of a plan that a search does not vary unless it is asked to: they change the job, or are not decided here."""

MAX_WORKERS: Final = 1024
MAX_TOP: Final = 10_000


@checked_methods
@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Asks a search for something: which plans, what the best is best in, and when to stop.

    Attributes:
        plan: The fields that do not vary: GPUs, batch, sequence length, precision, stack and the like. Where `axes` has
            a field, its value here is not used.
        axes: Texts that pin an axis (`{"tp": "8"}`) or give its values (`{"pp": "1..16", "mbs": "1,2"}`), by the field
            of the plan, as `space_of` reads them. Axes that are not named have the values that the stack can launch.
        gpu_counts: The sizes of the cluster to choose from, in rising order; empty: the GPUs of `plan`.
        objective: What the best plan is best in.
        gap: The search may stop once no plan is predicted to be faster than the best by more than this share of it.
        time_s: The search stops after this time; None: when it is complete.
        workers: Processes that simulate; the result does not depend on them.
        top: How many plans are listed.
        price_per_gpu_hour: The price of a GPU for an hour, in any currency; None: cost is counted in GPU-hours.
        tokens: Tokens of the whole training, where the smallest cluster is looked for that meets a deadline.
        deadline_s: The time that the training may take.
        largest: The quantity of which the largest that fits is looked for.

    Raises:
        InputError: A value cannot be meant, or two of them contradict each other.
    """

    plan: Plan
    axes: Mapping[str, str] = field(default_factory=dict)
    gpu_counts: tuple[int, ...] = ()
    objective: Objective = "step"
    gap: float = 0.0
    time_s: float | None = None
    workers: int = 1
    top: int = 10
    price_per_gpu_hour: float | None = None
    tokens: int | None = None
    deadline_s: float | None = None
    largest: Largest | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_plan(self.plan)
        self._check_axes()
        self._check_limits()
        self._check_goals()

    def _check_axes(self) -> None:
        for name, text in self.axes.items():
            if name not in Plan.__slots__ or name == "gpus":
                problem = f"{name} is not an axis of a search{did_you_mean(name, Plan.__slots__)}"
                raise InputError("unknown-field", problem, hint="axes are fields of Plan; GPUs are gpu_counts")
            if not isinstance(text, str) or not text.strip():
                hint = 'expected a text such as "8", "1,2,4" or "1..16"'
                raise InputError("bad-value", f"the values of {name} are {text!r}", hint=hint)

        counts = self.gpu_counts
        if any(low >= high for low, high in pairwise(counts)) or any(count < 1 for count in counts):
            raise InputError("bad-value", f"gpu_counts is {counts}", hint="expected counts of GPUs in rising order")

    def _check_limits(self) -> None:
        if self.objective not in get_args(Objective):
            known = get_args(Objective)
            problem = f'objective "{self.objective}" is not known{did_you_mean(str(self.objective), known)}'
            raise InputError("unknown-name", problem, hint=f"known: {', '.join(known)}")
        if self.largest is not None and self.largest not in LARGEST_FIELDS:
            raise InputError("unknown-name", f'largest "{self.largest}" is not known', hint="known: gbs, seq")
        if not (math.isfinite(self.gap) and 0 <= self.gap < 1):
            raise InputError(
                "out-of-range", f"the gap is {self.gap}", hint="expected a share from 0 to 1, such as 0.005"
            )
        numbers = {
            "the time of the search": self.time_s,
            "the price of a GPU": self.price_per_gpu_hour,
            "the number of tokens": self.tokens,
            "the deadline": self.deadline_s,
        }
        for name, value in numbers.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError("out-of-range", f"{name} is {value}", hint="expected a number above 0")
        for name, count, most in (("workers", self.workers, MAX_WORKERS), ("top", self.top, MAX_TOP)):
            if not 1 <= count <= most:
                raise InputError("out-of-range", f"{name} is {count}", hint=f"expected a number from 1 to {most:,}")

    def _check_goals(self) -> None:
        """Raises an error where a request asks for two different things."""
        if (self.tokens is None) != (self.deadline_s is None):
            problem = "a deadline is for a number of tokens, and one of the two is missing"
            raise InputError("conflicting-values", problem, hint="for example --tokens 15T --days 60")
        goals = {
            "the largest batch or sequence": self.largest is not None,
            "the smallest cluster for a deadline": self.deadline_s is not None,
            f"the best {self.objective}": self.objective in ("memory", "pareto"),
        }
        asked = [goal for goal, given in goals.items() if given]
        if len(asked) > 1:
            problem = f"{asked[0]} and {asked[1]} cannot both decide which plan is best"
            raise InputError("conflicting-values", problem, hint="ask for one of them")
        if self.plan.gbs is None and "gbs" not in self.axes and self.largest != "gbs":
            problem = "plans can be compared for one batch only, and gbs is not given"
            raise InputError("missing-field", problem, hint="for example gbs=1024")
        field_name = None if self.largest is None else LARGEST_FIELDS[self.largest]
        if field_name is not None and field_name not in self.axes and getattr(self.plan, field_name) is not None:
            value = getattr(self.plan, field_name)
            problem = f"the largest {self.largest} is looked for, and {self.largest} is given as {value:,}"
            hint = f"leave out --{self.largest}, or give its values: --{self.largest} {value}..{16 * value}"
            raise InputError("conflicting-values", problem, hint=hint)
