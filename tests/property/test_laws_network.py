"""Gates of the network model: bytes, bounds, bandwidth and limits, over random groups on random machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, event, given
from hypothesis import strategies as st

from foretrace.basics.placement import Placement
from foretrace.cost.network import NcclNetwork, network_of
from foretrace.cost.network.experts import limit_call, price_call
from foretrace.cost.network.interface import Limit, LimitKind
from foretrace.cost.network.nccl.bound import bound_s
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.cost.network.nccl.plan import CallPlan
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Collective

PRICED = [one for one in Collective if one is not Collective.NONE]
STYLES = ("deepep", "hybridep", "low_latency", "hierarchical")
Members = tuple[int, int, int]
"""How many ranks, how far apart, and the first of them."""

groups = st.tuples(st.integers(2, 40), st.integers(1, 9), st.integers(0, 30))
# Drawn as exponents, so that slow and fast machines are as frequent as each other.
factors = st.floats(-3, 4).map(lambda power: 2.0**power)


def faster(cluster: Cluster, nic: float = 1.0, nvlink: float = 1.0, pcie: float = 1.0, uplink: float = 1.0) -> Cluster:
    """The same cluster with some of its figures multiplied."""
    node, gpu, topology = cluster.node, cluster.gpu, cluster.topology
    gpu = replace(gpu, link_bytes_per_s=gpu.link_bytes_per_s * nvlink, pcie_bytes_per_s=gpu.pcie_bytes_per_s * pcie)
    node = replace(node, gpu=gpu, nic=replace(node.nic, bytes_per_s=node.nic.bytes_per_s * nic))
    topology = replace(topology, oversubscription=max(topology.oversubscription / uplink, 1.0))
    return replace(cluster, node=node, topology=topology)


machines = st.builds(
    lambda name, nic, nvlink, pcie, above: faster(
        replace(presets.cluster(name), topology=replace(presets.cluster(name).topology, oversubscription=above)),
        nic,
        nvlink,
        pcie,
    ),
    st.sampled_from(presets.names("cluster")),
    factors,
    factors,
    factors,
    st.sampled_from([1.0, 1.0, 2.0, 5.0]),
)


def network(
    cluster: Cluster, group: Members, slowdown: float = 1.0, machine: NcclMachine | None = None
) -> tuple[NcclNetwork, GroupLayout]:
    """A packed cluster, and a group of ranks on it."""
    ranks, stride, first = group
    members = first + stride * np.arange(ranks)
    placement = Placement.packed(int(members[-1]) + 1, cluster.node.gpus)
    found = NcclNetwork(cluster, placement, machine=machine, slowdown=slowdown)
    layout = found.layouts(members[None])[0][0]
    assert isinstance(layout, GroupLayout)
    return found, layout


def price(cluster: Cluster, group: Members, what: Collective, size: list[float]) -> list[float]:
    found, layout = network(cluster, group)
    return [float(one) for one in found.price(what, layout, np.array(size)).duration_s]


@given(machines, groups, st.sampled_from(PRICED), st.floats(0, 1e12), st.floats(1, 100))
def test_more_bytes_never_take_less(
    cluster: Cluster, group: Members, what: Collective, size: float, more: float
) -> None:
    less, larger = price(cluster, group, what, [size, size * more])
    assert less <= larger * (1 + 1e-12)


@given(machines, groups, st.sampled_from(PRICED))
def test_times_rise_over_all_sizes(cluster: Cluster, group: Members, what: Collective) -> None:
    """Also around the sizes at which NCCL changes its way."""
    sizes = np.unique(np.concatenate([2.0 ** np.arange(0, 42, 0.07), 2.0 ** np.arange(42) - 1, 2.0 ** np.arange(42)]))
    times = np.array(price(cluster, group, what, sizes.tolist()))
    assert np.isfinite(times).all() and (times > 0).all()
    assert (np.diff(times) >= -1e-12 * times[1:]).all()
    assert times[-1] > times[0]


@given(machines, groups, st.sampled_from(PRICED), st.floats(0, 1e12))
def test_a_price_does_not_depend_on_the_sizes_asked_with_it(
    cluster: Cluster, group: Members, what: Collective, size: float
) -> None:
    assert price(cluster, group, what, [1.0, size, 1e9])[1] == price(cluster, group, what, [size])[0]


@given(machines, groups, st.sampled_from(PRICED), st.floats(1, 1e12))
def test_no_collective_beats_its_busiest_port(cluster: Cluster, group: Members, what: Collective, size: float) -> None:
    found, layout = network(cluster, group)
    explained = found.explain(what, layout, size)
    least = float(bound_s(cluster, what, layout, np.array([size]))[0])
    assert explained.time_s >= least * (1 - 1e-12)
    assert what is Collective.BARRIER or explained.bound_s == least
    assert explained.time_s == price(cluster, group, what, [size])[0]
    assert 0 <= explained.latency_s <= explained.time_s * (1 + 1e-12)


@given(
    machines,
    groups,
    st.sampled_from(PRICED),
    st.floats(0, 1e12),
    st.floats(1, 10),
    st.sampled_from(["nic", "nvlink", "pcie", "uplink"]),
)
def test_a_better_figure_never_makes_it_slower(
    cluster: Cluster, group: Members, what: Collective, size: float, more: float, figure: str
) -> None:
    """NCCL's choice does not depend on these figures here, so the way is the same."""
    slow, fast = (price(one, group, what, [size])[0] for one in (cluster, faster(cluster, **{figure: more})))
    assert fast <= slow * (1 + 1e-12)


