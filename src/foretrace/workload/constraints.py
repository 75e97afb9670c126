"""Declares what a plan must satisfy for its software to run it, as data: `settle` refuses what breaks a constraint.

Each constraint names the field of the plan that its hint changes. `nearest_plans` tries values of that field, the
nearest first, and yields plans that satisfy all constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

from foretrace.basics.errors import InputError
from foretrace.models.model import Experts, LatentAttention, Mlp, Model
from foretrace.schedules.registry import resolve, schedule_facts
from foretrace.workload.plan import Plan
from foretrace.workload.stack import Stack
from foretrace.workload.stacks import stack as stack_named

MAX_TRIED: Final = 256
"""Values of a field that are tried on either side of the one given."""


@dataclass(frozen=True, slots=True)
class PlanSizes:
    """The sizes that constraints are about: a model, a plan, its software, and what follows from them."""

    model: Model
    plan: Plan
    stack: Stack

    @classmethod
    def of(cls, model: Model, plan: Plan, stack: Stack | None = None) -> PlanSizes:
        """Returns the sizes of a plan; without `stack`, the plan or its ZeRO stage names the software."""
        return cls(model, plan, stack or stack_named(plan.stack or ("fsdp" if plan.zero == 3 else "megatron-core")))

    @property
    def dp(self) -> int:
        """Data-parallel ranks, of the GPUs that divide evenly."""
        return max(self.plan.gpus // (self.plan.tp * self.plan.cp * self.plan.pp), 1)

    @property
    def zero(self) -> int:
        """The ZeRO stage of the plan or of the stack."""
        return self.stack.zero if self.plan.zero is None else self.plan.zero

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return self.model.seq_len if self.plan.seq_len is None else self.plan.seq_len

    @property
    def gbs(self) -> int:
        """Sequences of a step."""
        return self.plan.mbs * self.dp * self.plan.pp if self.plan.gbs is None else self.plan.gbs

    @property
    def microbatches(self) -> int:
        """Microbatches of a rank, of the sequences that divide evenly."""
        return max(self.gbs // (self.plan.mbs * self.dp), 1)

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and dropout are split over tp."""
        given = self.plan.sequence_parallel
        return self.plan.tp > 1 and (self.stack.sequence_parallel if given is None else given)

    @property
    def schedule(self) -> str:
        """The name of the pipeline schedule."""
        return resolve(self.plan.schedule or ("interleaved-1f1b" if self.plan.vpp > 1 else "1f1b"))

    @property
    def pieces(self) -> int:
        """Parts of the model: stages times chunks of a stage; DualPipe holds every part twice."""
        if self.plan.pp == 1 or self.schedule == "dualpipe":
            return self.plan.pp
        facts = schedule_facts(self.schedule)
        default = facts.min_chunks if facts.max_chunks is not None else max(facts.min_chunks, 2)
        return self.plan.pp * (self.plan.vpp if self.plan.vpp > 1 else default)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(query heads, heads of keys and values) of each kind of layer; latent attention has one per query head."""
        kinds = dict.fromkeys(layer.attention for layer in self.model.layers)
        return [(kind.heads, kind.heads if isinstance(kind, LatentAttention) else kind.kv_heads) for kind in kinds]

    @property
    def experts(self) -> list[Experts]:
        """The kinds of layers with experts."""
        kinds = dict.fromkeys(layer.feed_forward for layer in self.model.layers)
        return [kind for kind in kinds if isinstance(kind, Experts)]

    @property
    def dense_ffns(self) -> list[tuple[str, int]]:
        """Widths that tp divides, in words and as numbers."""
        kinds = dict.fromkeys(layer.feed_forward for layer in self.model.layers)
        shared = [("shared expert ffn", each.shared.ffn) for each in self.experts if each.shared is not None]
        return [("ffn", kind.ffn) for kind in kinds if isinstance(kind, Mlp)] + shared


Problem = Callable[[PlanSizes], str | None]
"""Returns in words what is wrong with sizes; None: nothing."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule of the software about plans.

    Attributes:
        name: What the rule is called, kebab-case.
        code: The code of the error where a plan breaks it.
        field: The field of the plan whose value the hint changes.
        problem: The predicate: what is wrong, in words; None where the rule holds.
        step: A number of which sensible values of the field are multiples.
        why: Why the software has the rule, where that is not plain.
    """

    name: str
    code: str
    field: str
    problem: Problem
    step: Callable[[PlanSizes], int] = lambda _: 1
    why: str = ""

    def nearest(self, sizes: PlanSizes) -> Iterator[Plan]:
        """Yields plans with other values of the field that satisfy all constraints, the nearest first.

        Where a value alone breaks the rule for batches, the nearest batch goes with it. Where no value satisfies all
        constraints, the field of another constraint that the plan breaks is changed, and if that does not help either,
        several fields are.
        """
        others = (other for other in CONSTRAINTS if other.field != self.field and other.problem(sizes) is not None)
        for constraint in (self, *others):
            runs = False
            for changed in constraint._changed(sizes):
                if broken(changed) is None:
                    runs = True
                    yield changed.plan
            if runs:
                return
        yield from _repaired(sizes)

    def _changed(self, sizes: PlanSizes) -> Iterator[PlanSizes]:
        """Yields sizes with other values of the field, the nearest first, each also with the nearest whole batch."""
        given = getattr(sizes, self.field, None) or getattr(sizes.plan, self.field)
        for value in _values(given, self.step(sizes)):
            field: dict[str, Any] = {self.field: value}
            changed = replace(sizes, plan=replace(sizes.plan, **field))
            yield changed
            whole = changed.plan.mbs * changed.dp
            if changed.plan.gbs is not None and changed.plan.gbs % whole:
                yield replace(changed, plan=replace(changed.plan, gbs=next(_values(changed.plan.gbs, whole))))

    def repair(self, sizes: PlanSizes) -> PlanSizes | None:
        """Returns the nearest sizes that satisfy this constraint and those before it; None where no value does."""
        rules = CONSTRAINTS[: CONSTRAINTS.index(self) + 1]
        holds = (changed for changed in self._changed(sizes) if not any(rule.problem(changed) for rule in rules))
        return next(holds, None)

    def error(self, sizes: PlanSizes) -> InputError:
        """Returns the error of a plan that breaks the rule, with the nearest plans that break none."""
        problem = self.problem(sizes)
        assert problem is not None
        plans = list(islice(self.nearest(sizes), 2))
        words = " or ".join(_changes(sizes.plan, plan) for plan in plans)
        hint = f"{words} runs" if plans else f"no other {self.field} makes it run"
        return InputError(self.code, problem, hint=f"{self.why}; {hint}" if self.why else hint)


def _repaired(sizes: PlanSizes) -> Iterator[Plan]:
    """Yields a plan that satisfies all constraints, found by one repair after the other; nothing where none is."""
    for _ in range(2 * len(CONSTRAINTS)):
        constraint = broken(sizes)
        if constraint is None:
            yield sizes.plan
            return
        repaired = constraint.repair(sizes)
        if repaired is None:
            return
        sizes = repaired


def broken(sizes: PlanSizes) -> Constraint | None:
    """Returns the first constraint that a plan breaks; None where it runs."""
    return next((constraint for constraint in CONSTRAINTS if constraint.problem(sizes) is not None), None)


def check_constraints(sizes: PlanSizes) -> None:
    """Raises the error of the first constraint that a plan breaks."""
    constraint = broken(sizes)
    if constraint is not None:
        raise constraint.error(sizes)


def _values(given: int, step: int) -> Iterator[int]:
    """Yields multiples of `step` other than `given`, the nearest first."""
    below = given // step
    down = (step * count for count in range(below, max(below - MAX_TRIED, 0), -1) if step * count != given)
    up = (step * count for count in range(below + 1, below + MAX_TRIED))
    pairs = zip(chain(down, (0 for _ in range(MAX_TRIED))), up, strict=False)
    for low, high in pairs:
        if low > 0 and given - low <= high - given:
            yield low
            yield high
        else:
            yield high
            if low > 0:
                yield low


def _changes(before: Plan, after: Plan) -> str:
    names = (name for name in before.__slots__ if getattr(before, name) != getattr(after, name))
    return " ".join(f"--{'seq' if name == 'seq_len' else name} {getattr(after, name)}" for name in names)


def _indivisible(what: str, count: int, axis: str, size: int) -> str | None:
    return f"{what} {count} cannot be divided by {axis} {size}" if count % size else None


def _first(problems: Iterator[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _gpus(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    fixed = plan.tp * plan.cp * plan.pp
    if plan.gpus % fixed == 0:
        return None
    return f"gpus {plan.gpus} cannot be divided by tp·cp·pp = {plan.tp}·{plan.cp}·{plan.pp} = {fixed}"


def _batch(sizes: PlanSizes) -> str | None:
    mbs, dp = sizes.plan.mbs, sizes.dp
    if sizes.gbs % (mbs * dp) == 0:
        return None
    return f"gbs {sizes.gbs} cannot be divided by mbs·dp = {mbs}·{dp} = {mbs * dp}"


def _heads(sizes: PlanSizes) -> str | None:
    return _first(_indivisible("attention heads", heads, "tp", sizes.plan.tp) for heads, _ in sizes.heads)


def _kv_heads(sizes: PlanSizes) -> str | None:
    """Megatron-core from 0.16 on copies keys and values where tp is a multiple of their heads; others divide them."""
    tp = sizes.plan.tp
    for _, kv_heads in sizes.heads:
        if kv_heads % tp and not (sizes.stack.copies_kv_heads and tp % kv_heads == 0):
            rule = "neither divides the other" if sizes.stack.copies_kv_heads else "tp does not divide them"
            return f"heads of keys and values {kv_heads}, tp {tp}: {rule}"
    return None


def _a2a_heads(sizes: PlanSizes) -> str | None:
    """Transformer Engine, `AttnFuncWithCPAndQKVOA2A`: heads of a rank, and those of its keys, are multiples of cp."""
    plan = sizes.plan
    if plan.cp == 1 or plan.cp_comm != "a2a":
        return None
    for heads, kv_heads in sizes.heads:
        if heads // plan.tp % plan.cp:
            return f"attention heads {heads} cannot be divided by tp·cp {plan.tp * plan.cp} (cp_comm a2a)"
        if max(kv_heads // plan.tp, 1) % plan.cp:
            return f"heads of keys and values {kv_heads} cannot be divided by tp·cp {plan.tp * plan.cp} (cp_comm a2a)"
    return None


def _ffn(sizes: PlanSizes) -> str | None:
    return _first(_indivisible(what, ffn, "tp", sizes.plan.tp) for what, ffn in sizes.dense_ffns)


def _expert_count(sizes: PlanSizes) -> str | None:
    return _first(_indivisible("experts", each.count, "ep", sizes.plan.ep) for each in sizes.experts)


def _expert_ffn(sizes: PlanSizes) -> str | None:
    return _first(_indivisible("expert ffn", each.expert.ffn, "etp", sizes.plan.etp) for each in sizes.experts)


def _no_experts(axis: str) -> Problem:
    def problem(sizes: PlanSizes) -> str | None:
        if sizes.experts or getattr(sizes.plan, axis) == 1:
            return None
        return f"ep is {sizes.plan.ep} and etp {sizes.plan.etp}, but {sizes.model.name} has no experts"

    return problem


def _expert_ranks(axis: str) -> Problem:
    def problem(sizes: PlanSizes) -> str | None:
        plan = sizes.plan
        dense = plan.tp * plan.cp * sizes.dp
        size, whole = (plan.etp, dense) if axis == "etp" else (plan.ep, dense // plan.etp)
        over = f" over etp={plan.etp}" if axis == "ep" and plan.etp > 1 else ""
        return f"{axis}={size} does not divide tp·cp·dp={dense}{over}" if sizes.experts and whole % size else None

    return problem


def _context_parts(sizes: PlanSizes) -> str | None:
    parts = 2 * sizes.plan.cp
    return _indivisible("seq_len", sizes.seq_len, "2·cp =", parts) if sizes.plan.cp > 1 else None


def _sequence_parts(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if not sizes.sequence_parallel or sizes.seq_len // plan.cp % plan.tp == 0:
        return None
    return f"seq_len {sizes.seq_len} over cp {plan.cp} cannot be divided by tp {plan.tp}, as sequence parallelism asks"


def _shard(sizes: PlanSizes) -> str | None:
    plan, ranks = sizes.plan, sizes.dp * sizes.plan.cp
    if plan.shard is None or sizes.zero != 3 or (ranks % plan.shard == 0 and plan.shard % plan.cp == 0):
        return None
    return f"shard {plan.shard} does not split dp·cp = {sizes.dp}·{plan.cp}"


def _pieces(sizes: PlanSizes) -> str | None:
    """Parts may differ by a layer (Megatron-core: `pipeline_model_parallel_layout`), but each has one."""
    layers, pieces = len(sizes.model.layers), sizes.pieces
    if sizes.plan.stage_layers is not None or layers >= pieces or layers + 2 == pieces:
        return None
    return f"{layers} layers cannot fill {pieces} parts of a pipeline (pp times chunks)"


def _whole_groups(sizes: PlanSizes) -> str | None:
    """Megatron-core, `get_forward_backward_func`: the last group of microbatches must be as large as the pipeline."""
    stages, count = sizes.plan.pp, sizes.microbatches
    if stages == 1 or sizes.schedule not in ("interleaved-1f1b", "interleaved-zb") or count % stages == 0:
        return None
    return f"{sizes.schedule} needs microbatches to be a multiple of its {stages} stages, not {count}"


def _chunks(sizes: PlanSizes) -> str | None:
    plan = sizes.plan
    if plan.pp == 1 or plan.vpp == 1:
        return f"vpp is {plan.vpp}, but pp is 1" if plan.vpp > 1 else None
    facts = schedule_facts(sizes.schedule)
    if facts.max_chunks is None or facts.max_chunks == plan.vpp:
        return None
    return f"{facts.name} has {facts.max_chunks} chunks per stage, not {plan.vpp}"


def _both_ways(sizes: PlanSizes) -> str | None:
    """DualPipe fills its pipeline from both ends, DualPipeV from both ends of a V."""
    stages, count = sizes.plan.pp, sizes.microbatches
    odd = count % 2 == 1 and sizes.schedule == "dualpipe"
    if stages == 1 or not sizes.schedule.startswith("dualpipe") or (count >= 2 * stages and not odd):
        return None
    even = "an even number of microbatches" if sizes.schedule == "dualpipe" else "microbatches"
    return f"{sizes.schedule} needs {even}, at least twice its {stages} stages, not {count}"


def _even_stages(sizes: PlanSizes) -> str | None:
    odd = sizes.plan.pp > 1 and sizes.plan.pp % 2 == 1 and sizes.schedule == "dualpipe"
    return f"dualpipe needs an even number of stages, not {sizes.plan.pp}" if odd else None


def _round_of_batches(sizes: PlanSizes) -> int:
    return sizes.plan.mbs * sizes.dp * sizes.plan.pp


CONSTRAINTS: Final = (
    Constraint("gpus-by-ranks", "not-divisible", "gpus", _gpus, lambda s: s.plan.tp * s.plan.cp * s.plan.pp),
    Constraint("batch-by-ranks", "not-divisible", "gbs", _batch, lambda s: s.plan.mbs * s.dp),
    Constraint("heads-by-tp", "not-divisible", "tp", _heads),
    Constraint("kv-heads-by-tp", "not-divisible", "tp", _kv_heads),
    Constraint("heads-by-cp", "not-divisible", "cp", _a2a_heads),
    Constraint("ffn-by-tp", "not-divisible", "tp", _ffn),
    Constraint("experts-by-ep", "not-divisible", "ep", _expert_count),
    Constraint("expert-ffn-by-etp", "not-divisible", "etp", _expert_ffn),
    Constraint("ep-without-experts", "bad-plan", "ep", _no_experts("ep")),
    Constraint("etp-without-experts", "bad-plan", "etp", _no_experts("etp")),
    Constraint("etp-by-ranks", "not-divisible", "etp", _expert_ranks("etp")),
    Constraint("ep-by-ranks", "not-divisible", "ep", _expert_ranks("ep")),
    Constraint(
        "sequence-by-cp",
        "not-divisible",
        "seq_len",
        _context_parts,
        lambda s: 2 * s.plan.cp,
        "each rank takes a part from the front and one from the back, so that causal attention is balanced",
    ),
    Constraint("sequence-by-tp", "not-divisible", "seq_len", _sequence_parts, lambda s: 2 * s.plan.cp * s.plan.tp),
    Constraint("shard-by-ranks", "not-divisible", "shard", _shard, lambda s: s.plan.cp),
    Constraint("chunks-by-schedule", "invalid-schedule", "vpp", _chunks),
    Constraint("even-stages", "invalid-schedule", "pp", _even_stages),
    Constraint("layers-by-stages", "bad-plan", "pp", _pieces),
    Constraint("microbatches-by-stages", "not-divisible", "gbs", _whole_groups, _round_of_batches),
    Constraint("microbatches-both-ways", "invalid-schedule", "gbs", _both_ways, lambda s: 2 * _round_of_batches(s)),
)
"""All constraints, in the order in which they are checked."""
