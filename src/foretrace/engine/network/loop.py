"""Runs the event loop of messages on links, on lists or compiled.

Between events every active message advances at its max-min fair rate. An event changes the rates of the messages that
are connected to it through links, and of no others.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

from foretrace.basics.arrays import Floats
from foretrace.engine.bounded import MAX_TIME_S, held_events, take_events
from foretrace.engine.maxmin import Filling, fill

REACHES, BEGINS, ENDS = 0, 1, 2
EVENTS, ORDER, TOUCHED, STAMP, LINKS, WORK = 0, 1, 2, 3, 4, 5


class MessageState(NamedTuple):
    """The messages as the loop needs them (fixed), and the state of the run. Those that come after message m are
    `later[later_start[m] : later_start[m + 1]]`; those whose bytes follow its own are `behind[behind_start[m] : …]`.
    `running` links the uses of messages under way, by link. `counters`: events, order of scheduling, touched links,
    stamp of the component, links in it, work done so far."""

    bytes: Any
    latency: Any
    release: Any
    later_start: Any
    later: Any
    behind_start: Any
    behind: Any
    use_message: Any
    filling: Filling
    capacity: Any
    waits: Any
    held: Any
    start: Any
    end: Any
    done: Any
    speed: Any
    since: Any
    version: Any
    running: Any
    before: Any
    following: Any
    busy: Any
    busy_since: Any
    touched: Any
    is_touched: Any
    seen: Any
    message_seen: Any
    component: Any
    counters: Any


SAME_TIME = 1e-12
"""Events nearer to each other than this part of the time so far are one: they differ by rounding."""


def simulate(w: MessageState, window_s: float, waiting: Floats, max_work: int) -> Floats:
    """Runs messages until all have arrived or `max_work` is done; returns the events that wait then.

    Events within a window share one calculation of rates, made at the last of them. A time beyond `MAX_TIME_S`, or that
    is not a number, ends the run with events that nothing waits for.

    Args:
        w: The messages, and the state of the run so far.
        window_s: The length of the window.
        waiting: The events that the run so far has left, as `held_events` returns them.
        max_work: The work at which to return: events, and rates computed.
    """
    heap = [(0.0, 0, -1, 0, 0)]  # time, tie-break by order of scheduling, kind, message, version
    heappop(heap)
    if w.counters[WORK] == 0:
        for message in range(len(w.bytes)):
            if w.waits[message] == 0:
                ready(w, heap, message, 0.0)
    take_events(heap, waiting)
    while len(heap) > 0 and heap[0][0] <= MAX_TIME_S and w.counters[WORK] < max_work:
        now = heap[0][0]
        horizon = max(now * (1.0 + SAME_TIME), now + window_s)
        while len(heap) > 0 and heap[0][0] <= horizon:
            now, _, kind, message, version = heappop(heap)
            w.counters[WORK] += 1
            if kind == REACHES:
                admit(w, heap, message, now)
            elif kind == BEGINS:
                begin(w, heap, message, now)
            elif w.version[message] == version:
                finish(w, heap, message, now)
        if w.counters[TOUCHED] > 0:
            refill(w, heap, now)
    return held_events(heap)


def schedule(w: MessageState, heap: Any, time: float, kind: int, message: int) -> None:
    """Puts an event on the heap."""
    w.counters[ORDER] += 1
    heappush(heap, (time, w.counters[ORDER], kind, message, w.version[message]))


def ready(w: MessageState, heap: Any, message: int, now: float) -> None:
    """All that the message comes after has ended: its latency runs."""
    w.start[message] = max(now, w.release[message])
    schedule(w, heap, w.start[message] + w.latency[message], REACHES, message)


def admit(w: MessageState, heap: Any, message: int, now: float) -> None:
    """One of the two that a message's bytes wait for has come: its latency, its turn."""
    w.held[message] -= 1
    if w.held[message] == 0:
        schedule(w, heap, now, BEGINS, message)