@given(machines, groups, st.sampled_from(PRICED), st.floats(0, 1e12), st.floats(1, 3))
def test_slower_sms_never_speed_a_call_up(
    cluster: Cluster, group: Members, what: Collective, size: float, factor: float
) -> None:
    alone, layout = network(cluster, group)
    training, _ = network(cluster, group, slowdown=factor)
    quick, slow = (float(one.price(what, layout, np.array([size])).duration_s[0]) for one in (alone, training))
    assert quick <= slow * (1 + 1e-12) <= quick * factor * (1 + 1e-9)


@given(machines, groups, st.sampled_from(PRICED), st.floats(12, 42).map(lambda power: 2.0**power))
def test_twice_the_named_limit_alone_is_faster(cluster: Cluster, group: Members, what: Collective, size: float) -> None:
    found, layout = network(cluster, group)
    limit = found.limit(what, layout, size)
    event(limit.kind)
    assert 0 < limit.share <= 1 and limit.name
    if limit.kind == "channels":
        plan = found.plan(what, layout)
        twice = CallPlan(plan.group.scaled("channels", 2.0), plan.what, plan.ways)
        fast = float(twice.price(np.array([size]))[1][0])
    elif limit.kind == "latency":
        quick = machine_of(cluster.gpu).slowed(1.0)
        quick = replace(
            quick, launch_s=quick.launch_s / 2, step_scale=quick.step_scale / 2, simple_step_s=quick.simple_step_s / 2
        )
        other, same = network(cluster, group, machine=quick)
        fast = float(other.price(what, same, np.array([size])).duration_s[0])
    else:
        fast = price(faster(cluster, **{limit.kind: 2.0}), group, what, [size])[0]
    assert fast < price(cluster, group, what, [size])[0]


@given(machines, groups, st.sampled_from(PRICED), st.floats(12, 42).map(lambda power: 2.0**power))
def test_no_other_figure_helps_more_than_the_named_share(
    cluster: Cluster, group: Members, what: Collective, size: float
) -> None:
    """A little more of any other figure saves no larger part of the time than of the named one."""
    found, layout = network(cluster, group)
    limit = found.limit(what, layout, size)
    before = price(cluster, group, what, [size])[0]
    for figure in {"nic", "nvlink", "pcie"} - {limit.kind}:
        # What the NICs' network carries is stated as a multiple of them, and grows with them.
        assume(figure != "nic" or limit.kind != "uplink")
        after = price(faster(cluster, **{figure: 1.001}), group, what, [size])[0]
        assert (before - after) / before <= 0.001 * limit.share * (1 + 1e-3) + 1e-9


@given(
    machines,
    groups,
    st.sampled_from(STYLES),
    st.floats(18, 34).map(lambda power: 2.0**power),
)
def test_twice_the_named_limit_of_a_dispatch_is_faster(
    cluster: Cluster, group: Members, style: str, size: float
) -> None:
    def asked(cluster: Cluster) -> tuple[float, Limit]:
        found, layout = network(cluster, group)
        way = f"dispatch style={style} experts=256 topk=8"
        call = (found, Collective.ALL_TO_ALL, layout)
        return float(price_call(*call, np.array([size]), way).duration_s[0]), limit_call(*call, size, way)

    before, limit = asked(cluster)
    event(limit.kind)
    assume(limit.kind not in ("latency", "channels"))
    assert asked(faster(cluster, **{limit.kind: 2.0}))[0] < before


@given(
    st.integers(3, 6),
    st.sampled_from([2.0, 3.0, 7.0]),
    st.sampled_from([Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL]),
    st.floats(26, 36).map(lambda power: 2.0**power),
)
def test_named_uplinks_are_those_of_the_explicit_network(
    nodes: int, above: float, what: Collective, size: float
) -> None:
    """Leaves of two nodes, whose uplinks carry less than the NICs beneath."""
    dgx = presets.cluster("h100-dgx")
    narrow = replace(dgx, topology=replace(dgx.topology, kind="fat-tree", leaf_ports=16, oversubscription=above))
    world = nodes * dgx.node.gpus

    def asked(cluster: Cluster) -> tuple[float, LimitKind]:
        found = network_of(cluster, world)
        (layout, *_), _ = found.layouts(np.arange(world)[None])
        return float(found.price(what, layout, np.array([size])).duration_s[0]), found.limit(what, layout, size).kind

    before, named = asked(narrow)
    event(named)
    assume(named == "uplink")
    assert asked(faster(narrow, uplink=2.0))[0] < before
