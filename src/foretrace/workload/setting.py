"""Defines `Setting`, a model under a plan with everything that follows from the two worked out once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.models.model import Experts, Model
from foretrace.workload.plan import Plan
from foretrace.workload.routing import layer_routing, least_even_routing
from foretrace.workload.rules.sizes import BOTH_ENDS
from foretrace.workload.stack import HostPace, Stack

MANY_RING_RANKS: Final = 4
"""Ranks of PyTorch's ring attention from which on published runs of torchtitan are slower than can be explained."""


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
    routing: float | tuple[float, ...] = 1.0
    """Tokens of the busiest expert rank over the mean, in all layers or in each; 1 where one rank has all experts."""
    layout: str = ""
    """The contents of every chunk, as Megatron-core's `pipeline_model_parallel_layout` has it."""

    def on_host(self, pace: HostPace) -> Setting:
        """Returns the setting with a host that launches kernels at another pace."""
        return replace(self, stack=self.stack.on_host(pace))

    def routing_of(self, layer: int | None = None) -> float:
        """Returns the routing of a layer by number; without a number, that of the most uneven layer."""
        return layer_routing(self.routing, layer)

    @property
    def has_slow_ring(self) -> bool:
        """Whether PyTorch's ring attention runs over at least `MANY_RING_RANKS` ranks."""
        return self.stack.pytorch_ring and self.plan.cp >= MANY_RING_RANKS

    @property
    def least_even_routing(self) -> tuple[float, ...]:
        """The routing of each layer under a router that is as uneven as the least even published one."""
        kinds = [layer.feed_forward for layer in self.model.layers]
        factors = [least_even_routing(kind, self.plan.ep) if isinstance(kind, Experts) else 1.0 for kind in kinds]
        return tuple(max(factor, self.routing_of(layer)) for layer, factor in enumerate(factors))

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
        "routing": setting.routing,
        "layout": setting.layout,
        "grad_dtype": setting.stack.gradient_dtype,
        "master_dtype": setting.stack.master_dtype if setting.stack.master_weights else None,
        "moment_dtype": setting.stack.optimizer_state_dtype,
        "stack": setting.stack.label,
        "padded_vocab": setting.vocab,
    }
