"""Routes flows between GPUs through a fabric.

Flows go over links within a domain, else over PCIe within a node, else over NICs and the switches of the network,
always by the fewest switches. Where several paths are equally short, `spread` divides a flow evenly over all of them,
switch by switch and cable by cable. `ecmp` takes one of them by a hash of both GPUs and the seed, again at every
switch. `rail` first moves data for another rail over links to the GPU of that rail in the sender's node (PXN), and then
divides it evenly.

A GPU without a path of its own into the receiver's part of the network (another plane, a failed NIC) sends through
another GPU of its node, and receives through one, where links join them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError, shortened
from foretrace.hardware.fabric.csr import items_of
from foretrace.hardware.fabric.fabric import Fabric, Routes
from foretrace.hardware.fabric.graph import FabricGraph
from foretrace.hardware.fabric.hashing import mixed, picked
from foretrace.hardware.fabric.routing.attachment import Attachment, attachment_of
from foretrace.hardware.fabric.routing.crossing import Combinations, Crossing, Shares
from foretrace.hardware.fabric.routing.local_paths import Inside, Pieces, joined
from foretrace.hardware.fabric.routing.switching import Switching
from foretrace.hardware.fabric.topology import Topology


class Router:
    """Finds the ways of flows in a fabric, as its topology routes."""

    def __init__(self, fabric: Fabric, topology: Topology) -> None:
        self._fabric = fabric
        self._topology = topology
        self._graph = FabricGraph(fabric)
        self._inside = Inside(self._graph)
        self._attachment = attachment_of(self._graph)
        self._switching = Switching(fabric)
        self._crossing = Crossing(self._attachment, self._switching)
        self._rail = rails_of_slots(fabric, self._attachment)

    def routes(self, src: Longs, dst: Longs) -> Routes:
        """The way of each flow from GPU to GPU, by their numbers; none for a GPU to itself."""
        source, target = np.asarray(src, dtype=np.int64).ravel(), np.asarray(dst, dtype=np.int64).ravel()
        self._check(source, target)
        there, near = self._inside.ways(source, target)
        far = np.flatnonzero(~there & (source != target))
        if not len(far):
            return Routes(*joined([near]))
        via = self._relays(source[far], target[far])
        pieces = [near]
        if via.used:
            pieces.append(_placed(self._inside.ways(source[far], via.sender, pcie=False)[1], far, len(source)))
        pieces += [_placed(piece, far, len(source)) for piece in self._network(via.sender, via.receiver)]
        if via.used:
            pieces.append(_placed(self._inside.ways(via.receiver, target[far], pcie=False)[1], far, len(source)))
        return Routes(*joined(pieces))

    def _network(self, source: Longs, target: Longs) -> list[Pieces]:
        """The way over the network in three parts: out of the node, between exits, into the node."""
        class_of = self._attachment.class_of
        classes = len(self._attachment.one_of)
        used, pair = np.unique(class_of[source] * classes + class_of[target], return_inverse=True)
        left, right = used // classes, used % classes
        combinations = self._crossing.combinations(left, right)
        if self._topology.routing == "ecmp":
            return self._hashed(source, target, pair, combinations)
        out = self._crossing.trees(left, combinations.start, combinations.out, combinations.share)
        into = self._crossing.trees(right, combinations.start, combinations.into, combinations.share, inwards=True)
        up, down = self._tree_links(out, pair, source), self._tree_links(into, pair, target)
        at, counts = items_of((between := self._crossing.between(combinations)).start, pair)
        return [
            up,
            Pieces(counts, between.item[at], between.share[at]),
            Pieces(down.counts, self._graph.back[down.link], down.share),
        ]

    def _tree_links(self, shares: Shares, pair: Longs, gpu: Longs) -> Pieces:
        """The links of each flow's own GPU, with the shares of its pair of classes."""
        at, counts = items_of(shares.start, pair)
        link = self._attachment.tree_link[np.repeat(self._attachment.tree_start[gpu], counts) + shares.item[at]]
        return Pieces(counts, link, shares.share[at])

    def _hashed(self, source: Longs, target: Longs, pair: Longs, combinations: Combinations) -> list[Pieces]:
        """One way for each flow, chosen by hash at the sender and at every switch."""
        held = self._attachment
        bits = mixed(mixed(source, target).astype(np.int64), self._topology.seed)
        number = combinations.start[pair + 1] - combinations.start[pair]
        chosen = combinations.start[pair] + picked(bits, number)
        up = held.exit_path[held.exit_start[source] + combinations.out[chosen]]
        down = held.exit_path[held.exit_start[target] + combinations.into[chosen]]
        back = np.where(down >= 0, self._graph.back[down], -1)[:, ::-1]
        between = self._hops(combinations.source[chosen], combinations.target[chosen], bits)
        return [_listed(up), _listed(between), _listed(back)]

    def _hops(self, at: Longs, target: Longs, bits: NDArray[np.uint64]) -> Longs:
        """The links that the flows take from switch to switch, [flows, hops]; -1 beyond the end."""
        columns: list[Longs] = []
        flow = np.flatnonzero(at != target)
        at, size = at.copy(), int(self._switching.of_device.max()) + 1
        while len(flow):
            key, which = np.unique(at[flow] * size + target[flow], return_inverse=True)
            start, place = self._switching.next_hops(key // size, key % size)
            choice = picked(mixed(bits[flow].astype(np.int64), at[flow]), np.diff(start)[which])
            taken_at = place[start[which] + choice]
            column = np.full(len(at), -1, dtype=np.int64)
            column[flow] = self._switching.link_at(taken_at)
            columns.append(column)
            at[flow] = self._switching.target_at(taken_at)
            flow = flow[at[flow] != target[flow]]
        return np.stack(columns, axis=1) if columns else np.zeros((len(at), 0), dtype=np.int64)

    def _relays(self, source: Longs, target: Longs) -> _Relays:
        """Returns for each flow the GPUs that send into and receive from the network.

        They are its own, or others of their nodes where rails ask for it or its own cannot reach each other.
        """
        sender, receiver = source.copy(), target.copy()
        size = self._fabric.gpus_per_node
        if self._topology.routing == "rail":
            on_rail = self._on_rail(source, target)
            usable = self._linked(source, on_rail) & self._reach(on_rail, target)
            sender = np.where(usable, on_rail, source)
        left = np.flatnonzero(~self._reach(sender, receiver))
        for step in range(size * size):
            if not len(left):
                break
            own, other = source[left], target[left]
            if step == 0:
                near, beyond = self._on_rail(own, other), other
            else:  # senders first, then receivers, then both
                near, beyond = _turned(own, step % size, size), _turned(other, step // size, size)
            works = self._linked(own, near) & self._linked(beyond, other) & self._reach(near, beyond)
            sender[left[works]], receiver[left[works]] = near[works], beyond[works]
            left = left[~works]
        if len(left):
            raise self._cut_off(int(source[left[0]]), int(target[left[0]]))
        return _Relays(sender, receiver, bool((sender != source).any() or (receiver != target).any()))

    def _on_rail(self, source: Longs, target: Longs) -> Longs:
        """The GPU of the sender's node on the receiver's rail: the sender itself where that is its own."""
        size = self._fabric.gpus_per_node
        rail = self._rail[target % size]
        rails = int(self._rail.max()) + 1
        slots = np.argsort(self._rail, kind="stable")
        start = np.searchsorted(self._rail[slots], np.arange(rails + 1))
        # Where GPUs share a NIC, those of the sender's node take turns.
        turn = (source % size) % (start[rail + 1] - start[rail])
        chosen = source - source % size + slots[start[rail] + turn]
        return np.where(self._rail[source % size] == rail, source, chosen)

    def _linked(self, first: Longs, second: Longs) -> Mask:
        """Returns whether links join two GPUs (or they are one)."""
        there = np.asarray(first == second)
        apart = np.flatnonzero(~there)
        there[apart] = self._inside.ways(first[apart], second[apart], pcie=False)[0]
        return there

    def _reach(self, source: Longs, target: Longs) -> Mask:
        """Returns whether the network leads from one GPU's exits to the other's."""
        class_of = self._attachment.class_of
        return self._crossing.reaches(class_of[source], class_of[target])

    def _check(self, source: Longs, target: Longs) -> None:
        for gpu in (source, target):
            if len(gpu) and not 0 <= int(gpu.min()) <= int(gpu.max()) < self._fabric.gpus:
                wrong = int(gpu.min()) if int(gpu.min()) < 0 else int(gpu.max())
                raise InputError(
                    "no-such-rank",
                    f"there is no GPU {wrong:,} in {self._fabric.name}",
                    hint=f"its GPUs are numbered from 0 to {self._fabric.gpus - 1:,}",
                )

    def _cut_off(self, source: int, target: int) -> InputError:
        labels = self._fabric.labels
        failed = f"; failed: {shortened(', '.join(self._topology.failed))}" if self._topology.failed else ""
        return InputError(
            "no-route",
            f"the network of {self._fabric.name} has no way from {labels[source]} to {labels[target]}{failed}",
            where=self._topology.path or f"network {self._fabric.name}",
            hint="put a link back, or leave out the nodes that are cut off",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Relays:
    """GPUs at which flows enter and leave the network, and whether any is not the flow's own."""

    sender: Longs
    receiver: Longs
    used: bool


def rails_of_slots(fabric: Fabric, attachment: Attachment) -> Longs:
    """The rail of each slot of a node: GPUs that share their NICs are on one; read off a node whose NICs all work."""
    size = fabric.gpus_per_node
    counts = np.diff(attachment.exit_start).reshape(-1, size)
    nodes = np.flatnonzero((counts == counts.max()).all(axis=1) & (counts > 0).all(axis=1))
    if not len(nodes):
        return np.arange(size, dtype=np.int64)
    first = attachment.exit_start[nodes[0] * size + np.arange(size)]
    _, rail = np.unique(attachment.exit_last[first], return_inverse=True)
    return rail.astype(np.int64)


def _turned(gpu: Longs, step: int, size: int) -> Longs:
    """Returns the GPU `step` slots further in the same node."""
    slot = gpu % size
    return gpu - slot + (slot + step) % size


def _placed(piece: Pieces, flows: Longs, total: int) -> Pieces:
    """A part of the ways of some flows, as a part of the ways of all."""
    if len(flows) == total:
        return piece
    counts = np.zeros(total, dtype=np.int64)
    counts[flows] = piece.counts
    return Pieces(counts, piece.link, piece.share)


def _listed(way: Longs) -> Pieces:
    """Links in a table, -1 where there is none, as parts of ways."""
    valid = way >= 0
    return Pieces(valid.sum(axis=1), way[valid], np.ones(int(valid.sum())))
