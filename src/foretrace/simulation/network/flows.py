"""Runs a collective message by message on the links of a network: its time, and which links are hot.

The messages of rings, trees or all pairs are routed over the fabric and run with links divided max-min fairly. Groups
that communicate at once share links; failed links, narrow uplinks and late ranks show their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError
from foretrace.engine.network.all_to_all import even_all_to_all
from foretrace.engine.network.chunks import chain_times, pipeline_times, ring_times
from foretrace.engine.network.collectives import (
    Sends,
    at_once,
    chain,
    pairs,
    ring,
    ring_orders,
    routed,
    tree,
    tree_parents,
)
from foretrace.engine.network.flows import fair_rates, run_flows
from foretrace.engine.network.fold import fold
from foretrace.engine.network.loop import SAME_TIME
from foretrace.engine.network.messages import Messages, bytes_by_link, concatenated, repeated
from foretrace.hardware.fabric.fabric import Fabric
from foretrace.program.columns import ONE_TO_ONE, SHARDED, WHOLE, Collective, label
from foretrace.simulation.network.flow_network import FlowNetwork

CHUNK_BYTES: Final = 512 * 1024
MIN_CHUNK_BYTES: Final = 32 * 1024
CHUNKS_IN_A_ROW: Final = 4
"""Bytes that NCCL passes on at a time: a buffer of 4 MiB in 8 slots (`NCCL_BUFFSIZE`, `NCCL_STEPS`), halved down to 32
KiB while there are few of them for the length of the tree or chain (NCCL, src/enqueue.cc)."""

MAX_REPEATED: Final = 100_000
"""More messages of rings, chains and trees that differ are not run one by one: they keep the rates they have with all
of them at work. So many take 16 s without numba, and 2 s with it."""

MAX_MESSAGES: Final = 300_000
"""More messages of an even all-to-all are run by kinds of sources."""

FEW_UNLIKE: Final = 300
MAX_UNLIKE: Final = 20_000
ROUGHLY: Final = 0.01
"""Messages of an uneven all-to-all that are run exactly. More give their links back together if they end within a
hundredth of what the busiest link needs. Beyond `MAX_UNLIKE`, messages are assumed to be paced so that the busiest link
is never idle."""

MAX_LISTED: Final = 4_200_000
"""More pairs are not routed one by one: they would take several gigabytes."""

HOTTEST: Final = 5

Algorithm = Literal["ring", "tree", "chain", "pairs"]


@dataclass(frozen=True, slots=True, eq=False)
class FlowAnswer:
    """The time of a collective, message by message. Link columns are those of the fabric."""

    time_s: float
    end_s: Floats
    """When each rank is done: [groups, ranks]."""
    algorithm: Algorithm
    channels: int
    messages: int
    """Messages that the answer stands for."""
    link_bytes: Floats
    utilisation: Floats
    """Bytes that each link carried over what it could carry in this time."""
    hottest: tuple[tuple[str, float], ...]
    """Names and utilisation of the busiest links, at most a handful."""
    rough: str = ""
    """In words, what was simplified; empty if links were divided again at every event."""

    @property
    def exact(self) -> bool:
        """Whether links were divided again at every event."""
        return not self.rough


FIXED_RATES: Final = "messages are too many to run one by one: hops keep the rates they have with all of them at work"
TOGETHER: Final = "messages that end within 1 % of the time of the busiest link give their links back together"
PACED: Final = "messages are too many to run one by one: they are taken to keep the busiest link busy throughout"


def flow_time(
    collective: Collective,
    size_bytes: float | Floats,
    groups: Longs,
    network: FlowNetwork,
    *,
    algorithm: Literal["ring", "tree"] = "ring",
    chunks: int | None = None,
    latency_s: float | None = None,
    arrival_s: Floats | None = None,
) -> FlowAnswer:
    """Runs a collective of nccl-tests' size in groups of GPUs, [groups, ranks], all at once.

    `algorithm` is that of an all-reduce; `chunks` the number that a channel's part is cut into (None: as NCCL does).
    `latency_s` is what the call takes without bytes, along its longest chain of messages; it takes the place of the
    fabric's latencies (most of NCCL's is software). Ranks start at `arrival_s`, [groups, ranks]. The size of an uneven
    all-to-all is an array of bytes, [from, to], the same in every group.
    """
    pair_bytes = size_bytes if isinstance(size_bytes, np.ndarray) else None
    size_bytes = 0.0 if isinstance(size_bytes, np.ndarray) else size_bytes
    groups = np.atleast_2d(np.asarray(groups, dtype=np.int64))
    _check(collective, size_bytes, groups, network.fabric, pair_bytes)
    if chunks is not None and chunks < 1:
        raise InputError("out-of-range", f"{chunks} chunks carry nothing", hint="1 or more")
    arrival = np.zeros(groups.shape) if arrival_s is None else np.array(np.broadcast_to(arrival_s, groups.shape))
    call = _Call(groups, network, latency_s, arrival)
    if groups.shape[1] == 1 or collective in (Collective.NONE, Collective.BARRIER):
        return call.answer(arrival + (latency_s or 0.0), np.zeros(network.fabric.links), "pairs", 1, 0)
    way = runs_as(collective, algorithm)
    if way == "ring":
        return _rings(call, collective, size_bytes, chunks or 1)
    if way == "chain":
        return _chains(call, collective, size_bytes, chunks)
    if way == "tree":
        return _trees(call, size_bytes, chunks)
    if collective is Collective.ALL_TO_ALL and pair_bytes is None and _many_alike(call):
        return _all_to_all(call, size_bytes)
    return _pairs(call, collective, size_bytes, pair_bytes)


def runs_as(collective: Collective, algorithm: Literal["ring", "tree"]) -> Algorithm:
    """Returns which messages a collective sends; those of an all-reduce are the `algorithm`'s."""
    if collective is Collective.ALL_REDUCE:
        return algorithm
    if collective in SHARDED:
        return "ring"
    return "chain" if collective in WHOLE else "pairs"


