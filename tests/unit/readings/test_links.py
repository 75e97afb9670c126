"""What a step puts on every link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace import Machine, Mesh, Placement, Program, ProgramBuilder, simulate
from foretrace.basics.errors import InputError
from foretrace.cost.network import network_of
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Device
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective
from foretrace.readings.links import MAX_GPUS, LinkLoads, link_loads

H100 = replace(cluster("h100-dgx"), topology=Topology(kind="fat-tree", leaf_ports=16))
SIZE = 1 << 28


def job(world: int = 32) -> Program:
    build = ProgramBuilder(Mesh(tp=8, dp=world // 8), repeats=False)
    role = build.role("all", range(world))
    role.compute("work", 1e-3)
    role.collective("all_gather", build.communicator("tp"), bytes=SIZE)
    role.collective("all_gather", build.communicator("dp"), bytes=SIZE)
    role.collective("all_to_all", build.groups("ep", [range(world)]), bytes=SIZE)
    return build.program()


def loads(program: Program, on: Cluster = H100) -> LinkLoads:
    return link_loads(simulate(program, Machine(on), explain=False), on)


def between(loaded: LinkLoads, below: Device, above: Device) -> np.ndarray:
    kind, fabric = loaded.fabric.kind, loaded.fabric
    return np.flatnonzero((kind[fabric.source] == below) & (kind[fabric.target] == above))


def test_every_axis_is_on_its_links() -> None:
    loaded = loads(job())
    assert set(loaded.axes) == {"tp", "dp", "ep"}
    out = between(loaded, Device.NIC, Device.LEAF)
    by_axis = dict(zip(loaded.axes, loaded.bytes_by_axis, strict=True))
    assert by_axis["tp"][out].sum() == 0
    for axis, what, groups in (
        ("dp", Collective.ALL_GATHER, np.arange(32).reshape(4, 8).T.copy()),
        ("ep", Collective.ALL_TO_ALL, np.arange(32)[None]),
    ):
        network = network_of(H100, 32)
        (kind,), _ = network.layouts(groups)
        nic = dict(network.explain(what, kind, float(SIZE)).draws)["nic"]
        assert by_axis[axis][out] == pytest.approx(np.full(32, nic))


def test_of_a_ring_the_last_node_of_a_leaf_leaves_it() -> None:
    """Two nodes to a leaf, four in a ring: half of what NICs send goes up."""
    build = ProgramBuilder(Mesh(tp=8, dp=4), repeats=False)
    build.role("all", range(32)).collective("all_gather", build.communicator("dp"), bytes=SIZE)
    loaded = loads(build.program())
    nics, uplinks = between(loaded, Device.NIC, Device.LEAF), between(loaded, Device.LEAF, Device.SPINE)
    carried = loaded.bytes_by_axis.sum(axis=0)
    assert carried[uplinks].sum() == pytest.approx(carried[nics].sum() / 2)


def test_a_transfer_goes_one_way() -> None:
    build = ProgramBuilder(Mesh(dp=8, pp=2), repeats=False)
    for stage in range(2):
        role = build.role(f"stage {stage}", range(8 * stage, 8 * stage + 8))
        role.transfer("send", build.pair("pp", 0, 1), to=1 if stage == 0 else None, bytes=SIZE)
    loaded = loads(build.program())
    carried = loaded.bytes_by_axis.sum(axis=0)
    out = carried[between(loaded, Device.NIC, Device.LEAF)]
    assert sorted(out.tolist()) == pytest.approx([0.0] * 8 + [float(SIZE)] * 8)


def test_the_hottest_links_are_named() -> None:
    loaded = loads(job())
    hottest = loaded.hottest(3)
    assert hottest[0].utilisation == pytest.approx(loaded.utilisation.max())
    assert [one.utilisation for one in hottest] == sorted((one.utilisation for one in hottest), reverse=True)
    assert hottest[0].label == loaded.fabric.link_label(hottest[0].link)
    assert sum(hottest[0].bytes_by_axis.values()) == pytest.approx(loaded.bytes_by_axis[:, hottest[0].link].sum())


def test_more_than_a_link_carries_shows_where_each_went_as_if_alone() -> None:
    """dp and ep run at once: as if alone they put more on NICs than these carry in the step; sharing, they do not."""
    assert loads(job()).utilisation.max() > 1.0
    assert link_loads(simulate(job(), Machine(H100, network="flow"), explain=False)).utilisation.max() <= 1.0


def test_ranks_send_from_where_they_are_placed() -> None:
    """Ranks of a tp group on nodes of their own use NICs, on which a packed group has nothing."""
    rank = np.arange(32, dtype=np.int32)
    for placement, uses_nics in ((None, False), (Placement(rank % 4, rank // 4), True)):
        loaded = link_loads(simulate(job(), Machine(H100, placement=placement), explain=False))
        by_axis = dict(zip(loaded.axes, loaded.bytes_by_axis, strict=True))
        assert bool(by_axis["tp"][between(loaded, Device.NIC, Device.LEAF)].any()) is uses_nics


def test_what_has_no_links_or_too_many_is_refused() -> None:
    build = ProgramBuilder(Mesh(dp=2))
    build.role("all", range(2)).compute("work", 1.0)
    alone = simulate(build.program())
    with pytest.raises(InputError) as caught:
        link_loads(alone)
    assert caught.value.code == "needs-cluster"
    with pytest.raises(InputError) as caught:
        link_loads(replace(alone, world_size=MAX_GPUS + 1), H100)
    assert caught.value.code == "too-large"
