"""Finds where a network is narrow: the rates that leave the NICs that GPUs share, a leaf, a pod."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.hardware.fabric.csr import summed
from foretrace.hardware.fabric.fabric import Device, Fabric, Tier
from foretrace.hardware.fabric.graph import FabricGraph, together
from foretrace.hardware.fabric.routing.attachment import Attachment, attachment_of


def tiers_of(fabric: Fabric) -> tuple[Tier, ...]:
    """The tiers of a fabric from the GPUs outwards, as far as they are there: `nic`, GPUs that share NICs; `leaf`, GPUs
    on the same leaves; `spine`, GPUs beneath the same spines. A tier whose parts have nothing above them is left out.

    GPUs that reach a part over links within their node do not pass its exit: what counts is traffic over NICs.
    """
    graph = FabricGraph(fabric)
    held = attachment_of(graph)
    if not len(held.exit_switch):
        return ()
    beyond = fabric.kind >= Device.LEAF
    tiers = [_tier(fabric, "nic", _parts(fabric, held, held.exit_last), ~beyond)]
    leaf_part = _parts(fabric, held, held.exit_switch)
    tiers.append(_tier(fabric, "leaf", leaf_part, fabric.kind <= Device.LEAF))
    # Pods: what leaves and spines join without cores, or without cables between the spines of different pods.
    if (fabric.kind == Device.SPINE).any():
        tiers.append(_tier(fabric, "spine", _pods(fabric, leaf_part), fabric.kind <= Device.SPINE))
    return tuple(tier for tier in tiers if tier is not None)


def _parts(fabric: Fabric, held: Attachment, ends: Longs) -> Longs:
    """The part of each device below and at these ends of GPUs' exits: those are together that a GPU joins; -1: none."""
    gpu = np.repeat(np.arange(fabric.gpus), np.diff(held.exit_start))
    own = np.arange(fabric.gpus, dtype=np.int64)
    bare = np.flatnonzero(np.diff(held.exit_start) == 0)
    # A GPU without a NIC that works goes out through another of its node.
    able = np.flatnonzero(np.diff(held.exit_start) > 0)
    helper = np.searchsorted(able // fabric.gpus_per_node, bare // fabric.gpus_per_node)
    own[bare] = able[np.minimum(helper, len(able) - 1)]
    part = together(fabric.devices, np.concatenate((gpu, bare)), np.concatenate((ends, own[bare])))
    there = np.zeros(fabric.devices, dtype=np.bool_)
    there[: fabric.gpus] = True
    there[ends] = True
    return np.where(there, part, -1)


def _pods(fabric: Fabric, leaf_part: Longs) -> Longs:
    """The pod of each device: parts of leaves that the same spines serve."""
    up = (fabric.kind[fabric.source] == Device.LEAF) & (fabric.kind[fabric.target] == Device.SPINE)
    first = np.concatenate((fabric.source[up], np.flatnonzero(leaf_part >= 0)))
    second = np.concatenate((fabric.target[up], leaf_part[leaf_part >= 0]))
    part = together(fabric.devices, first, second)
    there = leaf_part >= 0
    there[fabric.target[up]] = True
    return np.where(there, part, -1)


def _tier(fabric: Fabric, name: str, part: Longs, inner: Mask) -> Tier | None:
    """The tier of these parts: what their links to devices outside carry; None where nothing leaves any."""
    leaving = (part[fabric.source] >= 0) & inner[fabric.source] & (part[fabric.target] != part[fabric.source])
    # Links between GPUs and to their switches are no exits.
    leaving &= fabric.kind[fabric.target] >= Device.LEAF
    if name == "nic":
        leaving &= fabric.kind[fabric.source] <= Device.NIC
    if not leaving.any():
        return None
    used, part_of = np.unique(part[: fabric.gpus], return_inverse=True)
    at = np.searchsorted(used, part[fabric.source[leaving]])
    rate = summed(at, fabric.bytes_per_s[leaving], len(used))
    return Tier(name, part_of.astype(np.int64), rate)
