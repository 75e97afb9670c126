"""Counts the kernels that a program runs."""

from __future__ import annotations

import numpy as np

from foretrace.cost.kernels.clocks import Mix
from foretrace.cost.pricing import unpriced_kernels
from foretrace.program.expand import Ops
from foretrace.program.kernels import Kernel, parse_kernels


def mix_of(ops: Ops) -> Mix:
    """The kernels of a step that have no duration of their own, over all ranks."""
    asked = unpriced_kernels(ops.column("kind"), ops.column("kernel"), ops.floats("duration_s"))
    asked = asked[ops.ints("enabled")[asked] != 0]
    ranks = np.bincount(ops.program.role_of, minlength=len(ops.start) - 1)
    text = ops.ints("kernel")[asked]
    weight = np.bincount(text, weights=ranks[ops.role[asked]], minlength=1)
    calls: dict[Kernel, float] = {}
    for number in np.flatnonzero(weight).tolist():
        for count, kernel in parse_kernels(ops.program.strings[number]):
            calls[kernel] = calls.get(kernel, 0.0) + count * float(weight[number])
    return Mix(calls)
