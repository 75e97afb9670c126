"""Which sources the prices of kernels come from, for a job that says its kernels."""

from __future__ import annotations

from foretrace.cost.compute import kernel_pricer
from foretrace.cost.compute.interface import KernelPricer, PriceSource
from foretrace.cost.compute.slowest import SlowestPricer
from foretrace.hardware.cluster import Cluster

__all__ = ["PriceSource", "kernel_prices"]


def kernel_prices(
    cluster: Cluster, world: int, prices: PriceSource = "best", silicon: bool | None = None
) -> KernelPricer:
    """Prices of kernels on a cluster's GPUs, for a job of so many; `silicon` as in `kernel_pricer`."""
    pricer = kernel_pricer(cluster.gpu, prices=prices, silicon=silicon)
    return SlowestPricer(pricer, world) if prices != "roofline" and world > 1 else pricer
