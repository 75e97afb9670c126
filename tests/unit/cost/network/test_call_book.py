"""A book of calls changes no price, has notes of one job, and is bounded."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from foretrace import Mesh
from foretrace.cost.network import network_of
from foretrace.cost.network.call_book import CallBook, book_of
from foretrace.cost.network.experts import explain_call, price_call
from foretrace.cost.network.interface import CallPrices, Network
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurement
from foretrace.hardware import presets
from foretrace.program.columns import Collective
from foretrace.program.program import Communicator

A100 = presets.cluster("a100-dgx")
SIZES = np.array([1e3, 1e6, 1e6, 1e9])
HIERARCHICAL = "dispatch style=hierarchical experts=64 topk=4"
DEEPEP = "dispatch style=deepep experts=64 topk=4"


def measured_network() -> Network:
    """Returns a network with measured all-reduces of 8 GPUs."""
    points = {1 << 10: 50e-6, 1 << 20: 90e-6, 1 << 30: 9e-3}
    rows = [
        Measurement(Collective.ALL_REDUCE, 8, 1, size, time_s, "a.csv", line)
        for line, (size, time_s) in enumerate(points.items(), start=2)
    ]
    return network_of(A100, 64, measured=measurements_of(rows))


class Counting:
    """A network that counts the sizes that it prices and explains, and the groups that it places."""

    def __init__(self, network: Network) -> None:
        self.network, self.sources, self.notes = network, network.sources, network.notes
        self.sizes = self.groups = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.network, name)

    def price(self, collective: Collective, layout: object, size_bytes: np.ndarray) -> CallPrices:
        self.sizes += len(size_bytes)
        return self.network.price(collective, layout, size_bytes)

    def explain_all(self, collective: Collective, layout: object, size_bytes: np.ndarray) -> object:
        self.sizes += len(size_bytes)
        return self.network.explain_all(collective, layout, size_bytes)

    def layouts(self, groups: np.ndarray) -> object:
        self.groups += len(groups)
        return self.network.layouts(groups)


def counting() -> tuple[CallBook, Counting]:
    network = Counting(network_of(A100, 64))
    return book_of(network), network  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["", HIERARCHICAL, DEEPEP])
@pytest.mark.parametrize("what", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.ALL_GATHER])
def test_prices_are_those_of_the_network(what: Collective, way: str) -> None:
    network = measured_network()
    book = CallBook(network)
    way = way if what is Collective.ALL_TO_ALL else ""
    for members in (np.arange(8), np.arange(64), np.arange(1)):
        (layout,), _ = network.layouts(members[None])
        expected = np.array(astuple(price_call(network, what, layout, SIZES, way)))
        explained = [explain_call(network, what, layout, size, way) for size in SIZES.tolist()]
        for _ in range(2):
            np.testing.assert_array_equal(np.array(astuple(book.price(what, layout, SIZES, way))), expected)
            assert book.explain_all(what, layout, SIZES, way) == explained


def test_a_call_is_priced_once() -> None:
    book, network = counting()
    (layout,), _ = book.layouts(np.arange(8)[None])
    book.price(Collective.ALL_REDUCE, layout, SIZES)
    assert network.sizes == 3
    book.for_job().price(Collective.ALL_REDUCE, layout, np.array([1e6, 2e6]))
    assert network.sizes == 4
    book.explain(Collective.ALL_REDUCE, layout, 1e6)
    book.for_job().explain_all(Collective.ALL_REDUCE, layout, SIZES[1:3])
    assert network.sizes == 5


def test_a_full_book_forgets_and_prices_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.cost.network.call_book.MAX_CALLS", 4)
    book, network = counting()
    (layout,), _ = book.layouts(np.arange(8)[None])
    whole = network_of(A100, 64).price(Collective.ALL_REDUCE, layout, SIZES)
    for _ in range(3):
        priced = book.price(Collective.ALL_REDUCE, layout, SIZES)
        np.testing.assert_array_equal(priced.duration_s, whole.duration_s)
        book.explain_all(Collective.ALL_GATHER, layout, SIZES)
    assert network.sizes == 18


def test_groups_of_a_mesh_are_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.cost.network.call_book.MAX_MEMBERS", 100)
    book, network = counting()
    stages, pairs = (Communicator("pp", "pp", ("pp",), pair) for pair in (None, (0, 1)))
    back = Communicator("back", "pp", ("pp",), (1, 0))
    mesh, other = Mesh(dp=16, pp=4), Mesh(dp=8, pp=8)
    for communicator in (stages, pairs, back, stages):
        assert book.placed(communicator, mesh)[0].ranks.size in (64, 32)
    assert network.groups == 32
    book.placed(stages, other)
    book.placed(stages, other)
    assert network.groups == 40
    book.placed(stages, mesh)  # was forgotten for the other mesh
    assert network.groups == 56


def test_notes_are_of_the_calls_of_one_job() -> None:
    book = CallBook(measured_network())
    (near,), _ = book.layouts(np.arange(8)[None])
    (far,), _ = book.layouts(np.arange(64)[None])
    book.price(Collective.ALL_TO_ALL, far, SIZES)
    first, second = book.for_job(), book.for_job()
    first.price(Collective.ALL_REDUCE, near, SIZES)
    second.price(Collective.ALL_TO_ALL, far, SIZES)
    assert not [note for note in first.notes if note.code == "extrapolated"]
    assert second.notes == book.notes
    assert [note for note in second.notes if note.code == "extrapolated"]


def test_calls_of_another_library_need_no_measurement() -> None:
    book = CallBook(measured_network())
    (far,), _ = book.layouts(np.arange(64)[None])
    before = book.notes
    book.price(Collective.ALL_TO_ALL, far, SIZES, DEEPEP)
    assert book.notes == before
    book.price(Collective.ALL_TO_ALL, far, SIZES, HIERARCHICAL)
    assert len(book.notes) > len(before)
