"""Core attention: scores, softmax and their product with the values, fused or not, and context parallelism."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foretrace.models.flops import attention_pairs
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Attention, Gemm, Kernel
from foretrace.step.spec import Call, Compute, Concurrent, Item
from foretrace.workload.layers.piece import FORWARD, INPUT, Piece, run, stream
from foretrace.workload.layers.shape import Shape


@dataclass(frozen=True, slots=True)
class Heads:
    """This rank's heads and what each query attends to."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    window: int | None = None

    def query_bytes(self, shape: Shape) -> int:
        """All queries of a microbatch."""
        return shape.tokens * self.heads * self.head_dim * shape.size

    def key_bytes(self, shape: Shape) -> int:
        """All keys."""
        return shape.tokens * self.kv_heads * self.head_dim * shape.size

    def value_bytes(self, shape: Shape) -> int:
        """All values."""
        return shape.tokens * self.kv_heads * self.v_dim * shape.size

    def output_bytes(self, shape: Shape) -> int:
        """Returns the bytes of the output of attention."""
        return shape.tokens * self.heads * self.v_dim * shape.size


def pairs(shape: Shape, window: int | None) -> int:
    """How many (query, key) pairs one head of one whole sequence attends to, causally."""
    return sum(math.ceil(attention_pairs(length, window)) for length in shape.documents or (shape.seq_len,))


def core(shape: Shape, heads: Heads, inputs: tuple[tuple[str, int], ...]) -> Piece:
    """Attention that keeps `inputs` (queries, keys, values) and what its own backward needs."""
    if shape.stack.attention == "unfused":
        return _unfused(shape, heads, inputs)
    statistics = shape.tokens * heads.heads * 4
    return Piece(
        "attention",
        _passes(shape, heads, backward=False),
        _passes(shape, heads, backward=True),
        saved=inputs,
        inner=(("o", heads.output_bytes(shape)), ("attention statistics", statistics)),
        core=True,
        output_bytes=0,
    )


def _passes(shape: Shape, heads: Heads, *, backward: bool) -> tuple[Item, ...]:
    """The kernels of one way with the collectives of context parallelism."""
    phase = INPUT if backward else FORWARD
    if shape.cp == 1:
        return (_compute(shape, heads, phase, (1, _kernel(shape, heads, 1, 1, pairs(shape, heads.window)))),)
    if shape.cp_comm == "a2a":
        return _all_to_all(shape, heads, phase)
    if shape.stack.pytorch_ring:
        return _pytorch_ring(shape, heads, phase)
    if shape.cp_comm == "all_gather":
        return _all_gather(shape, heads, phase)
    return _ring(shape, heads, phase)


def _compute(shape: Shape, heads: Heads, phase: Phase, *kernels: tuple[int, Attention]) -> Compute:
    name = "attention"
    if phase != INPUT:
        return Compute(name, phase, kernels)
    flipped = tuple((count, replace(kernel, backward=True)) for count, kernel in kernels)
    # FlashAttention and cuDNN gather the queries' gradient in fp32.
    return Compute(f"{name} backward", phase, flipped, temporary_bytes=shape.tokens * heads.heads * heads.head_dim * 4)


