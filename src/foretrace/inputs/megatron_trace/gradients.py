"""Finds the gradient reductions at the end of a step, and corrects the sizes that traces write.

Ex-situ traces of 2025-08-18 and before have one `dp_allreduce` over all parameters, experts included, which a real run
reduces over the few ranks that hold the same experts; and they write float16 whatever the buffers are. Megatron keeps
gradients of a bf16 model in fp32 (arguments.py: bf16 sets accumulate_allreduce_grads_in_fp32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.numbers import NumberError, real_number
from foretrace.inputs.megatron_trace.calls import (
    COLLECTIVES,
    GRADIENT_OPS,
    axis_of,
    comm_of,
    gradient_call,
    group_size,
    tensor_bytes,
)
from foretrace.inputs.megatron_trace.format import BUCKET_OP, RankTrace, TraceOp, known_comm
from foretrace.inputs.megatron_trace.format.values import MAX_MS
from foretrace.inputs.megatron_trace.layout import TraceJob, last_iteration
from foretrace.program.columns import Phase
from foretrace.step.spec import Call

ATTENTION_SQUARES = 4
"""Parameters of an attention in squares of the hidden size: query, key, value and output (fewer with grouped
queries)."""

VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, padded to a multiple of 128 as Megatron does."""


PLACEHOLDERS = ("metadata_placeholder", "wait_flush_only")
"""What `op_semantics` says of a reduction that is none: its buckets were reduced beside the backward."""


@dataclass(frozen=True, slots=True)
class TracedBucket:
    """A bucket of gradients that is reduced next to the last backward, after a share of which it was launched."""

    after_share: float
    call: Call


def reduces_gradients(op: TraceOp) -> bool:
    """Whether an op is a reduction, and does not only stand or wait for buckets."""
    return op.op in GRADIENT_OPS and bool(op.shape) and op.text.get("op_semantics") not in PLACEHOLDERS


def gradient_buckets(job: TraceJob, traces: Sequence[RankTrace]) -> tuple[TracedBucket, ...]:
    """The buckets of a rank; those written before a backward were launched in it, those after the last at its end."""
    for trace in traces:
        buckets: list[TracedBucket] = []
        waiting: list[TraceOp] = []
        last: tuple[float, float] | None = None
        for op in last_iteration(trace):
            if op.op == BUCKET_OP:
                waiting.append(op)
            elif op.op == "backward_step" and op.start_ms is not None and op.duration_ms:
                last = (op.start_ms, op.duration_ms)
                buckets = [_bucket(job, trace, launch, *last) for launch in waiting] or buckets
                waiting = []
        if last is not None:
            buckets += [_bucket(job, trace, launch, *last) for launch in waiting]
        if buckets:
            return tuple(bucket for bucket in buckets if bucket.call.bytes)
    return ()


def _bucket(job: TraceJob, trace: RankTrace, op: TraceOp, start_ms: float, duration_ms: float) -> TracedBucket:
    where = trace.at(op.line)
    axis = axis_of(op.group or "dp", where)
    comm = known_comm(op.text.get("comm_func", "allreduce"))
    if comm not in COLLECTIVES:
        raise InputError("unknown-collective", f'comm_func "{op.text["comm_func"]}" is not known', where=where)
    size = tensor_bytes(op.shape, op.dtype, where) if job.alone or group_size(job.mesh, axis) > 1 else 0
    try:
        launched = real_number(op.text.get("launch_timestamp_ms"), most=MAX_MS)
    except NumberError:  # the tracer did not see the launch
        launched = start_ms + duration_ms
    share = (launched - start_ms) / duration_ms
    name = f"bucket {op.text.get('bucket_id', '')}".strip()
    return TracedBucket(min(max(share, 0.0), 1.0), Call(name, Phase.NONE, COLLECTIVES[comm], axis, size))


def gradient_calls(job: TraceJob, traces: Sequence[RankTrace], stage: int) -> tuple[list[Call], list[Diagnostic]]:
    """Returns the gradient reductions of a rank, in order.

    They are of its first trace that reduces those of experts separately, otherwise of its first that has any.
    """
    reductions = [(trace, [op for op in last_iteration(trace) if reduces_gradients(op)]) for trace in traces]
    reductions = [(trace, ops) for trace, ops in reductions if ops]
    if not reductions:
        return [], []
    split = [reduction for reduction in reductions if any("exp_dp" in op.op or "ep_dp" in op.op for op in reduction[1])]
    trace, ops = (split or reductions)[0]
    calls = []
    notes: list[Diagnostic] = []
    for op in ops:
        size = 4 if _is_bf16(trace) and op.dtype == "torch.float16" else None
        if size:
            text = "gradients are written as float16, but Megatron reduces those of a bf16 model in fp32: taken as fp32"
            notes.append(Diagnostic("note", "repaired-input", text, trace.at(op.line)))
        call = gradient_call(op, trace.at(op.line), size)
        if call.bytes:
            calls.append(call)
    if job.mesh.ep > 1 and not split and calls:
        calls, more = _apart(job, calls, ops[0], trace, stage)
        notes += more
    return calls, notes


def _is_bf16(trace: RankTrace) -> bool:
    return any(sub.dtype == "torch.bfloat16" for op in trace.ops for sub in op.subs)


def _apart(
    job: TraceJob, calls: list[Call], op: TraceOp, trace: RankTrace, stage: int
) -> tuple[list[Call], list[Diagnostic]]:
    """One reduction of all parameters as two: those of the experts over the ranks that hold the same ones."""
    hidden = job.facts.hidden or _hidden(trace)
    op = next((op for op in trace.ops if op.op == calls[0].name), op)
    layers, call = job.layers_per_stage, calls[0]
    if hidden is None or layers is None or call.axis != "dp":
        text = "one reduction of all gradients: experts' are taken to be reduced over dp with the rest"
        return calls, [Diagnostic("warning", "assumed", text, trace.at(op.line))]
    parameters = prod(op.shape or ())
    embeds = job.place(stage) != "middle"
    dense = min(ATTENTION_SQUARES * hidden * hidden * layers + (VOCABULARY * hidden if embeds else 0), parameters)
    size = call.bytes // parameters
    experts = replace(call, axis="edp", bytes=(parameters - dense) * size, name="exp_dp_allreduce")
    apart = [part for part in (replace(call, bytes=dense * size), experts) if part.bytes]
    text = (
        f"one reduction of all {parameters / 1e6:,.0f} M parameters, experts included: {dense / 1e6:,.0f} M of them "
        f"are taken to be dense (4·{hidden}² a layer"
        + (f" and a vocabulary of {VOCABULARY:,}" if embeds else "")
        + "), the rest are experts'"
    )
    return [*apart, *calls[1:]], [Diagnostic("warning", "assumed", text, trace.at(op.line))]


def _hidden(trace: RankTrace) -> int | None:
    """The hidden size, from what an all-to-all sends."""
    for op in trace.ops:
        for sub in op.subs:
            if comm_of(sub) == "all_to_all" and sub.shape and len(sub.shape) == 2:
                return sub.shape[1]
    return None
