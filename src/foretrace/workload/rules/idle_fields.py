"""States where a field of a plan has no effect, for one plan and for columns of plans.

`settle` reports such fields, and a search takes plans that differ in nothing else for one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from foretrace.schedules.pipeline import BATCHED
from foretrace.workload.rules.sizes import Flag, JobSizes, PlanSizes, negated

_BOTH_ENDS_COUNT: Final = ("embedding", "loss")


def is_replicated(sizes: JobSizes) -> Flag:
    """Returns whether several ranks hold the same parameters, of dense layers or of experts."""
    dense = sizes.dp * sizes.cp > 1
    if not sizes.facts.experts:
        return dense
    return dense | (sizes.tp * sizes.cp * sizes.dp > sizes.ep * sizes.etp)


def _counted_ends(sizes: JobSizes) -> Flag:
    """Returns where `account_for` divides the layers as it would be without it, by the rules of `layout_of`."""
    even = sizes.layers % sizes.pieces == 0
    both = negated(even) & ((sizes.layers + 2) % sizes.pieces == 0) & negated(bool(sizes.model.mtp))
    none = sizes.each(lambda plan_sizes: plan_sizes.plan.account_for in (None, ()), "account_for")
    ends = sizes.each(lambda plan_sizes: plan_sizes.plan.account_for in (None, _BOTH_ENDS_COUNT), "account_for")
    return (sizes.pp == 1) | (even & none) | (both & ends)


IDLE: Final[dict[str, Callable[[JobSizes], Flag]]] = {
    "sequence_parallel": lambda sizes: sizes.tp == 1,
    "cp_comm": lambda sizes: sizes.cp == 1,
    "dispatcher": lambda sizes: sizes.ep == 1,
    "moe_overlap": lambda sizes: sizes.ep == 1,
    "routing": lambda sizes: sizes.ep == 1,
    "tp_overlap": lambda sizes: sizes.tp == 1,
    "schedule": lambda sizes: sizes.pp == 1,
    "pp_overlap": lambda sizes: (sizes.pp == 1) | negated(sizes.is_schedule(*BATCHED)),
    "account_for": _counted_ends,
    "shard": lambda sizes: (sizes.zero == 3) & (sizes.shard == sizes.dp * sizes.cp),
    "grad_overlap": lambda sizes: negated(is_replicated(sizes)) | sizes.splits_parameters,
    "param_overlap": lambda sizes: negated(is_replicated(sizes)) | (sizes.zero == 0) | sizes.splits_parameters,
}
"""Where the values of a field make no difference: plans that are equal in all others are then the same plan.

A flag may depend on the field itself. The values for which it is true are then equivalent to each other.
"""


def first_equal_order(sizes: PlanSizes, orders: Sequence[str]) -> int:
    """Returns the position of the first of some rank orders that places all ranks as the order of the plan does."""
    key = _placement_key(sizes, sizes.plan.rank_order)
    return next(number for number, order in enumerate(orders) if _placement_key(sizes, order) == key)


def _placement_key(sizes: PlanSizes, order: str) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Returns the axes that have several ranks in an order, dense and expert; equal keys mean equal groups."""
    ranks = sizes.tp * sizes.cp * sizes.dp
    dense = {"tp": sizes.tp, "cp": sizes.cp, "dp": sizes.dp, "pp": sizes.pp}
    experts = {"tp": sizes.etp, "ep": sizes.ep, "dp": ranks // (sizes.etp * sizes.ep), "pp": sizes.pp}
    numberings = (dense, experts) if sizes.facts.experts else (dense,)
    return tuple(
        tuple((axis, numbering[axis]) for axis in order.split("-") if numbering.get(axis, 1) > 1)
        for numbering in numberings
    )
