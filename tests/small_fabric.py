"""A leaf-spine network written by hand: every GPU has a NIC's link to its leaf, every leaf a link to every spine."""

from __future__ import annotations

import numpy as np

from foretrace.engine.network.collectives import Routing
from foretrace.hardware.fabric.fabric import Device, Fabric, Longs, Routes

NIC, LATENCY = 50e9, 1e-6


def leaf_spine(
    leaves: int, gpus_of_leaf: int, spines: int = 2, oversubscription: float = 1.0
) -> tuple[Fabric, Routing]:
    """The network and its ways, which spread evenly over the spines. Each GPU is a node of its own."""
    gpus = leaves * gpus_of_leaf
    leaf, spine = gpus + np.arange(leaves), gpus + leaves + np.arange(spines)
    up = NIC * gpus_of_leaf / oversubscription / spines
    below = np.concatenate([np.arange(gpus), np.repeat(leaf, spines)])
    above = np.concatenate([np.repeat(leaf, gpus_of_leaf), np.tile(spine, leaves)])
    rate = np.concatenate([np.full(gpus, NIC), np.full(leaves * spines, up)])
    kinds = [Device.GPU] * gpus + [Device.LEAF] * leaves + [Device.SPINE] * spines
    links = 2 * len(below)
    fabric = Fabric(
        name="leaf-spine",
        gpus=gpus,
        gpus_per_node=1,
        kind=np.array(kinds, dtype=np.int8),
        labels=tuple(f"device {number}" for number in range(len(kinds))),
        source=np.stack([below, above], axis=1).ravel(),
        target=np.stack([above, below], axis=1).ravel(),
        bytes_per_s=np.repeat(rate, 2),
        latency_s=np.full(links, LATENCY),
    )

    def routes(source: Longs, target: Longs) -> Routes:
        rows, shares = [], []
        for one, other in zip(source.tolist(), target.tolist(), strict=True):
            here, there = one // gpus_of_leaf, other // gpus_of_leaf
            row, share = [2 * one, 2 * other + 1], [1.0, 1.0]
            if here != there:
                row += [2 * (gpus + here * spines + number) for number in range(spines)]
                row += [2 * (gpus + there * spines + number) + 1 for number in range(spines)]
                share += [1.0 / spines] * (2 * spines)
            rows.append(row)
            shares.append(share)
        start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return Routes(start, np.concatenate(rows).astype(np.int64), np.concatenate(shares))

    return fabric, routes
