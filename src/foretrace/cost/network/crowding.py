"""Computes how much the network beyond the NICs slows the groups of a communicator that run concurrently.

Every rank sends as fast as its NICs allow, to its neighbours in a ring or tree or to all others of its group. The
traffic is put on the links of the explicit network along the paths of its routing. A link with more traffic than
capacity slows the groups that cross it by that ratio: an oversubscribed leaf those that leave it, a failed uplink the
groups of its leaf, a hash the groups whose flows it puts on one cable. Where nothing is narrower than the NICs and
traffic spreads, no network is built and no group is slowed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.placement import Placement
from foretrace.cost.network.exits import NIC, exits_of
from foretrace.cost.network.nccl.layout import nics_per_rank
from foretrace.cost.network.peers import Places
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Device, Fabric, Routes
from foretrace.hardware.fabric.topology import Topology

AMPLE_KINDS: Final = ("fat-tree", "rail-optimised", "spectrum-x", "dcn+")
"""Kinds whose reference design carries whatever NICs send, as long as nothing is oversubscribed."""

CLOS_KINDS: Final = (*AMPLE_KINDS, "hpn")
"""Kinds whose leaves and spines carry only what is sent from or to beneath them."""

MAX_PAIRS: Final = 1 << 16
"""The most pairs of an all-to-all that are routed. Of a larger one only some partners of each rank are looked at, or
what leaves leaves and pods as a whole."""

USUAL_SWITCHES: Final = 3
"""Leaf, spine, leaf: on such networks NCCL's latencies of a hop were measured, so that these are in them."""

DIGITS: Final = 9
"""Factors are rounded so that equally placed groups get the same one: sums in another order differ in later digits."""


