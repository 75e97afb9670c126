"""Laws of measured prices: the table where it was measured, rising with bytes, without jumps, always finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.network import MeasuredNetwork, network_of
from foretrace.cost.network.nccl.bound import bound_s
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements
from foretrace.hardware import presets
from foretrace.program.columns import Collective

CLUSTERS = ("a100-dgx", "h100-dgx", "mi300x", "gb200-nvl72")
PRICED = [one for one in Collective if one is not Collective.NONE]
MEASURED = (Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.TRANSFER)
MEASURED_SOURCE = 2
"""The number of the first source that is not the model's."""
WORLD = 64


@st.composite
def rows(draw: st.DrawFn) -> list[Measurement]:
    """Tables of a few collectives and groups, with times that may fall, repeat and beat any line rate."""
    keys = st.tuples(st.sampled_from(MEASURED), st.sampled_from([(2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (16, 4)]))
    found = []
    for number, (what, (gpus, nodes)) in enumerate(draw(st.lists(keys, min_size=1, max_size=5))):
        sizes = draw(st.lists(st.integers(1, 1 << 34), min_size=1, max_size=6, unique=True))
        for line, size in enumerate(sizes, start=2):
            time = draw(st.floats(1e-6, 1.0))
            found.append(Measurement(what, gpus, nodes, size, time, f"{number}.csv", line))
    return found


def priced(measured: Measurements, cluster: str) -> MeasuredNetwork:
    network = network_of(presets.cluster(cluster), WORLD, measured=measured)
    assert isinstance(network, MeasuredNetwork)
    return network


def layout(network: MeasuredNetwork, ranks: int, stride: int) -> GroupLayout:
    found = network.layouts(np.arange(ranks)[None] * stride)[0][0]
    assert isinstance(found, GroupLayout)
    return found


groups = st.tuples(st.integers(2, 16), st.sampled_from([1, 2, 4]))


@given(rows(), st.sampled_from(CLUSTERS))
def test_measured_points_cost_what_was_measured(found: list[Measurement], cluster: str) -> None:
    network = priced(measurements_of(found), cluster)
    measured = network.measurements  # without times that are far below those of line rates
    per_node = presets.cluster(cluster).node.gpus
    for table in measured.tables:
        spread = np.arange(table.gpus)
        host = spread * table.nodes // table.gpus
        ranks = host * per_node + spread - np.searchsorted(host, host)
        here = network.layouts(ranks[None])[0][0]
        prices = network.price(table.collective, here, table.size_bytes)
        # Two tables may be of one layout: hosts of a rack that links join are one island.
        same = [one for one in measured.tables if (one.collective, one.gpus) == (table.collective, table.gpus)]
        if len(same) == 1:
            assert prices.duration_s.tolist() == table.time_s.tolist()
            assert (prices.source == MEASURED_SOURCE).all()


@given(rows(), st.sampled_from(CLUSTERS), groups, st.sampled_from(PRICED))
def test_prices_rise_with_bytes_and_are_finite(
    found: list[Measurement], cluster: str, group: tuple[int, int], what: Collective
) -> None:
    network = priced(measurements_of(found), cluster)
    knots = sorted({row.size_bytes for row in found})
    size = np.unique(np.concatenate([np.geomspace(1, 1e12, 60), knots, np.array(knots) * 2.0, [0.0]]))
    prices = network.price(what, layout(network, *group), size)
    assert np.isfinite(prices.duration_s).all() and (prices.duration_s > 0).all()
    assert (np.diff(prices.duration_s) >= -1e-12 * prices.duration_s[1:]).all()
    assert ((prices.latency_s >= 0) & (prices.latency_s <= prices.duration_s * (1 + 1e-12))).all()


@given(rows(), st.sampled_from(CLUSTERS), groups, st.sampled_from(PRICED))
def test_there_is_no_jump_at_the_last_measured_size(
    found: list[Measurement], cluster: str, group: tuple[int, int], what: Collective
) -> None:
    network = priced(measurements_of(found), cluster)
    here = layout(network, *group)
    for last in {row.size_bytes for row in found}:
        for moved_alike in (1.0, 2.0, 2.0 * (group[0] - 1) / group[0]):
            seam = last * moved_alike
            at, after = network.price(what, here, np.array([seam, np.nextafter(seam, np.inf)])).duration_s
            assert after <= at * (1 + 1e-9)


@given(rows(), st.sampled_from(CLUSTERS), groups, st.sampled_from(PRICED))
def test_what_is_not_measured_never_beats_the_line_rate(
    found: list[Measurement], cluster: str, group: tuple[int, int], what: Collective
) -> None:
    """Unless the very table that it goes beyond does."""
    network = priced(measurements_of(found), cluster)
    if any("beats the line rates" in note.message for note in network.notes):
        return
    here = layout(network, *group)
    size = np.geomspace(1, 1e12, 40)
    least = bound_s(presets.cluster(cluster), what, here, size)
    assert (network.price(what, here, size).duration_s >= least * (1 - 1e-12)).all()


@given(rows(), groups, st.sampled_from(PRICED), st.floats(0.1, 10))
def test_measured_prices_scale_with_the_measurements(
    found: list[Measurement], group: tuple[int, int], what: Collective, factor: float
) -> None:
    found = [replace(row, time_s=10 * max(row.time_s, row.size_bytes / 1e10)) for row in found]  # none is impossible
    network = priced(measurements_of(found), "a100-dgx")
    scaled = priced(measurements_of([replace(row, time_s=row.time_s * factor) for row in found]), "a100-dgx")
    here, size = layout(network, *group), np.geomspace(1, 1e12, 40)
    before, after = (one.price(what, here, size) for one in (network, scaled))
    assert before.source.tolist() == after.source.tolist()
    measured = before.source == MEASURED_SOURCE
    assert np.allclose(after.duration_s[measured], factor * before.duration_s[measured], rtol=1e-9, atol=0)
    model = before.source < MEASURED_SOURCE
    assert after.duration_s[model].tolist() == before.duration_s[model].tolist()
