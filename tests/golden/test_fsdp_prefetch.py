"""FSDP2: parameters are gathered one layer ahead on one lane, gradients scattered on another."""

from __future__ import annotations

from foretrace import Mesh, ProgramBuilder, simulate
from golden.reading import US, parts_us, step_us, times, us

FORWARD_US = (2, 4, 4, 2)
LAST = len(FORWARD_US) - 1


def test_one_layer_ahead() -> None:
    """Four layers; an all-gather 3 µs, a reduce-scatter 5 µs, backward twice the forward, the optimizer 2 µs.

              0     3   5 6     9 10    13    16    19      23  25    28    31  33    36      40          46  48
    compute   |.....| F0|.|   F1  |   F2  | F3|   B3  |       B2      |       B1      |   B0  |...........|opt|
    gather    |  g0 |  g1 |  g2 |.|  g3 |.....| g2' |.| g1' |.........| g0' |
    scatter   |.......................................|    r3   |.....|    r2   |.....|    r1   |    r0   |

    Two layers' parameters fit at a time: g2 needs the room of layer 0, free at 5, and g3 that of layer 1, free only
    at 10 although the lane is free at 9. In backward g1' waits for B3 and g0' for B2 in the same way; layer 3 is kept
    from its forward. Exposed are g0 (0 to 3), the end of g1 (5 to 6) and what B0 does not hide of the last scatters
    (40 to 46).
    """
    build = ProgramBuilder(Mesh(dp=2))
    dp = build.communicator("dp")
    role = build.role("every rank", [0, 1])

    def gather(name: str, *after):
        return role.collective("all_gather", dp, 3 * US, name=name, lane="gather", after=after)

    gathered = [gather("gather 0"), gather("gather 1")]
    done = []
    for i, duration in enumerate(FORWARD_US):
        done.append(role.compute(f"forward {i}", duration * US, phase="forward", after=gathered[i]))
        if i + 2 <= LAST:
            gathered.append(gather(f"gather {i + 2}", done[i]))
    again = {LAST: done[LAST], LAST - 1: gather(f"gather {LAST - 1} again", done[LAST])}
    for i in reversed(range(len(FORWARD_US))):
        back = role.compute(f"backward {i}", 2 * FORWARD_US[i] * US, phase="backward", after=again[i])
        if i >= 2:
            again[i - 2] = gather(f"gather {i - 2} again", back)
        scattered = role.collective("reduce_scatter", dp, 5 * US, name=f"scatter {i}", lane="scatter", after=back)
    optimizer = role.compute("optimizer", 2 * US, phase="optimizer", after=scattered)
    role.link(gathered[0], after=optimizer, steps=1)

    answer = simulate(build.program())
    drawn = {
        "gather 0": (0, 3),
        "gather 1": (3, 6),
        "gather 2": (6, 9),
        "gather 3": (10, 13),
        "forward 0": (3, 5),
        "forward 1": (6, 10),
        "forward 2": (10, 14),
        "forward 3": (14, 16),
        "gather 2 again": (16, 19),
        "gather 1 again": (20, 23),
        "gather 0 again": (28, 31),
        "backward 3": (16, 20),
        "backward 2": (20, 28),
        "backward 1": (28, 36),
        "backward 0": (36, 40),
        "scatter 3": (20, 25),
        "scatter 2": (28, 33),
        "scatter 1": (36, 41),
        "scatter 0": (41, 46),
        "optimizer": (46, 48),
    }
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 48
    assert parts_us(answer, 0) == {"compute": 36, "optimizer": 2, "dp exposed": 3 + 1 + 6}
