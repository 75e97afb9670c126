"""Times chunks that follow each other over the same hops, without an event loop.

In a ring, rank r sends to rank r + 1 over its own hop. The message of step s and chunk c may start when the message of
step s − 1 has arrived at its sender, and a hop serves its messages in order, each at the whole rate. So

    end(s, r, c) = max(end(s − 1, r − 1, c) + latency(r), end of the message ahead on hop r) + bytes / rate(r)

is computed for all ranks at once (`ring_times`). `run_flows` gives the same times for these messages where no two hops
share a link, whatever the chunks. If the messages of a hop were not served in order but max-min fairly, all chunks of a
step would advance concurrently and none could be passed on early. With one chunk the two agree. With more, serving in
order is never slower, since it hides latency behind the bytes of the other chunks.

For any messages that each keep one rate (`pipeline_times`),

    end(c, m) = max(latest end(c, before m) + latency(m), end(c − 1, m)) + bytes / rate(m)

Messages of one step are computed together.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, ranges
from foretrace.engine.network.messages import Messages
from foretrace.engine.order import sort_by

LOOK_EVERY: Final = 64
"""The number of chunks after which `last_chunk` checks again whether the time between chunks is constant."""

ROUNDING: Final = 1e-12


def ring_times(
    steps: int, chunks: int, message_bytes: float, rate: Floats, latency_s: Floats, arrival_s: Floats
) -> Floats:
    """Returns when each rank has sent and received its last message, in seconds.

    Arrays are [..., ranks], so that rings of several channels are computed together.

    Args:
        steps: the number of steps of the ring.
        chunks: the messages that a step moves over each hop.
        message_bytes: the bytes of one message.
        rate: bytes per second of each hop.
        latency_s: seconds of latency of each hop.
        arrival_s: when each rank arrives, in seconds.
    """
    shape = np.broadcast_shapes(rate.shape, latency_s.shape, arrival_s.shape)
    if steps < 1 or chunks < 1:
        return np.broadcast_to(arrival_s, shape).astype(np.float64)
    columns = [np.broadcast_to(column, shape) for column in (message_bytes / rate, latency_s, arrival_s)]
    period = _period(columns)
    serial, latency, arrival = (np.ascontiguousarray(column[..., :period]) for column in columns)
    ready = np.empty((chunks, *arrival.shape[:-1], period + 1))
    ready[..., :-1] = arrival  # ready[c][..., r]: when rank r may send; the ends of its hop are one place further on
    free = np.full(arrival.shape, -np.inf)
    reached = np.empty(arrival.shape)
    for _ in range(steps):
        for chunk in range(chunks):
            row = ready[chunk]
            np.add(row[..., :-1], latency, out=reached)
            np.maximum(reached, free, out=reached)
            free = row[..., 1:]
            np.add(reached, serial, out=free)
            row[..., 0] = row[..., -1]
    last = ready[-1]
    done = np.maximum(last[..., :-1], last[..., 1:])
    return np.tile(done, shape[-1] // period)


def chain_times(chunks: int, message_bytes: float, rate: Floats, latency_s: Floats, arrival_s: Floats) -> Floats:
    """Returns when each rank of a chain is done, in seconds; each passes chunks on to the next, as in a broadcast.

    Rates and latencies are [..., hops]; arrivals and the result are [..., ranks], one more than hops.
    """
    serial = message_bytes / rate
    path = np.cumsum(latency_s + serial, axis=-1)
    release = np.maximum.accumulate(arrival_s[..., :-1] + latency_s + serial - path, axis=-1)

    def after(ahead: Floats) -> Floats:
        # end(i) = max(end(i − 1) + latency(i), end of the chunk ahead) + serial(i), along the hops
        return np.maximum(release, np.maximum.accumulate(ahead + serial - path, axis=-1)) + path

    slowest = np.maximum.accumulate(serial, axis=-1)
    end = last_chunk(chunks, np.full(rate.shape, -np.inf), slowest, after)
    sent = np.concatenate([end, end[..., -1:]], axis=-1)
    received = np.concatenate([end[..., :1], end], axis=-1)
    done: Floats = np.maximum(np.maximum(sent, received), arrival_s)
    return done


def _period(columns: list[Floats]) -> int:
    """The least number of ranks after which all columns repeat: 1 where all ranks are identical."""
    ranks = int(columns[0].shape[-1])
    for period in range(1, ranks):
        if ranks % period == 0 and all(
            np.array_equal(column[..., period:], column[..., :-period]) for column in columns
        ):
            return period
    return ranks


def pipeline_times(messages: Messages, chunks: int, rate: Floats) -> Floats:
    """Returns when the last chunk of each message has arrived, in seconds.

    `messages.bytes` are the bytes of all chunks. Each message has its own `rate`, in bytes per second, and depends only
    on messages of earlier steps.
    """
    serial = messages.bytes / chunks / rate
    order, bounds = sort_by(messages.step, int(messages.step.max(initial=0)) + 1, False)
    levels = []
    for first, last in pairwise(bounds):
        level = order[first:last]
        waits = np.diff(messages.after_start)[level]
        before = messages.after[ranges(messages.after_start[:-1][level], waits)]
        levels.append((level, np.flatnonzero(waits), before, (np.cumsum(waits) - waits)[waits > 0]))
    slowest = serial.copy()
    for level, waiting, before, starts in levels:
        if len(before):
            held = level[waiting]
            slowest[held] = np.maximum(slowest[held], np.maximum.reduceat(slowest[before], starts))

    def after(ahead: Floats) -> Floats:
        end = ahead.copy()
        for level, waiting, before, starts in levels:
            ready = messages.release_s[level]
            if len(before):
                ready[waiting] = np.maximum(ready[waiting], np.maximum.reduceat(end[before], starts))
            end[level] = np.maximum(ready + messages.latency_s[level], end[level]) + serial[level]
        return end

    return last_chunk(chunks, np.full(len(messages), -np.inf), slowest, after)


def last_chunk(chunks: int, end_s: Floats, gap_s: Floats, after: Callable[[Floats], Floats]) -> Floats:
    """Returns when the last chunk ends, in seconds.

    The end of chunk c is the maximum of linear functions of c, one for each path to a message, with the slowest hop of
    that path as its slope. So the time between chunks never falls, and stays constant once it is that of the slowest
    hop.

    Args:
        chunks: the number of chunks.
        end_s: the ends that the first chunk waits for.
        gap_s: for each message, the seconds that the slowest hop up to it takes for a chunk.
        after: returns the ends of a chunk from those of the chunk ahead.
    """
    for done in range(1, chunks + 1):
        ahead, end_s = end_s, after(end_s)
        if done % LOOK_EVERY == 0 and np.all(end_s - ahead >= gap_s - ROUNDING * np.abs(end_s)):
            return end_s + (chunks - done) * gap_s
    return end_s
