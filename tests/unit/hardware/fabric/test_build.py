"""What each kind of network builds: devices, cables and rates, held to what their makers publish."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.build import MAX_GPUS, fabric_of
from foretrace.hardware.fabric.designs.simai_topology import read_topology
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.routing.tiers import tiers_of
from foretrace.hardware.fabric.topology import Topology
from shared_files import shared

GBPS = 1e9 / 8


def cluster_of(topology: Topology, name: str = "h100-dgx") -> Cluster:
    return replace(presets.cluster(name), topology=topology)


def devices(fabric: Fabric) -> dict[str, int]:
    return dict(Counter(Device(int(kind)).name for kind in fabric.kind))


def rates(fabric: Fabric, below: Device, above: Device) -> dict[float, int]:
    """Links from devices of one kind up to another, by their rate."""
    way = (fabric.kind[fabric.source] == below) & (fabric.kind[fabric.target] == above)
    return dict(Counter(fabric.bytes_per_s[way].round().tolist()))


def cables(fabric: Fabric, below: Device, above: Device) -> int:
    assert fabric.cables is not None
    way = (fabric.kind[fabric.source] == below) & (fabric.kind[fabric.target] == above)
    return int(fabric.cables[way].sum())


@pytest.mark.parametrize(
    ("units", "leaves", "spines", "cores", "above"),
    [(2, 16, 8, 0, 0), (4, 32, 16, 0, 0), (8, 64, 32, 0, 0), (16, 128, 128, 64, 4096), (64, 512, 512, 256, 16384)],
)
def test_a_superpod_has_the_switches_and_cables_that_nvidia_lists(
    units: int, leaves: int, spines: int, cores: int, above: int
) -> None:
    # DGX SuperPOD reference architecture, DGX B200, larger component counts.
    fabric = fabric_of(presets.cluster("b200-dgx"), 32 * units, merge=False)
    found = devices(fabric)
    assert (found["LEAF"], found["SPINE"], found.get("CORE", 0)) == (leaves, spines, cores)
    assert cables(fabric, Device.NIC, Device.LEAF) == 256 * units
    assert cables(fabric, Device.LEAF, Device.SPINE) == 256 * units
    assert cables(fabric, Device.SPINE, Device.CORE) == above


@pytest.mark.parametrize(
    ("file", "topology", "port_gbps", "uplink_gbps"),
    [
        # SimAI gives each of a NIC's two ports the whole NIC's rate; here they share it.
        ("AlibabaHPN_128g*", Topology("hpn"), 200, 400),
        ("Spectrum-X_128g*", Topology("spectrum-x"), 400, 400),
        # SimAI's leaves of DCN+ have one cable to each spine, which is 8:1; the published design has none.
        ("DCN+SingleToR*", Topology("dcn+", tors=1, oversubscription=8), 400, 400),
        ("DCN+DualToR*", Topology("dcn+", oversubscription=8), 200, 400),
    ],
)
def test_the_same_devices_and_links_as_simais_topologies(
    file: str, topology: Topology, port_gbps: int, uplink_gbps: int
) -> None:
    theirs = read_topology(shared("data", "simai", "topologies", file))
    written = replace(cluster_of(Topology("file", path=theirs.path)), nodes=None)
    read, built = fabric_of(written, 16, merge=False), fabric_of(cluster_of(topology), 16, merge=False)
    ours = devices(built)
    assert ours.pop("NIC") == 128  # SimAI's GPUs are on switches directly
    assert ours == devices(read)
    assert rates(read, Device.LEAF, Device.SPINE) == rates(built, Device.LEAF, Device.SPINE)
    assert set(rates(built, Device.LEAF, Device.SPINE)) == {uplink_gbps * GBPS}
    ((rate, number),) = rates(built, Device.NIC, Device.LEAF).items()
    ((their_rate, their_number),) = rates(read, Device.GPU, Device.LEAF).items()
    assert (rate, number, their_rate) == (port_gbps * GBPS, their_number, 400 * GBPS)


def test_hpn_at_its_published_size() -> None:
    fabric = fabric_of(cluster_of(Topology("hpn")), 15_360 // 8)
    assert devices(fabric)["LEAF"] == 15 * 16
    names = [tier.name for tier in tiers_of(fabric)]
    assert names == ["nic", "leaf"]
    leaf = tiers_of(fabric)[1]
    assert len(leaf.bytes_per_s) == 15 * 8  # a rail of a segment: two leaves
    assert leaf.bytes_per_s[0] == pytest.approx(2 * 60 * 400 * GBPS)
    two_pods = tiers_of(fabric_of(cluster_of(Topology("hpn")), 2 * 15_360 // 8))
    assert [tier.name for tier in two_pods] == ["nic", "leaf", "spine"]
    # 15:1 between pods: each of 60 spines a plane sends on a fifteenth of what its 120 leaves send up.
    assert two_pods[2].bytes_per_s.tolist() == pytest.approx([2 * 60 * 120 * 400 * GBPS / 15] * 2)


def test_what_oversubscription_leaves() -> None:
    fabric = fabric_of(cluster_of(Topology(oversubscription=4)), 16)
    nic, leaf = tiers_of(fabric)
    assert nic.bytes_per_s.tolist() == [50e9] * 128
    assert leaf.bytes_per_s.tolist() == [32 * 50e9 / 4] * 4
    above = Topology(leaf_ports=8, pod_gpus=32, core_oversubscription=7)
    tiers = tiers_of(fabric_of(cluster_of(above), 16))
    assert [tier.name for tier in tiers] == ["nic", "leaf", "spine"]
    assert tiers[2].bytes_per_s.tolist() == pytest.approx([32 * 50e9 / 7] * 4)
    assert tiers[2].part_of.tolist() == [gpu // 32 for gpu in range(128)]


def test_a_torus_is_built_whole() -> None:
    torus = cluster_of(Topology("torus", dimensions=(4, 2, 3)))
    fabric = fabric_of(torus, 3)
    assert fabric.gpus == 24 * 8
    each = 8 * 50e9 / 6
    assert rates(fabric, Device.LEAF, Device.LEAF) == {round(each): 2 * (24 + 24), round(2 * each): 24}
    (nic, leaf) = tiers_of(fabric)
    assert leaf.bytes_per_s.tolist() == pytest.approx([8 * 50e9] * 24)
    assert nic.name == "nic"


def test_dragonfly_groups_are_joined_each_to_each() -> None:
    fabric = fabric_of(cluster_of(Topology("dragonfly+")), 5 * 128, merge=False)
    assert devices(fabric)["SPINE"] == 5 * 32
    spine = fabric.kind == Device.SPINE
    between = np.flatnonzero(spine[fabric.source] & spine[fabric.target])
    first = int(np.flatnonzero(spine)[0])
    group = (fabric.source[between] - first) // 32, (fabric.target[between] - first) // 32
    assert fabric.cables is not None
    cables_of = Counter[tuple[int, int]]()
    for near, far, number in zip(*group, fabric.cables[between], strict=True):
        cables_of[int(near), int(far)] += int(number)
    assert set(cables_of.values()) == {1024 // 4}
    assert len(cables_of) == 5 * 4


@pytest.mark.parametrize(
    ("gpus", "nics", "domain", "wanted"),
    [
        (8, 8, 8, {"GPU": 16, "LINK_SWITCH": 2, "NIC": 16, "LEAF": 1}),
        (8, 4, 8, {"GPU": 16, "LINK_SWITCH": 2, "PCIE_SWITCH": 8, "NIC": 8, "LEAF": 1}),
        (8, 3, 8, {"GPU": 16, "LINK_SWITCH": 2, "PCIE_SWITCH": 2, "NIC": 6, "LEAF": 1}),
        (4, 8, 4, {"GPU": 8, "LINK_SWITCH": 2, "PCIE_SWITCH": 8, "NIC": 16, "LEAF": 1}),
        (4, 4, 8, {"GPU": 8, "LINK_SWITCH": 1, "NIC": 8, "LEAF": 1}),
        (8, 8, 2, {"GPU": 16, "LINK_SWITCH": 8, "PCIE_SWITCH": 18, "NIC": 16, "LEAF": 1}),
    ],
)
def test_inside_nodes(gpus: int, nics: int, domain: int, wanted: dict[str, int]) -> None:
    base = presets.cluster("h100-dgx")
    node = replace(base.node, gpus=gpus, nics=nics, domain_gpus=domain)
    assert devices(fabric_of(replace(base, node=node, topology=Topology()), 2)) == wanted


def test_direct_links_are_dealt_out() -> None:
    fabric = fabric_of(presets.cluster("mi300x"), 1)
    gpu = presets.gpu("mi300x")
    assert rates(fabric, Device.GPU, Device.GPU) == {round(gpu.link_bytes_per_s / 7): 56}
    bridged = fabric_of(presets.cluster("h100-pcie"), 1)
    assert rates(bridged, Device.GPU, Device.GPU) == {presets.gpu("h100-pcie").link_bytes_per_s: 8}


def test_an_nvl72_is_one_domain_over_nodes() -> None:
    fabric = fabric_of(presets.cluster("gb200-nvl72"), 36)
    assert devices(fabric)["LINK_SWITCH"] == 2


@pytest.mark.parametrize("name", presets.names("cluster"))
def test_presets_build_and_block_nothing(name: str) -> None:
    cluster = presets.cluster(name)
    fabric = fabric_of(cluster, 40)
    node = cluster.node
    for tier in tiers_of(fabric):
        members = np.bincount(tier.part_of)
        line = members * node.nic.bytes_per_s * node.nics / node.gpus
        assert (tier.bytes_per_s >= line * (1 - 1e-9)).all(), tier.name


@pytest.mark.parametrize(
    ("topology", "nodes", "problem"),
    [
        (Topology("torus"), 4, "needs its dimensions"),
        (Topology("torus", dimensions=(2, 1)), 3, "has 2 nodes, the job 3"),
        (Topology("file"), 4, "needs its path"),
        (Topology(planes=3), 4, "cannot be dealt evenly to 3 planes"),
        (Topology("hpn", tors=1, planes=3), 4, "cannot be dealt evenly to 3 planes"),
        (Topology("dragonfly+", leaf_ports=1, pod_gpus=8), 40, "cannot join 40 groups"),
        (Topology(), 0, "0 nodes cannot be built"),
        (Topology(), MAX_GPUS // 8 + 1, "is not built link by link"),
    ],
)
def test_what_cannot_be_built(topology: Topology, nodes: int, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        fabric_of(cluster_of(topology), nodes)
    assert problem in refused.value.message
    assert refused.value.hint


def test_more_nodes_than_the_cluster_has() -> None:
    with pytest.raises(InputError) as caught:
        fabric_of(replace(presets.cluster("h100-dgx"), nodes=4), 5)
    assert caught.value.code == "cluster-too-small"
    wrong = replace(cluster_of(Topology("torus", dimensions=(2, 2))), nodes=8)
    with pytest.raises(InputError, match="a torus of 2 × 2 has 4 nodes, the cluster 8") as caught:
        fabric_of(wrong, 4)
    assert caught.value.code == "bad-topology"
