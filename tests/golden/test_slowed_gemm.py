"""A GEMM runs slower while a collective holds SMs and takes memory bandwidth under it."""

from __future__ import annotations

import pytest

from foretrace import Mesh, Program, ProgramBuilder, simulate
from golden.reading import US, parts_us, step_us, times, us

MB = 1e6


def program() -> Program:
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    sm = build.resource("sm", 1.0)  # all SMs of a GPU for a second, per second
    hbm = build.resource("hbm", 1e12)  # 1 MB/µs
    dp = build.communicator("dp")
    role = build.role("every rank", [0, 1])

    def reduce(name: str, duration_us: float, *after):
        drawn = {hbm: 0.5 * duration_us * MB}
        return role.collective(
            "all_reduce", dp, duration_us * US, name=name, draws=drawn, holds={sm: 0.25}, after=after
        )

    def gemm(name: str, duration_us: float, mb_per_us: float, *after):
        drawn = {hbm: mb_per_us * duration_us * MB, sm: duration_us * US}
        return role.compute(name, duration_us * US, draws=drawn, after=after)

    reduce("reduce 1", 6)
    first = gemm("gemm 1", 9, 0.25)
    reduce("reduce 2", 8, first)
    gemm("gemm 2", 10, 0.8)
    return build.program()


@pytest.mark.parametrize("folded", [True, False])
def test_sms_held_and_bandwidth_shared(folded: bool) -> None:
    """The all-reduces hold a quarter of the SMs and draw 0.5 MB/µs of 1 MB/µs; the GEMMs want all SMs.

                0           6        10.5            18.5      23.5
    compute     |       gemm 1       |          gemm 2         |
    speed       |    0.75   |   1    |     0.625     |    1    |
    dp          |  reduce 1 |........|    reduce 2   |

    gemm 1 (9 µs alone, 0.25 MB/µs) lacks SMs only: 6 · 0.75 = 4.5 of its 9 are done at 6, the rest takes 4.5.
    gemm 2 (10 µs alone, 0.8 MB/µs) would have 0.75 of the SMs, 0.6 MB/µs, but reduce 2 leaves it 0.5: a speed of
    0.5 / 0.8 = 0.625. After 8 µs it has done 5 of its 10; the rest takes 5.
    """
    answer = simulate(program(), folded=folded)
    drawn = {"reduce 1": (0, 6), "gemm 1": (0, 10.5), "reduce 2": (10.5, 18.5), "gemm 2": (10.5, 23.5)}
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 23.5
    assert parts_us(answer, 0) == {"compute": 23.5}


def test_without_sharing() -> None:
    """As if the two did not meet: 9 + 10."""
    answer = simulate(program(), executor="fixed")
    drawn = {"reduce 1": (0, 6), "gemm 1": (0, 9), "reduce 2": (9, 17), "gemm 2": (9, 19)}
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 19


@pytest.mark.parametrize("folded", [True, False])
def test_slowed_by_the_step_before(folded: bool) -> None:
    """Each step's all-reduce (4 µs, a fifth of the SMs) runs under the next step's GEMM (10 µs alone):

                0           4                   10.8        14.8
    compute     |              gemm             |      gemm     |
    speed       |    0.8    |         1         |    0.8    |
    dp          |   reduce  |...................|   reduce  |

    4 · 0.8 = 3.2 of 10 are done at 4; the rest takes 6.8. The period is 10.8, the step's own last op ends at 14.8.
    """
    build = ProgramBuilder(Mesh(dp=2))
    sm, hbm = build.resource("sm", 1.0), build.resource("hbm", 1e12)
    role = build.role("every rank", [0, 1])
    gemm = role.compute("gemm", 10 * US, draws={hbm: 1 * MB, sm: 10 * US})
    role.collective(
        "all_reduce",
        build.communicator("dp"),
        4 * US,
        name="reduce",
        draws={hbm: 1 * MB},
        holds={sm: 0.2},
        after=gemm,
    )
    answer = simulate(build.program(), folded=folded)
    drawn = {"gemm": (0, 10.8), "reduce": (10.8, 14.8)}
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 10.8
    assert parts_us(answer, 0) == {"compute": 10.8}
