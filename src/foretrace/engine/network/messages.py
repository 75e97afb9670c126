"""Holds messages over links as columns: their bytes, latencies, routes and dependencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, ranges
from foretrace.hardware.fabric.csr import summed
from foretrace.hardware.fabric.fabric import Routes

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages, their routes and their dependencies. A message is ready when all that it depends on have ended and its
    release is reached; then it takes its latency, then its bytes at the rate that the links of its route leave it."""

    bytes: Floats
    latency_s: Floats
    release_s: Floats
    route: Longs
    """The route of each message in `routes`."""
    routes: Routes
    after_start: Longs
    """Message m comes after the messages `after[after_start[m] : after_start[m + 1]]`."""
    after: Longs
    ahead: Longs
    """The message whose bytes go before this one's (a channel serves its messages in turn), or -1. Latencies of
    messages in turn overlap: the bytes of the next may follow those of the one ahead at once."""
    step: Longs
    """The step of each message. It changes no time; folding looks for identical messages among those of one step."""

    def __len__(self) -> int:
        return len(self.bytes)


def independent(size_bytes: Floats, routes: Routes, latency_s: Floats, release_s: Floats | None = None) -> Messages:
    """Messages that wait for no other, one on each route."""
    count = len(size_bytes)
    return Messages(
        bytes=np.asarray(size_bytes, dtype=np.float64),
        latency_s=np.asarray(latency_s, dtype=np.float64),
        release_s=np.zeros(count) if release_s is None else np.asarray(release_s, dtype=np.float64),
        route=np.arange(count),
        routes=routes,
        after_start=np.zeros(count + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int64),
        ahead=np.full(count, NONE, dtype=np.int64),
        step=np.zeros(count, dtype=np.int64),
    )


def concatenated(parts: list[Messages]) -> Messages:
    """Messages of several collectives that run at once; their routes must be over the same links."""
    if len(parts) == 1:
        return parts[0]
    count = np.cumsum([0, *(len(part) for part in parts)])
    ways = np.cumsum([0, *(len(part.routes.start) - 1 for part in parts)])
    routes = Routes(
        start=_joined_starts([part.routes.start for part in parts]),
        link=np.concatenate([part.routes.link for part in parts]),
        share=np.concatenate([part.routes.share for part in parts]),
    )
    return Messages(
        bytes=np.concatenate([part.bytes for part in parts]),
        latency_s=np.concatenate([part.latency_s for part in parts]),
        release_s=np.concatenate([part.release_s for part in parts]),
        route=np.concatenate([part.route + way for part, way in zip(parts, ways, strict=False)]),
        routes=routes,
        after_start=_joined_starts([part.after_start for part in parts]),
        after=np.concatenate([part.after + first for part, first in zip(parts, count, strict=False)]),
        ahead=np.concatenate(
            [np.where(part.ahead >= 0, part.ahead + first, NONE) for part, first in zip(parts, count, strict=False)]
        ),
        step=np.concatenate([part.step for part in parts]),
    )


def bytes_by_link(messages: Messages, links: int) -> Floats:
    """Bytes that the messages put on each link."""
    routes = messages.routes
    by_route = summed(messages.route, messages.bytes, len(routes.start) - 1)
    return summed(routes.link, np.repeat(by_route, np.diff(routes.start)) * routes.share, links)


def uses_of(messages: Messages) -> tuple[Longs, Longs, Floats]:
    """(start, link, share) of every message's own uses of links."""
    routes = messages.routes
    lengths = np.diff(routes.start)[messages.route]
    place = ranges(routes.start[:-1][messages.route], lengths)
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return start, routes.link[place], routes.share[place]


def _joined_starts(starts: list[Longs]) -> Longs:
    """Starts of rows that follow each other."""
    lengths = np.concatenate([np.diff(start) for start in starts])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def repeated(hops: Messages, chunks: int, steps: int | None = None) -> Messages:
    """Splits every message into `chunks` that are sent in order.

    Chunk *c* depends on chunk *c* of the messages that its message depended on. With `steps` the messages are repeated
    that many times, as in a ring, and depend on those of the step before. The messages are numbered by step, then by
    chunk, then as in `hops`.
    """
    count, rounds = len(hops), (steps or 1) * chunks
    start, after = hops.after_start, hops.after
    waits, back = np.tile(np.diff(start), rounds), 0
    if steps is not None:
        waits[: chunks * count] = 0
        back = chunks
    first = np.arange(back, rounds) - back
    turn = np.repeat(np.arange(rounds), count)
    number = np.arange(rounds * count)
    return Messages(
        bytes=np.tile(hops.bytes / chunks, rounds),
        latency_s=np.tile(hops.latency_s, rounds),
        release_s=np.tile(hops.release_s, rounds),
        route=np.tile(hops.route, rounds),
        routes=hops.routes,
        after_start=np.concatenate([[0], np.cumsum(waits)]),
        after=(first[:, None] * count + after).ravel(),
        ahead=np.where(turn > 0, number - count, NONE),
        step=np.tile(hops.step, rounds) + (turn if steps is None else turn // chunks),
    )
