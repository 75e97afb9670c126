"""The distributed optimizer gathers parameters under the forward of the next step."""

from __future__ import annotations

import pytest

from foretrace import Answer, Mesh, ProgramBuilder, simulate
from golden.reading import US, parts_us, step_us, times, us


@pytest.mark.parametrize("executor", ["fixed", "shared"])
def test_the_step_time_is_the_period(executor: str) -> None:
    """Two layers; forward 4 µs each, backward 8 µs, reduce-scatter 3 µs, optimizer 1 µs, gathers 3 and 5 µs.

              0       4 5       9               17    20      24      28        33
    compute   |   F0  |.|   F1  |       B       |.....|o|.....|   F0  |.|   F1  |
    dp        |    g1   |.......................|  rs |.|  g0 |    g1   |
                                                              ^ the next step

    A step's last op, g1, ends 29 µs after its first began, but the next step has begun at 24. F0 waits for g0 and F1
    for g1 of the step before. Exposed: rs (17 to 20), g0 (21 to 24) and the end of g1 (4 to 5).
    """
    build = ProgramBuilder(Mesh(dp=2))
    dp = build.communicator("dp")
    role = build.role("every rank", [0, 1])
    forward = [role.compute(f"forward {layer}", 4 * US, phase="forward") for layer in (0, 1)]
    backward = role.compute("backward", 8 * US, phase="backward")
    scattered = role.collective("reduce_scatter", dp, 3 * US, name="scatter", after=backward)
    optimizer = role.compute("optimizer", 1 * US, phase="optimizer", after=scattered)
    for layer, duration in enumerate((3, 5)):
        gathered = role.collective("all_gather", dp, duration * US, name=f"gather {layer}", after=optimizer)
        role.link(forward[layer], after=gathered, steps=1)

    answer = simulate(build.program(), executor=executor)
    drawn = {
        "forward 0": (0, 4),
        "forward 1": (5, 9),
        "backward": (9, 17),
        "scatter": (17, 20),
        "optimizer": (20, 21),
        "gather 0": (21, 24),
        "gather 1": (24, 29),
    }
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 24
    assert round(answer.timeline.makespan_s * 1e9) == 29_000
    assert parts_us(answer, 0) == {"compute": 16, "optimizer": 1, "dp exposed": 3 + 3 + 1}
    # The cycle that sets the period goes through g1 and F1, past F0: 3 + 5 + 4 + 8 + 3 + 1.
    path = {part: round(size * 1e9) for part, size in answer.critical_path.parts_s.items()}
    assert path == {"dp": 11_000, "backward": 8_000, "forward": 4_000, "optimizer": 1_000}


def test_computation_of_several_steps_at_once() -> None:
    """A (2 µs) computes on one lane, B (1 µs) on another, two collectives (2 and 1 µs) later: B of a step runs beside
    A of the step after the next.

              0         2         4    5    6
    compute   |    A    |    A    |    A    |        every 2 µs: the period
    side                               | B  |
    dp                  |    x    |  y |             of the first step; x and y have lanes of their own

    Computation never stops, so all of the step is compute.
    """
    build = ProgramBuilder(Mesh(dp=2))
    dp = build.communicator("dp")
    role = build.role("every rank", [0, 1])
    a = role.compute("A", 2 * US)
    x = role.collective("all_reduce", dp, 2 * US, name="x", lane="x", after=a)
    y = role.collective("all_reduce", dp, 1 * US, name="y", lane="y", after=x)
    role.compute("B", 1 * US, lane="side", after=y)
    answer = simulate(build.program())
    drawn = {"A": (0, 2), "x": (2, 4), "y": (4, 5), "B": (5, 6)}
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 2
    assert parts_us(answer, 0) == {"compute": 2}


def steps_by_turns() -> Answer:
    """a1, a2 and a3 in a chain on lanes of their own, b on a fourth, 1 µs each. a1 needs the b of the step before, b
    the a3 of the step before. Steps take turns:

    step      a1      a2      a3      b
    0         0-1     1-2     2-3     0-1
    1         1-2     2-3     3-4     3-4        a1 after b of step 0 (1), b after a3 of step 0 (3)
    2         4-5     5-6     6-7     4-5        a1 after b of step 1 (4), b after a3 of step 1 (4)
    3         5-6     6-7     7-8     7-8
    4         8-9     …

    The circle a1 a2 a3 b takes 4 µs and two steps.
    """
    build = ProgramBuilder()
    role = build.role("rank", [0])
    first = before = role.compute("a1", 1 * US, lane="1")
    for name in ("a2", "a3"):
        before = role.compute(name, 1 * US, lane=name, after=before)
    b = role.compute("b", 1 * US, lane="b")
    role.link(b, after=before, steps=1)
    role.link(first, after=b, steps=1)
    return simulate(build.program())


def test_steps_that_take_turns() -> None:
    """The step time is their mean."""
    assert step_us(steps_by_turns()) == 2


def test_critical_path_of_steps_that_take_turns() -> None:
    """The cycle that sets the period goes once through all four ops, 4 µs in two steps: 2 µs a step."""
    answer = steps_by_turns()
    names = answer.timeline.graph.ops.names
    assert sorted(names[node] for node in answer.critical_path.node) == ["a1", "a2", "a3", "b"]
    assert round(answer.critical_path.length_s * 1e9) == 2_000
