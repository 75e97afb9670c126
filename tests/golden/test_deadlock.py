"""Ranks that wait for each other: an error that names them and their ops, whichever executor runs."""

from __future__ import annotations

import re

import pytest

from foretrace import ForetraceError, Mesh, Program, ProgramBuilder, simulate
from foretrace.basics.errors import DeadlockError
from golden.reading import US, step_us, times, us


def two_sends(*lanes: str) -> Program:
    """Both ranks send first and then receive, on the lane, or on one lane for each direction."""
    build = ProgramBuilder(Mesh(pp=2), repeats=False)
    up, down = build.pair("pp", 0, 1, name="up"), build.pair("pp", 1, 0, name="down")
    low, high = build.role("low", [0]), build.role("high", [1])
    low.transfer("send up", up, 1 * US, to=1, lane=lanes[0])
    low.transfer("receive down", down, 1 * US, lane=lanes[-1])
    high.transfer("send down", down, 1 * US, to=1, lane=lanes[-1])
    high.transfer("receive up", up, 1 * US, lane=lanes[0])
    return build.program()


def links(error: DeadlockError) -> list[str]:
    """The message as the links of the circle it names."""
    return error.message.removeprefix("deadlock: ").split("; ")


@pytest.mark.parametrize("executor", ["fixed", "shared"])
@pytest.mark.parametrize("folded", [True, False])
def test_two_ranks_that_both_send_first(executor: str, folded: bool) -> None:
    """
    rank 0    | send up ... | receive down
    rank 1    | send down ... | receive up

    A send ends with its receive, and each receive comes after the rank's own send.
    """
    with pytest.raises(DeadlockError) as caught:
        simulate(two_sends("pp"), executor=executor, folded=folded)
    assert caught.value.exit_code == 5
    for link in (
        'rank 0 "send up".* waits for its partner rank 1 "receive up"',
        'rank 1 "receive up".* comes after rank 1 "send down"',
        'rank 1 "send down".* waits for its partner rank 0 "receive down"',
        'rank 0 "receive down".* comes after rank 0 "send up"',
    ):
        assert any(re.match(link, part) for part in links(caught.value))


def test_on_two_lanes_they_pass() -> None:
    """With a lane for each direction both transfers run at once."""
    answer = simulate(two_sends("up", "down"))
    names = {0: ("send up", "receive down"), 1: ("send down", "receive up")}
    assert times(answer) == us({(rank, name): (0, 1) for rank in names for name in names[rank]})
    assert step_us(answer) == 1


def test_as_one_exchange_they_pass() -> None:
    """A batched send and receive is one call, and starts when both have come: at 3."""
    build = ProgramBuilder(Mesh(pp=2), repeats=False)
    pair = build.pair("pp", 0, 1)
    for rank, wait_us in enumerate((1, 3)):
        role = build.role(f"rank {rank}", [rank])
        ready = role.compute("first", wait_us * US)
        role.exchange("both ways", pair, 2 * US, sends={1 - rank: 1 << 20}, after=ready)
    answer = simulate(build.program())
    assert times(answer) == us(
        {(0, "first"): (0, 1), (1, "first"): (0, 3), (0, "both ways"): (3, 5), (1, "both ways"): (3, 5)}
    )


@pytest.mark.parametrize("executor", ["fixed", "shared"])
def test_collectives_of_two_communicators_in_opposite_order(executor: str) -> None:
    """
    rank 0    | reduce on a ... | gather on b
    rank 1    | gather on b ... | reduce on a

    Each communicator sees one order; the lane they share does not.
    """
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    a, b = build.communicator("dp", name="a"), build.communicator("dp", name="b")
    calls = [("all_reduce", a, "reduce on a"), ("all_gather", b, "gather on b")]
    for rank, ordered in enumerate((calls, calls[::-1])):
        role = build.role(f"role {rank}", [rank])
        for what, communicator, name in ordered:
            role.collective(what, communicator, 1 * US, name=name, lane="dp")
    with pytest.raises(DeadlockError) as caught:
        simulate(build.program(), executor=executor)
    assert caught.value.exit_code == 5
    for rank, first, then in ((0, "reduce on a", "gather on b"), (1, "gather on b", "reduce on a")):
        after = f'rank {rank} "{then}".* comes after rank {rank} "{first}"'
        assert any(re.match(after, part) for part in links(caught.value))


@pytest.mark.parametrize("to", [(1, 0), (None, None)], ids=["two sends", "two receives"])
def test_a_send_meets_a_receive_and_nothing_else(to: tuple[int | None, int | None]) -> None:
    """Two sends, or two receives, on one pair are no transfer: NCCL would hang, and a mismatch is an error."""
    build = ProgramBuilder(Mesh(pp=2), repeats=False)
    for rank in (0, 1):
        build.role(f"rank {rank}", [rank]).transfer("move", build.pair("pp", 0, 1), 1 * US, to=to[rank], bytes=10)
    with pytest.raises(ForetraceError, match=r"rank 0 .*rank 1 "):
        simulate(build.program())
