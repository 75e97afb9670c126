"""The `topology` of cluster files: what may be written, what is filled in, what is refused; the examples load."""

from __future__ import annotations

import re
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
from foretrace.hardware.fabric.topology import TOPOLOGY_KINDS, Topology
from foretrace.hardware.topology_reader import TOPOLOGY_KEYS
from shared_files import ROOT


def read(folder: Path, text: str) -> Cluster:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return presets.cluster(str(path))


def test_a_kind_alone(tmp_path: Path) -> None:
    assert read(tmp_path, "node: dgx-h100\ntopology: HPN\n").topology == Topology("hpn")
    assert read(tmp_path, "node: dgx-h100\ntopology: rail optimized\n").topology == Topology("rail-optimised")
    assert read(tmp_path, "node: dgx-h100\n").topology == Topology()
    # The preset's own kind keeps its sizes; another kind has its own.
    assert read(tmp_path, "based_on: h100-dgx\ntopology: rail-optimised\n").topology.leaf_ports == 32
    assert read(tmp_path, "based_on: h100-dgx\ntopology: fat-tree\n").topology == Topology()


def test_all_keys(tmp_path: Path) -> None:
    text = """node: dgx-h100
topology:
  kind: fat-tree
  routing: ecmp
  leaf_ports: 16
  pod_gpus: 3072
  planes: 2
  tors: 2
  oversubscription: 1.5
  core_oversubscription: 7:1
  hop_latency: 600ns
  failed: [leaf 3, leaf 1 - spine 2]
  background: {nodes: 8Gbps, leaf 0 > spine 0: 1GB/s}
  seed: 4
"""
    assert read(tmp_path, text).topology == Topology(
        kind="fat-tree",
        routing="ecmp",
        leaf_ports=16,
        pod_gpus=3072,
        planes=2,
        tors=2,
        oversubscription=1.5,
        core_oversubscription=7.0,
        hop_latency_s=pytest.approx(6e-7),
        failed=("leaf 3", "leaf 1 - spine 2"),
        background=(("nodes", 1e9), ("leaf 0 > spine 0", 1e9)),
        seed=4,
    )
    torus = read(tmp_path, "node: dgx-h100\ntopology: {kind: torus, dimensions: 4x4x2}\n").topology
    assert torus.dimensions == (4, 4, 2)


def test_a_base_keeps_what_is_not_said(tmp_path: Path) -> None:
    topology = read(tmp_path, "based_on: h100-dgx\ntopology: {failed: leaf 1}\n").topology
    assert topology == Topology("rail-optimised", routing="rail", leaf_ports=32, failed=("leaf 1",))
    short = read(tmp_path, "based_on: h100-dgx\noversubscription: 2\n").topology
    assert short == Topology("rail-optimised", routing="rail", leaf_ports=32, oversubscription=2.0)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("topology: fat-treee", 2, 'called "fat-treee"; did you mean fat-tree?'),
        ("topology: {kind: 7}", 2, 'no kind of network is called "7"'),
        ("topology: [hpn]", 2, "expected a kind of network, or a mapping"),
        ("topology: {kind: hpn, leaves: 4}", 2, 'field "leaves" is not known'),
        ("topology: {routing: random}", 2, 'no routing is called "random"'),
        ("topology: {kind: torus}", 2, "field dimensions is missing"),
        ("topology: torus", 2, "field dimensions is missing"),
        ("topology: file", 2, "field path is missing"),
        ("topology: {kind: torus, dimensions: [4, x]}", 2, "count"),
        ("topology: {kind: torus, dimensions: [0]}", 2, "is not 0 nodes long"),
        ("topology: {kind: torus, dimensions: [4], tors: 2}", 2, "tors says nothing of a network of kind torus"),
        ("topology: {kind: hpn, dimensions: [4]}", 2, "dimensions says nothing of a network of kind hpn"),
        ("topology: {oversubscription: 0.5}", 2, "cannot be meant"),
        ("topology: {leaf_ports: 0}", 2, "cannot be meant"),
        ("topology: {hop_latency: 5}", 2, "has no unit"),
        ("topology: {background: {nodes: 5}}", 2, "has no unit"),
        ("topology: {background: nodes}", 2, "expected a mapping of links to rates"),
        ("topology: hpn\noversubscription: 2", 3, "oversubscription is given beside topology"),
    ],
)
def test_what_is_refused_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, f"node: dgx-h100\n{text}\n")
    assert problem in refused.value.message
    assert refused.value.where == f"{tmp_path / 'cluster.yaml'}:{line}"
    assert refused.value.hint


EXAMPLES = [path for path in sorted((ROOT / "examples/clusters").glob("*.yaml")) if "_network" not in path.stem]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_load_and_route(path: Path) -> None:
    cluster = presets.cluster(str(path))
    nodes = min(cluster.nodes or 8, 64)
    fabric = fabric_of(cluster, nodes)
    gpus = np.arange(nodes * cluster.node.gpus)
    routes = Router(fabric, cluster.topology).routes(gpus, np.roll(gpus, -cluster.node.gpus))
    assert (np.diff(routes.start) > 0).all()


def test_the_page_names_every_kind_and_key(tmp_path: Path) -> None:
    page = (ROOT / "docs/topologies.md").read_text(encoding="utf-8")
    for name in (*TOPOLOGY_KINDS, *TOPOLOGY_KEYS):
        assert f"`{name}`" in page, name
    for snippet in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        if "links:" not in snippet:
            assert read(tmp_path, snippet).topology != Topology()


def test_the_page_counts_what_is_built() -> None:
    page = (ROOT / "docs/topologies.md").read_text(encoding="utf-8")
    base = presets.cluster("h100-dgx")
    cases = {f"`{kind}`": Topology(kind) for kind in TOPOLOGY_KINDS if kind not in ("torus", "file")}  # type: ignore[arg-type]
    cases["`dcn+`, `tors: 1`"] = Topology("dcn+", tors=1)
    for name, topology in cases.items():
        fabric = fabric_of(replace(base, topology=topology), 16, merge=False)
        leaves, spines = (int((fabric.kind == kind).sum()) for kind in (Device.LEAF, Device.SPINE))
        ways = []
        for below, above in ((Device.NIC, Device.LEAF), (Device.LEAF, Device.SPINE)):
            way = (fabric.kind[fabric.source] == below) & (fabric.kind[fabric.target] == above)
            (rate,) = set((fabric.bytes_per_s[way] * 8 / 1e9).round().tolist())
            assert fabric.cables is not None
            cables = int(fabric.cables[way].sum())
            rate_words = f"{rate:g} Gb/s" if rate < 1000 else f"{rate / 1000:g} Tb/s"
            ways.append(f"{way.sum()} × {rate_words}" + (f" ({cables} cables)" if cables > way.sum() else ""))
        assert f"| {name} | {leaves} | {spines} | {ways[0]} | {ways[1]} |" in page
