"""Writes plans in the short words of screens and pictures: `tp 4 · pp 4 · vpp 5 · dp 16 · mbs 1`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.errors import ForetraceError
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.basics.units import format_count
from foretrace.workload.plan import Plan
from foretrace.workload.stacks import stack

if TYPE_CHECKING:
    from foretrace.search.planner.result import RankedPlan

SEPARATOR: Final = " · "
JOB_FIELDS: Final = ("gpus", "gbs", "seq_len", "precision", "stack")
"""Fields that are the same for all plans of most searches; where they are not, they come first."""

_ALWAYS: Final = ("tp", "pp", "dp", "mbs")
_JOB_NAMES: Final = {"gpus": "GPUs", "gbs": "gbs", "seq_len": "seq"}
_OVERLAPS: Final = {"tp_overlap": "tp overlap", "moe_overlap": "experts overlap", "pp_overlap": "pp overlap"}
_STATED_OVERLAPS: Final = {"grad_overlap": "gradients", "param_overlap": "parameters"}
_USUAL_SCHEDULES: Final = {False: (None, "1f1b"), True: (None, "interleaved-1f1b", "interleaved")}
"""Schedules that need no word: those of the rule, without and with several chunks per stage."""
_MAX_LAYOUT: Final = 24


def plan_words(plan: Plan, varying: Sequence[str] = ()) -> list[str]:
    """Returns a plan as words, each of which stands for one choice; what is usual has no word.

    Args:
        plan: The plan.
        varying: The fields of `JOB_FIELDS` to name.
    """
    return [*_job(plan, varying), *_axes(plan), *_memory(plan), *_run(plan)]


def plan_text(plan: Plan, varying: Sequence[str] = ()) -> str:
    """Returns the words of a plan in one line."""
    return SEPARATOR.join(plan_words(plan, varying))


def setting_words(values: Mapping[str, Any]) -> list[str]:
    """Returns the words of a settled plan that its job's title leaves out: precision, memory, overlap.

    Args:
        values: The fields of the plan as an answer states them, every choice made.
    """
    plan = Plan(**{field.name: values[field.name] for field in fields(Plan) if field.name in values})
    usual_zero = _usual_zero(values["stack"])
    words = [] if plan.precision in (None, "bf16") else [str(plan.precision)]
    words += [f"mbs {plan.mbs}"] if plan.mbs > 1 else []
    words += [word for word in _memory(plan) if plan.zero != usual_zero or not word.startswith("ZeRO")]
    return [*words, *(word for word in _run(plan) if not word.startswith(("layout", "order")))]


def _usual_zero(name: str) -> int | None:
    """Returns the ZeRO stage of a stack by default; None for one that is not known here, as of a saved answer."""
    try:
        return stack(name.partition("@")[0]).zero
    except ForetraceError:
        return None


def varying_fields(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Returns the fields of the job in which some plans differ."""
    return tuple(name for name in JOB_FIELDS if len({getattr(plan, name) for plan in plans}) > 1)


def common_words(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the words that all plans have, but for the sizes of the usual axes, which every row keeps."""
    if len(rows) < 2:
        return []
    others = [set(row) for row in rows[1:]]
    return [word for word in rows[0] if word.split()[0] not in _ALWAYS and all(word in words for words in others)]


def plan_notes(plans: Sequence[RankedPlan], common: Sequence[str]) -> list[str]:
    """Returns what the reader of a table of plans must know: the words that all share, and what a negative spare means.

    Args:
        plans: The plans of the table.
        common: The words that are left out of its rows.
    """
    notes = [f"all of them: {SEPARATOR.join(common)}"] if common else []
    if any(each.headroom_bytes < 0 for each in plans):
        notes.append("spare below 0: the plan fits only if memory fragments less than usual")
    return notes


def pack_words(words: Sequence[str], room: int | None, indent: str = "") -> list[str]:
    """Returns words in lines of at most `room` columns, broken between words.

    Args:
        words: The words.
        room: Columns of a line; None: all words are in one line.
        indent: The beginning of all lines but the first.
    """
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}{SEPARATOR}{word}" if lines else word
        if lines and (room is None or len(longer) <= room):
            lines[-1] = longer
        else:
            lines.append(f"{indent}{word}" if lines else word)
    return lines


def data_parallel(plan: Plan) -> int:
    """Returns the data parallelism of a plan."""
    return plan.gpus // (plan.tp * plan.cp * plan.pp)


def _job(plan: Plan, varying: Sequence[str]) -> Iterator[str]:
    for name in varying:
        value = getattr(plan, name)
        shown = format_count(value) if isinstance(value, int) else str(value)
        yield f"{_JOB_NAMES[name]} {shown}" if name in _JOB_NAMES else shown


def _axes(plan: Plan) -> Iterator[str]:
    yield f"tp {plan.tp}"
    if plan.tp > 1 and plan.sequence_parallel is False:
        yield "no sp"
    if plan.cp > 1:
        yield f"cp {plan.cp}" + ("" if plan.cp_comm == "p2p" else f" {plan.cp_comm}")
    yield f"pp {plan.pp}"
    if plan.vpp > 1:
        yield f"vpp {plan.vpp}"
    if plan.ep > 1:
        yield f"ep {plan.ep}"
    if plan.etp > 1:
        yield f"etp {plan.etp}"
    yield f"dp {data_parallel(plan)}"
    yield f"mbs {plan.mbs}"
    if plan.schedule not in _USUAL_SCHEDULES[plan.vpp > 1]:
        yield str(plan.schedule)


def _memory(plan: Plan) -> Iterator[str]:
    if plan.zero is not None:
        yield f"ZeRO-{plan.zero}" + (f" over {plan.shard}" if plan.shard is not None else "")
    if plan.recompute_modules:
        yield f"recompute {'+'.join(plan.recompute_modules)}"
    elif plan.recompute == "full" and plan.recompute_layers is not None:
        yield f"recompute {plan.recompute_layers} layers"
    elif plan.recompute != "none":
        yield f"recompute {plan.recompute}"
    if plan.offload_optimizer:
        yield "offload optimizer"
    if plan.offload_layers:
        yield f"offload {plan.offload_layers} layers"
    if plan.offload_modules:
        yield f"offload {'+'.join(plan.offload_modules)}"
    if not plan.reshard:
        yield "no reshard"


def _run(plan: Plan) -> Iterator[str]:
    if plan.dispatcher != "alltoall":
        yield plan.dispatcher
    yield from (word for name, word in _OVERLAPS.items() if getattr(plan, name))
    for name, word in _STATED_OVERLAPS.items():
        if getattr(plan, name) is False:
            yield f"no overlap of {word}"
    if plan.cuda_graphs != "none":
        yield f"{plan.cuda_graphs} CUDA graphs"
    layers = plan.layout or (",".join(map(str, plan.stage_layers)) if plan.stage_layers else "")
    if layers:
        yield f"layout {layers if len(layers) <= _MAX_LAYOUT else f'{layers[: _MAX_LAYOUT - 1]}…'}"
    for name, word in (("first_stage_layers", "first"), ("last_stage_layers", "last")):
        if getattr(plan, name) is not None:
            yield f"{word} stage {getattr(plan, name)} layers"
    if plan.account_for:
        yield f"counting {'+'.join(plan.account_for)}"
    if plan.rank_order != DEFAULT_ORDER:
        yield f"order {plan.rank_order}"