def ring_steps(collective: Collective, ranks: int) -> int:
    """How often each rank of a ring sends."""
    return 2 * (ranks - 1) if collective is Collective.ALL_REDUCE else ranks - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Groups on a network, and when their ranks arrive."""

    groups: Longs
    network: FlowNetwork
    latency_s: float | None
    arrival_s: Floats

    @property
    def nodes(self) -> Longs:
        """The node of each rank, or the rack, where links reach over nodes."""
        return self.network.nodes_of(self.groups)

    def messages(self, sends: list[Sends], depth: int) -> Messages:
        """Returns the sends of all groups on their routes, each with its part of the latency of `depth` in a row."""
        links = self.network.fabric.latency_s
        links = links if self.latency_s is None else np.zeros(len(links))
        rows = zip(sends, self.groups, self.arrival_s, strict=True)
        messages = concatenated([routed(send, gpus, self.network.routing, links, late) for send, gpus, late in rows])
        if self.latency_s is not None:
            messages.latency_s[:] = self.latency_s / depth
        return messages

    def answer(
        self, end_s: Floats, link_bytes: Floats, algorithm: Algorithm, channels: int, messages: int, rough: str = ""
    ) -> FlowAnswer:
        """The answer of what was run."""
        time = float(end_s.max(initial=0.0))
        carried = self.network.capacity * (time - float(self.arrival_s.min(initial=0.0)))
        utilisation = np.divide(link_bytes, carried, out=np.zeros_like(link_bytes), where=carried > 0)
        hottest = np.argsort(-utilisation, kind="stable")[:HOTTEST]
        named = tuple(
            (self.network.fabric.link_label(int(link)), float(utilisation[link]))
            for link in hottest
            if utilisation[link] > 0
        )
        return FlowAnswer(time, end_s, algorithm, channels, messages, link_bytes, utilisation, named, rough)


def _rings(call: _Call, collective: Collective, size_bytes: float, chunks: int) -> FlowAnswer:
    """A ring collective."""
    steps = ring_steps(collective, call.groups.shape[1])
    orders = [ring_orders(nodes) for nodes in call.nodes]
    sends = [ring(order, size_bytes) for order in orders]
    hops = call.messages(sends, steps)
    part = size_bytes / orders[0].size / chunks

    def in_turn(rate: Floats) -> Floats:
        def times(rate: Floats, latency_s: Floats, arrival_s: Floats) -> Floats:
            return ring_times(steps, chunks, part, rate, latency_s, arrival_s)

        return _along(call, orders, rate, hops.latency_s, times)

    return _pipelines(call, "ring", len(orders[0]), sends, hops, chunks, steps, in_turn)


def _chains(call: _Call, collective: Collective, size_bytes: float, chunks: int | None) -> FlowAnswer:
    """A broadcast or reduction along chains."""
    turn = -1 if collective is Collective.REDUCE else 1
    orders = [ring_orders(nodes)[:, ::turn] for nodes in call.nodes]
    channel_bytes = size_bytes / len(orders[0])
    pieces = chunks or _chunks(channel_bytes, call.groups.shape[1] - 1)
    sends = [chain(order, size_bytes) for order in orders]
    hops = call.messages(sends, call.groups.shape[1] - 1)

    def in_turn(rate: Floats) -> Floats:
        def times(rate: Floats, latency_s: Floats, arrival_s: Floats) -> Floats:
            return chain_times(pieces, channel_bytes / pieces, rate, latency_s, arrival_s)

        return _along(call, orders, rate, hops.latency_s, times)

    return _pipelines(call, "chain", len(orders[0]), sends, hops, pieces, None, in_turn)


def _trees(call: _Call, size_bytes: float, chunks: int | None) -> FlowAnswer:
    """An all-reduce over trees."""
    parents = [tree_parents(nodes) for nodes in call.nodes]
    channels = len(parents[0])
    sends = [tree(parent, size_bytes) for parent in parents]
    depth = max(int(send.step.max()) + 1 for send in sends)
    pieces = chunks or _chunks(size_bytes / channels, depth)
    hops = call.messages(sends, depth)

    def in_turn(rate: Floats) -> Floats:
        return _ends(call, sends, pipeline_times(hops, pieces, rate))

    return _pipelines(call, "tree", channels, sends, hops, pieces, None, in_turn)


def _pipelines(
    call: _Call,
    algorithm: Algorithm,
    channels: int,
    sends: list[Sends],
    hops: Messages,
    chunks: int,
    steps: int | None,
    in_turn: Callable[[Floats], Floats],
) -> FlowAnswer:
    """Runs hops that send repeatedly.

    They run at their own rates (`in_turn`) if each has its links to itself, otherwise message by message, identical
    hops once. If there are too many, they keep the rates that they have with all of them at work.
    """
    capacity = call.network.capacity
    fair, alone = fair_rates(capacity, hops)
    link_bytes = bytes_by_link(hops, len(capacity)) * (steps or 1)
    count = len(hops) * (steps or 1) * chunks
    apart = bool((fair >= alone * (1 - SAME_TIME)).all())
    small = None if apart else fold(hops, capacity)
    kinds = len(hops if small is None else small.messages) * (steps or 1) * chunks
    if apart or kinds > MAX_REPEATED:
        return call.answer(in_turn(fair), link_bytes, algorithm, channels, count, "" if apart else FIXED_RATES)
    messages, rates = (hops, capacity) if small is None else (small.messages, small.capacity)
    ran = run_flows(rates, repeated(messages, chunks, steps))
    last = ran.end_s[-len(messages) :]
    end_s = _ends(call, sends, last if small is None else last[small.message_kind])
    return call.answer(end_s, link_bytes, algorithm, channels, count)


def _chunks(channel_bytes: float, depth: int) -> int:
    """Returns into how many chunks a channel's bytes are cut that pass `depth` hops."""
    size = float(CHUNK_BYTES)
    while channel_bytes / size < CHUNKS_IN_A_ROW * depth and size > MIN_CHUNK_BYTES:
        size /= 2
    return max(ceil(channel_bytes / size), 1)


