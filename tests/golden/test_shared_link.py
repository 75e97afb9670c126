"""Transfers that share a link divide it max-min fairly: evenly, unless one cannot take its part.

Rank 0 sends A to rank 1, rank 2 sends B to rank 3, both over one uplink of 10 KB/µs.
"""

from __future__ import annotations

import pytest

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.program.role import RoleBuilder
from golden.reading import US, step_us, times, us

KB_PER_US = 1e9
"""In bytes per second."""


def four_ranks() -> tuple[ProgramBuilder, list[RoleBuilder]]:
    build = ProgramBuilder(Mesh(pp=4), repeats=False)
    build.resource("uplink", 10 * KB_PER_US, shared_by=[(0, 2)])
    return build, [build.role(f"rank {rank}", [rank]) for rank in range(4)]


def send(
    build: ProgramBuilder,
    roles: list[RoleBuilder],
    name: str,
    source: int,
    kb: int,
    duration: float,
    *drawn: str,
    **more,
):
    """Both ends of a transfer that takes `duration` alone and draws its bytes from the resources named."""
    pair = build.pair("pp", source, source + 1, name=name)
    draws = dict.fromkeys(drawn, 1000.0 * kb)
    roles[source].transfer(name, pair, duration, to=1, bytes=1000 * kb, draws=draws, **more)
    roles[source + 1].transfer(name, pair, duration, bytes=1000 * kb)


@pytest.mark.parametrize("folded", [True, False])
def test_even_shares(folded: bool) -> None:
    """A has 60 KB, B 30 KB. B starts at 1 and has a latency of 1 µs, in which nothing moves.

              0   1   2                       8   9
    A         |   10  |           5           | 10|       20 + 30 + 10 = 60 KB
    B         |...|lat|           5           |           6 · 5 = 30 KB

    Alone they would take 6 and 1 + 3 µs. The uplink is never idle: 90 KB in 9 µs.
    """
    build, roles = four_ranks()
    send(build, roles, "A", 0, 60, 6 * US, "uplink")
    later = roles[2].compute("first", 1 * US)
    send(build, roles, "B", 2, 30, 4 * US, "uplink", latency_s=1 * US, after=later)
    answer = simulate(build.program(), folded=folded)
    assert answer.executor == "shared"
    assert times(answer) == us(
        {(0, "A"): (0, 9), (1, "A"): (0, 9), (2, "first"): (0, 1), (2, "B"): (1, 8), (3, "B"): (1, 8)}
    )
    assert step_us(answer) == 9


def test_a_slower_port_leaves_the_other_more_than_half() -> None:
    """B and C leave rank 2 by its own port of 2 KB/µs; A takes what they leave of the uplink.

              0       2       4           7   8       10
    A 60 KB   |   10  |         8         |                 20 + 40
    B 12 KB   |.......|   2   |       1       |   2   |     4 + 4 + 4
    C  4 KB   |...............|       1       |             4

    Uplink in use: 10 KB/µs until 7, then 2. B and C divide the port while both run; alone they would take 6 and 2 µs,
    and A alone 6.
    """
    build, roles = four_ranks()
    build.resource("port", 2 * KB_PER_US)
    send(build, roles, "A", 0, 60, 6 * US, "uplink")
    first = roles[2].compute("first", 2 * US)
    second = roles[2].compute("second", 2 * US)
    send(build, roles, "B", 2, 12, 6 * US, "uplink", "port", after=first)
    send(build, roles, "C", 2, 4, 2 * US, "uplink", "port", after=second)
    answer = simulate(build.program())
    assert times(answer) == us(
        {
            (0, "A"): (0, 7),
            (1, "A"): (0, 7),
            (2, "first"): (0, 2),
            (2, "second"): (2, 4),
            (2, "B"): (2, 10),
            (3, "B"): (2, 10),
            (2, "C"): (4, 8),
            (3, "C"): (4, 8),
        }
    )
    assert step_us(answer) == 10


def test_without_sharing_each_takes_its_own_time() -> None:
    """The fixed executor: A 6 µs, B 1 + 4 µs, as if the uplink were twice as wide."""
    build, roles = four_ranks()
    send(build, roles, "A", 0, 60, 6 * US, "uplink")
    later = roles[2].compute("first", 1 * US)
    send(build, roles, "B", 2, 30, 4 * US, "uplink", latency_s=1 * US, after=later)
    drawn = times(simulate(build.program(), executor="fixed"))
    assert drawn[0, "A", -1] == (0, 6000)
    assert drawn[2, "B", -1] == (1000, 5000)


@pytest.mark.parametrize("folded", [True, False])
def test_ranks_of_a_host_share_its_nic(folded: bool) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another; 0 meets 2 and 1 meets 3, each with 20 KB through NICs of 10
    KB/µs. Alone a pair would take 2 µs; both at once get 5 KB/µs each, 4 µs. Folded, one flow stands for both."""
    build = ProgramBuilder(Mesh(dp=4), repeats=False)
    nic = build.resource("nic", 10 * KB_PER_US, shared_by=[(0, 1), (2, 3)])
    across = build.groups("across", [(0, 2), (1, 3)])
    build.role("every rank", range(4)).collective("all_reduce", across, 2 * US, name="reduce", draws={nic: 20_000.0})
    answer = simulate(build.program(), folded=folded)
    assert len(answer.timeline.graph.classes) == (1 if folded else 4)
    assert times(answer) == us({(rank, "reduce"): (0, 4) for rank in range(4)})
