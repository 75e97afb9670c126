"""Chunks that follow each other through the same messages, without an event loop.

Where every message keeps one rate, a chunk of it ends

    end(c, m) = max(latest end(c, before m) + latency(m), end(c − 1, m)) + bytes / rate(m)

since a message takes its chunks in turn. Messages of one step are worked out together.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from foretrace.basics.arrays import Floats, ranges
from foretrace.engine.network.messages import Messages
from foretrace.engine.network.steady import last_chunk
from foretrace.engine.order import sort_by


def pipeline_times(messages: Messages, chunks: int, rate: Floats) -> Floats:
    """When the last chunk of each message has arrived. The bytes of the messages are those of all chunks; each goes at
    its own rate, in bytes per second, and comes after messages of earlier steps only."""
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
