"""Searches for the plans nearest to one that breaks a constraint, and names them in the hint of its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Final

from foretrace.basics.errors import InputError
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.workload.check_plan import MAX_TOKENS
from foretrace.workload.constraints import broken
from foretrace.workload.plan import WORD_LISTS, Plan
from foretrace.workload.routing import max_routing
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.pipeline_rules import end_stages_problem, max_microbatches
from foretrace.workload.rules.sizes import PlanSizes

MAX_TRIED: Final = 500
"""Plans that a search checks: some 20 ms."""
HASTE: Final = 5.0
"""Weight of a broken constraint in a search that is to end soon."""
MAX_VALUES: Final = 12
"""Values of an axis that are tried, the nearest first."""
MAX_DOCUMENTS: Final = 8
"""Documents that a hint lists; it leaves out more."""
MAX_OPTIONS: Final = 2
"""Options of a plan next to which a hint names another."""
UNUSUAL: Final = 0.5
"""Cost of a size that is not a power of two and does not divide the one given."""
ABSENT: Final = 1.0
"""Cost of a size of 1: the job is then without that axis."""
COSTS: Final = {"gpus": 3.0, "gbs": 1.5}
"""Cost of changing a field, where it is not 1: GPUs are what a person has, and the batch decides how a model learns."""

Choices = Iterable[tuple[Any, float]]
"""Values of a field, each with its distance from the one given."""
Changes = dict[str, tuple[Any, float]]
"""Other values of fields of a plan, each with what it costs."""


def check_constraints(sizes: PlanSizes) -> None:
    """Raises the error of the first constraint that a plan breaks, with the nearest plans that break none."""
    constraint = next(broken(sizes), None)
    if constraint is None:
        return
    problem = constraint.words(sizes)
    words = [option_words(sizes.plan, plan) for plan in islice(nearest_plans(sizes), 2)]
    if words and words[0].count("--") > MAX_OPTIONS:
        words = words[:1]
    runs = f"{' or '.join(words)} runs" if words else "no plan near it runs"
    raise InputError(constraint.code, problem, hint=f"{constraint.why}; {runs}" if constraint.why else runs)


def nearest_plans(sizes: PlanSizes) -> Iterator[Plan]:
    """Yields plans that satisfy all constraints, the nearest first.

    The distance of a plan is the sum over its changed fields of what changing each costs and how far its value goes.
    Where the search does not end in time, one that cares less for the distance follows.
    """
    for weight in (1.0, HASTE):
        runs = False
        for plan in _search(sizes, weight):
            runs = True
            yield plan
        if runs:
            return


def _search(sizes: PlanSizes, weight: float) -> Iterator[Plan]:
    """Yields plans that satisfy all constraints, from the least changed on.

    The search takes the plan with the least sum of its distance and of `weight` for each field that is still to be
    changed, one for constraints of the same field, and tries values that satisfy the first constraint that it breaks.
    It ends where a plan is further than the first by a field.
    """
    order = count()
    queue: list[tuple[float, int, Changes, Constraint | None]] = [(0.0, next(order), {}, next(broken(sizes), None))]
    seen: set[frozenset[tuple[str, Any]]] = set()
    accepted: list[frozenset[tuple[str, Any]]] = []
    max_distance = math.inf
    while queue and queue[0][0] <= max_distance and len(seen) < MAX_TRIED:
        distance, _, changes, constraint = heappop(queue)
        if constraint is None:
            key = _key(changes)
            if not any(key >= fewer for fewer in accepted):
                accepted.append(key)
                max_distance = min(max_distance, distance + 1)
                yield _changed(sizes, changes).plan
            continue
        for further in _further(sizes, changes, constraint.fields):
            key = _key(further)
            if key in seen:
                continue
            seen.add(key)
            problems = list(broken(_changed(sizes, further)))
            if constraint not in problems:
                fields = {problem.fields[0] for problem in problems}
                total = sum(cost for _, cost in further.values()) + weight * len(fields)
                heappush(queue, (total, next(order), further, problems[0] if problems else None))


def _further(sizes: PlanSizes, changes: Changes, fields: Iterable[str]) -> Iterator[Changes]:
    """Yields changes with one field more, or with another value of a field."""
    for field in fields:
        others = {name: change for name, change in changes.items() if name != field}
        for value, distance in _CHOICES[field](_changed(sizes, others)):
            yield {**others, field: (value, COSTS.get(field, 1.0) + distance)}


def _key(changes: Changes) -> frozenset[tuple[str, Any]]:
    return frozenset((field, value) for field, (value, _) in changes.items())


def _changed(sizes: PlanSizes, changes: Changes) -> PlanSizes:
    return sizes.with_plan(replace(sizes.plan, **{field: value for field, (value, _) in changes.items()}))


def option_words(before: Plan, after: Plan) -> str:
    """Returns the options that make one plan of another."""
    values = {name: getattr(after, name) for name in before.__slots__ if getattr(before, name) != getattr(after, name)}
    absent = {name for name, value in values.items() if value is None or value is False or value == ()}
    words = [f"{_option(name)} {_text(value)}".strip() for name, value in values.items() if name not in absent]
    dropped = [_option(name) for name in values if name in absent]
    return " ".join([*words, *([f"without {' and '.join(dropped)}"] if dropped else [])])


def _option(field: str) -> str:
    return "--seq" if field == "seq_len" else f"--{field.replace('_', '-')}"


def _text(value: object) -> str:
    if value is True:
        return ""
    if isinstance(value, float):
        return f"{value:g}x"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _distance(given: int, value: int) -> float:
    """Returns how far a value is from the one given: 0 to 1 below it, and 1 for each doubling far above it."""
    return math.log2(1 + abs(value - given) / given)


def _near(given: int, values: Iterable[int]) -> Choices:
    """Returns values with their distance from the one given, the nearest first."""

    def distance(value: int) -> float:
        usual = value & (value - 1) == 0 or given % value == 0
        return _distance(given, value) + (0.0 if usual else UNUSUAL) + (ABSENT if value == 1 else 0.0)

    others = sorted((distance(value), value) for value in set(values) if value > 0 and value != given)
    return [(value, far) for far, value in others]


def _multiples(given: int, *steps: int) -> set[int]:
    """Returns the multiples of each step next to the one given."""
    return {step * (given // step + more) for step in steps for more in (0, 1)}


@lru_cache(maxsize=64)
def divisors(whole: int) -> tuple[int, ...]:
    """Returns the divisors of a number, ascending."""
    small = [size for size in range(1, math.isqrt(whole) + 1) if whole % size == 0]
    return tuple(sorted({*small, *(whole // size for size in small)}))


def _axis(field: str) -> Callable[[PlanSizes], Choices]:
    """Returns the choices of an axis: the divisors of the GPUs, and always 1, which breaks no rule about it."""

    def choices(sizes: PlanSizes) -> Choices:
        near = list(_near(getattr(sizes.plan, field), divisors(sizes.plan.gpus)))
        return near[:MAX_VALUES] + [choice for choice in near[MAX_VALUES:] if choice[0] == 1]

    return choices


def _gpus(sizes: PlanSizes) -> Choices:
    plan = sizes.plan
    dense, expert = plan.tp * plan.cp * plan.pp, plan.etp * plan.ep * plan.pp
    values = _multiples(plan.gpus, dense, math.lcm(dense, expert))
    return ((value, _distance(plan.gpus, value)) for value in sorted(values) if 0 < value <= MAX_GPUS)


def _chunks(sizes: PlanSizes) -> Choices:
    max_chunks = max(len(sizes.model.layers) // sizes.plan.pp, 1)
    return list(_near(sizes.plan.vpp, range(1, max_chunks + 1)))[:MAX_VALUES] + [(1, 1.0)] * (sizes.plan.vpp > 1)


def _batches(sizes: PlanSizes) -> Choices:
    """Returns whole numbers of the microbatches that the schedule takes, within what it takes and can be run."""
    plan, schedule = sizes.plan, sizes.schedule
    group, least = 1, 1
    if plan.pp > 1 and schedule.startswith("dualpipe"):
        group, least = 2, 2 * plan.pp
    elif plan.pp > 1 and schedule.startswith("interleaved"):
        group = least = plan.pp
    step = plan.mbs * sizes.dp * group
    lowest, highest = plan.mbs * sizes.dp * least, max_microbatches(sizes) // group * step
    values = {min(max(value, lowest), highest) for value in _multiples(sizes.gbs, step)}
    return ((value, _distance(sizes.gbs, value)) for value in sorted(values - {0, sizes.gbs}))


def _sequences(sizes: PlanSizes) -> Choices:
    """Returns what cp and tp divide, and the length of the documents."""
    plan, given = sizes.plan, sizes.seq_len
    values = _multiples(given, 2 * plan.cp, 2 * plan.cp * plan.tp) | {sum(plan.documents or ())}
    usable = sorted(value for value in values if 0 < value <= MAX_TOKENS and value != given)
    return ((value, _distance(given, value)) for value in usable)


def _documents(sizes: PlanSizes) -> Choices:
    """Returns the documents with the last one as long as the sequence leaves room for, or none."""
    *others, last = sizes.plan.documents or (0,)
    room = sizes.seq_len - sum(others)
    if room > 0 and len(others) < MAX_DOCUMENTS:
        yield (*others, room), _distance(sizes.seq_len, sizes.seq_len + room - last)
    yield None, 1.0


def _shards(sizes: PlanSizes) -> Choices:
    plan = sizes.plan
    assert plan.shard is not None
    return [*_near(plan.shard, (size * plan.cp for size in divisors(sizes.dp))), (None, 1.0)]


def _value(value: Any) -> Callable[[PlanSizes], Choices]:
    return lambda _: ((value, 0.0),)


def _counted(sizes: PlanSizes) -> Choices:
    """Returns which ends may count as a layer each."""
    ends: tuple[tuple[str, ...] | None, ...] = (("embedding", "loss"), ("embedding",), ("loss",), None)
    return ((counted, 0.0 if counted else 1.0) for counted in ends if counted != sizes.plan.account_for)


def _end_stage(field: str) -> Callable[[PlanSizes], Choices]:
    """Returns the choices of a number of layers of the first or last stage: the nearest that divide, and none."""

    def choices(sizes: PlanSizes) -> Choices:
        plan, given = sizes.plan, getattr(sizes.plan, field)
        near = [] if given is None else range(max(given - plan.pp, 0), given + plan.pp + 1)
        divide = (
            (value, _distance(given + 1, value + 1))
            for value in near
            if value != given and end_stages_problem(_changed(sizes, {field: (value, 0.0)})) is None
        )
        yield from sorted(divide, key=lambda choice: choice[1])[:2]
        yield None, 1.0

    return choices


def _all_layers(sizes: PlanSizes) -> Choices:
    return ((len(sizes.model.layers), 0.0),)


def _recompute_modules(sizes: PlanSizes) -> Choices:
    """Returns the given modules that the software has and that nothing offloads from, or none."""
    plan = sizes.plan
    known = tuple(module for module in plan.recompute_modules or () if module in sizes.stack.recompute_modules)
    for modules in (known, tuple(module for module in known if module != "moe")):
        if modules and modules != plan.recompute_modules:
            yield modules, 0.0
    yield None, 0.5


def _offload_modules(sizes: PlanSizes) -> Choices:
    """Returns the given modules with the one that is missing, without those that cannot be, or none."""
    given = sizes.plan.offload_modules
    more = tuple(module for module in WORD_LISTS["offload_modules"] if module in (*given, "core_attn"))
    for modules in (more, tuple(module for module in given if module not in ("expert_fc1", "moe_act"))):
        if modules and modules != given:
            yield modules, 0.0
    yield (), 0.5


def _routing(sizes: PlanSizes) -> Choices:
    """Returns the most uneven routing that is given, or the most uneven one that there can be, for all layers."""
    given = sizes.plan.routing_of() or 1.0
    kinds = sizes.facts.experts if sizes.plan.ep > 1 else ()
    return ((min((given, *(max_routing(moe, sizes.plan.ep) for moe in kinds))), 0.0),)


_CHOICES: Final[dict[str, Callable[[PlanSizes], Choices]]] = {
    **{field: _axis(field) for field in ("tp", "cp", "pp", "ep", "etp")},
    "gpus": _gpus,
    "mbs": lambda sizes: _near(sizes.plan.mbs, divisors(sizes.plan.mbs)),
    "gbs": _batches,
    "seq_len": _sequences,
    "documents": _documents,
    "vpp": _chunks,
    "schedule": _value("interleaved-1f1b"),
    "stage_layers": _value(None),
    "layout": _value(None),
    "account_for": _counted,
    "first_stage_layers": _end_stage("first_stage_layers"),
    "last_stage_layers": _end_stage("last_stage_layers"),
    "zero": lambda sizes: ((3 if sizes.plan.shard is not None else 1, 0.0),),
    "shard": _shards,
    "recompute": _value("full"),
    "recompute_layers": lambda sizes: (*_all_layers(sizes), (None, 1.0)),
    "recompute_modules": _recompute_modules,
    "offload_layers": lambda sizes: (*_all_layers(sizes), (0, 1.0)),
    "offload_modules": _offload_modules,
    "fp8_activation_input": _value(False),
    "routing": _routing,
    "rank_order": _value(DEFAULT_ORDER),
    **dict.fromkeys(("grad_dtype", "master_dtype", "moment_dtype"), _value(None)),
    "fp8_params": _value(False),
}
"""The values that each field may be changed to."""
