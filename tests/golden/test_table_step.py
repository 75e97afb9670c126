"""The step of a profiler table on two GPUs, worked out by hand.

On the round cluster an all-reduce of S bytes over two GPUs takes 15.2 µs + S / 150 GB/s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Answer, Machine, simulate
from foretrace.formats.torch_table import Column, Field, Row, Table, write_table
from golden.reading import parts_us, step_us, times_of
from opened import program_of
from unit.lower.aicb.workloads import CLUSTER, MEASURED

PARAMETERS = (1 << 19) + 4_875_000
"""In bf16 a first bucket of 1 MiB and one of 9.75 MB, which take 22.19 and 80.2 µs."""
FIRST_US, SECOND_US = 15.2 + (1 << 20) / 150e3, 80.2


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A step of one GPU: 200 µs forward, 400 backward and 50 of an optimizer; the host takes 100."""
    columns = (Column("Name", Field.NAME), Column("Self CPU", Field.SELF_CPU), Column("CPU total", Field.CPU_TOTAL),
               Column("Self CUDA", Field.SELF_DEVICE), Column("CUDA total", Field.DEVICE_TOTAL),
               Column("# of Calls", Field.CALLS))  # fmt: skip
    times = (
        ("ProfilerStep*", 50, 100, 0, 650),
        ("aten::mm", 25, 25, 600, 600),
        ("autograd::engine::evaluate_function: MmBackward0", 10, 20, 0, 400),
        ("aten::_fused_adamw_", 5, 5, 50, 50),
    )
    rows = tuple(
        Row(name, line, *(value * 1e-6 for value in ()), self_cpu_s=own * 1e-6, cpu_total_s=total * 1e-6,
            self_device_s=busy * 1e-6, device_total_s=under * 1e-6, calls=1)
        for line, (name, own, total, busy, under) in enumerate(times, start=1)
    )  # fmt: skip
    path = tmp_path / "one.txt"
    path.write_text(write_table(Table("t", 1, columns, rows, "CUDA")), encoding="utf-8")
    return path


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
