"""Networks from files: SimAI's, and devices and links written out in YAML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.build import fabric_of
from foretrace.hardware.fabric.fabric import Device
from foretrace.hardware.fabric.routing.router import Router
from foretrace.hardware.fabric.topology import Topology
from shared_files import shared

TWO = """links:
  - {from: node 0 GPU 0, to: link switch 0, rate: 450GB/s}
  - {from: node 0 GPU 1, to: link switch 0, rate: 450GB/s}
  - {from: node 0 GPU 0, to: node 0 nic 0, rate: 64GB/s, latency: 300ns}
  - {from: node 0 GPU 1, to: node 0 NIC 0, rate: 64GB/s, latency: 300ns}
  - {from: node 0 NIC 0, to: leaf 0, rate: 400Gbps, latency: 500ns}
  - {from: node 1 GPU 0, to: leaf 0, rate: 400Gbps}
  - {from: leaf 0, to: node 1 GPU 1, rate: 200Gbps}
  - {from: leaf 0, to: node 1 GPU 1, rate: 200Gbps}
"""


def cluster_at(path: Path, text: str, gpus: int = 2) -> Cluster:
    path.write_text(text, encoding="utf-8")
    base = presets.cluster("h100-dgx")
    return replace(base, node=replace(base.node, gpus=gpus), topology=Topology("file", path=str(path)))


def test_a_network_written_out(tmp_path: Path) -> None:
    cluster = cluster_at(tmp_path / "two.yaml", TWO)
    fabric = fabric_of(cluster, 2)
    assert fabric.labels[:4] == ("node 0 GPU 0", "node 0 GPU 1", "node 1 GPU 0", "node 1 GPU 1")
    routes = Router(fabric, cluster.topology).routes(np.array([0, 0]), np.array([1, 3]))
    near, far = (
        [fabric.link_label(int(link)) for link in routes.link[routes.start[flow] : routes.start[flow + 1]]]
        for flow in (0, 1)
    )
    assert near == ["node 0 GPU 0 - link switch 0", "link switch 0 - node 0 GPU 1"]
    assert far == ["node 0 GPU 0 - node 0 NIC 0", "node 0 NIC 0 - leaf 0", "leaf 0 - node 1 GPU 1"]
    last = int(routes.link[-1])
    assert fabric.bytes_per_s[last] == 50e9  # two links of 200 Gb/s side by side
    assert fabric.cables is not None
    assert fabric.cables[last] == 2


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (TWO.replace("link switch 0, rate: 450GB/s}", "switch 0, rate: 450GB/s}", 1), 2, '"switch 0" is no name'),
        (TWO.replace("from: leaf 0, to: node 1 GPU 1", "from: leaf 0, to: GPU 1"), 8, '"GPU 1" is no name'),
        (TWO.replace("to: leaf 0", "to: node 1 leaf 0", 1), 6, "is no name of a device"),
        (TWO.replace("to: leaf 0", "to: node 0 NIC 0", 1), 6, "joins node 0 NIC 0 to itself"),
        (TWO.replace("rate: 400Gbps, latency: 500ns", "latency: 500ns"), 6, "field rate is missing"),
        (TWO.replace("latency: 500ns", "latency: 2s"), 6, "which cannot be meant"),
        (TWO.replace("latency: 500ns", "delay: 500ns"), 6, 'field "delay" is not known'),
        ("links: []\n", 1, "expected a list of links"),
        ("devices: 3\n", 1, 'field "devices" is not known'),
    ],
)
def test_what_is_refused_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        fabric_of(cluster_at(tmp_path / "net.yaml", text), 2)
    assert problem in refused.value.message
    assert refused.value.where == f"{tmp_path / 'net.yaml'}:{line}"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "gpus", "nodes", "problem"),
    [
        (TWO.replace("node 1 GPU 1", "node 1 GPU 2"), 3, 2, "node 0 GPU 2 has no link"),
        (TWO.replace("node 1 ", "node 5 "), 2, 2, "node 1 GPU 0 has no link"),
        ("links: [{from: leaf 0, to: spine 0, rate: 1Gbps}]\n", 2, 2, "no link has a GPU"),
        (TWO, 8, 2, "the file has nodes of 2 GPUs, the cluster h100-dgx of 8"),
        (TWO, 2, 3, "the file has 2 nodes, the job 3"),
        ("", 2, 2, "is empty"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str, gpus: int, nodes: int, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        fabric_of(cluster_at(tmp_path / "net.yaml", text, gpus), nodes)
    assert problem in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("name", ["AlibabaHPN_128g*", "Spectrum-X_128g*", "DCN+SingleToR*", "DCN+DualToR*"])
@pytest.mark.parametrize("routing", ["spread", "ecmp", "rail"])
def test_simais_files_are_routed(name: str, routing: str) -> None:
    path = str(shared("data", "simai", "topologies", name))
    topology = Topology("file", path=path, routing=routing)  # type: ignore[arg-type]
    fabric = fabric_of(replace(presets.cluster("h100-dgx"), topology=topology), 16)
    first, second = np.divmod(np.arange(128 * 128), 128)
    routes = Router(fabric, topology).routes(first, second)
    load = np.bincount(routes.link, routes.share, minlength=fabric.links)
    leaving = (fabric.kind[fabric.source] == Device.GPU) & (fabric.kind[fabric.target] == Device.LEAF)
    assert load[leaving].sum() == pytest.approx(128 * 120)
    over_links = (fabric.kind[fabric.target] == Device.LINK_SWITCH).nonzero()[0]
    assert load[over_links].sum() == pytest.approx(128 * 7 + (128 * 105 if routing == "rail" else 0))
