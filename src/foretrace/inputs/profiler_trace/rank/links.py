"""Joins the events of a trace: the call that launched a kernel, and the op and annotations that a call ran under."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, Events, RankProfile

_PER_S: Final = 1e9
"""Times are compared as whole nanoseconds: sums of floats would put a range's end after its neighbour's start."""

KERNEL_LAUNCH: Final = re.compile(r"(cuda|hip|cu)(Ext|Module)?Launch(Kernel|CooperativeKernel)")
"""Names of calls that launch one kernel; those that launch a graph are not among them."""

_CAPTURE: Final = re.compile(r"(cuda|hip|cu)Stream(Begin|End)Capture")

_LAUNCHED: Final = (*ON_DEVICE, EventCategory.SYNC)


class EventLinks:
    """The joins of one trace, found when first asked for; -1 stands for none.

    Events on a device have the op and the annotations of the call that launched them.
    """

    def __init__(self, trace: RankProfile) -> None:
        self.trace = trace

    @cached_property
    def launch(self) -> Longs:
        """For each event on a device, and each wait, the number of its runtime call."""
        events = self.trace.events
        launch = np.full(len(events), -1, dtype=np.int64)
        calls = events.of(EventCategory.RUNTIME)
        calls = calls[events.correlation[calls] >= 0]
        device = events.of(*_LAUNCHED)
        launch[device] = _latest(events, device, calls)
        return launch

    @cached_property
    def kernel_launches(self) -> Longs:
        """The calls that launched one kernel each, in order of time; not those that a CUDA graph captured."""
        events = self.trace.events
        calls = events.of(EventCategory.RUNTIME)
        named = self.trace.named(lambda name: KERNEL_LAUNCH.match(name) is not None)[calls]
        launches = calls[named & (events.correlation[calls] >= 0)]
        marks = np.flatnonzero(self.trace.named(lambda name: _CAPTURE.match(name) is not None))
        if not len(marks):
            return launches
        opens = self.trace.named(lambda name: "Begin" in name)[marks]
        depth = np.concatenate([[0], np.cumsum(np.where(opens, 1, -1))])
        return launches[depth[np.searchsorted(events.start_s[marks], events.start_s[launches])] <= 0]

    @cached_property
    def lost_launches(self) -> Longs:
        """Those of `kernel_launches` whose kernel is not in the trace."""
        return self.kernel_launches[~np.isin(self.kernel_launches, self.launch[self.trace.events.of(*ON_DEVICE)])]

    @cached_property
    def issue(self) -> Longs:
        """For each event the host event that caused it: itself on the host, its launch on a device."""
        issue = np.arange(len(self.trace.events), dtype=np.int64)
        return np.where(self.trace.events.thread >= 0, issue, self.launch)

    @cached_property
    def issued_s(self) -> Floats:
        """When the host caused each event; NaN where that is not recorded.

        In a trace without any launches (kernels alone were recorded), work counts as issued when it begins.
        """
        start_s = self.trace.events.start_s
        issued_s = np.where(self.issue >= 0, start_s[self.issue], np.nan)
        device = self.trace.events.of(*ON_DEVICE)
        if len(device) and (self.launch[device] < 0).all():
            issued_s[device] = start_s[device]
        return issued_s

    @cached_property
    def op(self) -> Longs:
        """For each event the innermost CPU_OP it ran under; of an op, the op around it."""
        events = self.trace.events
        op = self._around(EventCategory.CPU_OP)
        # Where the call was not recorded, Kineto still says by External id under which op work was launched.
        lost = events.of(*ON_DEVICE)
        lost = lost[(op[lost] < 0) & (events.external[lost] > 0) & (self.launch[lost] < 0)]
        if len(lost):
            ops = events.of(EventCategory.CPU_OP)
            op[lost] = _matched(events.external[lost], events.external[ops], ops)
        return op

    @cached_property
    def annotation(self) -> Longs:
        """For each event the innermost annotation around it; for an annotation, the one around it.

        It is on the event's thread or, if there is none there, on the thread with most annotations: backward ops run on
        a thread of their own, under the main thread's annotation.
        """
        events = self.trace.events
        around = self._around(EventCategory.ANNOTATION)
        ranges = events.of(EventCategory.ANNOTATION)
        ranges = ranges[events.thread[ranges] >= 0]
        if not len(ranges):
            return around
        main = int(np.bincount(events.thread[ranges]).argmax())
        lost = np.flatnonzero((around < 0) & (self.issue >= 0))
        lost = lost[events.thread[self.issue[lost]] != main]
        around[lost] = innermost(events, self.issue[lost], ranges[events.thread[ranges] == main], any_thread=True)
        return around

    def chain(self, event: int) -> list[int]:
        """Returns the annotations around an event, innermost first."""
        chain: list[int] = []
        at = int(self.annotation[event])
        while at >= 0:
            chain.append(at)
            at = int(self.annotation[at])
        return chain

    def _around(self, category: EventCategory) -> Longs:
        """Returns, for each event, the innermost range of a category around the host event that caused it."""
        events = self.trace.events
        host = np.flatnonzero(events.thread >= 0)
        ranges = events.of(category)
        around = np.full(len(events), -1, dtype=np.int64)
        around[host] = innermost(events, host, ranges[events.thread[ranges] >= 0])
        launched = np.flatnonzero((events.thread < 0) & (self.launch >= 0))
        around[launched] = around[self.launch[launched]]
        return around


def innermost(events: Events, asked: Longs, ranges: Longs, *, any_thread: bool = False) -> Longs:
    """Returns, for each asked event, the innermost other range on its thread that it began in.

    With `any_thread`, the ranges are those of one thread, and the asked events may be on others.

    Ranges of a thread nest, so that the range around a moment at depth d is the last one before it that opened depth d:
    a sort and a search rather than a stack, since traces have millions of events.
    """
    begin = _whole(events.start_s)
    end = _whole(events.end_s)
    ranges = ranges[end[ranges] > begin[ranges]]
    if not len(ranges) or not len(asked):
        return np.full(len(asked), -1, dtype=np.int64)
    count = len(ranges)
    event = np.concatenate([ranges, ranges, asked])
    change = np.repeat(np.array([-1, 1, 0], dtype=np.int64), [count, count, len(asked)])
    at = np.concatenate([end[ranges], begin[ranges], begin[asked]])
    thread = np.zeros(len(event), dtype=np.int32) if any_thread else events.thread[event]
    # At one moment: first what ends, then what begins, in the order of events; a range does not lie in itself.
    order = np.lexsort((change, np.where(change < 0, 0, event), change >= 0, at, thread))
    depth = np.cumsum(change[order])
    opened = np.flatnonzero(change[order] > 0)
    asking = np.flatnonzero(change[order] == 0)
    stride = len(order) + 1
    keys = depth[opened] * stride + opened
    by_key = np.argsort(keys, kind="stable")
    before = np.searchsorted(keys[by_key], depth[asking] * stride + asking) - 1
    holder = event[order[opened[by_key[before]]]]
    inside = (depth[asking] > 0) & (before >= 0) & (end[holder] >= begin[event[order[asking]]])
    holders = np.full(len(asked), -1, dtype=np.int64)
    holders[order[asking] - 2 * count] = np.where(inside, holder, -1)
    return holders


def _whole(seconds: Floats) -> Longs:
    return np.rint(seconds * _PER_S).astype(np.int64)


def _latest(events: Events, device: Longs, calls: Longs) -> Longs:
    """Returns, for each event on a device, the last call before it with its correlation.

    Several calls have the same correlation where traces were put together.
    """
    call_of = _matched(events.correlation[device], events.correlation[calls], calls)
    numbers, counts = np.unique(events.correlation[calls], return_counts=True)
    again = np.flatnonzero(np.isin(events.correlation[device], numbers[counts > 1]))
    if not len(again):
        return call_of
    asked = device[again]
    both = np.concatenate([calls, asked])
    is_call = np.arange(len(both)) < len(calls)
    order = np.lexsort((~is_call, events.start_s[both], events.correlation[both]))
    last = np.maximum.accumulate(np.where(is_call[order], np.arange(len(order)), -1))
    call = both[order[last]]
    fits = (last >= 0) & (events.correlation[call] == events.correlation[both[order]]) & ~is_call[order]
    call_of[again[order[fits] - len(calls)]] = call[fits]
    return call_of


def _matched(asked: Longs, known: Longs, numbers: Longs) -> Longs:
    """Returns, for each asked key, the number next to the first equal known key, else -1; a key below 0 is none."""
    if not len(known):
        return np.full(len(asked), -1, dtype=np.int64)
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], asked), len(order) - 1)
    equal = (known[order[at]] == asked) & (asked >= 0)
    return np.where(equal, numbers[order[at]], -1)
