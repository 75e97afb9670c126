"""Finds where the host waited for the device: at synchronisations, in copies that block, and at a full launch queue.

The work that it waits for is a dependency; the time it waited is not its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.calls import WAITING, Does
from foretrace.inputs.profiler_trace.rank.streams import Streams

_FEW_S: Final = 20e-6
"""A call that returns this fast has not waited for an event."""
_SLOW_LAUNCH_S: Final = 50e-6
_SLOW_FACTOR: Final = 10.0
"""A launch that takes this many times the usual, and longer than that, was held up."""
_DEEP: Final = 800
"""Outstanding launches from which on a held-up one waits for room: drivers take about 1,024, waits of streams and
events counted (A100 and H200 traces stop at 970 to 1,022)."""
_SLACK_S: Final = 2e-6


@dataclass(frozen=True, slots=True)
class HostWaits:
    """Calls that wait for work on a device, one row for each work waited for."""

    call: Longs
    target: Longs
    queue: Mask
    """The call waits for room before it launches, not for work when it has."""


def host_waits(streams: Streams) -> HostWaits:
    """Returns all waits of the host whose target is known or can be inferred."""
    rows = [*_synchronising(streams), *_copying(streams)]
    held = _queue_full(streams)
    call, target = (np.array([row[i] for row in rows] + [row[i] for row in held], dtype=np.int64) for i in (0, 1))
    return HostWaits(call, target, np.arange(len(call)) >= len(rows))


def _synchronising(streams: Streams) -> list[tuple[int, int]]:
    trace = streams.trace
    what = streams.does
    stream_of, mark_of = _recorded_waits(streams)
    rows: list[tuple[int, int]] = []
    for call in np.flatnonzero(np.isin(what, WAITING)).tolist():
        at_s = trace.events.start_s[[call]]
        if what[call] == Does.WAITS_DEVICE:
            targets = [int(streams.last_before(key, at_s)[0]) for key in streams.keys]
        elif call in mark_of:
            targets = [mark_of[call]]
        elif call in stream_of:
            targets = [int(streams.last_before(stream_of[call], at_s)[0])]
        elif what[call] == Does.WAITS_STREAM:
            targets = [_of_unknown_stream(streams, call)]
        else:
            targets = [_ended_with(streams, call)]
        rows += [(call, target) for target in targets if target >= 0]
    return rows


def _recorded_waits(streams: Streams) -> tuple[dict[int, int], dict[int, int]]:
    """Returns, by call, the stream it waits for, and the work before the mark it waits for, as the driver recorded
    them."""
    events, links = streams.trace.events, streams.links
    waits = events.of(EventCategory.SYNC)
    waits = waits[links.launch[waits] >= 0]
    calls = events.of(EventCategory.RUNTIME)
    at_mark = dict(zip(events.correlation[calls].tolist(), events.start_s[calls].tolist(), strict=True))
    stream_of: dict[int, int] = {}
    mark_of: dict[int, int] = {}
    for wait in waits.tolist():
        base = max(int(events.device[wait]), 0) * (1 << 32)
        call = int(links.launch[wait])
        marked = at_mark.get(int(events.waits_correlation[wait]))
        if marked is not None and events.waits_stream[wait] >= 0:
            key = base + int(events.waits_stream[wait])
            mark_of[call] = int(streams.last_before(key, np.array([marked]))[0])
        elif events.stream[wait] >= 0:
            stream_of[call] = base + int(events.stream[wait])
    return stream_of, mark_of


def _of_unknown_stream(streams: Streams, call: int) -> int:
    """Returns the target of a wait for a stream: the last work of this thread, unless that ended after the call."""
    events, links = streams.trace.events, streams.links
    begin, end = float(events.start_s[call]), float(streams.end_s[call])
    given = [int(streams.last_before(key, np.array([begin]))[0]) for key in streams.keys]
    given = [work for work in given if work >= 0 and streams.end_s[work] <= end + _SLACK_S]
    mine = [
        work for work in given if links.launch[work] >= 0 and events.thread[links.launch[work]] == events.thread[call]
    ]
    return max(mine or given, key=lambda work: float(streams.issued_s[work]), default=-1)


def _ended_with(streams: Streams, call: int) -> int:
    """Returns the work whose end a long wait returned with; -1 where the call did not wait."""
    events = streams.trace.events
    begin, end = float(events.start_s[call]), float(streams.end_s[call])
    if end - begin < _FEW_S:
        return -1
    work = streams.queued
    fits = (streams.issued_s[work] < begin) & (streams.end_s[work] <= end + _SLACK_S) & (streams.end_s[work] > begin)
    ended = work[fits]
    return int(ended[np.argmax(streams.end_s[ended])]) if len(ended) else -1


def _copying(streams: Streams) -> list[tuple[int, int]]:
    """Returns copies whose call returned only when they were done."""
    trace, links = streams.trace, streams.links
    events = trace.events
    copies = streams.queued[events.category[streams.queued] == EventCategory.MEMCPY]
    copies = copies[links.launch[copies] >= 0]
    call = links.launch[copies]
    within = trace.named(lambda name: "DtoD" in name or "Device -> Device" in name)
    blocked = ~within[copies] & (streams.does[call] == Does.COPIES)
    blocked &= streams.end_s[call] >= streams.end_s[copies] - _SLACK_S
    return list(zip(call[blocked].tolist(), copies[blocked].tolist(), strict=True))


def _queue_full(streams: Streams) -> list[tuple[int, int]]:
    """Returns launches that a full queue held up, and the work whose end let them go on.

    About as many launches were outstanding then as a driver takes.
    """
    events, links = streams.trace.events, streams.links
    work = streams.queued[links.launch[streams.queued] >= 0]
    call = np.unique(links.launch[work])
    call = call[streams.does[call] == Does.OTHER]
    if not len(call):
        return []
    took = events.duration_s[call]
    slow = call[took > max(_SLOW_FACTOR * float(np.median(took)), _SLOW_LAUNCH_S)]
    by_end = work[np.argsort(streams.end_s[work], kind="stable")]
    ends, issued = streams.end_s[by_end], np.sort(streams.issued_s[work])
    outstanding = np.searchsorted(issued, events.start_s[slow]) - np.searchsorted(ends, events.start_s[slow])
    slow = slow[outstanding >= _DEEP]
    freed = np.searchsorted(ends, streams.end_s[slow], side="right") - 1
    return [(int(c), int(by_end[at])) for c, at in zip(slow, freed, strict=True) if at >= 0]
