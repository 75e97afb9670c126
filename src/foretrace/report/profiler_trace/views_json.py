"""A profiler's traces as JSON: all questions, or one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from foretrace.readings.profiler_views import ProfilerTrace
from foretrace.readings.profiler_views.diff import TraceDiff
from foretrace.report.json import diagnostics_json

TRACE_SCHEMA: Final = "foretrace.trace/1"
DIFF_SCHEMA: Final = "foretrace.trace-diff/1"


def trace_json(trace: ProfilerTrace, view: str | None = None, op: str = "") -> dict[str, Any]:
    """Everything in SI units; with a view only that, with what changes over time."""
    keys = [_KEYS[view]] if view else list(dict.fromkeys(_KEYS.values()))
    answers = {key: _answer(trace, key, op, series=view is not None) for key in keys}
    return {
        "schema": TRACE_SCHEMA,
        "traces": [rank.trace.path for rank in trace.ranks],
        **({} if view else {"summary": _plain(asdict(trace.summary()))}),
        **answers,
        "diagnostics": diagnostics_json(trace.diagnostics),
    }


def diff_json(found: TraceDiff) -> dict[str, Any]:
    """What changed between two traces."""
    changes = [asdict(change) | {"change_s": change.change_s, "what": change.what} for change in found.changes]
    return {"schema": DIFF_SCHEMA, **asdict(found), "changes": changes}


def _answer(trace: ProfilerTrace, key: str, op: str, *, series: bool) -> Any:
    answer = _plain(asdict(trace.sequences(op)) if key == "sequences" else _ANSWERS[key](trace))
    if not series:
        place, columns = _SERIES.get(key, ("", ()))
        for row in answer[place] if place else [answer]:
            for column in columns:
                del row[column]
    return answer


def _temporal(trace: ProfilerTrace) -> dict[str, Any]:
    answer = trace.temporal_breakdown()
    return asdict(answer) | {"mean": asdict(answer.mean), "worst_rank": answer.worst.rank}


def _overlap(trace: ProfilerTrace) -> dict[str, Any]:
    answer = trace.overlap()
    return asdict(answer) | {"mean_exposed_s": answer.mean_exposed_s, "worst_rank": answer.worst.rank}


def _annotations(trace: ProfilerTrace) -> dict[str, Any]:
    return asdict(trace.annotations()) | {"launched": [asdict(one) for one in trace.launched()]}


def _steps(trace: ProfilerTrace) -> dict[str, Any]:
    answer = trace.steps()
    return asdict(answer) | {"step_s": answer.step_s}


def _plain(value: Any) -> Any:
    """Arrays as lists, tuples too."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


_ANSWERS: Final[dict[str, Callable[[ProfilerTrace], dict[str, Any]]]] = {
    "temporal_breakdown": _temporal,
    "overlap": _overlap,
    "idle": lambda trace: asdict(trace.idle()),
    "kernels": lambda trace: asdict(trace.kernels()),
    "launches": lambda trace: asdict(trace.launches()),
    "queues": lambda trace: asdict(trace.queues()),
    "memory_bandwidth": lambda trace: asdict(trace.memory_bandwidth()),
    "annotations": _annotations,
    "stragglers": lambda trace: asdict(trace.stragglers()),
    "critical_path": lambda trace: asdict(trace.critical_path()),
    "steps": _steps,
}
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
    "critical_path": ("", ("start_s", "end_s", "part", "event")),
}
"""What is left out where all questions are answered at once: one number for each launch and change."""
