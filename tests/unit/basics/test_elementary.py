"""Elementary functions of arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretrace.basics.elementary import exp, log, log2, p_norm, power

VALUES = np.random.default_rng(1).uniform(0.01, 50.0, (20, 50))


@pytest.mark.parametrize(("function", "scalar"), [(exp, math.exp), (log, math.log), (log2, math.log2)])
def test_values_are_those_of_the_c_library(function: object, scalar: object) -> None:
    assert callable(function) and callable(scalar)
    expected = [[scalar(value) for value in row] for row in VALUES.tolist()]
    np.testing.assert_array_equal(function(VALUES), expected)


def test_powers_have_a_common_exponent_or_one_each() -> None:
    common = power(VALUES, 2.6)
    np.testing.assert_array_equal(common, power(VALUES, np.full(VALUES.shape, 2.6)))
    np.testing.assert_allclose(common, VALUES**2.6, rtol=1e-15)


@pytest.mark.parametrize("exponent", [2.6, 4.0])
def test_a_norm_is_between_the_larger_value_and_the_sum(exponent: float) -> None:
    other = VALUES[::-1]
    norm = p_norm(VALUES, other, exponent)
    np.testing.assert_allclose(norm, (VALUES**exponent + other**exponent) ** (1 / exponent), rtol=1e-14)
    assert (norm > np.maximum(VALUES, other)).all()
    assert (norm < VALUES + other).all()


def test_nothing_is_a_value_too() -> None:
    nothing = np.empty(0)
    assert all(len(made) == 0 for made in (exp(nothing), power(nothing, 2.6), p_norm(nothing, nothing, 4.0)))
