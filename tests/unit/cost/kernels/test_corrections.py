"""Measurements correct the model: exactly where they were taken, smoothly between, as at the edge beyond."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.cost.kernels.corrections import FARTHEST, MeasuredCorrections
from foretrace.program.kernels import Gemm, Kernel, Stream

SIZES = [2**power for power in range(8, 15)]


def streams(*sizes: float, name: str = "add") -> list[Kernel]:
    return [Stream(name, int(size), 0) for size in sizes]


def test_at_a_measured_shape_it_is_the_measurement() -> None:
    kernels = [Gemm(m, n, 1024) for m in SIZES for n in SIZES]
    modelled = np.full(len(kernels), 1e-3)
    seconds = modelled * np.linspace(0.8, 1.4, len(kernels))
    found = MeasuredCorrections(kernels, seconds, modelled).correction(kernels)
    assert found.factor * modelled == pytest.approx(seconds, rel=1e-3)
    assert found.distance.max() < 0.02
    assert found.error.max() < 0.05


def test_between_two_it_is_between() -> None:
    measured = MeasuredCorrections(streams(2**20, 2**22), np.array([1.0, 2.0]), np.ones(2))
    near, middle, far = measured.correction(streams(2**20.2, 2**21, 2**21.8)).factor.tolist()
    assert 1.0 < near < 1.01 < middle < 1.99 < far < 2.001
    assert middle == pytest.approx(2**0.5, rel=1e-3)


def test_beyond_them_it_stays_as_at_the_edge() -> None:
    measured = MeasuredCorrections(streams(2**20, 2**22), np.array([1.0, 2.0]), np.ones(2))
    found = measured.correction(streams(2**26, 2**40))
    assert found.factor == pytest.approx([2.0, 2.0], rel=0.2)
    assert (found.distance > FARTHEST).all()


def test_a_kernel_of_another_kind_is_not_known() -> None:
    measured = MeasuredCorrections(streams(2**20), np.array([1.0]), np.ones(1))
    found = measured.correction([Stream("rmsnorm", 2**20, 0)])
    assert found.factor.tolist() == [1.0]
    assert np.isinf(found.distance).all()


def test_a_layout_that_was_not_measured_follows_the_forward() -> None:
    measured = MeasuredCorrections([Gemm(4096, 4096, 4096)], np.array([2.0]), np.ones(1))
    assert measured.correction([Gemm(4096, 4096, 4096, layout="nt")]).factor == pytest.approx([2.0])


def test_unusable_and_absurd_measurements() -> None:
    measured = MeasuredCorrections(streams(2**20, 2**21, 2**30), np.array([np.nan, 0.0, 1e6]), np.ones(3))
    assert measured.correction(streams(2**20)).factor == pytest.approx([4.0])


def test_scattered_measurements_are_less_sure() -> None:
    kernels = [Gemm(m, n, 1024) for m in SIZES for n in SIZES]
    ones = np.ones(len(kernels))
    scatter = np.exp(np.random.default_rng(0).normal(0, 0.2, len(kernels)))
    query: list[Kernel] = [Gemm(1448, 1448, 1024)]
    smooth, rough = (
        MeasuredCorrections(kernels, seconds, ones).correction(query).error[0] for seconds in (ones, scatter)
    )
    assert smooth < 1e-6
    assert 0.1 < rough < 0.8
