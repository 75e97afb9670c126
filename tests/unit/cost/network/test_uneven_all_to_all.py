"""All-to-alls of different parts: the busiest port decides, over NICs and over links."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from foretrace import Mesh, ProgramBuilder
from foretrace.cost.network import Network, network_of
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.uneven_all_to_all import uneven_price
from foretrace.cost.pricing import price
from foretrace.hardware import presets
from foretrace.program.columns import Collective
from foretrace.program.expand import expand
from foretrace.program.program import Program

H100 = presets.cluster("h100-dgx")
TO_ALL = Collective.ALL_TO_ALL
MB = 10**6


def _on(ranks: int) -> tuple[Network, GroupLayout, NDArray[np.int64]]:
    network = network_of(H100, ranks)
    layout = network.layouts(np.arange(ranks)[None])[0][0]
    assert isinstance(layout, GroupLayout)
    return network, layout, np.arange(ranks) // 8


def _even(network: Network, layout: GroupLayout, size: float) -> float:
    return float(network.price(TO_ALL, layout, np.array([size])).duration_s[0])


@pytest.mark.parametrize("ranks", [2, 8, 12, 16, 64])
def test_equal_parts_cost_what_any_all_to_all_costs(ranks: int) -> None:
    network, layout, islands = _on(ranks)
    found = uneven_price(network, layout, np.full((ranks, ranks), MB / ranks), islands)
    assert found.duration_s[0] == pytest.approx(_even(network, layout, MB))


def test_what_a_rank_keeps_costs_nothing() -> None:
    network, layout, islands = _on(16)
    parts = np.full((16, 16), MB / 16)
    more = parts + np.diag(np.full(16, 100.0 * MB))
    assert (
        uneven_price(network, layout, more, islands).duration_s
        == uneven_price(network, layout, parts, islands).duration_s
    )


def test_who_receives_most_decides_as_who_sends_most() -> None:
    network, layout, islands = _on(16)
    parts = np.full((16, 16), 1.0 * MB)
    parts[:, 3] *= 4
    there, back = (uneven_price(network, layout, one, islands).duration_s[0] for one in (parts, parts.T))
    assert there == back == pytest.approx(_even(network, layout, 4 * 16 * MB))


def test_what_stays_on_a_node_spares_its_nics() -> None:
    """Parts for ranks of the same node, eight times larger, still take less than those that leave it."""
    network, layout, islands = _on(16)
    near = islands[:, None] == islands
    parts = np.where(near, 8.0 * MB, 1.0 * MB)
    small = uneven_price(network, layout, np.where(near, 0.0, 1.0 * MB), islands).duration_s[0]
    assert uneven_price(network, layout, parts, islands).duration_s[0] < 2 * small
    assert uneven_price(network, layout, parts.T, islands).duration_s[0] < _even(network, layout, 16 * 8.0 * MB)


def _program(sends: NDArray[np.int64], stated: bool = True) -> Program:
    """One all-to-all over all ranks, each of a role of its own."""
    ranks = len(sends)
    build = ProgramBuilder(Mesh(ep=ranks, dp=ranks))
    communicator = build.communicator("ep")
    for rank, row in enumerate(sends.tolist()):
        block = build.role(f"rank {rank}", [rank])
        block.collective(
            "all_to_all", communicator, bytes=sum(row), sends=dict(enumerate(row)) if stated else None, lane="compute"
        )
    return build.program()


def test_a_program_that_says_who_gets_what_is_priced_by_it() -> None:
    sends = np.full((16, 16), MB)
    sends[5] *= 3
    program = _program(sends)
    network, layout, islands = _on(16)
    paid = price(expand(program), network).duration_s[0]
    expected = uneven_price(network, layout, sends.astype(np.float64), islands).duration_s[0]
    assert paid.tolist() == [pytest.approx(expected)] * 16, "they meet, and the busiest holds up all"
    assert expected == pytest.approx(_even(network, layout, 3 * 16 * MB))


def test_ranks_that_say_the_same_pay_the_same_whether_they_say_it_or_not() -> None:
    sends = np.full((16, 16), MB)
    network = network_of(H100, 16)
    said, unsaid = (price(expand(_program(sends, stated)), network).duration_s[0].tolist() for stated in (True, False))
    assert said == pytest.approx(unsaid)


def test_groups_that_sit_otherwise_pay_otherwise() -> None:
    """Twelve ranks in groups of three; the third group has a rank on the other node."""
    build = ProgramBuilder(Mesh(ep=3, dp=12))
    communicator = build.communicator("ep")
    for ep in range(3):
        parts = dict.fromkeys(range(3), (4 if ep == 0 else 1) * 50 * MB)
        role = build.role(f"expert {ep}", [ep, 3 + ep, 6 + ep, 9 + ep])
        role.collective("all_to_all", communicator, bytes=sum(parts.values()), sends=parts, lane="compute")
    program = build.program()
    prices = price(expand(program), network_of(H100, 12))
    paid = prices.duration_s[prices.profile_of, 0].reshape(4, 3)
    assert (paid == paid[:, :1]).all(), "ranks that meet pay the same"
    assert paid[0, 0] == paid[1, 0] == paid[3, 0]
    assert paid[2, 0] > 3 * paid[0, 0]


def test_of_different_meetings_the_busiest_counts() -> None:
    """Ranks 0 and 2 run the same op, one beside a rank that sends it much, the other beside one that does not."""
    build = ProgramBuilder(Mesh(ep=2, dp=4))
    communicator = build.communicator("ep")
    for name, ranks, first in (("alike", [0, 2], 1), ("busy", [1], 8), ("calm", [3], 1)):
        role, parts = build.role(name, ranks), {0: first * MB, 1: MB}
        role.collective("all_to_all", communicator, bytes=sum(parts.values()), sends=parts, lane="compute")
    ops = expand(build.program())
    network, layout, _ = _on(2)
    paid = dict(zip(ops.role.tolist(), price(ops, network_of(H100, 4)).duration_s[0].tolist(), strict=True))
    much, little = (_even(network, layout, 2 * size) for size in (8.0 * MB, 1.0 * MB))
    assert [paid[role] for role in range(3)] == pytest.approx([much, much, little])
