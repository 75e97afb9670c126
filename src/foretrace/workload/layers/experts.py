"""Mixtures of experts: router, dispatch, grouped products, combination, and shared experts next to them.

As Megatron-core's dispatchers do it (megatron/core/transformer/moe/token_dispatcher.py). Tokens choose the experts of a
rank at random; `routing` makes every rank as busy as the busiest. How the all-to-alls of tokens go is a text
they carry (`foretrace.program.dispatch`); what that takes depends on where ranks sit, and is for `cost` to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from foretrace.models.model import Experts
from foretrace.program.columns import Collective, Phase
from foretrace.program.dispatch import Dispatch, dispatch_text
from foretrace.program.kernels import Gemm, GroupedGemm, Kernel
from foretrace.step.spec import Call, Item
from foretrace.workload.layers.linear import quantize, swizzle_scales
from foretrace.workload.layers.mlp import products
from foretrace.workload.layers.piece import FORWARD, INPUT, WEIGHT, Piece, in_graph, run, stream
from foretrace.workload.layers.pointwise import activation, joined_gradients, norm, residual
from foretrace.workload.layers.shape import Shape
from foretrace.workload.routing import expected_maximum

FUSED_PREPROCESS_LAUNCHES: Final = 4
"""Operators before a dispatch of DeepEP or HybridEP, whose own kernels lay out and count the routing map: mask, sums
and casts of megatron/core/transformer/moe/token_dispatcher.py, `_DeepepManager.setup_metadata`. A judgement."""


@dataclass(frozen=True, slots=True)
class Routed:
    """How tokens reach this rank's experts."""

    groups: int
    """Experts of this rank."""
    sent: int
    """Rows that this rank sends."""
    received: int
    """Rows its experts work on, those of its expert-tensor group included."""
    width: int
    """Of each expert here."""
    share: float
    """The share of all tokens that goes to an expert."""
    launched: int
    """How many launches one kernel for all of them takes."""
    way: str | None = None
    """How tokens go there, where not by NCCL's all-to-all."""
    fused_products: bool = False
    """Whether products of experts add biases, activate and quantize their results themselves."""


