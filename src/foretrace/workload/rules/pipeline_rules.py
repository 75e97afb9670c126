"""States which schedules a pipeline can run, and how a plan may divide the layers among its parts."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from foretrace.workload.layout import layout_problem, parse_layout, stage_counts
from foretrace.workload.plan import Plan
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.sizes import (
    BOTH_ENDS,
    Flag,
    JobSizes,
    Number,
    PlanSizes,
    at_least,
    facts_of,
    implies,
    negated,
    where,
)

MAX_LAYER_RUNS: Final = 400_000
"""Layers times microbatches of a step: some ten million ops, half a minute and gigabytes."""
END_STAGES: Final = ("first_stage_layers", "last_stage_layers")
_SPLITS: Final = ("stage_layers", "layout", "account_for", *END_STAGES)
"""Fields that divide the layers among parts."""
_PIECES: Final = ("pp", "vpp", "schedule", "layout")
"""The fields that say how many parts there are."""


def max_microbatches(sizes: JobSizes) -> Number:
    """Returns how many microbatches of a step can be run."""
    return MAX_LAYER_RUNS // at_least(sizes.layers, sizes.pieces)


def _chunks(sizes: JobSizes) -> Flag:
    vpp, max_chunks = sizes.number("vpp"), sizes.of_schedule(lambda facts: facts.max_chunks or 0)
    fits = where((sizes.pp == 1) | (vpp == 1), vpp == 1, (max_chunks == 0) | (max_chunks == vpp))
    return (sizes.layout_parts > 0) | fits  # a layout says how many chunks there are: `_layout_chunks_problem`


def _chunks_words(sizes: PlanSizes) -> str:
    vpp, facts = sizes.plan.vpp, facts_of(sizes.schedule)
    if sizes.pp == 1:
        return f"vpp is {vpp}, but pp is 1"
    return f"{facts.name} has {facts.max_chunks} chunks per stage, not {vpp}"


def _even_stages(sizes: JobSizes) -> Flag:
    return implies((sizes.pp > 1) & sizes.is_schedule("dualpipe"), sizes.pp % 2 == 0)


def _pieces(sizes: JobSizes) -> Flag:
    """Parts may differ by a layer (Megatron-core: `pipeline_model_parallel_layout`), but each has one.

    The first part may have the embedding alone, if the last has the head alone, or MTP with it.
    """
    divided = sizes.each(
        lambda plan_sizes: bool(_given_splits(plan_sizes.plan)) or plan_sizes.plan.account_for is not None, *_SPLITS
    )
    layers, pieces = sizes.layers, sizes.pieces
    mtp = bool(sizes.model.mtp)
    return divided | (layers >= pieces) | (layers + 2 == pieces) | (mtp & (layers + 1 == pieces))


def _given_splits(plan: Plan) -> list[str]:
    """Returns which fields divide the layers; no end that counts (`account_for` without words) is not a division."""
    return [name for name in _SPLITS if getattr(plan, name) is not None and getattr(plan, name) != ()]


def _stage_layers(sizes: JobSizes) -> Flag:
    parts = sizes.each(lambda plan_sizes: len(plan_sizes.plan.stage_layers or ()), "stage_layers")
    total = sizes.each(lambda plan_sizes: sum(plan_sizes.plan.stage_layers or ()), "stage_layers")
    given = sizes.each(lambda plan_sizes: plan_sizes.plan.stage_layers is not None, "stage_layers")
    return implies(given, (parts == sizes.pieces) & (total == sizes.layers))


def _stage_layers_words(sizes: PlanSizes) -> str:
    given, pieces = sizes.plan.stage_layers or (), sizes.pieces
    parts = f"{pieces} part{'s' * (pieces > 1)}"
    held = f"stage_layers has {len(given)} parts of {sum(given)} layers in all"
    return f"{held}; the model has {sizes.layers} layers in {parts}"


def _layout_chunks_problem(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if plan.layout is None:
        return None
    parts = len(parse_layout(plan.layout).parts)
    if parts % plan.pp:
        return f"layout has {parts} parts, which pp {plan.pp} does not divide"
    if plan.vpp not in (1, sizes.vpp):
        return f"layout has {parts} parts, {sizes.vpp} for each of {plan.pp} stages, but vpp is {plan.vpp}"
    most = facts_of(sizes.schedule).max_chunks
    if parts == sizes.pieces and (parts == plan.pp or most in (None, sizes.vpp)):
        return None
    return f"layout has {parts} parts, too many or too few for {sizes.schedule} on {plan.pp} stages"


def _layout_problem(sizes: PlanSizes) -> str | None:
    if sizes.plan.layout is None:
        return None
    return layout_problem(parse_layout(sizes.plan.layout), sizes.layers, sizes.model.mtp, sizes.plan.pp)


def _account_for(sizes: JobSizes) -> Flag:
    """Megatron-core, `get_num_layers_to_build`: layers and counted ends are a multiple of all parts."""
    asked = sizes.each(
        lambda plan_sizes: (
            bool(plan_sizes.plan.account_for)
            or (plan_sizes.plan.account_for == () and not _given_splits(plan_sizes.plan))
        ),
        *_SPLITS,
    )
    ends = sizes.each(lambda plan_sizes: len(plan_sizes.plan.account_for or ()), "account_for")
    return implies(asked, (sizes.layers + ends) % sizes.pieces == 0)


def _account_for_words(sizes: PlanSizes) -> str:
    counted = sizes.plan.account_for
    ends = f" with {' and '.join(counted)}" if counted else ""
    return f"{sizes.layers} layers{ends} cannot be divided among {sizes.pieces} parts (pp times chunks)"


def _end_stage(field: str) -> Constraint:
    """Returns the rule about the layers of the first or last stage; it holds where there is no number of them."""
    other = next(name for name in END_STAGES if name != field)
    return Constraint(
        f"layers divided beside {field.replace('_', ' ')}",
        "not-divisible",
        (field, other, "vpp"),
        lambda sizes: sizes.each(
            lambda plan_sizes: end_stages_problem(plan_sizes) is None,
            *(*END_STAGES, *_PIECES),
            among=sizes.each(lambda plan_sizes: getattr(plan_sizes.plan, field) is not None, field),
        ),
        lambda sizes: end_stages_problem(sizes) or "",
        "Megatron divides the other layers evenly among the other stages, and those of a stage among its chunks",
    )


def end_stages_problem(sizes: PlanSizes) -> str | None:
    """Returns what is wrong with the layers of the first and last stage; None where nothing is, or none are given.

    Megatron-core, `get_num_layers_to_build`: stages in the middle are equal, and so are the chunks of a stage.
    """
    plan, layers = sizes.plan, sizes.layers
    given = [name for name in END_STAGES if getattr(plan, name) is not None]
    if not given:
        return None
    if plan.pp == 1 or sizes.schedule in BOTH_ENDS:
        return f"{given[0]} is given, but {'pp is 1' if plan.pp == 1 else f'{sizes.schedule} has no such stage'}"
    counts = stage_counts(plan, layers)
    if counts is None:
        ends = " and ".join(str(getattr(plan, name)) for name in given)
        return f"{layers} layers less {ends} cannot be divided among {plan.pp - len(given)} stages"
    chunks = sizes.pieces // plan.pp
    if any(count % chunks for count in counts):
        words = ", ".join(map(str, sorted(set(counts))))
        return f"stages of {words} layers cannot be divided into {chunks} chunks"
    return None


def _exclusive(first: str, second: str) -> Constraint:
    """Returns the rule that only one of two fields divides the layers."""

    def holds(sizes: JobSizes) -> Flag:
        return negated(sizes.given(first) & sizes.given(second))

    return Constraint(
        f"{first} or {second}",
        "conflicting-options",
        (first, second),
        holds,
        lambda _: f"{first} and {second} both divide the layers",
        "one of them is enough",
    )


def _whole_groups(sizes: JobSizes) -> Flag:
    """Megatron-core, `get_forward_backward_func`: the last group of microbatches must be as large as the pipeline."""
    return implies(sizes.is_schedule("interleaved-1f1b", "interleaved-zb"), sizes.microbatches % sizes.pp == 0)


def _whole_groups_words(sizes: PlanSizes) -> str:
    needed = f"{sizes.schedule} needs microbatches to be a multiple of its {sizes.pp} stages"
    return f"{needed}, not {sizes.microbatches}"


def _both_ways(sizes: JobSizes) -> Flag:
    """DualPipe fills its pipeline from both ends, DualPipeV from both ends of a V."""
    count = sizes.microbatches
    enough = (count >= 2 * sizes.pp) & implies(sizes.is_schedule("dualpipe"), count % 2 == 0)
    return implies((sizes.pp > 1) & sizes.is_schedule("dualpipe", "dualpipe-v"), enough)


def _both_ways_words(sizes: PlanSizes) -> str:
    even = "an even number of microbatches" if sizes.schedule == "dualpipe" else "microbatches"
    return f"{sizes.schedule} needs {even}, at least twice its {sizes.pp} stages, not {sizes.microbatches}"


SPLIT_CONSTRAINTS: Final = (
    # Megatron-core: a layout excludes all others, and layers of end stages exclude ends that count as layers.
    *(_exclusive(*pair) for pair in combinations(_SPLITS, 2) if pair != END_STAGES),
    Constraint.worded(
        "layout has the chunks",
        "bad-plan",
        ("vpp", "pp", "schedule", "layout"),
        _layout_chunks_problem,
        _PIECES,
        "a layout says how many chunks a stage has",
    ),
    Constraint.worded(
        "layout of the model",
        "bad-plan",
        ("layout",),
        _layout_problem,
        ("layout", "pp"),
        "layouts are those of Megatron-core",
    ),
    Constraint(
        "layers and ends divided by parts",
        "not-divisible",
        ("account_for", "vpp", "pp"),
        _account_for,
        _account_for_words,
        "as Megatron asks of all parts",
    ),
    *map(_end_stage, END_STAGES),
    Constraint(
        "stage_layers of all parts",
        "bad-plan",
        ("vpp", "pp", "stage_layers"),
        _stage_layers,
        _stage_layers_words,
        "stage_layers has a number for each part",
    ),
)
"""Constraints about how a plan divides the layers, in the order in which they are checked."""

PIPELINE_CONSTRAINTS: Final = (
    Constraint("chunks of the schedule", "invalid-schedule", ("vpp", "schedule"), _chunks, _chunks_words),
    Constraint(
        "even stages of dualpipe",
        "invalid-schedule",
        ("pp",),
        _even_stages,
        lambda sizes: f"dualpipe needs an even number of stages, not {sizes.pp}",
    ),
    Constraint(
        "layers for all parts",
        "bad-plan",
        ("pp", "vpp"),
        _pieces,
        lambda sizes: f"{sizes.layers} layers cannot fill {sizes.pieces} parts of a pipeline (pp times chunks)",
    ),
    *SPLIT_CONSTRAINTS,
    Constraint("microbatches in whole groups", "not-divisible", ("gbs", "pp"), _whole_groups, _whole_groups_words),
    Constraint("microbatches for both ends", "invalid-schedule", ("gbs", "pp"), _both_ways, _both_ways_words),
)
"""Constraints about pipelines, in the order in which they are checked."""

LENGTH: Final = Constraint(
    "microbatches that can be run",
    "too-large",
    ("gbs",),
    lambda sizes: sizes.microbatches <= max_microbatches(sizes),
    lambda sizes: f"{sizes.microbatches:,} microbatches of {sizes.layers:,} layers are more than can be run",
    "once the pipeline is full, the step grows in proportion to the microbatches",
)
"""The constraint about the length of a step."""
