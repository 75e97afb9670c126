"""What kernels lose to a collective beside them."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost.network.interface import Explained
from foretrace.cost.overlap import CHANNELS, TRANSFER_CHANNELS, ResourceUse, resource_use, slowdowns
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Kernel, Stream, parse_kernels
from shared_files import ROOT

H200, A100 = cluster("h200-dgx").gpu, cluster("a100-dgx").gpu
MEASURED = ROOT / "benchmarks" / "gpu" / "overlap_h200.csv"


def one(kernel: Kernel, alone_s: float, taken: ResourceUse, gpu=H200) -> float:
    return float(slowdowns([kernel], np.array([alone_s]), [taken], gpu)[0, 0])


def test_a_product_of_one_wave_takes_two_on_hopper() -> None:
    small, large = Gemm(4096, 1024, 8192), Gemm(16384, 16384, 8192)
    held = ResourceUse(24, 0.0)
    # 128 tiles for 132 SMs: the blocks that find none begin when the others are done.
    assert one(small, 1e-4, held) == pytest.approx(2.0, rel=0.05)
    assert 132 / 108 < one(large, 6e-3, held) < 1.4


def test_before_hopper_tiles_go_to_whatever_sm_is_free() -> None:
    # 96 tiles fit on the 84 SMs left of 108 in two waves, and so do 160; alone they take one and two.
    assert one(Gemm(96 * 256, 128, 4096), 1e-3, ResourceUse(24, 0.0), A100) == pytest.approx(2.0, rel=0.05)
    assert one(Gemm(160 * 256, 128, 4096), 1e-3, ResourceUse(24, 0.0), A100) == 1.0


def test_streams_lose_to_memory_traffic_and_attention_to_sms() -> None:
    add = Stream("add", 1 << 30, 1 << 29)
    rate = H200.memory_bytes_per_s
    at_full_rate = add.moved_bytes / (0.86 * rate)
    assert one(add, at_full_rate, ResourceUse(8, 0.25 * rate)) > one(add, at_full_rate, ResourceUse(8, 0.0)) + 0.1
    attention = Attention(4, 32, 8, 4096, 4096, 128, 128, 4096 * 4097 // 2)
    alone_s = attention.flops / 5e14
    assert one(attention, alone_s, ResourceUse(24, 0.0)) == pytest.approx(132 / 108, rel=0.02)
    assert one(attention, alone_s, ResourceUse(24, 0.05 * rate)) == pytest.approx(132 / 108, rel=0.02)


def test_grouped_products_do_afterwards_what_found_no_sm() -> None:
    experts = GroupedGemm(8, 16384, 4096, 7168, largest=2048)
    assert one(experts, 1e-3, ResourceUse(8, 0.0)) == pytest.approx(2.0, rel=0.05)
    assert one(replace(experts, separate=True), 1e-3, ResourceUse(8, 0.0)) == pytest.approx(2.0, rel=0.05)


def test_nothing_held_or_unknown_sms_cost_nothing() -> None:
    kernel = Gemm(4096, 1024, 8192)
    assert one(kernel, 1e-4, ResourceUse(0, 1e12)) == 1.0
    assert one(kernel, 1e-4, ResourceUse(24, 1e12), replace(H200, compute_units=0)) == 1.0


@given(
    m=st.integers(1, 40000),
    n=st.integers(1, 40000),
    alone_s=st.floats(1e-6, 1e-1),
    sms=st.integers(1, 200),
    rate=st.floats(0, 4e12),
)
def test_slowdowns_are_finite_at_least_1_and_grow_with_traffic(
    m: int, n: int, alone_s: float, sms: int, rate: float
) -> None:
    kernels: list[Kernel] = [Gemm(m, n, 4096), Stream("add", 4 * m * n, 2 * m * n)]
    for gpu in (H200, A100):
        less, more = slowdowns(
            kernels, np.full(2, alone_s), [ResourceUse(sms, rate / 2), ResourceUse(sms, rate)], gpu
        ).T
        assert (less >= 1).all() and np.isfinite(more).all()
        assert (more >= less - 1e-12).all()


def test_what_a_call_takes() -> None:
    call = Explained(1e-3, 1e-5, 8e-4, "ring", "simple", 16, (("link", 1e8),))
    assert resource_use(call, Collective.ALL_GATHER) == ResourceUse(16, 3e11)
    assert resource_use(call, Collective.EXCHANGE).sms == TRANSFER_CHANNELS
    assert resource_use(replace(call, algorithm="measured", channels=0), Collective.ALL_REDUCE).sms == CHANNELS
    assert resource_use(replace(call, algorithm="low-latency", channels=0), Collective.ALL_TO_ALL).sms == 0


def test_shapes_that_were_not_fitted_are_within_10_percent_and_better_than_any_constant() -> None:
    with MEASURED.open(newline="") as file:
        alone_rates, *rows = csv.DictReader(file)
    rows = sorted(rows, key=lambda row: row["kernel"])[1::2]  # the others were fitted: benchmarks/overlap.py
    loads = [name for name in alone_rates if name.startswith("under_s ") and "room" not in name]
    loads = [name for name in loads if not name.startswith("under_s 1x")]
    taken = [_taken(name.removeprefix("under_s "), alone_rates) for name in loads]
    kernels = [parse_kernels(row["kernel"])[0][1] for row in rows]
    alone_s = np.array([float(row["alone_s"]) for row in rows])
    measured = np.array([[float(row[name]) for name in loads] for row in rows]) / alone_s[:, None]
    predicted = slowdowns(kernels, alone_s, taken, H200)

    off = np.abs(predicted / measured - 1).mean()
    best = min(np.abs(factor / measured - 1).mean() for factor in np.arange(1, 2.5, 0.01))
    assert off < 0.08 < 0.18 < best
    total = (predicted * alone_s[:, None]).sum() / (measured * alone_s[:, None]).sum()
    assert total == pytest.approx(1, abs=0.05)


def _taken(load: str, rates: dict[str, str]) -> ResourceUse:
    return ResourceUse(int(load.partition("x")[0]), 2 * float(rates.get(f"copy_bytes_per_s {load}") or 0.0))
