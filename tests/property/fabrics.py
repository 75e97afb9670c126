"""Random clusters with networks of every kind, and an independent reckoning of the ways through them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Device, Fabric, Routes
from foretrace.hardware.fabric.topology import Topology

KINDS = ("fat-tree", "rail-optimised", "spectrum-x", "hpn", "dcn+", "dragonfly+", "torus")


@st.composite
def clusters(draw: st.DrawFn, routing: str | None = None, kinds: tuple[str, ...] = KINDS) -> tuple[Cluster, int]:
    """A small cluster and how many nodes of it a job has; never one whose GPUs cannot all reach each other."""
    gpus = draw(st.sampled_from([1, 2, 3, 4, 6]))
    nics = draw(st.integers(1, 2 * gpus))
    domain = draw(st.sampled_from([size for size in (1, 2, 3, 4) if gpus % size == 0 or size == gpus]))
    base = presets.cluster("h100-dgx")
    node = replace(base.node, gpus=gpus, nics=nics, domain_gpus=domain, switched=draw(st.booleans()) and domain > 1)
    nodes = draw(st.integers(1, 7))
    kind = draw(st.sampled_from(kinds))
    tors = draw(st.sampled_from([1, 2])) if kind not in ("torus", "dragonfly+") else 0
    topology = Topology(
        kind=kind,
        routing=routing or draw(st.sampled_from(["spread", "ecmp", "rail"])),
        # A group of a dragonfly needs a cable to each of the others.
        leaf_ports=draw(st.sampled_from({"torus": [0], "dragonfly+": [0, 4]}.get(kind, [0, 1, 2, 3, 4]))),
        pod_gpus=draw(st.sampled_from([0, 0, 2 * gpus])) if kind != "torus" else 0,
        tors=tors,
        # NICs of different planes meet only in a node whose GPUs are joined by links.
        planes=draw(st.sampled_from([1, 2])) if tors == 2 else 1 if tors else 0,
        oversubscription=draw(st.sampled_from([1.0, 2.0, 3.0])),
        dimensions=draw(st.sampled_from([(nodes,), (nodes, 2), (2, nodes, 1)])) if kind == "torus" else (),
        seed=draw(st.integers(0, 3)),
    )
    return replace(base, node=node, topology=topology), nodes


def all_pairs(gpus: int) -> tuple[np.ndarray, np.ndarray]:
    """Every ordered pair of different GPUs."""
    first, second = np.divmod(np.arange(gpus * gpus), gpus)
    return first[first != second], second[first != second]


def excess(fabric: Fabric, routes: Routes, flow: int, source: int, target: int) -> float:
    """By how much a flow is not one unit that leaves its source, is handed on everywhere, and reaches its target."""
    balance = np.zeros(fabric.devices)
    links = routes.link[routes.start[flow] : routes.start[flow + 1]]
    share = routes.share[routes.start[flow] : routes.start[flow + 1]]
    np.add.at(balance, fabric.source[links], share)
    np.add.at(balance, fabric.target[links], -share)
    balance[source] -= 1.0
    balance[target] += 1.0
    return float(np.abs(balance).max())


def reckoned_spread(fabric: Fabric, source: int, target: int) -> dict[int, float] | None:
    """Share by link of a flow over the network, divided evenly at every switch; one exit a GPU; None without a way.

    Written anew from the definition, device by device, to be held against the router.
    """
    out: dict[int, list[int]] = defaultdict(list)
    for link, device in enumerate(fabric.source.tolist()):
        out[device].append(link)
    up, down = _exit(fabric, out, source), _exit(fabric, out, target)
    if up is None or down is None:
        return None
    start, end = int(fabric.target[up[-1]]), int(fabric.target[down[-1]])
    hops = _hops_to(fabric, end)
    if start not in hops:
        return None
    back = {(int(fabric.source[link]), int(fabric.target[link])): link for link in range(fabric.links)}
    shares: dict[int, float] = dict.fromkeys(up, 1.0)
    shares |= {back[int(fabric.target[link]), int(fabric.source[link])]: 1.0 for link in down}
    arriving: dict[int, float] = {start: 1.0}
    for distance in range(hops[start], 0, -1):
        assert all(hops[device] == distance for device in arriving)
        following: dict[int, float] = defaultdict(float)
        for device, amount in arriving.items():
            onward = [link for link in out[device] if hops.get(int(fabric.target[link]), -1) == distance - 1]
            cables = [1 if fabric.cables is None else int(fabric.cables[link]) for link in onward]
            for link, number in zip(onward, cables, strict=True):
                part = amount * number / sum(cables)
                shares[link] = shares.get(link, 0.0) + part
                following[int(fabric.target[link])] += part
        arriving = following
    return shares


def _exit(fabric: Fabric, out: dict[int, list[int]], gpu: int) -> list[int] | None:
    """The links from a GPU with one way out to the first switch of the network."""
    way, at = [], gpu
    while fabric.kind[at] < Device.LEAF:
        onward = [
            link for link in out[at] if fabric.kind[fabric.target[link]] > max(fabric.kind[at], Device.LINK_SWITCH)
        ]
        if len(onward) != 1:
            return None
        way.append(onward[0])
        at = int(fabric.target[onward[0]])
    return way


def _hops_to(fabric: Fabric, end: int) -> dict[int, int]:
    """Of each switch, how many links lead to the end, by breadth-first search."""
    hops, edge = {end: 0}, [end]
    into: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(fabric.source.tolist(), fabric.target.tolist(), strict=True):
        if fabric.kind[source] >= Device.LEAF and fabric.kind[target] >= Device.LEAF:
            into[target].append(source)
    while edge:
        edge = [one for device in edge for one in into[device] if hops.setdefault(one, hops[device] + 1) > hops[device]]
        edge = [one for one in dict.fromkeys(edge) if hops[one] == max(hops.values())]
    return hops
