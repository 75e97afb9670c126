"""Defines `Setting`, a model under a plan with everything that follows from the two worked out once.

`PlanSizes` are the sizes that follow from both before they are known to fit together: constraints are about them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.models.model import Experts, LatentAttention, Mlp, Model
from foretrace.schedules.registry import ScheduleFacts, schedule_facts
from foretrace.workload.layout import parse_layout
from foretrace.workload.plan import FULL_PRECISIONS, Plan
from foretrace.workload.stack import Stack
from foretrace.workload.stacks import stack as stack_named

BOTH_ENDS: Final = ("zb-v", "dualpipe", "dualpipe-v")
"""Schedules in which one stage holds both ends of the model."""


@dataclass(frozen=True, slots=True)
class PlanSizes:
    """The sizes that constraints are about: a model, a plan, its software, and what follows from them."""

    model: Model
    plan: Plan
    stack: Stack
    has_own_stack: bool
    """Whether the software is given apart from the plan, so that no field of the plan changes it."""
    heads: tuple[tuple[int, int], ...]
    """(query heads, heads of keys and values) of each kind of layer; latent attention has one per query head."""
    experts: tuple[Experts, ...]
    """The kinds of layers with experts."""
    dense_ffns: tuple[tuple[str, int], ...]
    """Widths that tp divides, in words and as numbers."""
    is_swiglu: bool
    """Whether every feed-forward layer and expert is a SwiGLU."""

    @classmethod
    def of(cls, model: Model, plan: Plan, stack: Stack | None = None) -> PlanSizes:
        """Returns the sizes of a plan; without `stack`, the plan or its ZeRO stage names the software."""
        attentions = dict.fromkeys(layer.attention for layer in model.layers)
        feed_forwards = dict.fromkeys(layer.feed_forward for layer in model.layers)
        experts = tuple(kind for kind in feed_forwards if isinstance(kind, Experts))
        shared = [("shared expert ffn", kind.shared.ffn) for kind in experts if kind.shared is not None]
        mlps = [kind.expert if isinstance(kind, Experts) else kind for kind in feed_forwards]
        return cls(
            model=model,
            plan=plan,
            stack=stack or _stack(plan),
            has_own_stack=stack is not None,
            heads=tuple(
                (kind.heads, kind.heads if isinstance(kind, LatentAttention) else kind.kv_heads) for kind in attentions
            ),
            experts=experts,
            dense_ffns=(*(("ffn", kind.ffn) for kind in feed_forwards if isinstance(kind, Mlp)), *shared),
            is_swiglu=all(mlp.gated and mlp.activation == "silu" for mlp in mlps),
        )

    def with_plan(self, plan: Plan) -> PlanSizes:
        """Returns the sizes of another plan for the same model and, where it is given apart, the same software."""
        return replace(self, plan=plan, stack=self.stack if self.has_own_stack else _stack(plan))

    @property
    def dp(self) -> int:
        """Data-parallel ranks, of the GPUs that divide evenly."""
        return max(self.plan.gpus // (self.plan.tp * self.plan.cp * self.plan.pp), 1)

    @property
    def zero(self) -> int:
        """The ZeRO stage of the plan or of the stack."""
        return self.stack.zero if self.plan.zero is None else self.plan.zero

    @property
    def splits_parameters(self) -> bool:
        """Whether data-parallel ranks hold only a part of parameters between steps."""
        return self.stack.splits_parameters(self.zero)

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
    def vpp(self) -> int:
        """Model chunks of each stage: of the plan, or as many as its layout has parts for every stage."""
        if self.plan.layout is None:
            return self.plan.vpp
        return max(len(parse_layout(self.plan.layout).parts) // self.plan.pp, 1)

    @property
    def schedule(self) -> str:
        """The name of the pipeline schedule."""
        return facts_of(self.plan.schedule or ("interleaved-1f1b" if self.vpp > 1 else "1f1b")).name

    @property
    def pieces(self) -> int:
        """Parts of the model: stages times chunks of a stage; DualPipe holds every part twice."""
        if self.plan.pp == 1 or self.schedule == "dualpipe":
            return self.plan.pp
        facts = facts_of(self.schedule)
        default = facts.min_chunks if facts.max_chunks is not None else max(facts.min_chunks, 2)
        return self.plan.pp * (self.vpp if self.vpp > 1 else default)

    @property
    def shard(self) -> int:
        """Ranks among which state is split."""
        if self.plan.shard is not None:
            return self.plan.shard
        return self.dp * self.plan.cp if self.zero else 1

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
            etp=plan.etp if self.experts else None,
            shard=part,
            order=plan.rank_order,
        )


@lru_cache(maxsize=64)
def facts_of(schedule: str) -> ScheduleFacts:
    """Returns what is known of a pipeline schedule, found once."""
    return schedule_facts(schedule)


def _stack(plan: Plan) -> Stack:
    return stack_named(plan.stack or ("fsdp" if plan.zero == 3 else "megatron-core"))


@dataclass(frozen=True, slots=True)
class Setting:
    """A plan whose every choice is made and checked; `diagnostics` says which were made for the user."""

    model: Model
    plan: Plan
    stack: Stack
    """The software, with the dtypes that the plan gives it."""
    mesh: Mesh
    dp: int
    """Data-parallel ranks: gpus / (tp·cp·pp)."""
    seq_len: int
    gbs: int
    microbatches: int
    vocab: int
    """Padded as the stack does."""
    sequence_parallel: bool
    zero: int
    shard: int
    """Ranks among which state is split: dp·cp, or fewer under HSDP."""
    grad_overlap: bool
    param_overlap: bool
    schedule: str
    chunks: tuple[tuple[int, ...], ...]
    """The layers of every chunk of the model, by number, in the model's order: chunk c of stage p is c·pp + p for
    interleaved schedules; the schedule's own map for others."""
    diagnostics: tuple[Diagnostic, ...] = ()
    chunks_per_stage: int = 1
    """Model chunks of a stage, as the schedule has them."""
    mtp_chunk: int = -1
    """The chunk of the model that holds multi-token prediction after its layers; -1: the last, with the head."""
    layout: str = ""
    """The contents of every chunk, as Megatron-core's `pipeline_model_parallel_layout` has it."""

    @property
    def splits_parameters(self) -> bool:
        """Whether data-parallel ranks hold only a part of parameters between steps."""
        return self.stack.splits_parameters(self.zero)

    @property
    def has_head_table(self) -> bool:
        """Whether the head has parameters of its own: not where it is tied to an embedding on the same stage."""
        return not self.model.tied or (self.plan.pp > 1 and self.schedule not in BOTH_ENDS)

    @property
    def stage_layers(self) -> int:
        """Layers of the stage that has most, in one of its copies."""
        return max(sum(map(len, self.chunks[stage :: self.plan.pp])) for stage in range(self.plan.pp))

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one rank, before tensor parallelism: mbs · seq_len / cp."""
        return self.plan.mbs * self.seq_len // self.plan.cp


def settled_plan(setting: Setting) -> dict[str, Any]:
    """Returns a plan with every choice made, as plain values."""
    return {
        **asdict(setting.plan),
        "dp": setting.dp,
        "gbs": setting.gbs,
        "seq_len": setting.seq_len,
        "microbatches": setting.microbatches,
        "sequence_parallel": setting.sequence_parallel,
        "zero": setting.zero,
        "shard": setting.shard,
        "grad_overlap": setting.grad_overlap,
        "param_overlap": setting.param_overlap,
        "schedule": setting.schedule,
        "layout": setting.layout,
        "grad_dtype": setting.stack.gradient_dtype,
        "master_dtype": setting.stack.master_dtype if setting.stack.master_weights else None,
        "moment_dtype": setting.stack.optimizer_state_dtype,
        "stack": setting.stack.name,
        "padded_vocab": setting.vocab,
    }
