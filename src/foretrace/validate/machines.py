"""Reads the cluster of a measured run from the words of a table."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import InputError, quoted
from foretrace.hardware.cluster import Cluster, Nic, Node
from foretrace.hardware.presets import cluster
from foretrace.validate.training_runs import RunConfig

_CLUSTERS: Final = (
    (r"gb300", "gb300-nvl72"),
    (r"gb200", "gb200-nvl72"),
    (r"b300", "b300-dgx"),
    (r"b200", "b200-dgx"),
    (r"(?<!g)h200", "h200-dgx"),
    (r"h100.*(96\s*gb|500\s*w)", "h100-96g-500w"),
    (r"h100.*pcie", "h100-pcie"),
    (r"h100", "h100-dgx"),
    (r"h800", "h800-hgx"),
    (r"h20", "h20-hgx"),
    (r"a800", "a800-hgx"),
    (r"a100.*pcie", "a100-pcie"),
    (r"a100.*40\s*gb", "a100-40g-dgx"),
    (r"a100", "a100-dgx"),
    (r"mi300x?", "mi300x"),
)
"""Patterns of names of GPUs, and the cluster of such GPUs; the first that matches counts."""

_COUNT: Final = r"(?<![0-9])([0-9]{1,6})"
_MAX_NICS, _MAX_GBITS = 128, 10_000


def cluster_of(config: RunConfig) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of a run, with what was assumed about it."""
    text = config.gpu.lower()
    name = next((name for pattern, name in _CLUSTERS if re.search(pattern, text)), None)
    if name is None:
        raise InputError(
            "unknown-name",
            f"no cluster has the GPU {quoted(config.gpu)}",
            where=config.where,
            hint="see foretrace list gpus",
        )
    preset = cluster(name)
    node = _sized(preset.node, config.gpus_per_node)
    node, notes = _networked(node, config.interconnect)
    return (preset if node == preset.node else replace(preset, node=node)), notes


def _sized(node: Node, gpus: int | None) -> Node:
    """Returns a node with as many GPUs as the table says, and NICs in proportion.

    A link domain that was the whole node still is.
    """
    if gpus is None or gpus == node.gpus:
        return node
    domain = gpus if node.domain_gpus == node.gpus else node.domain_gpus
    return replace(node, gpus=gpus, domain_gpus=domain, nics=max(node.nics * gpus // node.gpus, 1))


def _networked(node: Node, words: str) -> tuple[Node, tuple[str, ...]]:
    """A node with the network that the table describes; without a description, its preset's."""
    text = words.lower()
    notes: tuple[str, ...] = ()
    if "pcie only" in text:
        node = replace(node, domain_gpus=1, switched=False)
    each = re.search(rf"{_COUNT}\s{{0,4}}[x×]\s{{0,4}}{_COUNT}\s{{0,4}}g", text)
    whole = re.search(rf"{_COUNT}\s{{0,4}}gb(?:ps|/s|it/s)?\s{{0,4}}/\s{{0,4}}node", text)
    per_gpu = re.search(rf"{_COUNT}\s{{0,4}}gb(?:ps|/s).{{0,12}}per gpu", text)
    if each:
        return _with_nics(node, int(each[1]), int(each[2])), notes
    if per_gpu:
        return _with_nics(node, node.gpus, int(per_gpu[1])), notes
    if whole:
        share = int(whole[1]) / node.gpus
        notes = (f"{whole[0]}: taken as {node.gpus} NICs of {share:g} Gb/s",)
        return _with_nics(node, node.gpus, share), notes
    return node, notes


def _with_nics(node: Node, nics: int, gbits: float) -> Node:
    rate = gbits * 1e9 / 8
    if not nics or not rate or (nics == node.nics and rate == node.nic.bytes_per_s):
        return node  # a rate of nothing is a slip of the pen
    if nics > _MAX_NICS or gbits > _MAX_GBITS:
        raise InputError("out-of-range", f"nodes with {nics:,} NICs of {gbits:,g} Gb/s cannot be meant")
    return replace(node, nics=nics, nic=Nic(f"{gbits:g}g", f"{gbits:g} Gb/s", rate))
