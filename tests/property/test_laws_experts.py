"""Laws of the ways tokens go to experts: never less than the bytes need, rising with tokens, each place met once."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from foretrace.cost.network import Network, network_of
from foretrace.cost.network.experts import explain_call, price_call
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.uneven_all_to_all import uneven_price
from foretrace.hardware import presets
from foretrace.program.columns import Collective
from foretrace.program.dispatch import STYLES, Dispatch, dispatch_text

CLUSTERS = ("a100-dgx", "h100-dgx", "h800-hgx", "b200-dgx", "gb200-nvl72", "mi300x")
TO_ALL = Collective.ALL_TO_ALL
CLOSE = 1 + 1e-9


@st.composite
def ways(draw: st.DrawFn, styles: tuple[str, ...] = STYLES) -> tuple[Network, GroupLayout, Dispatch]:
    """Experts on some ranks of some cluster, neighbours or not."""
    ranks, stride = draw(st.sampled_from([2, 4, 8, 16, 32, 64])), draw(st.sampled_from([1, 2, 4]))
    experts = ranks * draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.sampled_from([one for one in (1, 2, 4, 8) if experts % one == 0]))
    chosen = draw(st.integers(1, groups))
    topk = draw(st.integers(1, min(8, experts * chosen // groups)))
    network = network_of(presets.cluster(draw(st.sampled_from(CLUSTERS))), ranks * stride)
    layout = network.layouts((np.arange(ranks) * stride)[None])[0][0]
    assert isinstance(layout, GroupLayout)
    return network, layout, Dispatch(draw(st.sampled_from(styles)), experts, topk, groups, chosen)


sizes = st.floats(1.0, 1e11)


@given(ways(), sizes, st.floats(1.0, 100.0))
def test_more_tokens_take_longer(way: tuple[Network, GroupLayout, Dispatch], size: float, more: float) -> None:
    network, layout, one = way
    found = price_call(network, TO_ALL, layout, np.array([size, size * more]), dispatch_text(one))
    assert np.isfinite(found.duration_s).all()
    assert (found.latency_s <= found.duration_s * CLOSE).all()
    assert found.duration_s[0] <= found.duration_s[1] * CLOSE


@given(ways(), sizes)
def test_no_way_beats_its_busiest_port(way: tuple[Network, GroupLayout, Dispatch], size: float) -> None:
    network, layout, one = way
    text = dispatch_text(one)
    told = explain_call(network, TO_ALL, layout, size, text)
    taken = price_call(network, TO_ALL, layout, np.array([size]), text).duration_s[0]
    assert abs(told.time_s - taken) <= 1e-9 * taken
    assert told.bound_s <= taken * CLOSE
    cluster = network.cluster  # type: ignore[attr-defined]
    drawn, gpu = dict(told.draws), cluster.gpu
    assert drawn.get("link", 0.0) / max(gpu.link_bytes_per_s, gpu.pcie_bytes_per_s) <= taken * CLOSE
    assert drawn.get("nic", 0.0) / (cluster.node.nic.bytes_per_s * max(layout.nics_per_rank, 1e-9)) <= taken * CLOSE


@given(ways(("deepep",)))
def test_a_token_meets_no_more_nodes_than_ranks_and_no_more_ranks_than_experts(
    way: tuple[Network, GroupLayout, Dispatch],
) -> None:
    _, layout, one = way
    nodes, ranks = one.destinations(layout.islands), one.destinations(layout.size)
    assert 1 - 1e-9 <= nodes <= ranks * CLOSE <= one.topk * CLOSE**2
    assert nodes <= layout.islands * CLOSE
    assert ranks <= layout.size * CLOSE


@given(ways(("deepep",)), st.floats(1e6, 1e9))
def test_sending_once_spares_what_a_second_copy_would_take(
    way: tuple[Network, GroupLayout, Dispatch], tokens: float
) -> None:
    """Bytes on NICs and links are never more than if every copy went by itself over the same road."""
    network, layout, one = way
    drawn = dict(explain_call(network, TO_ALL, layout, tokens * one.given(layout.size), dispatch_text(one)).draws)
    assert drawn.get("nic", 0.0) <= tokens * one.topk * CLOSE
    assert drawn.get("link", 0.0) <= tokens * one.topk * CLOSE


@given(ways(), st.integers(0, 2**32 - 1), st.floats(1e3, 1e9))
def test_uneven_parts_take_what_the_busiest_port_takes(
    way: tuple[Network, GroupLayout, Dispatch], seed: int, size: float
) -> None:
    network, layout, _ = way
    assume(layout.least_in_island == layout.most_in_island)
    n, islands = layout.size, np.arange(layout.size) // layout.most_in_island
    parts = np.random.default_rng(seed).random((n, n)) * size / n
    taken, more = (uneven_price(network, layout, one, islands).duration_s[0] for one in (parts, parts * 1.5))
    assert taken <= more * CLOSE
    back = uneven_price(network, layout, parts.T, islands).duration_s[0]
    assert back / CLOSE <= taken <= back * CLOSE
    assert taken >= uneven_price(network, layout, np.full((n, n), parts.min()), islands).duration_s[0] / CLOSE
