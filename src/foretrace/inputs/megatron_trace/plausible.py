"""Reports recorded times that cannot be right: wrong units, ops out of order, gaps, rates that no hardware has.

Nothing is changed: times stay as recorded. In all traces that we know, ops fill more than 90 % of an iteration, none
begins before the one before it ended, and no op takes 3 times the median of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from foretrace.basics.errors import Diagnostic, shown
from foretrace.basics.units import format_time
from foretrace.inputs.inventory import counted_text
from foretrace.inputs.megatron_trace.format import BUCKET_OP, RankTrace, SubOp, TraceOp
from foretrace.inputs.megatron_trace.format.ex_situ import TRANSFERS
from foretrace.inputs.megatron_trace.layout import TraceJob, last_iteration
from foretrace.inputs.megatron_trace.recording import Recording
from foretrace.inputs.plausibility import MAX_GPU_FLOPS, MAX_LINK_BYTES_PER_S

MIN_FILLED: Final = 0.5
MAX_GAP_SHARE: Final = 0.2
MAX_TIMES_MEDIAN: Final = 10.0
MIN_LINK_BYTES_PER_S: Final = 3e8
"""The rate of the fastest of all large messages: GPUs are not trained together over networks of 2.5 Gb/s."""
MIN_LARGE_BYTES: Final = 1 << 22
MAX_OUTSIDE_MS: Final = 1.0
MAX_OUTSIDE_SHARE: Final = 0.05
"""How far communication may lie outside of its op: 0.6 ms in one of 16,000 that we know."""
ROUNDING_MS: Final = 0.02
"""Tracers write times with two digits after the point."""

_COMPUTE_OPS: Final = ("forward_step", "backward_step", "optimizer_step")
_ATTENTION_FLOPS: Final = 8
"""FLOPs of a token in the projections of an attention, in squares of the hidden size; the rest of a layer is more."""
_UNIT: Final = "durations may be in s or µs instead of ms"


def odd_times(job: TraceJob) -> list[Diagnostic]:
    """Reports what is odd about when ops began and how long they took, each kind once."""
    traces = [trace for run in job.runs for trace in run.ranks.values()]
    iterations = [(trace, _timed(trace)) for trace in traces]
    notes: list[Diagnostic] = []
    for report in (_overlaps, _gaps, _outside):
        notes += report([(trace, ops) for trace, ops in iterations if ops])
    if not any(op.duration_ms for _, ops in iterations for op in ops):
        text = f"no op takes any time; {_UNIT}"
        notes.append(Diagnostic("warning", "implausible-time", text, traces[0].path))
    return [*notes, *_outliers(job, iterations), *_uneven_passes(iterations), *_rates(job, iterations)]


def odd_rates(recording: Recording) -> list[Diagnostic]:
    """Reports communication that is faster than the links of any GPU, or all of it slower than any network."""
    rates = [
        (item.call.bytes / (item.net_s + ROUNDING_MS / 2000), rank, item)
        for rank, items in recording.traced.items()
        for item in items
        if item.call is not None and item.call.bytes > 0
    ]
    fast = [entry for entry in rates if entry[0] > MAX_LINK_BYTES_PER_S]
    if fast:
        rate, rank, item = max(fast, key=lambda entry: entry[0])
        text = f"moves {rate / 1e12:,.0f} TB/s, which no link does ({counted_text(len(fast), 'such call')})"
    else:
        # A rank alone does not tell waiting for others from moving data.
        several = len(recording.traced) > 1
        large = [entry for entry in rates if several and entry[2].call and entry[2].call.bytes >= MIN_LARGE_BYTES]
        if not large or max(rate for rate, _, _ in large) >= MIN_LINK_BYTES_PER_S:
            return []
        rate, rank, item = max(large, key=lambda entry: entry[0])
        text = f"moves {rate / 1e6:,.3g} MB/s, and no other large message more"
    trace = next(recording.job.traces(rank))
    note = f"{item.name} {text}; {_UNIT}; kept as recorded"
    return [Diagnostic("warning", "implausible-rate", note, trace.at(item.op.line))]


def _timed(trace: RankTrace) -> list[TraceOp]:
    """Returns the ops of the last iteration that have a time, without the second line of an exchange."""
    ops: list[TraceOp] = []
    for op in last_iteration(trace):
        if op.start_ms is None or op.op == BUCKET_OP:
            continue
        times = (op.start_ms, op.timestamp_ms)
        if op.op in TRANSFERS and ops and ops[-1].op in TRANSFERS and times == (ops[-1].start_ms, ops[-1].timestamp_ms):
            continue
        ops.append(op)
    return ops


def _overlaps(iterations: Sequence[tuple[RankTrace, list[TraceOp]]]) -> list[Diagnostic]:
    """Reports ops that begin before the one before them ended: a rank does one thing after the other."""
    early: list[tuple[RankTrace, TraceOp, float]] = []
    for trace, ops in iterations:
        end = ops[0].timestamp_ms or 0.0
        for op in ops[1:]:
            start = op.start_ms or 0.0
            if start < end - ROUNDING_MS:
                early.append((trace, op, end - start))
            end = max(end, op.timestamp_ms or 0.0)
    if not early:
        return []
    trace, op, overlap_ms = early[0]
    text = (
        f"{op.op} begins {format_time(overlap_ms * 1e-3)} before the op before it ended "
        f"({counted_text(len(early), 'such op')}), and a rank does one thing after the other: the time in common "
        f"counts once; {_UNIT}"
    )
    return [Diagnostic("warning", "implausible-time", text, trace.at(op.line))]


def _gaps(iterations: Sequence[tuple[RankTrace, list[TraceOp]]]) -> list[Diagnostic]:
    """Reports iterations that ops do not fill, and ops far away from the others."""
    empty: list[tuple[RankTrace, TraceOp, float, float]] = []
    apart: list[tuple[RankTrace, TraceOp, float, float]] = []
    for trace, ops in iterations:
        end = begin = ops[0].start_ms or 0.0
        busy, longest, after = 0.0, 0.0, ops[0]
        for op in ops:
            start, stop = op.start_ms or 0.0, op.timestamp_ms or 0.0
            begin = min(begin, start)
            if start - end > longest:
                longest, after = start - end, op
            busy += max(stop - max(start, end), 0.0)
            end = max(end, stop)
        span = end - begin
        if span > 0 and longest > MAX_GAP_SHARE * span:
            apart.append((trace, after, longest, span))
        elif span > 0 and busy < MIN_FILLED * span:
            empty.append((trace, ops[0], busy, span))
    notes = []
    if empty:
        trace, op, busy, span = empty[0]
        text = (
            f"ops of rank {trace.rank} take {100 * busy / span:.2g} % of the {format_time(span * 1e-3)} between the "
            f"first and the last ({counted_text(len(empty), 'such rank')}); {_UNIT}; the rest counts as the host's"
        )
        notes.append(Diagnostic("warning", "implausible-time", text, trace.at(op.line)))
    if apart:
        trace, op, gap, span = apart[0]
        text = (
            f"rank {trace.rank} does nothing for {format_time(gap * 1e-3)} of its {format_time(span * 1e-3)} before "
            f"{op.op} ({counted_text(len(apart), 'such rank')}): an op may have a wrong time; kept as recorded"
        )
        notes.append(Diagnostic("warning", "implausible-time", text, trace.at(op.line)))
    return notes


def _outside(iterations: Sequence[tuple[RankTrace, list[TraceOp]]]) -> list[Diagnostic]:
    """Reports communication that lies outside of the op that it is of."""
    outside: list[tuple[RankTrace, TraceOp, SubOp, float]] = []
    for trace, ops in iterations:
        for op in ops:
            begin, end = op.start_ms or 0.0, op.timestamp_ms or 0.0
            room = MAX_OUTSIDE_MS + MAX_OUTSIDE_SHARE * (end - begin)
            for sub in op.subs:
                by_ms = max(begin - sub.start_ms, sub.timestamp_ms - end)
                if by_ms > room:
                    outside.append((trace, op, sub, by_ms))
    if not outside:
        return []
    trace, op, sub, by_ms = outside[0]
    text = (
        f"{shown(sub.name or sub.source)} lies {format_time(by_ms * 1e-3)} outside of its {op.op} "
        f"({counted_text(len(outside), 'such sub-operation')}): what lies outside is left out; {_UNIT}"
    )
    return [Diagnostic("warning", "implausible-time", text, trace.at(op.line))]


def _outliers(job: TraceJob, iterations: Iterable[tuple[RankTrace, list[TraceOp]]]) -> list[Diagnostic]:
    """Reports computation that takes 10 times the median of the same op on such a stage, or a tenth of it."""
    by_kind: dict[tuple[str, str], list[tuple[RankTrace, TraceOp, float]]] = {}
    for trace, ops in iterations:
        for op in ops:
            if op.op in _COMPUTE_OPS and op.duration_ms is not None:
                kind = (op.op, job.place(job.stage(trace.rank)))
                by_kind.setdefault(kind, []).append((trace, op, op.duration_ms))
    odd: list[tuple[RankTrace, TraceOp, float, float]] = []
    for entries in by_kind.values():
        usual = median(duration for _, _, duration in entries)
        if len(entries) < 2 or usual < ROUNDING_MS:
            continue
        for trace, op, duration in entries:
            if not usual / MAX_TIMES_MEDIAN <= duration <= usual * MAX_TIMES_MEDIAN:
                odd.append((trace, op, duration, usual))
    if not odd:
        return []
    trace, op, duration, usual = odd[0]
    text = (
        f"{op.op} takes {format_time(duration * 1e-3)}, the median of such ops is {format_time(usual * 1e-3)} "
        f"({counted_text(len(odd), 'such op')}); kept as recorded"
    )
    return [Diagnostic("warning", "implausible-time", text, trace.at(op.line))]


def _uneven_passes(iterations: Iterable[tuple[RankTrace, list[TraceOp]]]) -> list[Diagnostic]:
    """Reports a rank that does not go backward as often as forward."""
    for trace, ops in iterations:
        forward, backward = (sum(op.op == name for op in ops) for name in ("forward_step", "backward_step"))
        if backward and forward != backward:
            text = f"rank {trace.rank} goes forward {forward} times and backward {backward}: ops are missing"
            return [Diagnostic("warning", "not-recorded", text, trace.path)]
    return []


def _rates(job: TraceJob, iterations: Iterable[tuple[RankTrace, list[TraceOp]]]) -> list[Diagnostic]:
    """Reports forwards that compute faster than any GPU, where the names tell the size of the model."""
    facts, layers = job.facts, job.layers_per_stage
    if not (facts.hidden and facts.sequence and layers):
        return []
    tokens = facts.sequence * (facts.micro_batch or 1)
    flops = _ATTENTION_FLOPS * facts.hidden**2 * layers * tokens / job.mesh.tp
    for trace, ops in iterations:
        for op in ops:
            if op.op == "forward_step" and op.duration_ms is not None:
                rate = flops / ((op.duration_ms + ROUNDING_MS / 2) * 1e-3)
                if rate > MAX_GPU_FLOPS:
                    text = (
                        f"{op.op} computes at {rate / 1e15:,.0f} PFLOP/s or more for hidden size {facts.hidden:,} and "
                        f"{tokens:,} tokens, which no GPU does; {_UNIT}; kept as recorded"
                    )
                    return [Diagnostic("warning", "implausible-rate", text, trace.at(op.line))]
    return []
