"""Draws of several sources on one set of prices."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.prices import Draws
from foretrace.program.program import Resource

LINK, NIC, HBM = Resource("link", 10.0), Resource("nic", 5.0, ((0, 1), (2, 3))), Resource("hbm", 7.0)


def draws(rows: list[tuple[int, int, float]], *resources: Resource, **profiles: list[int]) -> Draws:
    op, resource, amount = zip(*rows, strict=True)
    return Draws(
        np.array(op),
        np.array(resource),
        np.array(amount, dtype=np.float64),
        np.zeros(len(rows)),
        resources,
        np.array(profiles["profile"]) if profiles else None,
        np.array(profiles["profile_of"], dtype=np.int32) if profiles else None,
    )


def drawn(found: Draws, op: int, rank: int) -> dict[str, float]:
    """What an op draws on a rank."""
    mine = -1 if found.profile_of is None else int(found.profile_of[rank])
    rows = [i for i in range(len(found.op)) if found.op[i] == op and found.profiles()[i] in (-1, mine)]
    return {found.resources[found.resource[i]].name: float(found.amount[i]) for i in rows}


def test_resources_are_renumbered_and_shared_by_name() -> None:
    both = draws([(0, 0, 1.0), (1, 1, 2.0)], LINK, NIC).beside(draws([(1, 0, 3.0), (2, 1, 4.0)], HBM, LINK))
    assert [one.name for one in both.resources] == ["link", "nic", "hbm"]
    assert [drawn(both, op, 0) for op in range(3)] == [{"link": 1.0}, {"nic": 2.0, "hbm": 3.0}, {"link": 4.0}]


def test_profiles_of_both_are_told_apart() -> None:
    one = draws([(0, 0, 1.0), (0, 0, 2.0)], LINK, profile=[0, 1], profile_of=[0, 0, 1, 1])
    two = draws([(0, 0, 3.0), (1, 0, 4.0)], HBM, profile=[1, -1], profile_of=[0, 1, 0, 1])
    both = one.beside(two)
    assert [drawn(both, 0, rank) for rank in range(4)] == [
        {"link": 1.0},
        {"link": 1.0, "hbm": 3.0},
        {"link": 2.0},
        {"link": 2.0, "hbm": 3.0},
    ]
    assert all(drawn(both, 1, rank) == {"hbm": 4.0} for rank in range(4))


def test_profiles_of_one_stay() -> None:
    one = draws([(0, 0, 1.0), (0, 0, 2.0)], LINK, profile=[0, 1], profile_of=[0, 1])
    for both in (one.beside(draws([(0, 0, 3.0)], HBM)), draws([(0, 0, 3.0)], HBM).beside(one)):
        assert drawn(both, 0, 0) == {"link": 1.0, "hbm": 3.0}
        assert drawn(both, 0, 1) == {"link": 2.0, "hbm": 3.0}


def test_one_name_for_two_things_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        draws([(0, 0, 1.0)], LINK).beside(draws([(0, 0, 1.0)], Resource("link", 11.0)))
    assert caught.value.code == "duplicate-name"


def test_the_narrowest_is_that_of_the_ranks_asked_for() -> None:
    nic = Resource("nic", 5.0, ((0, 1), (2, 3)), (5.0, 2.0))
    one = draws([(0, 0, 10.0), (0, 0, 4.0)], nic, profile=[0, 1], profile_of=[0, 0, 1, 1])
    assert one.narrowest(1, np.array([True, True, False, False])).tolist() == [2.0]
    assert one.narrowest(1, np.array([False, False, True, True])).tolist() == [2.0]
    assert one.narrowest(1, np.array([False] * 4)).tolist() == [0.0]
