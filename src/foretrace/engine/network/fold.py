"""Folds messages that provably behave identically, so that each kind is run once.

Colour refinement over messages and links: two messages are identical if they have the same bytes, latency and release,
depend on identical messages, and cross identical links. Two links are identical if they have the same capacity and
carry the same numbers of messages of each kind. Max-min filling sees only these numbers, so identical messages have the
same rates and times on any network: folding is exact (the coarsest equitable partition, as for the ranks of a program).
A ring of 1,024 identical hops has one message per step; an even all-to-all on a fat-tree has a handful.

Folding keeps equal times equal. That matters where channels of a ring share links: messages that start together can be
in an unstable balance, which the slightest skew upsets, for up to a few hundredths of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.basics.arrays import Floats, Longs, stable_order
from foretrace.engine.network.messages import NONE, Messages, uses_of
from foretrace.hardware.fabric.csr import summed
from foretrace.hardware.fabric.fabric import Routes
from foretrace.hardware.fabric.hashing import Hashes, scattered

FEW_ROUNDS, MAX_ROUNDS = 12, 300
ROUNDS_WORTH = 20_000_000
"""Differences spread one message further each round (one late rank in a long ring). Where they still do after a dozen
rounds or, if these are cheap, after some hundred, nothing is folded."""

WORTH = 0.7
"""A fold that leaves more than this part of the messages is not worth having."""


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """One message and one link of each kind, what the messages of a kind put on one link of a kind together, and the
    kind of each message and link."""

    messages: Messages
    capacity: Floats
    message_kind: Longs
    link_kind: Longs


def fold(messages: Messages, capacity: Floats) -> Folded | None:
    """The messages and links folded to their kinds; None where too few are identical."""
    refined = _refine(messages, capacity)
    if refined is None:
        return None
    colour, link_colour = refined
    _, pick, kind = np.unique(colour, return_index=True, return_inverse=True)
    if len(pick) > WORTH * len(messages):
        return None
    _, link_pick, link_kind = np.unique(link_colour, return_index=True, return_inverse=True)
    return Folded(_quotient(messages, pick, kind, link_pick), capacity[link_pick], kind, link_kind)


def _refine(messages: Messages, capacity: Floats) -> tuple[Hashes, Hashes] | None:
    """Stable colours of messages and links; None where they do not settle soon."""
    routes = messages.routes
    share = scattered(bits(routes.share)) | np.uint64(1)
    by_link = stable_order(routes.link)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(routes.link, minlength=len(capacity)))])
    way = np.repeat(np.arange(len(routes.start) - 1), np.diff(routes.start))[by_link]
    share_by_link = share[by_link]
    by_route = stable_order(messages.route)
    route_bounds = np.concatenate([[0], np.cumsum(np.bincount(messages.route, minlength=len(routes.start) - 1))])
    colour = _first_colours(messages)
    link_colour = scattered(bits(capacity))
    kinds = (0, 0)
    for _ in range(max(FEW_ROUNDS, min(MAX_ROUNDS, ROUNDS_WORTH // (len(messages) + len(routes.link) + 1)))):
        route_colour = sums(link_colour[routes.link] * share, routes.start)
        colour = scattered(colour + scattered(route_colour)[messages.route] + _waits(messages, colour))
        on_route = sums(colour[by_route], route_bounds)
        link_colour = scattered(link_colour + sums(on_route[way] * share_by_link, bounds))
        before, kinds = kinds, (number_of(colour), number_of(link_colour))
        if kinds == before:
            return colour, link_colour
        if kinds[0] > WORTH * len(messages):
            return None
    return None


def _first_colours(messages: Messages) -> Hashes:
    """Returns colours by what is known of each message alone."""
    colour = scattered(messages.step.astype(np.uint64))
    for column in (messages.bytes, messages.latency_s, messages.release_s):
        colour = scattered(colour + bits(column))
    return colour


def _waits(messages: Messages, colour: Hashes) -> Hashes:
    """Returns colours by the messages that each message depends on, and by the message ahead of it."""
    ahead = np.where(messages.ahead >= 0, scattered(colour + np.uint64(7))[messages.ahead], np.uint64(0))
    return ahead + sums(scattered(colour + np.uint64(3))[messages.after], messages.after_start)


def _quotient(messages: Messages, pick: Longs, kind: Longs, link_pick: Longs) -> Messages:
    """The messages picked, on the links picked, with what all of their kind put on one link as their share."""
    number_of_link = np.full(int(max(messages.routes.link.max(initial=0), link_pick.max(initial=0))) + 1, NONE)
    number_of_link[link_pick] = np.arange(len(link_pick))
    start, link, share, message = _uses_on(messages, number_of_link)
    key = kind[message] * len(link_pick) + number_of_link[link]
    distinct, place = np.unique(key, return_inverse=True)
    load = summed(place, share, len(distinct))
    start = np.concatenate([[0], np.cumsum(np.bincount(distinct // len(link_pick), minlength=len(pick)))])
    after = [np.unique(kind[messages.after[messages.after_start[m] : messages.after_start[m + 1]]]) for m in pick]
    ahead = messages.ahead[pick]
    return Messages(
        bytes=messages.bytes[pick],
        latency_s=messages.latency_s[pick],
        release_s=messages.release_s[pick],
        route=np.arange(len(pick)),
        routes=Routes(start.astype(np.int64), distinct % len(link_pick), load),
        after_start=np.concatenate([[0], np.cumsum([len(row) for row in after])]).astype(np.int64),
        after=np.concatenate(after).astype(np.int64) if after else np.zeros(0, dtype=np.int64),
        ahead=np.where(ahead >= 0, kind[ahead], NONE),
        step=messages.step[pick],
    )


def _uses_on(messages: Messages, number_of_link: Longs) -> tuple[Longs, Longs, Floats, Longs]:
    """The uses of those links alone that have a number: (start, link, share, message)."""
    routes = messages.routes
    kept = number_of_link[routes.link] >= 0
    lengths = np.add.reduceat(np.append(kept, False).astype(np.int64), routes.start)[:-1]
    lengths = np.where(np.diff(routes.start) > 0, lengths, 0)
    fewer = Routes(np.concatenate([[0], np.cumsum(lengths)]), routes.link[kept], routes.share[kept])
    start, link, share = uses_of(replace(messages, routes=fewer))
    return start, link, share, np.repeat(np.arange(len(messages)), np.diff(start))


def sums(values: Hashes, bounds: Longs) -> Hashes:
    """Returns the wrapping sums of colours (64-bit hashes) between consecutive bounds, in any order the same."""
    running = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values, out=running[1:])
    return running[bounds[1:]] - running[bounds[:-1]]


def number_of(colour: Hashes) -> int:
    """Returns the number of distinct colours."""
    ordered = np.sort(colour)
    return int((ordered[1:] != ordered[:-1]).sum()) + min(len(ordered), 1)


def bits(values: Floats) -> Hashes:
    """Returns the bits of floats; −0.0 counts as 0.0."""
    return (np.asarray(values, dtype=np.float64) + 0.0).view(np.uint64)
