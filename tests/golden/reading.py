"""Reading an answer the way the drawings in these tests are written: by rank, op and microbatch, in whole nanoseconds.

A drawing is a table in microseconds, and `us` turns it into what `times` reads:

    us({
        (0, "forward"): [(0, 2), (2, 4)],        # rank 0, microbatches 0 and 1: from, to
        (0, "backward"): {1: (4, 8)},            # only microbatch 1
        (0, "optimizer"): (8, 9),                # of no microbatch
    })

An op of chunk 1 is called "forward.1", as the schedules write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from foretrace import Answer

US = 1e-6
"""A microsecond in seconds: durations are written `4 * US`."""

Key = tuple[int, str, int]
Span = tuple[float, float]
Spans = Span | list[Span] | dict[int, Span]


def times(answer: Answer) -> dict[Key, tuple[int, int]]:
    """Start and end of every op that takes part, in ns: {(rank, op name, microbatch): (start, end)}."""
    timeline = answer.timeline
    start, end = _ns(timeline.start_s), _ns(timeline.end_s)
    return {key: (start[node], end[node]) for key, node in _nodes(answer)}


def times_of(answer: Answer, rank: int, name: str) -> list[tuple[float, float]]:
    """Start and end in µs, to the ns, of all ops of a rank with this name, in order."""
    ops = answer.timeline.rank(rank)
    return sorted(
        (round(start * 1e6, 3), round(end * 1e6, 3))
        for one, start, end in zip(ops.name, ops.start_s.tolist(), ops.end_s.tolist(), strict=True)
        if one == name
    )


def waits(answer: Answer) -> dict[Key, int]:
    """How long each op waited for its partners, in ns; ops that did not are left out."""
    wait = _ns(answer.timeline.wait_s)
    return {key: wait[node] for key, node in _nodes(answer) if wait[node]}


def seconds(answer: Answer) -> dict[Key, tuple[float, float, float]]:
    """Ready, start and end of every op to the last bit."""
    timeline = answer.timeline
    columns = (timeline.ready_s.tolist(), timeline.start_s.tolist(), timeline.end_s.tolist())
    return {key: tuple(column[node] for column in columns) for key, node in _nodes(answer)}


def step_us(answer: Answer) -> float:
    """The step time in µs, to the ns."""
    return round(answer.step_time_s * 1e9) / 1000


def parts_us(answer: Answer, rank: int) -> dict[str, float]:
    """The breakdown of one rank in µs, to the ns, without the parts that take no time; it must sum to the step."""
    own = answer.breakdown.per_class_s[answer.timeline.graph.classes.of_rank[rank]]
    assert abs(own.sum() - answer.step_time_s) <= 1e-12 * answer.step_time_s
    parts = zip(answer.breakdown.parts, _ns(own), strict=True)
    return {part: size / 1000 for part, size in parts if size}


def mean_us(answer: Answer) -> dict[str, float]:
    """The breakdown averaged over ranks, in µs, to the ns."""
    return {part: round(size * 1e9) / 1000 for part, size in answer.breakdown.mean_s.items()}


def us(table: Mapping[tuple[int, str], Spans]) -> dict[Key, tuple[int, int]]:
    """A drawing, as `times` reads it."""
    drawn: dict[Key, tuple[int, int]] = {}
    for (rank, name), spans in table.items():
        if isinstance(spans, tuple):
            spans = {-1: spans}
        elif isinstance(spans, list):
            spans = dict(enumerate(spans))
        for microbatch, (start, end) in spans.items():
            drawn[rank, name, microbatch] = round(start * 1000), round(end * 1000)
    return drawn


def _nodes(answer: Answer) -> Iterator[tuple[Key, int]]:
    """The key and node of every op of every rank."""
    graph = answer.timeline.graph
    enabled, chunk = graph.ops.ints("enabled").tolist(), graph.ops.ints("chunk").tolist()
    names, microbatch = graph.ops.names, graph.ops.microbatch.tolist()
    seen: set[Key] = set()
    for rank, number in enumerate(graph.classes.of_rank.tolist()):
        for node in range(graph.start[number], graph.start[number + 1]):
            op = graph.op[node]
            if not enabled[op]:
                continue
            name = f"{names[op]}.{chunk[op]}" if chunk[op] else names[op]
            key = (rank, name, microbatch[op])
            assert key not in seen, f"two ops are {key}"
            seen.add(key)
            yield key, node


def _ns(values_s: NDArray[np.float64]) -> list[int]:
    return [round(value * 1e9) for value in values_s.tolist()]
