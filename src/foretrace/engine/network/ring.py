"""A ring collective, message by message, without an event loop.

Rank r sends to rank r + 1 over a hop of its own. A message of step s and chunk c may go once that of step s − 1 has
come to its sender; the messages of a hop go in turn. As one hop serves one message at a time at its whole rate,

    end(s, r, c) = max(end(s − 1, r − 1, c) + latency(r), end of the message ahead on hop r) + bytes / rate(r)

is all there is to know, and it is worked out for all ranks at once. It is what `run_flows` says of the same messages
where no two hops share a link, whatever the chunks. Were the messages of a hop not served in turn but max-min fairly,
all chunks of a step would crawl side by side and none could be passed on early: with one chunk nothing is shared and
the two are the same; with more, serving in turn is never slower, and hides latency behind the other chunks' bytes.
"""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.engine.network.steady import last_chunk


def ring_times(
    steps: int, chunks: int, message_bytes: float, rate: Floats, latency_s: Floats, arrival_s: Floats
) -> Floats:
    """When each rank is done, in seconds: it has sent and received its last message.

    A step moves `chunks` messages of so many bytes over each hop. Per hop, rates in bytes per second and latencies in
    seconds; per rank, when it arrives. Arrays are [..., ranks]: rings of several channels side by side.
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
    """When each rank is done whose chunks come from the one before it and go to the next, as in a broadcast: arrays are
    [..., hops] for rates and latencies, [..., ranks], one more, for arrivals and the result."""
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
    """The least number of ranks after which all columns repeat: 1 where all ranks are alike."""
    ranks = int(columns[0].shape[-1])
    for period in range(1, ranks):
        if ranks % period == 0 and all(
            np.array_equal(column[..., period:], column[..., :-period]) for column in columns
        ):
            return period
    return ranks
