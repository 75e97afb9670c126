"""Runs an even all-to-all of any number of ranks, by kinds of sources.

Most of the n(n − 1) messages are identical. `fold` finds that message by message, but beyond a million messages even
listing them takes too long. Here sources are sorted into kinds first, by colour refinement of the network itself
(devices and links that look the same from any distance, with the ranks of the group marked), and one source of each
kind is routed to all its targets. The messages of all sources of that kind then load the links of each kind evenly.

This is exact where ranks of one kind can be exchanged without changing the network and the routing treats equal paths
equally: fat-trees, rails, dual planes, tori, dragonflies, also with failed links, under routing that spreads. It is not
exact where a hash chooses one of several paths; there every message must be routed (`fold`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.engine.network.collectives import Routing, route_latency_s
from foretrace.engine.network.flows import run_flows
from foretrace.engine.network.fold import bits, number_of, sums
from foretrace.engine.network.messages import independent
from foretrace.engine.order import sort_by
from foretrace.hardware.fabric.fabric import Fabric, Routes
from foretrace.hardware.fabric.hashing import scattered

PARTS_OF_SHARE = 2.0**40
PARTS_OF_SECOND = 1e15
"""Shares and latencies that differ by less than one such part differ by rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchanged:
    """An all-to-all: when each rank has sent and received all, and bytes and busy seconds of each link."""

    end_s: Floats
    link_bytes: Floats
    link_busy_s: Floats
    kinds: int
    """Kinds of messages that were run."""


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """The messages of one source by kind: what one of each kind crosses (by kind of link), how many targets it has and
    its latency; which kind goes to each place (-1: itself)."""

    routes: Routes
    targets: Longs
    latency_s: Floats
    kind_to: Longs


def even_all_to_all(
    fabric: Fabric,
    capacity: Floats,
    gpus: Longs,
    routing: Routing,
    pair_bytes: float,
    latency_s: float | None = None,
) -> Exchanged:
    """Runs an even all-to-all: every GPU of the group sends `pair_bytes` to every other, all at once.

    Messages have the latency `latency_s`, or that of the links they cross; links have these capacities.
    """
    device_kind, link_kind = kinds_of(fabric, capacity, gpus)
    _, picks, kind_of_place = np.unique(device_kind[gpus], return_index=True, return_inverse=True)
    sources = [_one_source(gpus, int(pick), routing, link_kind, fabric.latency_s) for pick in picks]
    per_kind = np.bincount(kind_of_place)
    count = np.concatenate([source.targets * number for source, number in zip(sources, per_kind, strict=True)])
    lengths = np.concatenate([np.diff(source.routes.start) for source in sources])
    link = np.concatenate([source.routes.link for source in sources])
    share = np.concatenate([source.routes.share for source in sources])
    load = share * np.repeat(count, lengths) / np.bincount(link_kind)[link]
    of_kind = np.zeros(int(link_kind.max()) + 1)
    of_kind[link_kind] = capacity
    messages = independent(
        np.full(len(count), float(pair_bytes)),
        Routes(np.concatenate([[0], np.cumsum(lengths)]), link, load),
        np.concatenate([source.latency_s for source in sources])
        if latency_s is None
        else np.full(len(count), latency_s),
    )
    ran = run_flows(of_kind, messages, folded=False)
    return Exchanged(
        end_s=_ends(sources, ran.end_s, kind_of_place)[kind_of_place],
        link_bytes=ran.link_bytes[link_kind],
        link_busy_s=ran.link_busy_s[link_kind],
        kinds=len(count),
    )


def kinds_of(fabric: Fabric, capacity: Floats, gpus: Longs) -> tuple[Longs, Longs]:
    """Kinds of devices and of links: what looks the same from any distance, the GPUs of the group told from others."""
    devices = len(fabric.kind)
    colour = scattered(fabric.kind.astype(np.uint64))
    colour[gpus] = scattered(colour[gpus])
    link = scattered(scattered(bits(capacity)) + bits(fabric.latency_s))
    leaving, leaving_start = sort_by(fabric.source, devices, False)
    entering, entering_start = sort_by(fabric.target, devices, False)
    kinds = -1
    while number_of(colour) != kinds:
        kinds = number_of(colour)
        onward = sums(scattered(link + scattered(colour)[fabric.target])[leaving], leaving_start)
        inward = sums(scattered(link + scattered(colour)[fabric.source])[entering], entering_start)
        colour = scattered(colour + scattered(onward) + scattered(inward + np.uint64(1)))
    link = scattered(link + scattered(colour)[fabric.source] + scattered(colour + np.uint64(5))[fabric.target])
    return np.unique(colour, return_inverse=True)[1], np.unique(link, return_inverse=True)[1]


def _one_source(gpus: Longs, pick: int, routing: Routing, link_kind: Longs, link_latency_s: Floats) -> _Source:
    """Routes one source to all its targets, and sorts its messages into kinds."""
    others = np.delete(gpus, pick)
    routes = routing(np.full(len(others), gpus[pick]), others)
    kinds = int(link_kind.max()) + 1
    way = np.repeat(np.arange(len(others)), np.diff(routes.start))
    key, place = np.unique(way * kinds + link_kind[routes.link], return_inverse=True)
    link, share = key % kinds, np.bincount(place, weights=routes.share)
    start = np.concatenate([[0], np.cumsum(np.bincount(key // kinds, minlength=len(others)))])
    latency = route_latency_s(routes, link_latency_s)
    rounded = np.round(share * PARTS_OF_SHARE).astype(np.uint64)
    colour = sums(scattered(scattered(link.astype(np.uint64)) + rounded), start)
    colour += scattered(np.round(latency * PARTS_OF_SECOND).astype(np.uint64))
    _, first, kind = np.unique(colour, return_index=True, return_inverse=True)
    lengths = np.diff(start)[first]
    uses = np.concatenate([np.arange(start[message], start[message + 1]) for message in first])
    of_kind = Routes(np.concatenate([[0], np.cumsum(lengths)]), link[uses], share[uses])
    return _Source(of_kind, np.bincount(kind), latency[first], np.insert(kind, pick, -1))


def _ends(sources: list[_Source], end_s: Floats, kind_of_place: Longs) -> Floats:
    """Returns when a rank of each kind has sent and received all."""
    ends = np.zeros(len(sources))
    first = 0
    for kind, source in enumerate(sources):
        own = end_s[first : first + len(source.targets)]
        first += len(source.targets)
        ends[kind] = max(ends[kind], own.max(initial=0.0))
        sent_to = source.kind_to >= 0
        np.maximum.at(ends, kind_of_place[sent_to], own[source.kind_to[sent_to]])
    return ends
