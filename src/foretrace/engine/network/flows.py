"""Runs messages on links that they share: when each starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError
from foretrace.engine import jit
from foretrace.engine.bounded import run_in_parts
from foretrace.engine.jit import Room
from foretrace.engine.maxmin import Filling, fill
from foretrace.engine.network.fold import fold
from foretrace.engine.network.loop import EVENTS, MessageState, simulate
from foretrace.engine.network.messages import Messages, bytes_by_link, uses_of
from foretrace.engine.order import sort_by

NO_LIMIT = 1e300
FOLDS_FROM = 64
"""Fewer messages are run before a fold of them is found."""


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """The result of a run: for each message when it was ready and when its last byte arrived; for each link the bytes
    it carried and the seconds for which it carried any."""

    start_s: Floats
    end_s: Floats
    link_bytes: Floats
    link_busy_s: Floats
    events: int
    kinds: int
    """The number of messages that were run, one for each kind of identical ones."""

    @property
    def time_s(self) -> float:
        """The time at which the last message has arrived."""
        return float(self.end_s.max(initial=0.0))


def run_flows(capacity: Floats, messages: Messages, *, window_s: float = 0.0, folded: bool = True) -> Ran:
    """Runs the messages on links of these capacities (bytes per second), which they share max-min fairly.

    Messages that end within `window_s` of each other release their links together, at the end of the last: fewer rates
    are computed, and links idle a little. Without `folded` every message is run on its own.
    """
    link_bytes = bytes_by_link(messages, len(capacity))
    if ((link_bytes > 0) & (capacity <= 0)).any():
        raise InputError(
            "no-route", "a message crosses a link that carries nothing", hint="background traffic takes all of it"
        )
    small = fold(messages, capacity) if folded and len(messages) >= FOLDS_FROM else None
    run, rates = (messages, capacity) if small is None else (small.messages, small.capacity)
    fast = jit.pays(32 * len(run))
    world = make_world(run, rates, fast)
    loop = jit.compiled(simulate) if fast else simulate
    ended = run_in_parts(lambda waiting, work: loop(world, window_s, waiting, work), "running messages on links")
    start, end, busy = np.array(world.start), np.array(world.end), np.array(world.busy)
    if not ended or (np.isnan(end) & (np.array(world.held) == 0)).any():  # its turn has come, and it has no rate
        problem = "a link is so slow that messages on it never arrive"
        raise InputError("out-of-range", problem, hint="state the rates of links in Gb/s or GB/s")
    if np.isnan(end).any():
        raise InputError("deadlock", f"{int(np.isnan(end).sum()):,} messages wait for each other and never start")
    if small is not None:
        start, end, busy = start[small.message_kind], end[small.message_kind], busy[small.link_kind]
    return Ran(start, end, link_bytes, np.where(link_bytes > 0, busy, 0.0), int(world.counters[EVENTS]), len(run))


def make_world(messages: Messages, capacity: Floats, fast: bool) -> MessageState:
    """Everything the loop reads and writes, as arrays for the compiled loop or as lists."""
    count, links = len(messages), len(capacity)
    use_start, link, share = uses_of(messages)
    waiter = np.repeat(np.arange(count), np.diff(messages.after_start))
    by_source, later_start = sort_by(messages.after, count, False)
    held_back = np.flatnonzero(messages.ahead >= 0)
    by_ahead, behind_start = sort_by(messages.ahead[held_back], count, False)
    room = Room(fast)
    hold = room.hold
    return MessageState(
        bytes=hold(messages.bytes),
        latency=hold(messages.latency_s),
        release=hold(messages.release_s),
        later_start=hold(later_start),
        later=hold(waiter[by_source]),
        behind_start=hold(behind_start),
        behind=hold(held_back[by_ahead]),
        use_message=hold(np.repeat(np.arange(count), np.diff(use_start))),
        filling=_filling(use_start, link, share, links, room),
        capacity=hold(capacity),
        waits=hold(np.diff(messages.after_start)),
        held=hold(1 + (messages.ahead >= 0)),
        start=room.floats(count, np.nan),
        end=room.floats(count, np.nan),
        done=room.floats(count),
        speed=room.floats(count),
        since=room.floats(count),
        version=room.counts(count),
        running=room.counts(links, -1),
        before=room.counts(len(link), -1),
        following=room.counts(len(link), -1),
        busy=room.floats(links),
        busy_since=room.floats(links),
        touched=room.counts(links),
        is_touched=room.counts(links),
        seen=room.counts(links),
        message_seen=room.counts(count),
        component=room.counts(count),
        counters=room.counts(6),
    )


def _filling(use_start: Longs, link: Longs, share: Floats, links: int, room: Room) -> Filling:
    """Room for the rates of messages, which nothing but links limits."""
    count, uses = len(use_start) - 1, len(link)
    return Filling(
        full_rate=room.floats(count, NO_LIMIT),
        use_first=room.hold(use_start[:-1]),
        use_last=room.hold(use_start[1:]),
        use_resource=room.hold(link),
        use_load=room.hold(share),
        residual=room.floats(links),
        growing=room.counts(links),
        load=room.floats(links),
        first=room.counts(links, -1),
        next=room.counts(uses, -1),
        use_flow=room.counts(uses),
        rate=room.floats(count),
    )


def fair_rates(capacity: Floats, messages: Messages) -> tuple[Floats, Floats]:
    """Rates of all messages, in bytes per second, if all were under way at once; and of each if it were alone."""
    start, link, share = uses_of(messages)
    alone = np.full(len(messages), NO_LIMIT)
    np.minimum.at(alone, np.repeat(np.arange(len(messages)), np.diff(start)), capacity[link] / share)
    small = fold(messages, capacity) if len(messages) >= FOLDS_FROM else None
    run, rates = (messages, capacity) if small is None else (small.messages, small.capacity)
    start, link, share = uses_of(run)
    count, links = len(run), len(rates)
    fast = jit.pays(8 * count)
    room = Room(fast)
    gives = room.hold(np.asarray(rates, dtype=np.float64))
    filling = _filling(start, link, share, links, room)._replace(residual=gives)
    every = room.hold(np.arange(count)), room.hold(np.arange(links))
    (jit.compiled(fill) if fast else fill)(filling, every[0], count, every[1], links)
    fair = np.array(filling.rate)
    return fair if small is None else fair[small.message_kind], alone
