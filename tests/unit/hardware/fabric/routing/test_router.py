"""The ways that flows take, on networks small enough to see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.build import fabric_of
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.hashing import mixed, picked
from foretrace.hardware.fabric.routing.router import Router
from foretrace.hardware.fabric.topology import Topology


def cluster_of(topology: Topology, name: str = "h100-dgx") -> Cluster:
    return replace(presets.cluster(name), topology=topology)


def way(cluster: Cluster, nodes: int, source: int, target: int, merge: bool = True) -> list[str]:
    """The devices on a single way, or the links of a divided one."""
    fabric = fabric_of(cluster, nodes, merge=merge)
    routes = Router(fabric, cluster.topology).routes(np.array([source]), np.array([target]))
    return [fabric.labels[source], *(fabric.labels[int(fabric.target[link])] for link in routes.link)]


def loads(cluster: Cluster, nodes: int, merge: bool = True) -> tuple[Fabric, np.ndarray]:
    """Units on each link when every GPU sends one to every other."""
    fabric = fabric_of(cluster, nodes, merge=merge)
    first, second = np.divmod(np.arange(fabric.gpus**2), fabric.gpus)
    routes = Router(fabric, cluster.topology).routes(first, second)
    return fabric, np.bincount(routes.link, routes.share, minlength=fabric.links)


def test_links_before_nics() -> None:
    cluster = cluster_of(Topology())
    assert way(cluster, 2, 1, 6) == ["node 0 GPU 1", "link switch 0", "node 0 GPU 6"]
    assert way(cluster, 2, 1, 1) == ["node 0 GPU 1"]
    across = ["node 0 GPU 1", "node 0 NIC 1", "leaf 0", "node 1 NIC 3", "node 1 GPU 3"]
    assert way(cluster, 2, 1, 11) == across
    assert way(cluster_of(Topology(), "gb200-nvl72"), 18, 0, 71) == ["node 0 GPU 0", "link switch 0", "node 17 GPU 3"]


def test_pcie_within_a_node_that_links_do_not_join() -> None:
    cluster = cluster_of(Topology(), "h100-pcie")
    assert way(cluster, 2, 0, 1) == ["node 0 GPU 0", "node 0 GPU 1"]
    root = ["node 0 GPU 0", "node 0 PCIe 0", "node 0 PCIe root", "node 0 PCIe 3", "node 0 GPU 7"]
    assert way(cluster, 2, 0, 7) == root
    shared_nic = ["node 0 GPU 1", "node 0 PCIe 0", "node 0 NIC 0", "leaf 0", "node 1 NIC 0", "node 1 PCIe 0"]
    assert way(cluster, 2, 1, 8) == [*shared_nic, "node 1 GPU 0"]


def test_rails_need_no_spines_where_data_changes_rails_in_its_node() -> None:
    rail = Topology("rail-optimised", routing="rail")
    over = ["node 0 GPU 1", "link switch 0", "node 0 GPU 3", "node 0 NIC 3", "leaf 3", "node 1 NIC 3", "node 1 GPU 3"]
    assert way(cluster_of(rail), 4, 1, 11) == over
    fabric, load = loads(cluster_of(rail), 4)
    assert load[fabric.kind[fabric.target] == Device.SPINE].sum() == 0
    fabric, load = loads(cluster_of(replace(rail, routing="spread")), 4)
    assert load[fabric.kind[fabric.target] == Device.SPINE].sum() == 32 * (32 - 8 - 3)


def test_planes_that_meet_nowhere_are_reached_through_the_node() -> None:
    planes = Topology(planes=8)
    assert way(cluster_of(planes), 2, 0, 10)[:4] == ["node 0 GPU 0", "link switch 0", "node 0 GPU 2", "node 0 NIC 2"]
    bare = cluster_of(planes)
    bare = replace(bare, node=replace(bare.node, domain_gpus=1, switched=False))
    with pytest.raises(InputError, match="no way from node 0 GPU 0 to node 1 GPU 1") as caught:
        way(bare, 2, 0, 9)
    assert caught.value.code == "no-route"


def test_equal_paths_share_a_flow() -> None:
    fabric = fabric_of(cluster_of(Topology(leaf_ports=8)), 2, merge=False)
    assert int((fabric.kind == Device.SPINE).sum()) == 1
    fabric = fabric_of(cluster_of(Topology("spectrum-x", leaf_ports=1)), 2, merge=False)
    routes = Router(fabric, Topology("spectrum-x")).routes(np.array([0]), np.array([8]))
    up = fabric.kind[fabric.target[routes.link]] == Device.SPINE
    assert routes.share[up].tolist() == pytest.approx([1 / 64] * 64)


def test_a_hash_is_the_same_everywhere() -> None:
    # The first outputs of SplitMix64 from seed 0, as its reference implementation prints them.
    assert mixed(np.array([0, 1, 2]), 0).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mixed(np.array([1 << 40]), 7)[0] != mixed(np.array([7]), 1 << 40)[0]
    chosen = picked(mixed(np.arange(60_000), 3), np.full(60_000, 6))
    assert np.bincount(chosen, minlength=6).tolist() == pytest.approx([10_000] * 6, rel=0.04)


def test_hashed_flows_collide_and_the_seed_changes_where() -> None:
    worst = []
    for seed in (0, 1):
        cluster = cluster_of(Topology(leaf_ports=8, routing="ecmp", seed=seed))
        fabric = fabric_of(cluster, 4)
        assert fabric.cables is not None
        assert fabric.cables.max() == 1
        gpus = np.arange(32)
        routes = Router(fabric, cluster.topology).routes(gpus, (gpus + 8) % 32)
        load = np.bincount(routes.link, routes.share, minlength=fabric.links)
        up = np.flatnonzero(fabric.kind[fabric.target] == Device.SPINE)
        assert load[up].sum() == 32
        worst.append(load[up].tolist())
    assert max(worst[0]) > 1  # eight flows of a leaf over eight cables: some meet
    assert worst[0] != worst[1]


def test_a_torus_goes_the_short_way_round() -> None:
    cluster = cluster_of(Topology("torus", dimensions=(5,)))
    assert way(cluster, 5, 0, 4 * 8)[2:4] == ["leaf 0", "leaf 4"]
    fabric, load = loads(cluster, 5)
    ring = (fabric.kind[fabric.source] == Device.LEAF) & (fabric.kind[fabric.target] == Device.LEAF)
    assert load[ring].tolist() == pytest.approx([64 * (1 + 2)] * 10)


def test_a_failed_nic_is_served_by_a_neighbour() -> None:
    cluster = cluster_of(Topology(failed=("node 0 NIC 1",)))
    around = ["node 0 GPU 1", "link switch 0", "node 0 GPU 3", "node 0 NIC 3", "leaf 0", "node 1 NIC 3", "node 1 GPU 3"]
    assert way(cluster, 2, 1, 11) == around
    back = way(cluster, 2, 11, 1)
    assert back[-2:] == ["link switch 0", "node 0 GPU 1"]
    _, load = loads(cluster, 2)
    assert load.sum() > 0


def test_failures_reroute_or_say_who_is_cut_off() -> None:
    cluster = cluster_of(Topology(leaf_ports=8, failed=("spine 0",)))
    fabric = fabric_of(cluster, 4, merge=False)
    assert not (fabric.source == fabric.labels.index("spine 0")).any()
    assert way(cluster, 4, 0, 8, merge=False)[3] != "spine 0"
    alone = cluster_of(Topology(failed=("leaf 0",)))
    with pytest.raises(InputError) as refused:
        way(alone, 2, 3, 9)
    assert refused.value.message.endswith("no way from node 0 GPU 3 to node 1 GPU 1; failed: leaf 0")
    assert way(alone, 2, 3, 4) == ["node 0 GPU 3", "link switch 0", "node 0 GPU 4"]


def test_a_failed_uplink_makes_others_carry_more() -> None:
    whole = cluster_of(Topology(leaf_ports=8))
    broken = replace(whole, topology=replace(whole.topology, failed=("leaf 0 - spine 1",)))
    worst = []
    for cluster in (whole, broken):
        fabric, load = loads(cluster, 4, merge=False)
        up = fabric.kind[fabric.target] == Device.SPINE
        worst.append((load / fabric.bytes_per_s)[up].max())
    assert worst[1] == pytest.approx(2 * worst[0])


@pytest.mark.parametrize(
    ("failed", "problem"),
    [
        ("leaf 99", 'has no device called "leaf 99"'),
        ("leef 1", "did you mean leaf 1?"),
        ("leaf0 - spine0", "did you mean leaf 0?"),
        ("leaf 0 - leaf 1", "no link joins leaf 0 and leaf 1"),
        ("a - b - c", 'no device called "a"'),
        ("node 0 GPU 1", "is a GPU, without which the job cannot run"),
        ("leaf 0 > spine 0", "cannot fail"),
    ],
)
def test_names_that_mean_nothing(failed: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        fabric_of(cluster_of(Topology(leaf_ports=8, failed=(failed,))), 4)
    assert problem in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("name", ["leaf0-spine0", "leaf 0-spine 0"])
def test_how_a_link_is_written(name: str) -> None:
    with pytest.raises(InputError) as refused:
        fabric_of(cluster_of(Topology(leaf_ports=8, failed=(name,))), 4)
    assert (refused.value.hint or "").startswith('a link is written "leaf 0 - spine 0", with spaces')


@pytest.mark.parametrize(("failed", "busy"), [("leaf 1 - spine 0", "leaf 1 > spine 0"), ("spine 0", "spine 0")])
def test_no_other_traffic_is_on_what_is_out_of_service(failed: str, busy: str) -> None:
    with pytest.raises(InputError, match=f'"{busy}" is out of service'):
        fabric_of(cluster_of(Topology(leaf_ports=8, failed=(failed,), background=((busy, 1e9),))), 4)
    some = Topology(leaf_ports=8, failed=(failed,), background=(("uplinks", 1e9),))
    plain = fabric_of(cluster_of(replace(some, background=())), 4, merge=False)
    rest = fabric_of(cluster_of(some), 4, merge=False)
    between = (rest.kind[rest.source] >= Device.LEAF) & (rest.kind[rest.target] >= Device.LEAF)
    assert rest.bytes_per_s[between] == pytest.approx(plain.bytes_per_s[between] - 1e9)


def test_other_traffic_takes_its_part() -> None:
    cluster = cluster_of(Topology(leaf_ports=8, background=(("leaf 1 > spine 0", 30e9), ("nodes", 49.9e9))))
    fabric = fabric_of(cluster, 4, merge=False)
    rate = {fabric.link_label(link): float(fabric.bytes_per_s[link]) for link in range(fabric.links)}
    plain = fabric_of(cluster_of(Topology(leaf_ports=8)), 4, merge=False)
    line = float(plain.bytes_per_s[plain.kind[plain.target] == Device.SPINE][0])
    assert rate["leaf 1 - spine 0"] == pytest.approx(line - 30e9)
    assert rate["spine 0 - leaf 1"] == line
    assert rate["node 0 NIC 0 - leaf 0"] == pytest.approx(0.01 * 50e9)  # a hundredth is always left
    too_much = cluster_of(Topology(background=(("nodes", 60e9),)))
    with pytest.raises(InputError, match=r"60.0 GB/s is more than node 0 NIC 0 - leaf 0 carries \(50.0 GB/s\)"):
        fabric_of(too_much, 2)


def test_gpus_that_are_not_there() -> None:
    fabric = fabric_of(cluster_of(Topology()), 2)
    router = Router(fabric, Topology())
    for wrong in (-1, 16):
        with pytest.raises(InputError, match=f"there is no GPU {wrong}") as caught:
            router.routes(np.array([0]), np.array([wrong]))
        assert caught.value.code == "no-such-rank"
    nothing = router.routes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert nothing.start.tolist() == [0]


def test_one_gpu_alone() -> None:
    base = presets.cluster("h100-dgx")
    cluster = replace(base, node=replace(base.node, gpus=1, nics=1, domain_gpus=1, switched=False))
    fabric = fabric_of(cluster, 1)
    assert fabric.gpus == 1
    assert Router(fabric, cluster.topology).routes(np.array([0]), np.array([0])).start.tolist() == [0, 0]


def test_names_of_a_cluster_hold_for_a_smaller_job() -> None:
    cluster = replace(cluster_of(Topology(leaf_ports=8, failed=("leaf 3 - spine 0",))), nodes=4)
    fabric = fabric_of(cluster, 1)
    assert fabric.gpus == 32
