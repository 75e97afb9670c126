"""Profiler traces as JSON: the answers to all questions, or to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foretrace.basics.plain import to_plain
from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.diff import TraceDiff
from foretrace.report.explain import row_json
from foretrace.report.json import to_json, with_properties

TRACE_SCHEMA: Final = "foretrace.trace/1"
DIFF_SCHEMA: Final = "foretrace.trace-diff/1"


def profiler_trace_json(trace: ProfilerTrace, view: str | None = None, op: str = "") -> dict[str, Any]:
    """Returns the answers to all questions, without what changes over time; with a view only its answer, with that."""
    keys = [_KEYS[view]] if view else list(dict.fromkeys(_KEYS.values()))
    recorded = view is not None or trace.summary().bound is not None
    answers = {
        key: _answer(trace, key, op, series=view is not None) if recorded or key not in _OF_THE_TIMELINE else None
        for key in keys
    }
    diagnostics = trace.diagnostics if view else (*trace.timeline_diagnostics, *trace.diagnostics)
    summary = {} if view else {"summary": trace.summary()}
    traces = {"traces": [rank.trace.path for rank in trace.ranks]}
    return to_json(TRACE_SCHEMA, traces, summary, answers, {"diagnostics": diagnostics})


def diff_json(difference: TraceDiff) -> dict[str, Any]:
    """Returns what changed between two profiler traces."""
    changes = [with_properties(change, "change_s", "what") for change in difference.changes]
    return to_json(DIFF_SCHEMA, difference, {"changes": changes})


def _answer(trace: ProfilerTrace, key: str, op: str, *, series: bool) -> Any:
    answer = to_plain(trace.sequences(op) if key == "sequences" else _ANSWERS[key](trace))
    if not series:
        place, columns = _SERIES.get(key, ("", ()))
        for row in answer[place] if place else [answer]:
            for column in columns:
                del row[column]
    return answer


def _temporal(trace: ProfilerTrace) -> dict[str, Any]:
    answer = trace.temporal_breakdown()
    return with_properties(answer, "mean") | {"worst_rank": answer.worst.rank}


def _overlap(trace: ProfilerTrace) -> dict[str, Any]:
    answer = trace.overlap()
    return with_properties(answer, "mean_exposed_s") | {"worst_rank": answer.worst.rank}


def _annotations(trace: ProfilerTrace) -> dict[str, Any]:
    return {**to_plain(trace.annotations()), "launched": trace.launched()}


def _critical_path(trace: ProfilerTrace) -> dict[str, Any]:
    path, reading = trace.explanation.answer.critical_path, trace.critical_path()
    graph = trace.explanation.answer.timeline.graph
    positions = graph.classes.representative[graph.rank_class[path.node]]
    return {
        "step": trace.median_step,
        "bound": reading.bound,
        "ops": reading.ops,
        "length_s": reading.length_s,
        "gaps_s": reading.gaps_s,
        "parts_s": reading.by_part_s,
        "by_rank_s": [{"rank": rank, "seconds": seconds} for rank, seconds in reading.by_rank_s.items()],
        "kernels": reading.by_name,
        "rank": [trace.ranks[position].number for position in positions.tolist()],
        "start_s": path.start_s,
        "end_s": path.end_s,
        "part": path.part,
    }


_ANSWERS: Final[dict[str, Callable[[ProfilerTrace], Any]]] = {
    "temporal_breakdown": _temporal,
    "overlap": _overlap,
    "idle": ProfilerTrace.idle,
    "kernels": ProfilerTrace.kernels,
    "launches": ProfilerTrace.launches,
    "queues": ProfilerTrace.queues,
    "memory_bandwidth": ProfilerTrace.memory_bandwidth,
    "annotations": _annotations,
    "stragglers": lambda trace: [row_json(rank) for rank in trace.stragglers()],
    "critical_path": _critical_path,
    "steps": lambda trace: with_properties(trace.steps(), "step_s"),
}
_OF_THE_TIMELINE: Final = ("stragglers", "critical_path")
_KEYS: Final = {
    "breakdown": "temporal_breakdown",
    "overlap": "overlap",
    "idle": "idle",
    "kernels": "kernels",
    "launches": "launches",
    "queue": "queues",
    "bandwidth": "memory_bandwidth",
    "annotations": "annotations",
    "sequences": "sequences",
    "stragglers": "stragglers",
    "critical-path": "critical_path",
    "steps": "steps",
}
"""Views and their keys."""
_SERIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "launches": ("ranks", ("correlation", "call_s", "device_s", "delay_s")),
    "queues": ("queues", ("time_s", "length")),
    "memory_bandwidth": ("copies", ("time_s", "bytes_per_s")),
    "critical_path": ("", ("rank", "start_s", "end_s", "part")),
}
"""What is left out where all questions are answered at once: one number for each launch and change."""
