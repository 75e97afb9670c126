"""Lists what a plan must satisfy for its software to run it, as data: `settle` refuses what breaks a constraint.

Each constraint names the fields of a plan that may be changed to satisfy it. `nearest_plans` searches their values for
the plans that a hint names. A search of many plans reads the same list over columns of plans. The rules themselves are
in `workload/rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.models.model import Model
from foretrace.workload.plan import Plan
from foretrace.workload.rules.axis_rules import AXIS_CONSTRAINTS, RANK_ORDER
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.option_rules import DTYPE_CONSTRAINTS, OPTION_CONSTRAINTS
from foretrace.workload.rules.pipeline_rules import LENGTH, PIPELINE_CONSTRAINTS, SPLIT_CONSTRAINTS
from foretrace.workload.rules.sizes import PlanSizes

CONSTRAINTS: Final = (
    *AXIS_CONSTRAINTS,
    *DTYPE_CONSTRAINTS,
    *PIPELINE_CONSTRAINTS,
    *OPTION_CONSTRAINTS,
    RANK_ORDER,
    LENGTH,
)
"""All constraints, in the order in which they are checked."""


def broken(sizes: PlanSizes) -> Iterator[Constraint]:
    """Yields the constraints that a plan breaks, in the order in which they are checked; none where it runs."""
    return (constraint for constraint in CONSTRAINTS if not constraint.holds(sizes))


def check_split(model: Model, plan: Plan) -> None:
    """Raises an `InputError` where the way in which a plan divides the layers is one that Megatron refuses."""
    sizes = PlanSizes.of(model, plan)
    for constraint in SPLIT_CONSTRAINTS:
        problem = constraint.problem(sizes)
        if problem is not None:
            raise InputError(constraint.code, problem, hint=constraint.why)
