"""The host launches kernels: ahead of the device at first, behind it when kernels are tiny, and stopped by a sync."""

from __future__ import annotations

import pytest

from foretrace import Program, ProgramBuilder, simulate
from golden.reading import US, parts_us, step_us, times, us

LAUNCH_US = (1, 1, 1, 5, 5, 5, 5)
KERNEL_US = (4, 4, 4, 1, 1, 1, 1)


def launches(*, repeats: bool) -> Program:
    build = ProgramBuilder(repeats=repeats)
    role = build.role("rank", [0])
    for i, (launch_us, kernel_us) in enumerate(zip(LAUNCH_US, KERNEL_US, strict=True)):
        launch = role.host(f"launch {i}", launch_us * US)
        kernel = role.compute(f"kernel {i}", kernel_us * US, after=launch)
    role.host("sync", 1 * US, after=kernel)
    launch = role.host("launch 7", 2 * US)
    role.compute("kernel 7", 3 * US, after=launch)
    return build.program()


def test_ahead_behind_and_in_step() -> None:
    """Launches of 1 µs and kernels of 4 µs, then launches of 5 µs and kernels of 1 µs, a sync, one more kernel.

              0 1 2 3   5     8 9       13  15    18        23  25  27    30
    host      |0|1|2|    3    |    4    |    5    |    6    |.|s| 7 |
    device    |.|   k0  |   k1  |   k2  |3|4|.....|5|.......|6|.....|  k7 |

    Up to k4 (15) the device has work queued. k5 and k6 wait for their launches, at 18 and 23. The sync waits for k6,
    and with it the host: launch 7 comes only after it.
    """
    answer = simulate(launches(repeats=False))
    assert times(answer) == us(
        {
            (0, "launch 0"): (0, 1),
            (0, "launch 1"): (1, 2),
            (0, "launch 2"): (2, 3),
            (0, "launch 3"): (3, 8),
            (0, "launch 4"): (8, 13),
            (0, "launch 5"): (13, 18),
            (0, "launch 6"): (18, 23),
            (0, "sync"): (24, 25),
            (0, "launch 7"): (25, 27),
            (0, "kernel 0"): (1, 5),
            (0, "kernel 1"): (5, 9),
            (0, "kernel 2"): (9, 13),
            (0, "kernel 3"): (13, 14),
            (0, "kernel 4"): (14, 15),
            (0, "kernel 5"): (18, 19),
            (0, "kernel 6"): (23, 24),
            (0, "kernel 7"): (27, 30),
        }
    )
    assert step_us(answer) == 30
    # The device computes for 19 and waits for the host from 0 to 1, 15 to 18, 19 to 23 and 24 to 27.
    assert parts_us(answer, 0) == {"compute": 19, "host": 1 + 3 + 4 + 3}


def test_step_after_step() -> None:
    """The host is done at 27 and launches the next step under k7. Its own cycle, 26 µs of work and 1 µs in the sync,
    is the period.

              0 1 2 3       7 8     11  13  15  17  19      23  25  27    30
    host      |0|1|2|    3    |    4    |    5    |    6    |.|s| 7 |
    device    |  k7 |   k0  |   k1  |   k2  |3|4|.|5|.......|6|.....|  k7 |
    """
    answer = simulate(launches(repeats=True))
    drawn = times(answer)
    kernels = [drawn[0, f"kernel {i}", -1] for i in range(8)]
    expected = [(3, 7), (7, 11), (11, 15), (15, 16), (16, 17), (18, 19), (23, 24), (27, 30)]
    assert kernels == [(start * 1000, end * 1000) for start, end in expected]
    assert drawn[0, "sync", -1] == (24000, 25000)
    assert step_us(answer) == 27
    assert answer.timeline.makespan_s == pytest.approx(30 * US, abs=1e-10)
    assert parts_us(answer, 0) == {"compute": 19, "host": 1 + 4 + 3}
    # What sets the period is the host: its launches, and k6 (1 µs) on the way through the sync.
    assert {part: round(size * 1e9) for part, size in answer.critical_path.parts_s.items()} == {
        "host": 26_000,
        "compute": 1_000,
    }
