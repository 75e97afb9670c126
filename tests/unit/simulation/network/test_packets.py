"""Packets are ns-3's: where it is missing, the error says what to install; where it is, packets come near the flows."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from foretrace.basics.errors import InputError, UsageError
from foretrace.program.columns import Collective
from foretrace.simulation.network.flow_network import FlowNetwork
from foretrace.simulation.network.flows import flow_time
from foretrace.simulation.network.packets import packet_time
from small_fabric import leaf_spine

installed = importlib.util.find_spec("ns") is not None


def network(leaves: int, gpus_of_leaf: int) -> FlowNetwork:
    fabric, routing = leaf_spine(leaves, gpus_of_leaf, spines=1)
    return FlowNetwork(fabric, routing, fabric.bytes_per_s)


@pytest.mark.skipif(installed, reason="ns-3 is installed")
def test_without_ns3_the_error_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"foretrace\[packets\]") as caught:
        packet_time(Collective.ALL_TO_ALL, 1e6, np.arange(4), network(1, 4))
    assert caught.value.code == "missing-package"


@pytest.mark.skipif(not installed, reason="ns-3 is not installed: pip install 'foretrace[packets]'")
@pytest.mark.parametrize("collective", [Collective.ALL_TO_ALL, Collective.ALL_REDUCE])
def test_packets_come_near_the_flows(collective: Collective) -> None:
    links = network(2, 4)
    packets = packet_time(collective, 8e6, np.arange(8), links)
    flows = flow_time(collective, 8e6, np.arange(8), links, latency_s=0.0)
    np.testing.assert_allclose(packets.link_bytes, flows.link_bytes, rtol=1e-9)
    assert flows.time_s <= packets.time_s <= 2 * flows.time_s


@pytest.mark.skipif(not installed, reason="ns-3 is not installed: pip install 'foretrace[packets]'")
def test_too_many_packets_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        packet_time(Collective.ALL_TO_ALL, 1e12, np.arange(8), network(2, 4))
    assert caught.value.code == "too-large"
