"""The step of a profiler table on two GPUs, worked out by hand.

On the round cluster an all-reduce of S bytes over two GPUs takes 15.2 µs + S / 150 GB/s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Answer, Machine, simulate
from golden.reading import US, parts_us, step_us, times_of
from opened import program_of
from table_files import write_times
from unit.inputs.aicb.workloads import CLUSTER, MEASURED

PARAMETERS = (1 << 19) + 4_875_000
"""In bf16 a first bucket of 1 MiB and one of 9.75 MB, which take 22.19 and 80.2 µs."""
FIRST_US, SECOND_US = 15.2 + (1 << 20) / 150e3, 80.2


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A step of one GPU: 200 µs forward, 400 backward and 50 of an optimizer; the host takes 100."""
    times = (
        ("ProfilerStep*", 50, 100, 0, 650),
        ("aten::mm", 25, 25, 600, 600),
        ("autograd::engine::evaluate_function: MmBackward0", 10, 20, 0, 400),
        ("aten::_fused_adamw_", 5, 5, 50, 50),
    )
    rows = ((name, own * US, total * US, busy * US, under * US) for name, own, total, busy, under in times)
    return write_times(tmp_path / "one.txt", rows)


def run(path: Path, **options: object) -> Answer:
    program = program_of(path, mesh="dp=2", sizes=(("params", str(PARAMETERS)),), **options)
    return simulate(program, Machine(CLUSTER, collectives=MEASURED, prices="model"), explain=False)


def test_buckets_under_the_backward(table: Path) -> None:
    """The first bucket is full after 1,048,576 of 10,798,576 bytes, 38.84 µs into the backward; the second at its end.

    compute | forward 200 | 38.84 | 361.16 |..80.2..| optimizer 50 |
    dp                            | 22.19 |  | 80.2 |
    """
    answer = run(table)
    ready = 200 + 400 * (1 << 20) / (2 * PARAMETERS)
    first, second = times_of(answer, 0, "reduce gradients")
    assert first == pytest.approx((ready, ready + FIRST_US), abs=2e-3)
    assert second == pytest.approx((600, 600 + SECOND_US), abs=2e-3)
    assert step_us(answer) == pytest.approx(650 + SECOND_US, abs=2e-3)
    assert parts_us(answer, 0) == {"compute": 600, "optimizer": 50, "dp exposed": pytest.approx(SECOND_US, abs=2e-3)}


def test_buckets_after_the_backward(table: Path) -> None:
    """Both one after the other: 650 + 22.19 + 80.2."""
    assert step_us(run(table, overlap="none")) == pytest.approx(650 + FIRST_US + SECOND_US, abs=2e-3)
