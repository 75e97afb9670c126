"""Expert all-to-alls: what goes where, and tokens made as uneven as asked."""

from __future__ import annotations

import pytest

from foretrace.inputs.megatron_trace.whole_job.exchanges import exchange, reshaped


def test_the_matrix_has_the_sums_it_was_given() -> None:
    found = exchange([800, 800, 800, 800], [1600, 800, 400, 400])
    assert found.tolist() == [[400, 200, 100, 100]] * 4
    assert found.sum(axis=1).tolist() == [800] * 4
    assert found.sum(axis=0).tolist() == [1600, 800, 400, 400]


def test_taking_tokens_back_is_the_same_matrix_turned_round() -> None:
    there, back = exchange([800] * 4, [1600, 800, 400, 400]), exchange([1600, 800, 400, 400], [800] * 4)
    assert back.tolist() == there.T.tolist()


def test_even_routing_is_an_even_all_to_all() -> None:
    assert exchange([1000] * 5, [1000] * 5).tolist() == [[200] * 5] * 5


@pytest.mark.parametrize(("sent", "received"), [([0, 0], [0, 0]), ([0, 0, 0], [5, 5, 5])])
def test_nothing_is_sent_where_there_is_nothing(sent: list[int], received: list[int]) -> None:
    assert exchange(sent, received).sum() == 0


@pytest.mark.parametrize("unevenness", [1.0, 1.2, 1.5, 2.0, 3.0])
def test_tokens_become_as_uneven_as_asked(unevenness: float) -> None:
    rows = [6535, 741, 2048, 2000, 1800, 1500, 1000, 760]
    found = reshaped(rows, unevenness)
    assert sum(found) == sum(rows)
    assert max(found) / (sum(rows) / 8) == pytest.approx(unevenness, rel=1e-3)
    order = sorted(range(8), key=lambda one: rows[one])
    assert [found[one] for one in order] == sorted(found)


def test_balanced_is_balanced() -> None:
    assert reshaped([10, 0, 2, 0], 1.0) == [3, 3, 3, 3]
    assert sorted(reshaped([10, 0, 1, 0], 1.0)) == [2, 3, 3, 3]


def test_tokens_that_were_even_can_be_made_uneven() -> None:
    found = reshaped([100, 100, 100, 100], 2.0)
    assert (sum(found), max(found)) == (400, 200)


def test_no_more_than_all_go_to_one() -> None:
    assert reshaped([300, 200, 100], 50.0) == [600, 0, 0]
    assert reshaped([7], 3.0) == [7]
    assert reshaped([0, 0], 2.0) == [0, 0]