def _along(
    call: _Call,
    orders: list[Longs],
    rate: Floats,
    latency_s: Floats,
    times: Callable[[Floats, Floats, Floats], Floats],
) -> Floats:
    """When each rank is done, [groups, ranks], of hops that follow each other along the channels' orders."""
    end_s, first = np.zeros(call.groups.shape), 0
    hops = len(rate) // len(orders)
    for group, order in enumerate(orders):
        own = slice(first, first + hops)
        first += hops
        shape = (len(order), -1)
        done = times(rate[own].reshape(shape), latency_s[own].reshape(shape), call.arrival_s[group][order])
        np.maximum.at(end_s[group], order, done)
    return end_s


def _many_alike(call: _Call) -> bool:
    """Whether an even all-to-all is better run by kinds of sources."""
    groups, n = call.groups.shape
    return groups == 1 and n * (n - 1) > MAX_MESSAGES and call.network.spreads and not np.ptp(call.arrival_s)


def _all_to_all(call: _Call, size_bytes: float) -> FlowAnswer:
    """An even all-to-all of very many ranks."""
    gpus, network = call.groups[0], call.network
    ran = even_all_to_all(
        network.fabric, network.capacity, gpus, network.routing, size_bytes / len(gpus), call.latency_s
    )
    end_s = call.arrival_s + ran.end_s
    return call.answer(end_s, ran.link_bytes, "pairs", 1, len(gpus) * (len(gpus) - 1))


