"""Elementary functions of arrays that return the same bits on every CPU.

numpy evaluates exponentials, logarithms and powers by loops that it chooses by the vector units of the CPU. Those of
AVX-512 differ from the others in the last bit of one value in twenty (numpy 2.4, `NPY_DISABLE_CPU_FEATURES=X86_V4`).
These functions call the C library for each value. Sums, products, quotients and square roots are rounded as IEEE 754
says in all loops, so numpy's own are used for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from foretrace.basics.arrays import Floats


def exp(values: Floats) -> Floats:
    """Returns the exponential of each value."""
    return _each(math.exp, values)


def log(values: Floats) -> Floats:
    """Returns the natural logarithm of each value; all must be positive."""
    return _each(math.log, values)


def log2(values: Floats) -> Floats:
    """Returns the logarithm to base 2 of each value; all must be positive."""
    return _each(math.log2, values)


def power(bases: Floats, exponent: Floats | float) -> Floats:
    """Returns each base, none of which is negative, to its exponent or to the common one."""
    exponents = exponent.ravel().tolist() if isinstance(exponent, np.ndarray) else repeat(exponent)
    return _each(math.pow, bases, exponents)


def p_norm(first: Floats, second: Floats, exponent: float) -> Floats:
    """Returns `(first**exponent + second**exponent) ** (1 / exponent)`, a smooth maximum of two values."""
    if exponent == 4.0:
        squares = first * first, second * second
        return np.asarray(np.sqrt(np.sqrt(squares[0] * squares[0] + squares[1] * squares[1])))
    return power(power(first, exponent) + power(second, exponent), 1 / exponent)


def _each(function: Callable[..., float], values: Floats, *others: Any) -> Floats:
    flat = values.ravel().tolist()
    return np.fromiter(map(function, flat, *others), np.float64, len(flat)).reshape(values.shape)