def begin(w: MessageState, heap: Any, message: int, now: float) -> None:
    """Latency and turn have come: the message joins those of its links."""
    w.counters[EVENTS] += 1
    w.since[message] = now
    if w.bytes[message] <= 0.0 or w.filling.use_first[message] == w.filling.use_last[message]:
        schedule(w, heap, now, ENDS, message)
    for use in range(w.filling.use_first[message], w.filling.use_last[message]):
        link = w.filling.use_resource[use]
        first = w.running[link]
        w.following[use] = first
        w.before[use] = -1
        if first >= 0:
            w.before[first] = use
        else:
            w.busy_since[link] = now
        w.running[link] = use
        touch(w, link)


def leave(w: MessageState, message: int, now: float) -> None:
    """The message gives its links back."""
    for use in range(w.filling.use_first[message], w.filling.use_last[message]):
        link = w.filling.use_resource[use]
        before, following = w.before[use], w.following[use]
        if before >= 0:
            w.following[before] = following
        else:
            w.running[link] = following
        if following >= 0:
            w.before[following] = before
        if w.running[link] < 0:
            w.busy[link] += now - w.busy_since[link]
        touch(w, link)


def finish(w: MessageState, heap: Any, message: int, now: float) -> None:
    """The last byte has arrived: what waited for it may go on."""
    w.counters[EVENTS] += 1
    w.end[message] = now
    w.version[message] += 1
    leave(w, message, now)
    for i in range(w.behind_start[message], w.behind_start[message + 1]):
        admit(w, heap, w.behind[i], now)
    for i in range(w.later_start[message], w.later_start[message + 1]):
        follower = w.later[i]
        w.waits[follower] -= 1
        if w.waits[follower] == 0:
            ready(w, heap, follower, now)


def touch(w: MessageState, link: int) -> None:
    """Notes a link whose messages need new rates."""
    if w.is_touched[link] == 0:
        w.is_touched[link] = 1
        w.touched[w.counters[TOUCHED]] = link
        w.counters[TOUCHED] += 1


def refill(w: MessageState, heap: Any, now: float) -> None:
    """New rates for all messages connected to a touched link."""
    w.counters[STAMP] += 1
    stamp = w.counters[STAMP]
    n_links = w.counters[TOUCHED]
    for i in range(n_links):
        w.seen[w.touched[i]] = stamp
        w.is_touched[w.touched[i]] = 0
    w.counters[TOUCHED] = 0
    n_messages = connect(w, stamp, n_links)
    w.counters[WORK] += n_messages
    fill(w.filling, w.component, n_messages, w.touched, w.counters[LINKS])
    for i in range(n_messages):
        message = w.component[i]
        rate = w.filling.rate[message]
        if rate != w.speed[message]:
            w.done[message] += w.speed[message] * (now - w.since[message])
            w.since[message] = now
            w.speed[message] = rate
            w.version[message] += 1
            if rate > 0.0:
                left = max(w.bytes[message] - w.done[message], 0.0)
                schedule(w, heap, now + left / rate, ENDS, message)


def connect(w: MessageState, stamp: int, n_links: int) -> int:
    """Completes the touched links to all connected ones, and lists the messages on them; returns their number."""
    n_messages = 0
    i = 0
    while i < n_links:
        link = w.touched[i]
        i += 1
        w.filling.residual[link] = w.capacity[link]
        use = w.running[link]
        while use >= 0:
            message = w.use_message[use]
            if w.message_seen[message] != stamp:
                w.message_seen[message] = stamp
                w.component[n_messages] = message
                n_messages += 1
                for other in range(w.filling.use_first[message], w.filling.use_last[message]):
                    beyond = w.filling.use_resource[other]
                    if w.seen[beyond] != stamp:
                        w.seen[beyond] = stamp
                        w.touched[n_links] = beyond
                        n_links += 1
            use = w.following[use]
    w.counters[LINKS] = n_links
    return n_messages
