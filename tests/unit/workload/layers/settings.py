"""Small models and checked plans, made by hand, and ways to read work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from foretrace.basics.mesh import Mesh
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model, SelfAttention
from foretrace.program.kernels import Gemm, GroupedGemm, Kernel, Stream
from foretrace.step.spec import Call, Compute, Item
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.stacks import stack

LLAMA = Model(
    name="small llama",
    hidden=1024,
    layers=(Layer(SelfAttention(16, 4, 64), Mlp(2816, True, "silu")),) * 2,
    vocab=32000,
    norm="rmsnorm",
    tied=False,
)
GPT = Model(
    name="small gpt",
    hidden=1024,
    layers=(Layer(SelfAttention(16, 16, 64, True, True, rope=False), Mlp(4096, False, "gelu", bias=True)),) * 2,
    vocab=51200,
    norm="layernorm",
    tied=True,
    position_kind="learned",
    positions=1024,
    dropout=True,
)
MIXTURE = replace(
    LLAMA,
    layers=(
        Layer(
            LatentAttention(16, 512, 256, 64, 32, 64),
            Experts(64, 6, Mlp(512, True, "silu"), shared=Mlp(1024, True, "silu")),
        ),
    )
    * 2,
)


def setting(
    model: Model, name: str = "megatron-core", seq_len: int = 1024, sp: bool | None = None, **plan: Any
) -> Setting:
    """A setting as `settle` would make it."""
    made = Plan(gpus=1, **plan)
    return Setting(
        model=model,
        plan=made,
        stack=stack(name),
        mesh=Mesh(tp=made.tp, cp=made.cp, pp=made.pp, ep=made.ep, etp=made.etp, dp=made.ep),
        dp=made.ep,
        seq_len=seq_len,
        gbs=made.mbs,
        microbatches=1,
        vocab=model.vocab,
        sequence_parallel=made.tp > 1 if sp is None else sp,
        zero=0,
        shard=1,
        grad_overlap=False,
        param_overlap=False,
        schedule="1f1b",
        routing=made.routing or 1.0,
        chunks=(tuple(range(len(model.layers))),),
    )


def kernels(items: Iterable[Item]) -> list[tuple[int, Kernel]]:
    """All kernels of items."""
    return [one for item in items if isinstance(item, Compute) for one in item.kernels]


def streams(items: Iterable[Item]) -> Counter[str]:
    """Launches of memory-bound kernels by name."""
    found: Counter[str] = Counter()
    for count, kernel in kernels(items):
        if isinstance(kernel, Stream):
            found[kernel.name] += count * kernel.launches
    return found


def product_flops(items: Iterable[Item]) -> float:
    """Of linear layers: batched products are attention's."""
    return sum(
        count * one.flops
        for count, one in kernels(items)
        if isinstance(one, GroupedGemm) or (isinstance(one, Gemm) and one.batch == 1)
    )


def flops(items: Iterable[Item]) -> float:
    """Of everything."""
    return sum(count * one.flops for count, one in kernels(items))


def talks(items: Iterable[Item], axis: str | None = None) -> list[Call]:
    """The collectives among items."""
    return [item for item in items if isinstance(item, Call) and axis in (None, item.axis)]
