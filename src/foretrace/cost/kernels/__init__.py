"""What kernels take on a GPU."""

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
