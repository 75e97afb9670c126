"""Kernels under the roofline, worked by hand."""

from __future__ import annotations

import pytest

from foretrace import Mesh, ProgramBuilder, load_cluster, simulate
from foretrace.readings.roofline import RooflinePoint, roofline

GEMM = "gemm m=1024 n=2048 k=512"
COPY = "stream name=copy read=3000 write=1000"
FLOPS = 2 * 1024 * 2048 * 512
MOVED = 2 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
"""Bytes of the two operands and the result in bf16."""


def points() -> dict[str, RooflinePoint]:
    """Two ranks multiply and copy, one more only copies: three ranks in all."""
    build = ProgramBuilder(Mesh(dp=3), repeats=False)
    first, second = build.role("first", [0, 1]), build.role("second", [2])
    for seconds in (1e-3, 3e-3):
        first.compute("up", seconds, kernel=GEMM, flops=FLOPS, moved_bytes=MOVED)
    first.compute("copy", 2e-3, kernel=COPY, moved_bytes=4000.0)
    second.compute("other copy", 5e-3, kernel=COPY, moved_bytes=4000.0)
    second.compute("unknown", 9e-3)
    second.compute("nothing", 0.0, kernel=GEMM, flops=FLOPS, moved_bytes=MOVED)
    return {point.name: point for point in roofline(simulate(build.program()).timeline)}


def test_time_is_the_mean_over_ranks_and_duration_that_over_ops() -> None:
    up = points()["up"]
    assert up.seconds == pytest.approx(2 * 4e-3 / 3)  # on two of three ranks
    assert up.duration_s == pytest.approx(2e-3)
    assert (up.kernels, up.dtype) == (GEMM, "bf16")


def test_rates_and_the_share_of_the_roof() -> None:
    up, gpu = points()["up"], load_cluster("h100-dgx").gpu
    assert up.intensity == pytest.approx(FLOPS / MOVED)
    assert up.flops_per_s == pytest.approx(FLOPS / 2e-3)
    assert up.bytes_per_s == pytest.approx(MOVED / 2e-3)
    # 2.17 GFLOP take 2.17 µs at 989 TFLOP/s, 7.3 MB take 2.19 µs at 3.35 TB/s: memory is the roof.
    assert up.roof_share(gpu) == pytest.approx(MOVED / gpu.memory_bytes_per_s / 2e-3)
    assert up.roof_share(gpu) > FLOPS / gpu.peak_flops["bf16"] / 2e-3


def test_ops_with_the_same_kernels_are_one_point_and_those_of_unknown_size_none() -> None:
    assert list(points()) == ["copy", "up"]  # 3 ms and 2.67 ms a rank
    copy = points()["copy"]
    assert copy.seconds == pytest.approx((2 * 2e-3 + 5e-3) / 3)
    assert copy.duration_s == pytest.approx((2 * 2e-3 + 5e-3) / 3)  # two ops of 2 ms, one of 5 ms
    assert copy.dtype == ""
    assert copy.roof_share(load_cluster("h100-dgx").gpu) == pytest.approx(4000 / 3.35e12 / 3e-3)
