"""States how the axes of a plan must divide the GPUs, the batch, the sequence and the widths of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.sizes import Flag, JobSizes, Number, PlanSizes, at_least, implies, negated


def _divides(axis: Number, counts: Sequence[int]) -> Flag:
    """Returns whether an axis divides all counts."""
    holds: Flag = axis > 0
    for count in counts:
        holds = holds & (count % axis == 0)
    return holds


def _indivisible(what: str, counts: Sequence[int], axis: str, size: int) -> str:
    count = next(count for count in counts if count % size)
    return f"{what} {count} cannot be divided by {axis} {size}"


def _gpus(sizes: JobSizes) -> Flag:
    return sizes.gpus % (sizes.tp * sizes.cp * sizes.pp) == 0


def _gpus_words(sizes: PlanSizes) -> str:
    plan = sizes.plan
    fixed = plan.tp * plan.cp * plan.pp
    return f"gpus {plan.gpus} cannot be divided by tp·cp·pp = {plan.tp}·{plan.cp}·{plan.pp} = {fixed}"


def _batch(sizes: JobSizes) -> Flag:
    return sizes.gbs % (sizes.mbs * sizes.dp) == 0


def _batch_words(sizes: PlanSizes) -> str:
    mbs, dp = sizes.plan.mbs, sizes.dp
    return f"gbs {sizes.gbs} cannot be divided by mbs·dp = {mbs}·{dp} = {mbs * dp}"


def _heads(sizes: JobSizes) -> Flag:
    return _divides(sizes.tp, [heads for heads, _ in sizes.facts.heads])


def _kv_heads(sizes: JobSizes) -> Flag:
    """Megatron-core from 0.16 on copies keys and values where tp is a multiple of their heads; others divide them."""
    copies = sizes.of_stack(lambda stack: stack.copies_kv_heads)
    holds: Flag = sizes.tp > 0
    for _, kv_heads in sizes.facts.heads:
        holds = holds & ((kv_heads % sizes.tp == 0) | (copies & (sizes.tp % kv_heads == 0)))
    return holds


def _kv_heads_words(sizes: PlanSizes) -> str:
    tp, copies = sizes.tp, sizes.stack.copies_kv_heads
    kv_heads = next(kv for _, kv in sizes.facts.heads if kv % tp and not (copies and tp % kv == 0))
    rule = "neither divides the other" if copies else "tp does not divide them"
    return f"heads of keys and values {kv_heads}, tp {tp}: {rule}"


def _a2a_heads(sizes: JobSizes) -> Flag:
    """Transformer Engine, `AttnFuncWithCPAndQKVOA2A`: heads of a rank, and those of its keys, are multiples of cp."""
    tp, cp = sizes.tp, sizes.cp
    holds: Flag = cp > 0
    for heads, kv_heads in sizes.facts.heads:
        holds = holds & (heads // tp % cp == 0) & (at_least(1, kv_heads // tp) % cp == 0)
    return implies((cp > 1) & sizes.is_word("cp_comm", "a2a"), holds)


def _a2a_heads_words(sizes: PlanSizes) -> str:
    tp, cp = sizes.tp, sizes.cp
    for heads, kv_heads in sizes.facts.heads:
        if heads // tp % cp:
            return f"attention heads {heads} cannot be divided by tp·cp {tp * cp} (cp_comm a2a)"
        if max(kv_heads // tp, 1) % cp:
            break
    return f"heads of keys and values {kv_heads} cannot be divided by tp·cp {tp * cp} (cp_comm a2a)"


def _ffn(sizes: JobSizes) -> Flag:
    return _divides(sizes.tp, [ffn for _, ffn in sizes.facts.dense_ffns])


def _ffn_words(sizes: PlanSizes) -> str:
    what, ffn = next((what, ffn) for what, ffn in sizes.facts.dense_ffns if ffn % sizes.tp)
    return f"{what} {ffn} cannot be divided by tp {sizes.tp}"


def _expert_count(sizes: JobSizes) -> Flag:
    return _divides(sizes.ep, [experts.count for experts in sizes.facts.experts])


def _expert_ffn(sizes: JobSizes) -> Flag:
    return _divides(sizes.etp, [experts.expert.ffn for experts in sizes.facts.experts])


def _no_experts_words(sizes: PlanSizes) -> str:
    return f"ep is {sizes.ep} and etp {sizes.etp}, but {sizes.model.name} has no experts"


def _expert_shards(sizes: JobSizes) -> Flag:
    return negated(bool(sizes.facts.experts)) | (sizes.tp * sizes.cp * sizes.dp % sizes.etp == 0)


def _expert_groups(sizes: JobSizes) -> Flag:
    return negated(bool(sizes.facts.experts)) | (sizes.tp * sizes.cp * sizes.dp // sizes.etp % sizes.ep == 0)


def _expert_ranks_words(axis: str, sizes: PlanSizes) -> str:
    dense = sizes.tp * sizes.cp * sizes.dp
    over = f" over etp={sizes.etp}" if axis == "ep" and sizes.etp > 1 else ""
    return f"{axis}={getattr(sizes, axis)} does not divide tp·cp·dp={dense}{over}"


def _context_parts(sizes: JobSizes) -> Flag:
    return implies(sizes.cp > 1, sizes.seq_len % (2 * sizes.cp) == 0)


def _sequence_parts(sizes: JobSizes) -> Flag:
    return implies(sizes.sequence_parallel, sizes.seq_len // sizes.cp % sizes.tp == 0)


def _sequence_parts_words(sizes: PlanSizes) -> str:
    seq_len, cp, tp = sizes.seq_len, sizes.cp, sizes.tp
    return f"seq_len {seq_len} over cp {cp} cannot be divided by tp {tp}, as sequence parallelism asks"


def _documents(sizes: JobSizes) -> Flag:
    tokens = sizes.each(lambda plan_sizes: sum(plan_sizes.plan.documents or ()), "documents")
    return implies(sizes.given("documents"), tokens == sizes.seq_len)


def _documents_words(sizes: PlanSizes) -> str:
    return f"documents add up to {sum(sizes.plan.documents or ())} tokens, seq_len is {sizes.seq_len}"


def _shard_of_zero_3(sizes: JobSizes) -> Flag:
    return implies(sizes.given("shard"), sizes.zero == 3)


def _shard(sizes: JobSizes) -> Flag:
    shard = sizes.number("shard", 1)
    return implies(sizes.given("shard"), (sizes.dp * sizes.cp % shard == 0) & (shard % sizes.cp == 0))


def _rank_order(sizes: JobSizes) -> Flag:
    return sizes.each(
        lambda plan_sizes: _rank_order_problem(plan_sizes) is None,
        *("rank_order", "gpus", "tp", "cp", "pp", "ep", "etp", "shard"),
        among=negated(sizes.is_word("rank_order", DEFAULT_ORDER)),
    )


def _rank_order_problem(sizes: PlanSizes) -> str | None:
    """Megatron-core, `initialize_model_parallel`: stages are outermost, or experts have as many replicas as the rest.

    It asserts that also for models without experts. `Mesh` refuses an order that numbers stages in two ways.
    """
    try:
        mesh = sizes.mesh
    except InputError as error:
        return error.message
    if sizes.pp == 1 or sizes.plan.rank_order.endswith("pp") or mesh.edp == mesh.dp:
        return None
    return f"rank_order {mesh.order} does not end with pp, but experts have {mesh.edp} replicas and dp is {mesh.dp}"


AXIS_CONSTRAINTS: Final = (
    Constraint("gpus divided by axes", "not-divisible", ("cp", "pp", "tp", "gpus"), _gpus, _gpus_words),
    Constraint("batch divided by dp", "not-divisible", ("gbs", "mbs"), _batch, _batch_words),
    Constraint(
        "heads divided by tp",
        "not-divisible",
        ("tp",),
        _heads,
        lambda sizes: _indivisible("attention heads", [heads for heads, _ in sizes.facts.heads], "tp", sizes.tp),
    ),
    Constraint("heads of keys divided by tp", "not-divisible", ("tp",), _kv_heads, _kv_heads_words),
    Constraint("heads divided by cp a2a", "not-divisible", ("cp", "tp"), _a2a_heads, _a2a_heads_words),
    Constraint("ffn divided by tp", "not-divisible", ("tp",), _ffn, _ffn_words),
    Constraint(
        "experts divided by ep",
        "not-divisible",
        ("ep",),
        _expert_count,
        lambda sizes: _indivisible("experts", [each.count for each in sizes.facts.experts], "ep", sizes.ep),
    ),
    Constraint(
        "expert ffn divided by etp",
        "not-divisible",
        ("etp",),
        _expert_ffn,
        lambda sizes: _indivisible("expert ffn", [each.expert.ffn for each in sizes.facts.experts], "etp", sizes.etp),
    ),
    Constraint(
        "ep without experts",
        "bad-plan",
        ("ep",),
        lambda sizes: bool(sizes.facts.experts) | (sizes.ep == 1),
        _no_experts_words,
    ),
    Constraint(
        "etp without experts",
        "bad-plan",
        ("etp",),
        lambda sizes: bool(sizes.facts.experts) | (sizes.etp == 1),
        _no_experts_words,
    ),
    Constraint(
        "ranks divided by etp",
        "not-divisible",
        ("etp",),
        _expert_shards,
        lambda sizes: _expert_ranks_words("etp", sizes),
    ),
    Constraint(
        "ranks divided by ep",
        "not-divisible",
        ("ep", "etp"),
        _expert_groups,
        lambda sizes: _expert_ranks_words("ep", sizes),
    ),
    Constraint(
        "sequence divided by cp",
        "not-divisible",
        ("seq_len", "cp"),
        _context_parts,
        lambda sizes: _indivisible("seq_len", [sizes.seq_len], "2·cp =", 2 * sizes.cp),
        "each rank takes a part from the front and one from the back, so that causal attention is balanced",
    ),
    Constraint(
        "sequence divided by tp", "not-divisible", ("seq_len", "tp", "cp"), _sequence_parts, _sequence_parts_words
    ),
    Constraint(
        "documents fill the sequence",
        "bad-plan",
        ("seq_len", "documents"),
        _documents,
        _documents_words,
        "documents are those of one packed sequence",
    ),
    Constraint(
        "shard without zero 3",
        "bad-plan",
        ("zero", "shard"),
        _shard_of_zero_3,
        lambda sizes: f"shard is {sizes.plan.shard}, but zero is {sizes.zero}",
        "shard is a choice of zero 3 (HSDP)",
    ),
    Constraint(
        "ranks divided by shard",
        "not-divisible",
        ("shard",),
        _shard,
        lambda sizes: f"shard {sizes.plan.shard} does not split dp·cp = {sizes.dp}·{sizes.cp}",
    ),
)
"""Constraints about axes, in the order in which they are checked."""

RANK_ORDER: Final = Constraint(
    "rank order numbers stages once",
    "bad-mesh",
    ("rank_order", "ep", "etp"),
    _rank_order,
    lambda sizes: _rank_order_problem(sizes) or "",
)
"""The constraint about the order of axes, which presumes that they divide the GPUs."""