def routed(shape: Shape, moe: Experts) -> Routed:
    """The rows of a rank's experts; DeepEP and HybridEP send a token once to each rank that has any of its experts."""
    copies = sent = shape.rows * moe.topk
    way = None
    if shape.dispatcher != "alltoall":
        sms = shape.stack.hybridep_sms if shape.dispatcher == "hybridep" else 0
        dispatch = Dispatch(shape.dispatcher, moe.count, moe.topk, moe.groups, moe.topk_groups, sms)
        sent, way = math.ceil(shape.rows * dispatch.given(shape.ep)), dispatch_text(dispatch)
    received = math.ceil(copies * shape.routing) * shape.etp
    groups = max(moe.count // shape.ep, 1)
    fused = fuses_experts(shape)
    launched = groups if shape.stack.separate_experts and not fused else 1
    return Routed(groups, sent, received, -(-moe.expert.ffn // shape.etp), moe.topk / moe.count, launched, way, fused)


def fuses_experts(shape: Shape) -> bool:
    """Returns whether one kernel multiplies, activates and quantizes for all experts."""
    return shape.stack.fuses_experts and shape.precision in ("mxfp8", "nvfp4")


def mixture(shape: Shape, moe: Experts) -> list[Piece]:
    """Norm, shared experts, router, dispatch, experts, combination and the residual addition."""
    there = routed(shape, moe)
    before = [joined_gradients(shape, "mlp branch"), norm(shape, "mlp norm", "x after attention")]
    if moe.shared is not None:
        before += products(shape, moe.shared, "shared experts", "mlp in", shares_input=True)
        before += _shared_sum(shape, moe)
    before.append(_router(shape, moe))
    act = activation(
        shape,
        moe.expert,
        "experts activation",
        rows=there.received,
        width=there.width,
        source="experts up out",
        weighted=True,
    )
    if there.fused_products:
        act = replace(act, forward=(), backward=())
    behind = [_combine(shape, there), residual(shape, "mlp residual")]
    if moe.expert.bias and shape.stack.separate_expert_operators and not there.fused_products:
        behind = [_bias(shape, there), *behind]
    return [
        *in_graph(before, "router"),
        *in_graph(_preprocess(shape, moe), "router"),
        _dispatch(shape, moe, there),
        _product(shape, moe, there, up=True),
        act,
        _product(shape, moe, there, up=False),
        *behind,
    ]


def _preprocess(shape: Shape, moe: Experts) -> list[Piece]:
    """Returns what counts tokens for each expert and rank: small operators, after which the host waits for the counts.

    Behind an all-to-all of NCCL every rank needs the counts of all others. HybridEP finds them in a kernel of its own,
    from the routing map that it gathers first.
    """
    counts = moe.count * max(shape.ep, 1) * 8
    gathers: tuple[Item, ...] = ()
    if shape.ep > 1 and not _sends_unsorted(shape):
        gathers = (Call("dispatch counts", FORWARD, Collective.ALL_GATHER, "ep", counts),)
    launches = shape.stack.preprocess_launches if not _sends_unsorted(shape) else FUSED_PREPROCESS_LAUNCHES
    read = shape.rows * moe.count
    counted = run(
        "dispatch preprocess", FORWARD, stream("fused", read, counts, launches=launches), syncs_host=_syncs(shape)
    )
    return [Piece("preprocess", (*gathers, *_routing_map(shape, moe), counted))]


def _syncs(shape: Shape) -> bool:
    """Returns whether the host waits for the counts.

    low_latency writes at places that no count decides. Fused products read the counts on the GPU, and so does
    HybridEP; NCCL and DeepEP need them on the host.
    """
    on_gpu = fuses_experts(shape) and (shape.ep == 1 or shape.dispatcher == "hybridep")
    return shape.syncs and shape.dispatcher != "low_latency" and not on_gpu


def _bias(shape: Shape, there: Routed) -> Piece:
    """Adds an expert's bias, times the router's probability, to each of its rows.

    megatron/core/transformer/moe/experts.py, `_apply_bias`: a product and a sum for each expert, and a concatenation.
    Where one kernel multiplies for all experts, one operator each is taken to serve all of them.
    Backward: products with probability and bias, two sums over rows, and a concatenation. Probabilities of DeepEP and
    HybridEP are in fp32, and so is everything that they are multiplied with.
    """
    elements = there.received * shape.hidden
    wide, loops = _sends_unsorted(shape), there.groups if shape.stack.separate_experts else 1
    forward, backward = (28 * elements, 40 * elements) if wide else (12 * elements, 16 * elements)
    kernel = "expert_bias_wide" if wide else "expert_bias"
    name = "experts bias"
    both = [
        stream(kernel, moved // 2, moved // 2, launches=launches * loops + 1)
        for moved, launches in ((forward, 2), (backward, 4))
    ]
    return Piece(
        name,
        (run(name, FORWARD, both[0]),),
        (run(f"{name} backward", INPUT, both[1]),),
    )


def _shared_sum(shape: Shape, moe: Experts) -> list[Piece]:
    """Adds the shared experts' output, after its gate where there is one; gradients of the common input add up too."""
    tensor = shape.rows * shape.hidden * shape.size
    gate, name = "shared experts output gate", "shared experts sum"
    gated = Piece(
        gate,
        (run(gate, FORWARD, stream("mul", 2 * tensor, tensor)),),
        (run(f"{gate} backward", INPUT, stream("mul", 3 * tensor, 2 * tensor)),),
        saved=(("shared experts out", tensor),),
        parameters=shape.hidden,
    )
    added = Piece(
        name,
        (run(name, FORWARD, stream("add", 2 * tensor, tensor)),),
        (run(f"{name} backward", INPUT, stream("add", 2 * tensor, tensor)),),
    )
    return [gated, added] if moe.shared_gate else [added]


def _router(shape: Shape, moe: Experts) -> Piece:
    """Scores of all experts from 16-bit operands into fp32 (Megatron-core's RouterGatingLinearFunction); the choice."""
    m, n, k = shape.rows, moe.count, shape.hidden
    scores = m * n * 4
    launches = shape.stack.router_launches
    forward: tuple[Kernel, ...] = (
        Gemm(m, n, k, shape.dtype, "tn", out="fp32"),
        stream(shape.own("router"), scores, scores + m * n, launches=launches, rows=n),
    )
    to_input: tuple[Kernel, ...] = (
        stream(
            "router_backward_fused" if shape.stack.pointwise == "fused" else "router",
            2 * scores,
            scores,
            launches=max(launches // 2, 1),
            rows=n,
        ),
        Gemm(m, k, n, "tf32", "nn", out="fp32"),
        stream("add", 2 * m * k * shape.size, m * k * shape.size),
    )
    return Piece(
        "router",
        (run("router", FORWARD, *forward),),
        (
            run("router input gradient", INPUT, *to_input),
            run("router weight gradient", WEIGHT, Gemm(n, k, m, "tf32", "nt", out="fp32")),
        ),
        saved=(("mlp in", m * k * shape.size), ("router probabilities", scores)),
        parameters=n * k + (n if moe.router_bias else 0),
    )


def _dispatch(shape: Shape, moe: Experts, there: Routed) -> Piece:
    """Copies of tokens in the order of experts, sent to their ranks and sorted there; backward returns gradients."""
    return Piece(
        "dispatch",
        (*_outward(shape, there, FORWARD, "dispatch"), *_padding(shape, there, FORWARD, "dispatch pad")),
        (
            *_padding(shape, there, INPUT, "dispatch backward unpad"),
            *_homeward(shape, there, INPUT, "dispatch backward"),
        ),
        saved=(("token rows", shape.rows * moe.topk * 8),),
    )


def _combine(shape: Shape, there: Routed) -> Piece:
    """The way back: rows to the ranks they came from, summed per token; backward sends gradients out again."""
    return Piece(
        "combine",
        (*_padding(shape, there, FORWARD, "combine unpad"), *_homeward(shape, there, FORWARD, "combine")),
        (
            *_outward(shape, there, INPUT, "combine backward"),
            *_padding(shape, there, INPUT, "combine backward pad"),
        ),
    )


def _padding(shape: Shape, there: Routed, phase: Phase, name: str) -> tuple[Item, ...]:
    """Copies all rows of experts into ones whose number per expert suits 8-bit products, or back.

    HybridEP and DeepEP pad on the way (`pad_multiple`).
    """
    if not (shape.quantized and shape.stack.pads_rows) or _sends_unsorted(shape) or there.fused_products:
        return ()
    moved = there.received * shape.hidden * shape.size
    return (run(name, phase, stream(shape.own("copy"), moved, moved, launches=2)),)


def _probabilities(shape: Shape, there: Routed, phase: Phase, name: str) -> tuple[Item, ...]:
    """The all-to-all of the router's probabilities, a number for each copy of a token."""
    if not shape.stack.sends_probabilities or shape.ep == 1:
        return ()
    return (_to_all(shape, f"{name} probabilities", phase, 4 * there.sent, None),)


def _outward(shape: Shape, there: Routed, phase: Phase, name: str) -> tuple[Item, ...]:
    row = shape.hidden * shape.size
    own, sent = shape.rows * row, there.sent * row
    arrived = math.ceil(there.sent * shape.routing) * row
    placed = there.received * row
    items: list[Item] = []
    if _sends_unsorted(shape):
        items.append(_to_all(shape, f"{name} all-to-all", phase, sent, there.way))
        if shape.dispatcher != "low_latency":  # which writes by expert, at places that no count decides
            items.append(run(f"{name} permute", phase, stream(shape.own("permute"), arrived, placed)))
    else:
        # The backward knows the places.
        launches = shape.stack.permute_launches if phase == FORWARD else 2
        items.append(run(f"{name} permute", phase, stream(shape.own("permute"), own, sent, launches=launches)))
        if shape.ep > 1:
            items.append(_to_all(shape, f"{name} all-to-all", phase, sent, there.way))
            items += _probabilities(shape, there, phase, name) if phase == FORWARD else ()
    if shape.etp > 1:
        items.append(Call(f"{name} gather", phase, Collective.ALL_GATHER, "etp", placed))
    if not _sends_unsorted(shape) and shape.ep > 1 and there.groups > 1:
        items.append(run(f"{name} sort", phase, stream(_sort(shape), placed, placed, launches=2)))
    return tuple(items)


def _homeward(shape: Shape, there: Routed, phase: Phase, name: str) -> tuple[Item, ...]:
    row = shape.hidden * shape.size
    own, sent = shape.rows * row, there.sent * row
    arrived = math.ceil(there.sent * shape.routing) * row
    placed = there.received * row
    items: list[Item] = []
    if not _sends_unsorted(shape) and shape.ep > 1 and there.groups > 1:
        items.append(run(f"{name} sort", phase, stream(_sort(shape), placed, placed, launches=2)))
    if shape.etp > 1:
        items.append(Call(f"{name} scatter", phase, Collective.REDUCE_SCATTER, "etp", placed))
    if _sends_unsorted(shape):
        if shape.dispatcher != "low_latency":
            items.append(run(f"{name} unpermute", phase, stream(shape.own("unpermute"), placed, arrived)))
        items.append(replace(_to_all(shape, f"{name} all-to-all", phase, sent, there.way), returns=True))
    else:
        if shape.ep > 1:
            items.append(replace(_to_all(shape, f"{name} all-to-all", phase, sent, there.way), returns=True))
            items += _probabilities(shape, there, phase, name) if phase == INPUT else ()
        items.append(run(f"{name} unpermute", phase, stream(shape.own("unpermute"), sent, own, launches=2)))
    return tuple(items)


def _sort(shape: Shape) -> str:
    """Returns the name of the kernel that moves chunks of rows; PyTorch selects rows."""
    return "sort_fused" if shape.stack.pointwise == "fused" else "permute"


def _routing_map(shape: Shape, moe: Experts) -> tuple[Item, ...]:
    """HybridEP gathers which token goes to which expert on all ranks first, a byte for each pair (`metadata_preprocess`
    of its implementation guide); the way back and the backward know it."""
    if shape.dispatcher != "hybridep":
        return ()
    pairs = shape.rows * moe.count * shape.ep
    return (Call("dispatch routing map", FORWARD, Collective.ALL_GATHER, "ep", pairs),)


def _sends_unsorted(shape: Shape) -> bool:
    """Returns whether the dispatcher takes tokens in their own order and sums what comes back."""
    return shape.dispatcher in ("deepep", "hybridep", "low_latency")


def _to_all(shape: Shape, name: str, phase: Phase, sent: int, way: str | None) -> Call:
    """Returns an all-to-all in which the busiest rank receives `routing` times what it would if all were equal."""
    return Call(name, phase, Collective.ALL_TO_ALL, "ep", math.ceil(sent * shape.routing), way=way)


def _product(shape: Shape, moe: Experts, there: Routed, *, up: bool) -> Piece:
    """The products of this rank's experts, one group each."""
    name = "experts up" if up else "experts down"
    inner = there.width * (2 if up and moe.expert.gated else 1)
    n, k = (inner, shape.hidden) if up else (shape.hidden, there.width)
    rows, groups = there.received, there.groups
    forward: list[Item] = []
    backward: list[Item] = []
    # Fused, the product of one way quantizes what the next one reads: up forward, down backward.
    if shape.quantized and (up or not there.fused_products):
        forward.append(run(f"{name} quantize", FORWARD, *quantize(shape, rows * k, there.launched)))
    if shape.quantized and not (up and there.fused_products):
        backward.append(run(f"{name} quantize", INPUT, *quantize(shape, rows * n, there.launched)))
    weights = groups * n * k
    forward.append(
        run(
            name,
            FORWARD,
            *swizzle_scales(shape, rows * k, weights),
            _grouped(shape, there, rows, n, k, "tn"),
            handled=there.launched,
        )
    )
    to_input = run(
        f"{name} input gradient",
        INPUT,
        *swizzle_scales(shape, rows * n, weights),
        _grouped(shape, there, rows, k, n, "nn"),
        handled=there.launched,
    )
    to_weight = run(
        f"{name} weight gradient",
        WEIGHT,
        *swizzle_scales(shape, rows * (n + k), 0, operands=2),
        _weight_gradient(shape, there, n, k),
        handled=there.launched,
    )
    backward += [to_weight, to_input] if shape.stack.weight_first else [to_input, to_weight]
    source = "experts in" if up else "experts product"
    kept = round(rows * k * (shape.operand_size if shape.quantized else shape.size))
    return Piece(
        name,
        tuple(forward),
        tuple(backward),
        saved=((source, kept),),
        output_bytes=rows * n * shape.size,
        expert_parameters=groups * (n * k + (n if moe.expert.bias else 0)),
        narrow_parameters=groups * n * k if shape.quantized else 0,
    )


def _busiest(rows: int, there: Routed) -> int:
    """Returns the rows of a rank's busiest expert, where tokens choose experts at random.

    The number of an expert's rows is binomial: its variance is the mean times the share of tokens that go elsewhere.
    """
    mean = rows / there.groups
    deviation = math.sqrt(mean * (1 - there.share))
    return min(rows, math.ceil(mean + expected_maximum(there.groups) * deviation))


def _grouped(shape: Shape, there: Routed, m: int, n: int, k: int, layout: str) -> GroupedGemm:
    """8-bit products come in one layout only, but which side is grouped still matters: the layout is kept."""
    dtype = shape.precision if shape.quantized else shape.dtype
    return GroupedGemm(
        there.groups,
        m,
        n,
        k,
        dtype,
        layout,
        largest=_busiest(m, there),
        out=shape.out,
        separate=shape.stack.separate_experts and not there.fused_products,
    )


def _weight_gradient(shape: Shape, there: Routed, n: int, k: int) -> GroupedGemm:
    """Sums over each expert's tokens, added to the accumulated gradient where the stack does so."""
    adds = shape.stack.fused_gradient_accumulation
    return replace(
        _grouped(shape, there, n, k, there.received, "nt"),
        largest=_busiest(there.received, there),
        out=shape.stack.gradient_dtype if adds else shape.out,
        accumulate=adds,
    )
