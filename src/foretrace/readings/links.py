"""Routes the communications of a step over the network, and adds up the load of every link.

Rings go between neighbours, all-to-alls between all pairs, transfers from one end to the other. The network model
states how much of each call stays on the links within a node and how much leaves through NICs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, distinct
from foretrace.basics.errors import InputError
from foretrace.cost.network.exits import NIC
from foretrace.cost.network.experts import explain_call
from foretrace.cost.network.peers import Places
from foretrace.cost.network.sharing import LINK
from foretrace.program.columns import PAIRWISE, Collective
from foretrace.program.expand import Ops

if TYPE_CHECKING:
    from foretrace.cost.network.interface import Network
    from foretrace.hardware.cluster import Cluster
    from foretrace.hardware.fabric.fabric import Fabric
    from foretrace.hardware.fabric.routing.router import Router
    from foretrace.readings.answer.answer import Answer

MAX_GPUS: Final = 20_000
"""The links of more are too many to route for and to look at."""

MAX_PAIRS: Final = 1 << 17
"""Only some partners of each rank of a larger all-to-all are routed, with all of its bytes."""

FLOWS_AT_ONCE: Final = 1 << 14
"""Flows that are routed together: on a network that spreads them each crosses a hundred links and more."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoad:
    """One link: its name, bytes of a step by axis, the share of its rate that they take over the step, and how many
    links between devices of the same kinds are as busy."""

    link: int
    label: str
    bytes_by_axis: dict[str, float]
    utilisation: float
    others: int


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoads:
    """Bytes of one step on every link of a network, by the axis they are sent for: [axes, links]."""

    fabric: Fabric
    axes: tuple[str, ...]
    bytes_by_axis: Floats
    step_time_s: float

    @property
    def utilisation(self) -> Floats:
        """The share of each link's rate that is used, over the step."""
        carried = self.bytes_by_axis.sum(axis=0)
        return np.asarray(carried / (self.fabric.bytes_per_s * max(self.step_time_s, 1e-300)))

    def hottest(self, most: int = 10) -> list[LinkLoad]:
        """Returns the links that are used most, the busiest first; the first of equally busy links stands for all."""
        used, fabric, similar = self.utilisation, self.fabric, dict[tuple[int, int, float], list[int]]()
        for link in np.argsort(-np.round(used, 6), kind="stable").tolist():
            ends = int(fabric.kind[fabric.source[link]]), int(fabric.kind[fabric.target[link]])
            key = (*ends, round(float(used[link]), 3))
            if used[link] <= 0 or (key not in similar and len(similar) == most):
                break
            similar.setdefault(key, []).append(link)
        return [
            LinkLoad(
                link,
                fabric.link_label(link),
                {axis: float(row[link]) for axis, row in zip(self.axes, self.bytes_by_axis, strict=True) if row[link]},
                float(used[link]),
                len(others),
            )
            for link, *others in similar.values()
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Flows:
    """Bytes from rank to rank."""

    source: Longs
    target: Longs
    bytes: Floats


def link_loads(simulation: Answer, cluster: Cluster | None = None) -> LinkLoads:
    """Returns the links of a cluster (the simulation's unless another is given) under one step of a job.

    Ranks sit where the simulation placed them.
    """
    from foretrace.cost.network import network_of
    from foretrace.cost.network.domains import place_job
    from foretrace.hardware.fabric.build import fabric_of
    from foretrace.hardware.fabric.routing.router import Router

    cluster, world = cluster or simulation.cluster, simulation.world_size
    if cluster is None:
        raise InputError(
            "needs-cluster", "the links of which cluster? the job carries all its prices", hint="name a cluster"
        )
    if world > MAX_GPUS:
        raise InputError(
            "too-large",
            f"{world:,} GPUs have too many links to look at",
            hint=f"at most {MAX_GPUS:,}: take a smaller job",
        )
    placement = simulation.placement or place_job(cluster, world, simulation.timeline.graph.program.mesh)[0]
    network, places = network_of(cluster, world, placement), Places.of(cluster.node, placement)
    fabric = fabric_of(cluster, cluster.nodes or placement.hosts)
    router = Router(fabric, cluster.topology)
    ops = simulation.timeline.graph.ops
    carried: dict[str, Floats] = {}
    for axis, flows in _flows(ops, network, places):
        mine = carried.setdefault(axis, np.zeros(fabric.links))
        mine += _routed(router, fabric.links, places, flows)
    rows = np.array(list(carried.values())).reshape(len(carried), fabric.links)
    return LinkLoads(fabric, tuple(carried), rows, simulation.step_time_s)


def _flows(ops: Ops, network: Network, places: Places) -> Iterator[tuple[str, _Flows]]:
    """Yields the flows from rank to rank in a step, communicator by communicator, with their axis."""
    program = ops.program
    numbers = np.where(ops.column("enabled").astype(bool), ops.ints("communicator"), -1)
    for number in distinct(numbers[numbers >= 0]).tolist():
        communicator = program.communicators[number]
        mine = np.flatnonzero(numbers == number)
        for groups in communicator.members(program.mesh):
            for spread, sent in _sent(ops, mine, network, groups).items():
                for flows in _spread(places, groups, sent) if spread else _ring(places, groups, sent):
                    yield communicator.axis, flows


def _sent(ops: Ops, mine: Longs, network: Network, groups: Longs) -> dict[bool, Floats]:
    """Returns the bytes that each rank puts on its links and on its NICs, [ranks, 2], with ops of one communicator.

    Those of all-to-alls (True) are apart from those that go to neighbours.
    """
    program = ops.program
    kinds, kind = network.layouts(groups)
    kind_of = np.full(program.world, -1, dtype=np.int64)
    kind_of[groups] = kind[:, None]
    names = ("collective", "bytes", "kernel")
    columns = np.stack([ops.role[mine].astype(np.int64), *(ops.ints(name)[mine] for name in names)], axis=1)
    columns = columns[_sends(ops, mine)]
    calls, times = np.unique(columns, axis=0, return_counts=True)
    by_spread: dict[bool, Floats] = {}
    for (role, what, size, way), count in zip(calls.tolist(), times.tolist(), strict=True):
        text = program.strings[way] if way >= 0 else ""
        sent = by_spread.setdefault(what in PAIRWISE, np.zeros((program.world, 2)))
        of_role = program.role_of == role
        for number in distinct(kind_of[of_role & (kind_of >= 0)]).tolist():
            drawn = dict(explain_call(network, Collective(what), kinds[number], float(size), text).draws)
            here = np.flatnonzero(of_role & (kind_of == number))
            sent[here] += count * np.array([drawn.get(LINK, 0.0), drawn.get(NIC, 0.0)])
    return by_spread


def _sends(ops: Ops, mine: Longs) -> Longs:
    """Returns which of these ops send anything: not those that receive a transfer."""
    receives = ops.ints("collective")[mine] == Collective.TRANSFER
    receives &= ~np.isin(ops.template[mine], ops.program.templates.send_op)
    return np.flatnonzero(~receives)


def _ring(places: Places, groups: Longs, sent: Floats) -> Iterator[_Flows]:
    peers = places.ring_peers(groups)
    beyond = peers >= 0
    yield _Flows(groups[beyond], peers[beyond], sent[groups[beyond], 1])
    nearer = places.island_peers(groups)
    near = nearer >= 0
    yield _Flows(groups[near], nearer[near], sent[groups[near], 0])


def _spread(places: Places, groups: Longs, sent: Floats) -> Iterator[_Flows]:
    pairs = places.partners(groups, MAX_PAIRS)
    amount = sent[pairs.source, pairs.beyond.astype(np.int64)] * pairs.share
    yield _Flows(pairs.source, pairs.target, amount)


def _routed(router: Router, links: int, places: Places, flows: _Flows) -> Floats:
    """Returns bytes on every link."""
    carried = np.zeros(links)
    some = np.flatnonzero(flows.bytes > 0)
    for low in range(0, len(some), FLOWS_AT_ONCE):
        part = some[low : low + FLOWS_AT_ONCE]
        routes = router.routes(places.gpu[flows.source[part]], places.gpu[flows.target[part]])
        amount = np.repeat(flows.bytes[part], np.diff(routes.start)) * routes.share
        carried += np.bincount(routes.link, weights=amount, minlength=links)
    return carried
