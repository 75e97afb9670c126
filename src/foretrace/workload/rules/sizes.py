"""Defines the sizes that constraints are about: those of one plan (`PlanSizes`) and of many plans (`PlanColumns`).

A size is a number for one plan and an array for many. What follows from the fields of a plan is stated once, in
operators that work on both. Arrays may have several dimensions, one for each axis of a grid of plans: a rule about some
axes then costs as many operations as these axes have combinations, however many plans there are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import distinct_keys
from foretrace.basics.mesh import Mesh
from foretrace.models.model import Experts, LatentAttention, Mlp, Model
from foretrace.schedules.registry import ScheduleFacts, names, schedule_facts
from foretrace.workload.layout import parse_layout
from foretrace.workload.plan import FULL_PRECISIONS, Plan
from foretrace.workload.stack import Stack
from foretrace.workload.stacks import stack as stack_named

Number = Any
"""A whole number of one plan, or an array of whole numbers of many."""
Flag = Any
"""True or False of one plan, or an array of them of many."""

BOTH_ENDS: Final = ("zb-v", "dualpipe", "dualpipe-v")
"""Schedules in which one stage holds both ends of the model."""

_SCHEDULES: Final = tuple(schedule_facts(name) for name in names())
_ONE_FORWARD: Final = names().index("1f1b")
_INTERLEAVED: Final = names().index("interleaved-1f1b")


def where(condition: Flag, value: Number, other: Number) -> Number:
    """Returns `value` where a condition holds, and `other` elsewhere."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, value, other)
    return value if condition else other


def at_least(least: int, value: Number) -> Number:
    """Returns a number, or `least` where it is smaller."""
    return np.maximum(value, least) if isinstance(value, np.ndarray) else max(value, least)


def implies(condition: Flag, claim: Flag) -> Flag:
    """Returns whether a claim holds wherever a condition does."""
    return negated(condition) | claim


def negated(flag: Flag) -> Flag:
    """Returns the opposite of a flag."""
    return flag ^ True