def _kernel(shape: Shape, heads: Heads, q_parts: int, kv_parts: int, count: int, *, head_parts: int = 1) -> Attention:
    return Attention(
        batch=shape.mbs,
        heads=max(heads.heads // head_parts, 1),
        kv_heads=max(heads.kv_heads // head_parts, 1),
        q=shape.seq_len // q_parts,
        kv=shape.seq_len // kv_parts,
        head_dim=heads.head_dim,
        v_dim=heads.v_dim,
        pairs=count,
        backend=shape.stack.attention,
        dtype=shape.out,
        window=heads.window if heads.window and heads.window < max(shape.documents or (shape.seq_len,)) else 0,
    )


def _ring(shape: Shape, heads: Heads, phase: Phase) -> tuple[Item, ...]:
    """Sends keys and values round the ring next to the attention to those here (Ring Attention, arXiv:2310.01889).

    With sequences cut in 2·cp and dealt from both ends, the first step is causal and each later one sees half of all
    pairs of its block: equal work. The ring is an all-gather of keys and values; backward, their gradients go along.
    Each later step's output is merged into what there is.
    """
    cp = shape.cp
    step = pairs(shape, heads.window) // (cp * cp)
    moved = cp * (heads.key_bytes(shape) + heads.value_bytes(shape)) * (2 if phase == INPUT else 1)
    ring = Call("attention ring", phase, Collective.ALL_GATHER, "cp", moved, "next")
    own, other = _kernel(shape, heads, cp, cp, step), _kernel(shape, heads, cp, 2 * cp, step)
    attend = _compute(shape, heads, phase, (1, own), (cp - 1, other))
    out = heads.output_bytes(shape) if phase == FORWARD else heads.query_bytes(shape)
    merge = Compute("attention merge", phase, ((cp - 1, stream("add", 2 * out, out)),))
    return ring, attend, merge


def _pytorch_ring(shape: Shape, heads: Heads, phase: Phase) -> tuple[Item, ...]:
    """Attends to the keys and values of one rank after the other, and merges what they give in fp32.

    torch/distributed/tensor/experimental/_attention.py, `_templated_ring_attention`: sequences are dealt from both ends
    as in `_ring`, whether keys and values are gathered at once or passed on. Backward, their gradients are added up in
    fp32 and passed on at every step. Ranks that get the second half of queries merge half as much; the other ranks set
    the pace. In compiled code every collective is waited for where it starts (_functional_collectives.py,
    `_maybe_wrap_tensor`).
    """
    cp = shape.cp
    concurrent: Concurrent | None = None if shape.stack.pointwise == "compiled" else "next"
    step = pairs(shape, heads.window) // (cp * cp)
    own, other = _kernel(shape, heads, cp, cp, step), _kernel(shape, heads, cp, 2 * cp, step)
    attend = _compute(shape, heads, phase, (1, own), (cp - 1, other))
    keys = heads.key_bytes(shape) + heads.value_bytes(shape)
    joined = run("attention keys", phase, stream("copy_strided", keys, keys), stream("cat", keys, keys))
    forward = phase == FORWARD
    ring = Call("attention ring", phase, Collective.ALL_GATHER, "cp", cp * keys * (1 if forward else 3), concurrent)
    merged = _merged_outputs(shape, heads) if forward else _merged_gradients(shape, heads)
    return joined, ring, attend, merged


def _merged_outputs(shape: Shape, heads: Heads) -> Compute:
    """Returns the kernels that merge the outputs of all steps in fp32 (`_SDPAMerger`): an update for each but the
    first, as one kernel or by operators."""
    out = heads.output_bytes(shape)
    wide = 2 * out
    update: tuple[Kernel, ...] = (stream("add", out + wide, wide),)
    if shape.stack.pointwise != "compiled":
        update = (
            stream("cast", out, wide),
            stream("add", 2 * wide, wide),
            stream("mul_broadcast", wide, wide),
            stream("add", 2 * wide, wide),
        )
    updates = tuple((shape.cp - 1, kernel) for kernel in update)
    return Compute("attention merge", FORWARD, (*updates, (1, stream("cast", wide, out))))


def _merged_gradients(shape: Shape, heads: Heads) -> Compute:
    """Returns the kernels that add up gradients in fp32, with keys' and values' in one buffer to be passed on.

    Operators add half of the latter to a part of the sums, which is then put together again (`_partial_update`).
    """
    keys, queries = heads.key_bytes(shape) + heads.value_bytes(shape), heads.query_bytes(shape)
    sums: tuple[Kernel, ...] = (stream("add", 3 * keys, 2 * keys), stream("add", 3 * queries, 2 * queries))
    if shape.stack.pointwise != "compiled":
        sums = (*sums, *[stream("cat", 2 * keys, 2 * keys)] * 2)
    zeros, whole = stream("zero", 0, 2 * (keys + queries)), stream("cast", 2 * (keys + queries), keys + queries)
    return Compute("attention merge", INPUT, ((1, zeros), *((shape.cp, kernel) for kernel in sums), (1, whole)))


def _all_gather(shape: Shape, heads: Heads, phase: Phase) -> tuple[Item, ...]:
    """Keys and values are gathered first; backward, gathered again and their gradients scattered (Llama 3)."""
    moved = shape.cp * (heads.key_bytes(shape) + heads.value_bytes(shape))
    gather = Call("attention gather", phase, Collective.ALL_GATHER, "cp", moved)
    attend = _compute(
        shape, heads, phase, (1, _kernel(shape, heads, shape.cp, 1, pairs(shape, heads.window) // shape.cp))
    )
    if phase == FORWARD:
        return gather, attend
    return gather, attend, Call("attention scatter", phase, Collective.REDUCE_SCATTER, "cp", moved)


def _all_to_all(shape: Shape, heads: Heads, phase: Phase) -> tuple[Item, ...]:
    """Each rank gets whole sequences of some heads and gives them back (Ulysses, arXiv:2309.14509)."""

    def swap(name: str, moved: int) -> Call:
        return Call(f"attention swap {name}", phase, Collective.ALL_TO_ALL, "cp", moved)

    attend = _compute(
        shape, heads, phase, (1, _kernel(shape, heads, 1, 1, pairs(shape, heads.window), head_parts=shape.cp))
    )
    inputs = (
        swap("queries", heads.query_bytes(shape)),
        swap("keys", heads.key_bytes(shape)),
        swap("values", heads.value_bytes(shape)),
    )
    output = swap("output", heads.output_bytes(shape))
    return (*inputs, attend, output) if phase == FORWARD else (output, attend, *inputs)


def _unfused(shape: Shape, heads: Heads, inputs: tuple[tuple[str, int], ...]) -> Piece:
    """Batched products over whole score matrices, scale-mask-softmax in one kernel, dropout of probabilities."""
    s, d, v = shape.seq_len, heads.head_dim, heads.v_dim
    batch = shape.mbs * heads.heads
    q = s // shape.cp
    scores = batch * q * s * shape.size
    mask = batch * q * s if shape.dropout else 0

    def product(m: int, n: int, k: int, layout: str) -> Gemm:
        return Gemm(m, n, k, shape.dtype, layout, batch, shape.out)

    output = heads.output_bytes(shape)
    dropped: tuple[Kernel, ...] = (stream("dropout", scores, scores + mask),) if mask else ()
    undropped: tuple[Kernel, ...] = (stream("dropout_backward", scores + mask, scores),) if mask else ()
    forward = run(
        "attention",
        FORWARD,
        product(q, s, d, "tn"),
        stream(shape.own("softmax"), scores, scores, rows=s),
        *dropped,
        product(q, v, s, "nn"),
        stream("copy_strided", output, output),
        temporary_bytes=scores,
    )
    backward = run(
        "attention backward",
        INPUT,
        stream("copy_strided", output, output),
        product(q, s, v, "tn"),
        product(s, v, q, "nt"),
        *undropped,
        stream(shape.own("softmax_backward"), 2 * scores, scores, rows=s),
        product(q, d, s, "nn"),
        product(s, d, q, "nt"),
        temporary_bytes=2 * scores,
    )
    kept = [("probabilities", scores)]
    if mask:
        kept += [("probabilities mask", mask), ("probabilities dropped", scores)]
    return Piece("attention", (forward,), (backward,), saved=inputs, inner=tuple(kept), core=True, output_bytes=output)
