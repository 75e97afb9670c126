"""All-to-alls by kinds of sources are the same as message by message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.engine.network.all_to_all import even_all_to_all, kinds_of
from foretrace.engine.network.collectives import pairs, routed
from foretrace.engine.network.flows import run_flows
from small_fabric import leaf_spine


@pytest.mark.parametrize(
    ("leaves", "gpus_of_leaf", "group"),
    [(4, 4, range(16)), (2, 8, range(16)), (3, 4, range(10)), (4, 4, [0, 1, 2, 3, 4, 8, 12]), (1, 6, range(6))],
)
@pytest.mark.parametrize("oversubscription", [1.0, 3.0])
def test_the_same_as_message_by_message(
    leaves: int, gpus_of_leaf: int, group: list[int], oversubscription: float
) -> None:
    fabric, routing = leaf_spine(leaves, gpus_of_leaf, oversubscription=oversubscription)
    gpus = np.array(group)
    quick = even_all_to_all(fabric, fabric.bytes_per_s, gpus, routing, 1e6)
    sends = pairs(np.full((len(gpus), len(gpus)), 1e6))
    ran = run_flows(
        fabric.bytes_per_s, routed(sends, gpus, routing, fabric.latency_s, np.zeros(len(gpus))), folded=False
    )
    ends = np.zeros(len(gpus))
    np.maximum.at(ends, sends.source, ran.end_s)
    np.maximum.at(ends, sends.target, ran.end_s)
    np.testing.assert_allclose(quick.end_s, ends, rtol=1e-9)
    np.testing.assert_allclose(quick.link_bytes, ran.link_bytes, rtol=1e-9)
    np.testing.assert_allclose(quick.link_busy_s, ran.link_busy_s, rtol=1e-9)


def test_a_slow_uplink_tells_its_leaf_from_the_others() -> None:
    fabric, routing = leaf_spine(4, 4)
    rate = fabric.bytes_per_s.copy()
    rate[2 * 16] /= 2  # from leaf 0 to spine 0
    slow = replace(fabric, bytes_per_s=rate)
    kinds, _ = kinds_of(slow, rate, np.arange(16))
    assert len(set(kinds[:4].tolist())) == 1
    assert len(set(kinds[4:16].tolist())) == 1
    assert kinds[0] != kinds[4]
    quick = even_all_to_all(slow, rate, np.arange(16), routing, 1e6)
    messages = routed(pairs(np.full((16, 16), 1e6)), np.arange(16), routing, fabric.latency_s, np.zeros(16))
    ran = run_flows(rate, messages, folded=False)
    assert quick.end_s.max() == pytest.approx(ran.time_s, rel=1e-9)
    np.testing.assert_allclose(quick.link_bytes, ran.link_bytes, rtol=1e-9)


def test_who_receives_slowly_is_done_late() -> None:
    fabric, routing = leaf_spine(2, 4)
    rate = fabric.bytes_per_s.copy()
    rate[1] /= 10  # from its leaf to GPU 0
    quick = even_all_to_all(replace(fabric, bytes_per_s=rate), rate, np.arange(8), routing, 1e6, 0.0)
    assert quick.end_s.tolist() == pytest.approx([7e6 / 5e9] * 8)
