"""Merges interchangeable switches into one, or splits links into single cables, with the same loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Longs
from foretrace.hardware.fabric.csr import summed
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.hashing import mixed


def merged(fabric: Fabric) -> Fabric:
    """Returns the fabric with interchangeable spines and cores merged into one device, and their links into one.

    Switches are interchangeable if they have equal links to the same leaves and to switches that are interchangeable
    themselves: the coarsest equitable partition that leaves all else apart. Traffic that is divided evenly divides
    evenly over them, so the load of a merged link is the sum of theirs.
    """
    group = _groups(fabric)
    used, first, of = np.unique(group, return_index=True, return_inverse=True)
    # Groups keep the order of their first devices, so that GPUs stay in front.
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    of = place[of]
    sizes = np.bincount(of, minlength=len(used))
    labels = _labels(fabric, of, sizes, first[order])
    key = of[fabric.source] * len(used) + of[fabric.target]
    ends, first_link, which = np.unique(key, return_index=True, return_inverse=True)
    return replace(
        fabric,
        kind=fabric.kind[first[order]],
        labels=labels,
        source=ends // len(used),
        target=ends % len(used),
        bytes_per_s=summed(which, fabric.bytes_per_s, len(ends)),
        latency_s=fabric.latency_s[first_link],
        cables=np.bincount(which, fabric.cable_counts, minlength=len(ends)).astype(np.int64),
    )


def split_cables(fabric: Fabric) -> Fabric:
    """The fabric with every cable between switches a link of its own, since a hash chooses cables."""
    if fabric.cables is None:
        return fabric
    between = (fabric.kind[fabric.source] >= Device.LEAF) & (fabric.kind[fabric.target] >= Device.LEAF)
    times = np.where(between, fabric.cables, 1)
    return replace(
        fabric,
        source=np.repeat(fabric.source, times),
        target=np.repeat(fabric.target, times),
        bytes_per_s=np.repeat(fabric.bytes_per_s / times, times),
        latency_s=np.repeat(fabric.latency_s, times),
        cables=np.repeat(fabric.cables // times, times),
    )


def _groups(fabric: Fabric) -> Longs:
    """Returns a number for each device, equal for interchangeable ones."""
    colour = np.arange(fabric.devices, dtype=np.int64)
    inner = fabric.kind > Device.LEAF
    colour[inner] = fabric.devices + fabric.kind[inner].astype(np.int64)
    # Numbers of links' rates, latencies and cables as hashes: only whether they are equal matters.
    kind = mixed(fabric.latency_s.view(np.int64), fabric.cable_counts)
    kind = mixed(fabric.bytes_per_s.view(np.int64), kind.view(np.int64))
    number = len(np.unique(colour[inner]))
    while True:
        seen = mixed(colour[inner], _seen(fabric, colour, kind)[inner].view(np.int64))
        used, which = np.unique(seen, return_inverse=True)
        colour[inner] = fabric.devices + which
        if len(used) == number:
            return colour
        number = len(used)


def _seen(fabric: Fabric, colour: Longs, kind: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of what each device is linked to, whatever the order."""
    total = np.zeros(fabric.devices, dtype=np.uint64)
    for near, far, way in ((fabric.source, fabric.target, 1), (fabric.target, fabric.source, 2)):
        inner = np.flatnonzero(fabric.kind[near] > Device.LEAF)
        item = mixed(mixed(colour[far[inner]], kind[inner].view(np.int64)).view(np.int64), way)
        np.add.at(total, near[inner], item)  # wraps around, which a hash may
    return total


def _labels(fabric: Fabric, of: Longs, sizes: Longs, first: Longs) -> tuple[str, ...]:
    """Returns the labels of merged devices: "spines 0-15"."""
    labels = [fabric.labels[int(device)] for device in first]
    for group in np.flatnonzero(sizes > 1):
        members = np.flatnonzero(of == group)
        word, number = fabric.labels[int(members[0])].rsplit(" ", 1)
        last = fabric.labels[int(members[-1])].rsplit(" ", 1)[1]
        run = len(members) == int(last) - int(number) + 1 if last.isdecimal() and number.isdecimal() else False
        labels[int(group)] = f"{word}s {number}-{last}" if run else f"{len(members)} {word}s from {number}"
    return tuple(labels)
