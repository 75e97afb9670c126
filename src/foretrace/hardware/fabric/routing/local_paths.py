"""Finds the paths between GPUs that need no network: over links within a domain, over PCIe within a node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.hardware.fabric.csr import starts_of
from foretrace.hardware.fabric.fabric import Device
from foretrace.hardware.fabric.graph import FabricGraph, among


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A part of the way of each of many flows: its links, flow by flow, and the share of the flow on each."""

    counts: Longs
    link: Longs
    share: Floats


class Inside:
    """Ways inside domains and nodes of a fabric."""

    def __init__(self, graph: FabricGraph) -> None:
        self._graph = graph

    def ways(self, source: Longs, target: Longs, pcie: bool = True) -> tuple[Mask, Pieces]:
        """For each pair of GPUs whether there is a way, and that way: links before PCIe, which may be left out."""
        flow, link, share = self._over_links(source, target)
        there = np.zeros(len(source), dtype=np.bool_)
        there[flow] = True
        if pcie:
            same_node = source // self._graph.fabric.gpus_per_node == target // self._graph.fabric.gpus_per_node
            left = np.flatnonzero(~there & same_node & (source != target))
            more = self._over_pcie(source[left], target[left])
            there[left[more[0]]] = True
            flow = np.concatenate((flow, left[more[0]]))
            link, share = np.concatenate((link, more[1])), np.concatenate((share, more[2]))
            order = np.argsort(flow, kind="stable")
            flow, link, share = flow[order], link[order], share[order]
        return there, Pieces(np.bincount(flow, minlength=len(source)), link, share)

    def _over_links(self, source: Longs, target: Longs) -> tuple[Longs, Longs, Floats]:
        """Flow, link and share: one direct link, or two through each switch that both GPUs have."""
        graph = self._graph
        direct = graph.find(source, target)
        flow = np.flatnonzero(direct >= 0)
        left = np.flatnonzero(direct < 0)
        up, owner = graph.out(source[left], among(Device.LINK_SWITCH))
        down = graph.find(graph.fabric.target[up], target[left[owner]])
        both = (down >= 0) & (source[left[owner]] != target[left[owner]])
        up, down, owner = up[both], down[both], left[owner[both]]
        number = np.bincount(owner, minlength=len(source))
        return (
            np.concatenate((flow, np.repeat(owner, 2))),
            np.concatenate((direct[flow], np.stack((up, down), axis=1).ravel())),
            np.concatenate((np.ones(len(flow)), np.repeat(1.0 / number[owner], 2))),
        )

    def _over_pcie(self, source: Longs, target: Longs) -> tuple[Longs, Longs, Floats]:
        """Flow, link and share: through the PCIe switch of both, or through two and the root that joins them."""
        graph, pcie = self._graph, among(Device.PCIE_SWITCH)
        up, flow = graph.out(source, pcie)
        far, other = graph.out(target, pcie)
        first, last = np.full(len(source), -1), np.full(len(source), -1)
        first[flow], last[other] = up, graph.back[far]
        known = np.flatnonzero((first >= 0) & (last >= 0))
        near, beyond = graph.fabric.target[first[known]], graph.fabric.source[last[known]]
        same = near == beyond
        way = np.full((len(known), 4), -1, dtype=np.int64)
        way[:, 0], way[:, 3] = first[known], last[known]
        up, owner = graph.out(near, pcie)
        down = graph.find(graph.fabric.target[up], beyond[owner])
        over = down >= 0
        way[owner[over], 1], way[owner[over], 2] = up[over], down[over]
        usable = same | (way[:, 1] >= 0)
        way[same, 1:3] = -1
        links = way[usable].ravel()
        flows = np.repeat(known[usable], 4)
        return flows[links >= 0], links[links >= 0], np.ones(int((links >= 0).sum()))


def joined(pieces: list[Pieces]) -> tuple[Longs, Longs, Floats]:
    """Parts of the ways of the same flows put one behind the other: start, link and share of whole ways."""
    counts = np.sum([piece.counts for piece in pieces], axis=0)
    start = starts_of(counts)
    link, share = np.empty(int(start[-1]), dtype=np.int64), np.empty(int(start[-1]))
    offset = start[:-1].copy()
    for piece in pieces:
        if not len(piece.link):
            continue
        ends = np.cumsum(piece.counts)
        at = np.arange(len(piece.link)) + np.repeat(offset - ends + piece.counts, piece.counts)
        link[at], share[at] = piece.link, piece.share
        offset += piece.counts
    return start, link, share
