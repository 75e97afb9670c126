"""Prices kernels on a GPU.

Read `interface` first, then `pricer`, which stacks the sources, best first. `kernel_profile` reads measured kernels,
`silicon_kernels` NVIDIA's tables, and `corrections` turns either into factors of the model. `model` is the efficiency
model: `gemm`, `attention` and `streams` are its families and `parameters` its constants. `calibrated` puts a user's
calibration before all other sources; `clocks` converts prices to the frequency that a job's GPUs reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretrace.cost.kernels.pricer import kernel_pricer

__all__ = ["kernel_pricer"]


def __getattr__(name: str) -> object:
    """Most jobs carry their times; those that do not load the prices of kernels when they ask for them."""
    if name == "kernel_pricer":
        from foretrace.cost.kernels.pricer import kernel_pricer

        return kernel_pricer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
