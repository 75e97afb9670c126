"""Prices of kernels are remembered, up to a limit."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.cost.kernels.interface import KernelPrices, KnownPrices
from foretrace.program.kernels import Copy, Kernel


class Counting:
    """Prices a kernel by its bytes and counts the kernels that it prices."""

    def __init__(self) -> None:
        self.priced: list[Kernel] = []

    def __call__(self, kernels: list[Kernel]) -> KernelPrices:
        self.priced += kernels
        seconds = np.array([kernel.moved_bytes for kernel in kernels], dtype=np.float64)
        return KernelPrices(seconds, np.full(len(kernels), 3), 0.9 * seconds, 1.1 * seconds)


def test_each_kernel_is_priced_once() -> None:
    compute = Counting()
    known = KnownPrices(compute)
    first, second, third = (Copy(size) for size in (1, 2, 3))
    assert known.of([first, second, first]).duration_s.tolist() == [1, 2, 1]
    prices = known.of([third, first, second])
    assert prices.duration_s.tolist() == [3, 1, 2]
    assert prices.source.tolist() == [3, 3, 3]
    assert prices.high.tolist() == pytest.approx([3.3, 1.1, 2.2])
    assert compute.priced == [first, second, third]


def test_no_kernel_has_no_price() -> None:
    assert len(KnownPrices(Counting()).of([]).duration_s) == 0


def test_beyond_the_limit_all_are_priced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.cost.kernels.interface.MAX_KNOWN", 3)
    compute = Counting()
    known = KnownPrices(compute)
    kernels = [Copy(size) for size in (1, 2, 3, 4)]
    known.of(kernels[:3])
    assert known.of(kernels).duration_s.tolist() == [1, 2, 3, 4]
    assert len(compute.priced) == 7
