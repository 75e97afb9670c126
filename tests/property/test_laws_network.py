"""Gates of the network model: bytes, bounds and bandwidth, over random groups on all clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.placement import Placement
from foretrace.cost.network import NcclNetwork
from foretrace.cost.network.nccl.bound import bound_s
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Collective

CLUSTERS = presets.names("cluster")
PRICED = [one for one in Collective if one is not Collective.NONE]
groups = st.tuples(st.sampled_from(CLUSTERS), st.integers(2, 40), st.integers(1, 9), st.integers(0, 30))
Members = tuple[str, int, int, int]


def network(cluster: Cluster, group: Members, slowdown: float = 1.0) -> tuple[NcclNetwork, GroupLayout]:
    """A packed cluster, and a group of ranks on it: so many, so far apart, from a first one on."""
    _, ranks, stride, first = group
    members = first + stride * np.arange(ranks)
    found = NcclNetwork(cluster, Placement.packed(int(members[-1]) + 1, cluster.node.gpus), slowdown=slowdown)
    layout = found.layouts(members[None])[0][0]
    assert isinstance(layout, GroupLayout)
    return found, layout


def price(cluster: Cluster, group: Members, what: Collective, size: list[float]) -> list[float]:
    found, layout = network(cluster, group)
    return [float(one) for one in found.price(what, layout, np.array(size)).duration_s]


@given(groups, st.sampled_from(PRICED), st.floats(0, 1e12), st.floats(1, 100))
def test_more_bytes_never_take_less(group: Members, what: Collective, size: float, more: float) -> None:
    less, larger = price(presets.cluster(group[0]), group, what, [size, size * more])
    assert less <= larger * (1 + 1e-12)


@given(groups, st.sampled_from(PRICED))
def test_times_rise_over_all_sizes(group: Members, what: Collective) -> None:
    """Also around the sizes at which NCCL changes its way."""
    sizes = np.unique(np.concatenate([2.0 ** np.arange(0, 42, 0.07), 2.0 ** np.arange(42) - 1, 2.0 ** np.arange(42)]))
    times = np.array(price(presets.cluster(group[0]), group, what, sizes.tolist()))
    assert np.isfinite(times).all() and (times > 0).all()
    assert (np.diff(times) >= -1e-12 * times[1:]).all()


@given(groups, st.sampled_from(PRICED), st.floats(0, 1e12))
def test_a_price_does_not_depend_on_the_sizes_asked_with_it(group: Members, what: Collective, size: float) -> None:
    cluster = presets.cluster(group[0])
    assert price(cluster, group, what, [1.0, size, 1e9])[1] == price(cluster, group, what, [size])[0]


@given(groups, st.sampled_from(PRICED), st.floats(1, 1e12))
def test_no_collective_beats_its_busiest_port(group: Members, what: Collective, size: float) -> None:
    cluster = presets.cluster(group[0])
    found, layout = network(cluster, group)
    explained = found.explain(what, layout, size)
    least = float(bound_s(cluster, what, layout, np.array([size]))[0])
    assert explained.time_s >= least * (1 - 1e-12)
    assert what is Collective.BARRIER or explained.bound_s == least
    assert explained.time_s == price(cluster, group, what, [size])[0]
    assert 0 <= explained.latency_s <= explained.time_s * (1 + 1e-12)


@given(groups, st.sampled_from(PRICED), st.floats(0, 1e12), st.floats(1, 10), st.sampled_from(["link", "nic", "pcie"]))
def test_more_bandwidth_never_makes_it_slower(
    group: Members, what: Collective, size: float, more: float, part: str
) -> None:
    cluster = presets.cluster(group[0])
    node, gpu = cluster.node, cluster.gpu
    if part == "nic":
        node = replace(node, nic=replace(node.nic, bytes_per_s=node.nic.bytes_per_s * more))
    elif part == "link":
        node = replace(node, gpu=replace(gpu, link_bytes_per_s=gpu.link_bytes_per_s * more))
    else:
        node = replace(node, gpu=replace(gpu, pcie_bytes_per_s=gpu.pcie_bytes_per_s * more))
    slow, fast = (price(one, group, what, [size])[0] for one in (cluster, replace(cluster, node=node)))
    assert fast <= slow * (1 + 1e-12)


@given(groups, st.sampled_from(PRICED), st.floats(0, 1e12), st.floats(1, 3))
def test_slower_sms_never_speed_a_call_up(group: Members, what: Collective, size: float, factor: float) -> None:
    cluster = presets.cluster(group[0])
    alone, layout = network(cluster, group)
    training, _ = network(cluster, group, slowdown=factor)
    quick, slow = (float(one.price(what, layout, np.array([size])).duration_s[0]) for one in (alone, training))
    assert quick <= slow * (1 + 1e-12) <= quick * factor * (1 + 1e-9)