class Crowding:
    """The network of a cluster under a job's groups; `cost.network.nccl.layout` says what is asked of it."""

    def __init__(self, cluster: Cluster, placement: Placement) -> None:
        from foretrace.hardware.fabric.build import fabric_of  # most jobs do without, and start faster
        from foretrace.hardware.fabric.designs.reference import HOP_S
        from foretrace.hardware.fabric.routing.router import Router
        from foretrace.hardware.fabric.routing.tiers import tiers_of

        node, topology = cluster.node, cluster.topology
        self.places = Places.of(node, placement)
        self.fabric = fabric_of(cluster, cluster.nodes or placement.hosts)
        self._router = Router(self.fabric, topology)
        self._usual_s = USUAL_SWITCHES * HOP_S.get(topology.kind, 0.0)
        self._sends_bytes_per_s = nics_per_rank(node, placement) * node.nic.bytes_per_s
        self._counts = _counted(self.fabric, topology)
        cables = self.fabric.cables if topology.routing == "ecmp" else None
        self._cables = np.ones(self.fabric.links, dtype=np.int64) if cables is None else cables
        self._hop_s = np.where(_beyond_nics(self.fabric), self.fabric.latency_s, 0.0)
        spreads = topology.routing != "ecmp" and topology.kind in CLOS_KINDS
        tiers = tiers_of(self.fabric) if spreads else ()
        self._exits = [exit_ for exit_ in exits_of(cluster, self.places, tiers) if exit_.name != NIC]
        self._known: dict[tuple[tuple[int, ...], bytes], tuple[Floats, Floats, Floats, Floats]] = {}

    def __call__(self, groups: NDArray[np.integer]) -> tuple[Floats, Floats, Floats, Floats]:
        """Per group of a communicator, [groups, size]: the factors, 1 or more, by which traffic of rings, of trees and
        of all-to-alls is slowed, and the seconds that switches add to a hop over NICs."""
        key = (groups.shape, groups.tobytes())
        if key not in self._known:
            self._known[key] = self._slowdowns(groups.astype(np.int64))
        return self._known[key]

    def _slowdowns(self, groups: Longs) -> tuple[Floats, Floats, Floats, Floats]:
        peers, beyond = self.places.ring_peers(groups), self.places.beyond(groups)
        here = groups.shape[1] - beyond
        # A ring is as fast as its narrowest island, an all-to-all as the rank with most partners beyond its own.
        in_ring = self._sends_bytes_per_s[groups] * here.min(axis=1, keepdims=True) / here
        spread = self._sends_bytes_per_s[groups] * beyond / np.maximum(beyond.max(axis=1, keepdims=True), 1)
        member = np.nonzero(peers >= 0)
        ring, added = self._slowed(len(groups), member[0], groups[member], peers[member], in_ring[member])
        if groups.shape[1] == 2:
            return ring, ring, ring, added
        tree = self._in_trees(groups, in_ring)
        if groups.size * groups.shape[1] > MAX_PAIRS and self._exits:
            return ring, tree, self._by_exits(groups, spread), added
        rate = np.zeros(len(self.places.gpu))
        rate[groups] = spread
        pairs = self.places.partners(groups, MAX_PAIRS)
        far = np.flatnonzero(pairs.beyond)
        source = pairs.source[far]
        exchange, _ = self._slowed(
            len(groups), pairs.group[far], source, pairs.target[far], rate[source] * pairs.share[far]
        )
        return ring, tree, exchange, added

    def _in_trees(self, groups: Longs, bytes_per_s: Floats) -> Floats:
        """The factors for trees, where each rank can send at these rates."""
        rate = np.zeros(len(self.places.gpu))
        rate[groups] = bytes_per_s
        pairs = self.places.tree_partners(groups)
        sent = rate[pairs.source] * pairs.share
        return self._slowed(len(groups), pairs.group, pairs.source, pairs.target, sent)[0]

    def _cable(self, source: Longs, target: Longs, routes: Routes) -> Longs:
        """Returns which cable each crossing of a route takes, numbered over all links: where a hash chooses ways it
        chooses among the cables of a link too; otherwise all of a link's are one."""
        from foretrace.hardware.fabric.hashing import mixed, picked

        first = np.cumsum(self._cables) - self._cables
        flow = np.repeat(np.arange(len(source)), np.diff(routes.start))
        bits = mixed(mixed(source, target)[flow].astype(np.int64), routes.link)
        return np.asarray(first[routes.link] + picked(bits, self._cables[routes.link]))

    def _by_exits(self, groups: Longs, bytes_per_s: Floats) -> Floats:
        """The factors for an all-to-all of many pairs where traffic spreads: by what leaves parts of the network as a
        whole, which then is spread evenly over their exits."""
        slower = np.ones(len(groups))
        for exit_ in self._exits:
            passed = np.zeros(len(self.places.gpu))
            passed[groups] = exit_.passed(self.places, groups, True) * bytes_per_s
            busy = np.where(passed > 0, exit_.needed_s(passed), 0.0)
            slower = np.maximum(slower, busy[groups].max(axis=1))
        return slower.round(DIGITS)

    def _slowed(self, groups: int, row: Longs, source: Longs, target: Longs, rate: Floats) -> tuple[Floats, Floats]:
        """(factor, seconds added to a hop) of each group, for flows that are all at work at once."""
        slower, added = np.ones(groups), np.zeros(groups)
        if not len(row):
            return slower, added
        gpu = self.places.gpu
        routes = self._router.routes(gpu[source], gpu[target])
        crossings = np.diff(routes.start)
        carried = np.repeat(rate, crossings) * routes.share
        cable = self._cable(gpu[source], gpu[target], routes)
        load = np.bincount(cable, weights=carried)[cable]
        rate = self.fabric.bytes_per_s / self._cables
        of_row = np.repeat(row, crossings)
        np.maximum.at(slower, of_row, np.where(self._counts, 1 / rate, 0.0)[routes.link] * load)
        latency = routes.share * self._hop_s[routes.link]
        flows = np.bincount(row, minlength=groups)
        mean = np.bincount(of_row, weights=latency, minlength=groups) / np.maximum(flows, 1)
        return slower.round(DIGITS), np.maximum(mean - self._usual_s, 0.0).round(DIGITS + 3)


def crowding_of(cluster: Cluster, placement: Placement) -> Crowding | None:
    """Returns the `Crowding` of a cluster, or None where nothing would be slowed."""
    return None if is_ample(cluster.topology) else Crowding(cluster, placement)


def is_ample(topology: Topology) -> bool:
    """Returns whether the network carries all that NICs send, for any placement."""
    # Into another plane a GPU sends through the links of its node: by rail evenly, otherwise wherever there is a way.
    spreads = topology.routing == "rail" or (topology.routing == "spread" and topology.planes <= 1)
    stated = topology.failed or topology.background or topology.hop_latency_s > 0
    narrow = max(topology.oversubscription, topology.core_oversubscription) > 1
    return topology.kind in AMPLE_KINDS and spreads and not stated and not narrow


def _beyond_nics(fabric: Fabric) -> Mask:
    """Returns which links have a switch of the network on either end."""
    leaves = int(Device.LEAF)
    return np.asarray((fabric.kind[fabric.source] >= leaves) | (fabric.kind[fabric.target] >= leaves))


def _counted(fabric: Fabric, topology: Topology) -> Mask:
    """Returns which links count.

    Links between switches count, since no price of a NIC includes them. Links of NICs count where some are out of
    service, carry other traffic or are listed by a user, so that they may differ from what the price assumes.
    """
    leaves = int(Device.LEAF)
    if topology.failed or topology.background or topology.kind == "file":
        return _beyond_nics(fabric)
    return np.asarray((fabric.kind[fabric.source] >= leaves) & (fabric.kind[fabric.target] >= leaves))
