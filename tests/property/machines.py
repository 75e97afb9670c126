"""Draws random machines: GPUs, NICs, nodes and clusters that differ from a preset in a few figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from hypothesis import strategies as st

from foretrace import Cluster, Machine, load_cluster
from foretrace.basics.documents import Document
from foretrace.hardware.presets import PRESETS, names
from foretrace.hardware.reader import read_cluster

CLUSTERS: Final = names("cluster")
PEAKS: Final = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
FIGURES: Final = ("flops", "bf16", "fp8", "memory_bandwidth", "link_bandwidth", "pcie_bandwidth", "nic")
"""The figures of which more is better: `flops` is every peak at once, `nic` the rate of a NIC."""

FACTORS: Final = st.sampled_from((1.05, 1.3, 2.0, 4.0))
"""How many times better a figure becomes."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Hardware:
    """A cluster as a user's file describes it: a preset, and what differs from it.

    Its representation is the text of that file, so that a failed example can be run by hand.
    """

    preset: str
    gpu: Figures = field(default_factory=dict)
    node: Figures = field(default_factory=dict)
    network: Figures = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The cluster's file, as JSON."""
        node = {**self.node, **({"gpu": self.gpu} if self.gpu else {})}
        return json.dumps({"based_on": self.preset, **({"node": node} if node else {}), **self.network})

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that the file describes."""
        if not (self.gpu or self.node or self.network):
            return load_cluster(self.preset)
        document = Document("random.yaml", "cluster", "", "")
        return read_cluster(document, document.compose(self.text), PRESETS, name="random")

    def machine(self, **options: Any) -> Machine:
        """Returns a machine with this cluster."""
        return Machine(self.cluster, **options)

    def has(self, figure: str) -> bool:
        """Returns whether this cluster has a figure that can become better."""
        gpu = self.cluster.gpu
        return figure in ("flops", "nic") or (
            figure in gpu.peak_flops if figure in PEAKS else value(self.cluster, figure) > 0
        )

    def better(self, figure: str, factor: float) -> Hardware:
        """Returns the same cluster with `factor` times as much of one figure."""
        if figure == "nic":
            rate = self.cluster.node.nic.bytes_per_s * factor
            return Hardware(self.preset, self.gpu, {**self.node, "nic": {"rate": f"{rate!r}B/s"}}, self.network)
        changed = tuple(self.cluster.gpu.peak_flops) if figure == "flops" else (figure,)
        figures = {name: text(name, value(self.cluster, name) * factor) for name in changed}
        return Hardware(self.preset, {**self.gpu, **figures}, self.node, self.network)


def value(cluster: Cluster, figure: str) -> float:
    """Returns a figure of a cluster's GPU in SI units; 0 where it has none."""
    gpu = cluster.gpu
    figures = {
        "memory": gpu.memory_bytes,
        "memory_bandwidth": gpu.memory_bytes_per_s,
        "link_bandwidth": gpu.link_bytes_per_s,
        "pcie_bandwidth": gpu.pcie_bytes_per_s,
        "host_bandwidth": gpu.host_bytes_per_s,
        "power_w": gpu.power_w,
        "compute_units": float(gpu.compute_units),
    }
    return figures[figure] if figure in figures else gpu.peak_flops.get(figure, 0.0)


def text(figure: str, amount: float) -> str | int:
    """Returns a figure as a cluster's file states it."""
    if figure in PEAKS:
        return f"{amount!r}FLOPS"
    if figure in ("power_w", "compute_units"):
        return round(amount)
    return f"{round(amount)}B" if figure == "memory" else f"{amount!r}B/s"


@st.composite
def hardware(draw: st.DrawFn, max_changes: int = 3) -> Hardware:
    """Draws a cluster with up to `max_changes` other figures of its GPU, other NICs, nodes or another network."""
    preset = draw(st.sampled_from(CLUSTERS))
    cluster = load_cluster(preset)
    known = ("bf16", "fp8", "memory_bandwidth", "link_bandwidth", "pcie_bandwidth", "memory", "power_w")
    possible = [name for name in (*known, "compute_units") if value(cluster, name) > 0]
    chosen = draw(st.lists(st.sampled_from(possible), max_size=max_changes, unique=True))
    scales = st.sampled_from((0.5, 0.8, 1.25, 2.0))
    gpu = {name: text(name, value(cluster, name) * draw(scales)) for name in chosen}
    return Hardware(preset, gpu, draw(nodes(cluster)), draw(networks()))


@st.composite
def nodes(draw: st.DrawFn, cluster: Cluster) -> Figures:
    """Draws how nodes differ from those of a cluster: NICs, GPUs, the domain that links join."""
    node = cluster.node
    changes: Figures = {}
    scale = draw(st.sampled_from((1.0, 1.0, 0.5, 2.0)))
    if scale != 1.0:
        changes["nic"] = {"rate": f"{node.nic.bytes_per_s * scale!r}B/s"}
    sizes = st.sampled_from(("same", "same", "half", "rack", "shared NICs"))
    # NICs of nodes in several planes come in the planes' number.
    shape = draw(sizes if node.switched and cluster.topology.planes <= 1 else st.just("same"))
    if shape == "half":
        changes |= {"gpus": 4, "domain_gpus": 4}
    elif shape == "rack":
        changes |= {"gpus": 4, "domain_gpus": 72}
    elif shape == "shared NICs":
        changes["nics"] = node.nics // 2
    return changes


@st.composite
def networks(draw: st.DrawFn) -> Figures:
    """Draws a network, or none: that of the preset."""
    kind = draw(st.sampled_from((None, None, "fat-tree", "rail-optimised")))
    if kind is None:
        return {}
    return {"topology": {"kind": kind, "oversubscription": draw(st.sampled_from((1, 1, 2)))}}
