"""The distributed optimizer gathers parameters under the forward of the next step."""

from __future__ import annotations

from foretrace import Mesh, ProgramBuilder, simulate
from golden.reading import US, parts_us, step_us, times, us


def test_the_step_time_is_the_period() -> None:
    """Two layers; forward 4 µs each, backward 8 µs, reduce-scatter 3 µs, optimizer 1 µs, gathers 3 and 5 µs.

               0     4 5    9        17   20 21   24    28 29
    compute    |  F0 |.| F1 |   B    |....|o |....|  F0 |.| F1 ...
    dp         |  g1   |             | rs |  | g0 |  g1   |
                                                  ^ the next step

    A step's last op, g1, ends 29 µs after its first began, but the next step has begun at 24. F0 waits for g0 and F1 for
    g1 of the step before. Exposed: rs (17 to 20), g0 (21 to 24) and the end of g1 (4 to 5).
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

    answer = simulate(build.program())
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