def _pairs(call: _Call, collective: Collective, size_bytes: float, pair_bytes: Floats | None) -> FlowAnswer:
    """All pairs, a root with the others, or one pair."""
    n = call.groups.shape[1]
    even = n * (n - 1) if collective is Collective.ALL_TO_ALL else n
    listed = len(call.groups) * (even if pair_bytes is None else int(np.count_nonzero(pair_bytes)))
    if listed > MAX_LISTED:
        hint = (
            f"at most {MAX_LISTED:,}; one even all-to-all without ecmp may have any number; --network analytic has all"
        )
        raise InputError("too-large", f"{listed:,} messages are too many to route one by one", hint=hint)
    of_group = pair_sends(collective, size_bytes, n) if pair_bytes is None else pairs(pair_bytes)
    sends = [of_group for _ in call.groups]
    messages, capacity = call.messages(sends, 1), call.network.capacity
    link_bytes = bytes_by_link(messages, len(capacity))
    small = fold(messages, capacity) if len(messages) > FEW_UNLIKE else None
    run, rates = (messages, capacity) if small is None else (small.messages, small.capacity)
    unlike = len(run) > FEW_UNLIKE
    busiest_s = float((link_bytes / capacity).max(initial=0.0))
    paced = unlike and len(run) > MAX_UNLIKE
    rough = "" if not unlike else PACED if paced else TOGETHER
    if paced:
        end_s = call.arrival_s.max() + float(messages.latency_s.max()) + np.full(call.groups.shape, busiest_s)
    else:
        ran = run_flows(rates, run, window_s=ROUGHLY * busiest_s if unlike else 0.0, folded=False)
        end_s = _ends(call, sends, ran.end_s if small is None else ran.end_s[small.message_kind])
    return call.answer(end_s, link_bytes, "pairs", 1, len(messages), rough)


def pair_sends(collective: Collective, size_bytes: float, n: int) -> Sends:
    """The messages of a collective that is all pairs, those of a root with the others, or one pair."""
    others, root = np.arange(1, n), np.zeros(n - 1, dtype=np.int64)
    part = size_bytes / n
    if collective is Collective.ALL_TO_ALL:
        source, ahead = np.divmod(np.arange(n * (n - 1)), n - 1)
        target = ahead + (ahead >= source)
    elif collective is Collective.GATHER:
        source, target = others, root
    elif collective is Collective.SCATTER:
        source, target = root, others
    else:
        both = collective is Collective.EXCHANGE
        source, target = (np.array(ends[: 1 + both]) for ends in ((0, 1), (1, 0)))
        part = size_bytes
    sent = slice(None if size_bytes > 0 else 0)
    return at_once(source[sent], target[sent], np.full(len(source), part)[sent])


def _ends(call: _Call, sends: list[Sends], end_s: Floats) -> Floats:
    """When each rank has sent and received its last message."""
    ends, first = call.arrival_s.copy(), 0
    for group, group_sends in enumerate(sends):
        of_group = end_s[first : first + len(group_sends)]
        first += len(group_sends)
        np.maximum.at(ends[group], group_sends.source, of_group)
        np.maximum.at(ends[group], group_sends.target, of_group)
    return ends


def _check(collective: Collective, size_bytes: float, groups: Longs, fabric: Fabric, pair_bytes: Floats | None) -> None:
    """Raises an error where nothing of the kind can be run."""
    ranks = groups.shape[1]
    if size_bytes < 0 or groups.min() < 0 or groups.max() >= fabric.gpus:
        raise InputError(
            "out-of-range", f"a group of GPUs 0 to {fabric.gpus - 1:,} and a size of 0 bytes or more are needed"
        )
    if any(len(np.unique(row)) < ranks for row in groups):
        raise InputError("duplicate-name", "a GPU is twice in one group")
    if collective in ONE_TO_ONE and ranks != 2:
        raise InputError(
            "unknown-collective", f"{label(collective)} is between 2 ranks, not {ranks:,}", hint="name both of them"
        )
    if pair_bytes is not None and (pair_bytes.shape != (ranks, ranks) or (pair_bytes < 0).any()):
        raise InputError("bad-value", f"bytes of pairs are a table of {ranks:,} by {ranks:,} sizes of 0 or more")


NEAR: Final = 0.05
"""Times that differ by less than this share are called equal."""

HOT: Final = 0.8
"""A link that carries this part of what it can limits what crosses it."""


def difference(analytic_s: float, limited_by: str, flow: FlowAnswer) -> str | None:
    """Returns in words how the messages of a call differ from its price of `analytic_s`; None if they agree."""
    if not flow.hottest or abs(flow.time_s - analytic_s) <= NEAR * analytic_s:
        return None
    name, used = flow.hottest[0]
    times = f"on links it takes {flow.time_s / analytic_s:.2f}× the formulas' time"
    if flow.time_s < analytic_s:
        return f"{times}, whose limit is {limited_by}"
    if used >= HOT:
        return f"{times}: {name} carries {used:.0%} of what it can"
    return f"{times}: no link carries more than {used:.0%} of what it can, messages wait for each other"
