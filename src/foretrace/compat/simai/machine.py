"""Computes with C++ numbers on x86-64, as SimAI is built: 32-bit floats, and 64-bit unsigned ticks cast from them.

SimAI never checks a number before it casts it, so what an impossible one becomes is part of its answer.
"""

from __future__ import annotations

import math
from ctypes import c_float

import numpy as np

_TOP_BIT = 1 << 63
_MASK = (1 << 64) - 1
_EXACT_IN_DOUBLE = 1 << 53


def f32(value: float) -> float:
    """The value rounded to a C++ `float`."""
    return c_float(value).value


def f32_of_tick(tick: int) -> float:
    """An unsigned 64-bit integer as a `float`, rounded once."""
    return c_float(tick).value if tick < _EXACT_IN_DOUBLE else float(np.uint64(tick).astype(np.float32))


def tick(value: float) -> int:
    """A `double` or `float` cast to `unsigned long long`, with what cvttsd2si makes of NaN and of what does not fit.

    Compilers for x86-64 convert the upper half of the range by taking 2^63 off first; the instruction answers 2^63 to
    all that it cannot represent. So NaN is 2^63, infinity 0, and a small negative number nearly 2^64.
    """
    if math.isnan(value) or value < -_TOP_BIT:
        return _TOP_BIT
    if value < _TOP_BIT:
        return int(value) & _MASK
    return int(value) if value < 2.0**64 else 0


def wrapped(value: int) -> int:
    """A sum of ticks, modulo 2^64."""
    return value & _MASK


def int32(value: int) -> int:
    """A product of `int`s, wrapped to 32 bits with a sign."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def divide(dividend: float, divisor: float) -> float:
    """IEEE division: infinity or NaN where Python would raise."""
    if divisor:
        return dividend / divisor
    return math.nan if not dividend or math.isnan(dividend) else math.copysign(math.inf, dividend)


def scaled(time_ns: int, factor: float) -> int:
    """Ticks times a `float`, back in ticks: `Tick *= float` computes in `float`, so 24 bits are left of them."""
    return tick(f32(f32_of_tick(time_ns) * f32(factor)))