@lru_cache(maxsize=64)
def facts_of(schedule: str) -> ScheduleFacts:
    """Returns what is known of a pipeline schedule, found once."""
    return schedule_facts(schedule)


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model that plans divide."""

    model: Model
    heads: tuple[tuple[int, int], ...]
    """(query heads, heads of keys and values) of each kind of layer; latent attention has one per query head."""
    experts: tuple[Experts, ...]
    """The kinds of layers with experts."""
    dense_ffns: tuple[tuple[str, int], ...]
    """Widths that tp divides, in words and as numbers."""
    is_swiglu: bool
    """Whether every feed-forward layer and expert is a SwiGLU."""

    @classmethod
    def of(cls, model: Model) -> ModelSizes:
        """Returns the sizes of a model."""
        attentions = dict.fromkeys(layer.attention for layer in model.layers)
        feed_forwards = dict.fromkeys(layer.feed_forward for layer in model.layers)
        experts = tuple(kind for kind in feed_forwards if isinstance(kind, Experts))
        shared = [("shared expert ffn", kind.shared.ffn) for kind in experts if kind.shared is not None]
        mlps = [kind.expert if isinstance(kind, Experts) else kind for kind in feed_forwards]
        return cls(
            model=model,
            heads=tuple(
                (kind.heads, kind.heads if isinstance(kind, LatentAttention) else kind.kv_heads) for kind in attentions
            ),
            experts=experts,
            dense_ffns=(*(("ffn", kind.ffn) for kind in feed_forwards if isinstance(kind, Mlp)), *shared),
            is_swiglu=all(mlp.gated and mlp.activation == "silu" for mlp in mlps),
        )


class JobSizes(ABC):
    """The sizes that follow from a model, a plan and its software, whether they fit together or not.

    Attributes:
        facts: The sizes of the model.
        own_stack: The software where it is given apart from the plan, so that no field of the plan changes it.
    """

    facts: ModelSizes
    own_stack: Stack | None

    @abstractmethod
    def each(self, function: Callable[[PlanSizes], Any], *fields: str, among: Flag = True) -> Any:
        """Returns a function of plans that depends on some of their fields only.

        Args:
            function: Computes a number or flag from one plan.
            fields: The fields of a plan that the function reads.
            among: The plans of which the function is computed; it is True for all others.
        """

    @abstractmethod
    def number(self, field: str, absent: int = 0) -> Number:
        """Returns a field that is a whole number or a flag; `absent` stands for None."""

    def given(self, field: str) -> Flag:
        """Returns whether a field is given: neither None nor an empty list."""
        return self.each(lambda sizes: getattr(sizes.plan, field) not in (None, ()), field)

    def is_word(self, field: str, *words: str) -> Flag:
        """Returns whether a field is one of some words."""
        return self.each(lambda sizes: getattr(sizes.plan, field) in words, field)

    def of_stack(self, function: Callable[[Stack], Any]) -> Any:
        """Returns a function of the software."""
        return self.each(lambda sizes: function(sizes.stack), "stack", "zero")

    def of_schedule(self, function: Callable[[ScheduleFacts], Any]) -> Any:
        """Returns a function of the pipeline schedule."""
        table = [function(facts) for facts in _SCHEDULES]
        numbers = self.schedule_number
        return np.array(table)[numbers] if isinstance(numbers, np.ndarray) else table[numbers]

    @property
    def model(self) -> Model:
        """The model."""
        return self.facts.model

    @property
    def layers(self) -> int:
        """Layers of the model, without those of multi-token prediction."""
        return len(self.facts.model.layers)

    @cached_property
    def gpus(self) -> Number:
        """GPUs of the job."""
        return self.number("gpus")

    @cached_property
    def tp(self) -> Number:
        """Tensor-parallel ranks."""
        return self.number("tp")

    @cached_property
    def cp(self) -> Number:
        """Context-parallel ranks."""
        return self.number("cp")

    @cached_property
    def pp(self) -> Number:
        """Pipeline stages."""
        return self.number("pp")

    @cached_property
    def ep(self) -> Number:
        """Expert-parallel ranks."""
        return self.number("ep")

    @cached_property
    def etp(self) -> Number:
        """Tensor-parallel ranks of an expert."""
        return self.number("etp")

    @cached_property
    def mbs(self) -> Number:
        """Sequences of a microbatch."""
        return self.number("mbs")

    @cached_property
    def dp(self) -> Number:
        """Data-parallel ranks, of the GPUs that divide evenly."""
        return at_least(1, self.gpus // (self.tp * self.cp * self.pp))

    @cached_property
    def zero(self) -> Number:
        """The ZeRO stage of the plan or of the stack."""
        return self.each(
            lambda sizes: sizes.stack.zero if sizes.plan.zero is None else sizes.plan.zero, "stack", "zero"
        )

    @cached_property
    def splits_parameters(self) -> Flag:
        """Whether data-parallel ranks hold only a part of parameters between steps."""
        return self.each(lambda sizes: sizes.stack.splits_parameters(sizes.zero), "stack", "zero")

    @cached_property
    def seq_len(self) -> Number:
        """Tokens of a sequence."""
        return self.number("seq_len", self.model.seq_len)

    @cached_property
    def gbs(self) -> Number:
        """Sequences of a step."""
        return where(self.given("gbs"), self.number("gbs"), self.mbs * self.dp * self.pp)

    @cached_property
    def microbatches(self) -> Number:
        """Microbatches of a rank, of the sequences that divide evenly."""
        return at_least(1, self.gbs // (self.mbs * self.dp))

    @cached_property
    def sequence_parallel(self) -> Flag:
        """Whether norms and dropout are split over tp."""
        return (self.tp > 1) & self.each(
            lambda sizes: (
                sizes.stack.sequence_parallel if sizes.plan.sequence_parallel is None else sizes.plan.sequence_parallel
            ),
            *("sequence_parallel", "stack", "zero"),
        )

    @cached_property
    def layout_parts(self) -> Number:
        """Parts of the layout of the plan; 0 where it has none."""
        return self.each(
            lambda sizes: 0 if sizes.plan.layout is None else len(parse_layout(sizes.plan.layout).parts), "layout"
        )

    @cached_property
    def vpp(self) -> Number:
        """Model chunks of each stage: of the plan, or as many as its layout has parts for every stage."""
        return where(self.layout_parts > 0, at_least(1, self.layout_parts // self.pp), self.number("vpp"))

    @cached_property
    def schedule_number(self) -> Number:
        """The pipeline schedule: its position among the names of all schedules."""
        given = self.each(
            lambda sizes: -1 if sizes.plan.schedule is None else names().index(facts_of(sizes.plan.schedule).name),
            "schedule",
        )
        return where(given >= 0, given, where(self.vpp > 1, _INTERLEAVED, _ONE_FORWARD))

    def is_schedule(self, *schedules: str) -> Flag:
        """Returns whether the pipeline schedule is one of some, by their own names."""
        return self.of_schedule(lambda facts: facts.name in schedules)

    @cached_property
    def pieces(self) -> Number:
        """Parts of the model: stages times chunks of a stage; DualPipe holds every part twice."""
        default = self.of_schedule(
            lambda facts: facts.min_chunks if facts.max_chunks is not None else max(facts.min_chunks, 2)
        )
        single = (self.pp == 1) | self.is_schedule("dualpipe")
        return self.pp * where(single, 1, where(self.vpp > 1, self.vpp, default))

    @cached_property
    def shard(self) -> Number:
        """Ranks among which state is split."""
        return where(self.given("shard"), self.number("shard"), where(self.zero > 0, self.dp * self.cp, 1))


class PlanSizes(JobSizes):
    """The sizes of one plan, as numbers.

    Args:
        facts: The sizes of the model.
        plan: The plan.
        own_stack: The software; None: the plan or its ZeRO stage names it.
    """

    def __init__(self, facts: ModelSizes, plan: Plan, own_stack: Stack | None = None) -> None:
        self.facts = facts
        self.plan: Final = plan
        self.own_stack = own_stack
        self.stack: Final = own_stack or plan_stack(plan)

    @classmethod
    def of(cls, model: Model, plan: Plan, stack: Stack | None = None) -> PlanSizes:
        """Returns the sizes of a plan; without `stack`, the plan or its ZeRO stage names the software."""
        return cls(ModelSizes.of(model), plan, stack)

    def with_plan(self, plan: Plan) -> PlanSizes:
        """Returns the sizes of another plan for the same model and, where it is given apart, the same software."""
        return PlanSizes(self.facts, plan, self.own_stack)

    def each(self, function: Callable[[PlanSizes], Any], *fields: str, among: Flag = True) -> Any:
        del fields  # all of them are at hand
        return function(self) if among else True

    def number(self, field: str, absent: int = 0) -> Number:
        value = getattr(self.plan, field)
        return absent if value is None else value

    def given(self, field: str) -> Flag:
        return getattr(self.plan, field) not in (None, ())

    def is_word(self, field: str, *words: str) -> Flag:
        return getattr(self.plan, field) in words

    def of_stack(self, function: Callable[[Stack], Any]) -> Any:
        return function(self.stack)

    def of_schedule(self, function: Callable[[ScheduleFacts], Any]) -> Any:
        return function(_SCHEDULES[self.schedule_number])

    @property
    def schedule(self) -> str:
        """The name of the pipeline schedule."""
        return _SCHEDULES[self.schedule_number].name

    @property
    def parameter_dtype(self) -> str:
        """In which parameters rest between steps."""
        return "fp32" if self.plan.precision in FULL_PRECISIONS else self.stack.parameter_dtype

    @property
    def updated_dtype(self) -> str:
        """In which the optimizer keeps what it updates: its own copy of parameters, or these."""
        copies = self.parameter_dtype != "fp32" and (self.stack.master_weights or self.plan.master_dtype)
        return (self.plan.master_dtype or self.stack.master_dtype) if copies else self.parameter_dtype

    @property
    def mesh(self) -> Mesh:
        """The axes as they number the ranks; raises `InputError` where the rank order cannot number them."""
        plan = self.plan
        # Megatron and torchtitan split state over dp and cp together; the mesh names the part of dp.
        part = plan.shard // plan.cp if plan.shard is not None and plan.shard < self.dp * plan.cp else None
        return Mesh(
            tp=plan.tp,
            cp=plan.cp,
            dp=self.dp,
            pp=plan.pp,
            ep=plan.ep,
            etp=plan.etp if self.facts.experts else None,
            shard=part,
            order=plan.rank_order,
        )


def plan_stack(plan: Plan) -> Stack:
    """Returns the software that a plan or its ZeRO stage names."""
    return stack_named(plan.stack or ("fsdp" if plan.zero == 3 else "megatron-core"))


class PlanColumns(JobSizes):
    """The sizes of many plans, as arrays.

    Args:
        facts: The sizes of the model.
        base: The plan that has the fields that do not vary.
        values: The values of each field that varies.
        codes: For each field that varies, the position of each plan's value in `values`. Arrays of different fields
            broadcast against each other: columns of a table, or the axes of a grid.
        own_stack: The software where it is given apart from the plans.
    """

    def __init__(
        self,
        facts: ModelSizes,
        base: Plan,
        values: Mapping[str, Sequence[Any]],
        codes: Mapping[str, NDArray[np.integer]],
        own_stack: Stack | None = None,
    ) -> None:
        self.facts = facts
        self.own_stack = own_stack
        self._base = PlanSizes(facts, base, own_stack)
        self._values = values
        self._codes = codes
        self._numbers: dict[tuple[str, int], Number] = {}
        self._plans: dict[tuple[tuple[str, int], ...], PlanSizes] = {}

    def number(self, field: str, absent: int = 0) -> Number:
        key = (field, absent)
        if key not in self._numbers:
            values = self._values.get(field, (getattr(self._base.plan, field),))
            numbers = np.array([absent if value is None else int(value) for value in values])
            self._numbers[key] = numbers[self._codes[field]] if field in self._codes else numbers
        return self._numbers[key]

    def each(self, function: Callable[[PlanSizes], Any], *fields: str, among: Flag = True) -> Any:
        varying = [field for field in fields if field in self._codes]
        if isinstance(among, np.ndarray) and not among.any():
            return np.ones(1, dtype=np.bool_)
        if not varying:
            return np.array([function(self._base)])
        if len(varying) == 1 and among is True:
            field = varying[0]
            results = np.array([function(self._plan((field, code))) for code in range(len(self._values[field]))])
            return results[self._codes[field]]
        key: Number = np.zeros(1, dtype=np.int64)
        for field in varying:
            key = key * len(self._values[field]) + self._codes[field]
        key, among = np.broadcast_arrays(key, among)
        chosen = key[among]
        examples, numbers = distinct_keys(chosen, math.prod(len(self._values[field]) for field in varying))
        results = np.array([function(self._plan(*self._decoded(int(kind), varying))) for kind in chosen[examples]])
        column = np.ones(key.shape, dtype=results.dtype)
        column[among] = results[numbers]
        return column

    def _plan(self, *codes: tuple[str, int]) -> PlanSizes:
        """Returns the base plan with some values of fields, by their positions."""
        if codes not in self._plans:
            values = {field: self._values[field][code] for field, code in codes}
            self._plans[codes] = self._base.with_plan(replace(self._base.plan, **values))
        return self._plans[codes]

    def _decoded(self, kind: int, fields: Sequence[str]) -> list[tuple[str, int]]:
        codes = []
        for field in reversed(fields):
            kind, code = divmod(kind, len(self._values[field]))
            codes.append((field, code))
        return codes
