"""Which sources a cluster's prices come from, of kernels and of collectives, for a job that says its kernels."""

from __future__ import annotations

from foretrace.cost.compute import kernel_pricer
from foretrace.cost.compute.interface import KernelPricer, PriceSource
from foretrace.cost.compute.slowest import SlowestPricer
from foretrace.cost.network.silicon import silicon_collectives
from foretrace.formats.nccl_tests import Measurements
from foretrace.hardware.cluster import Cluster

__all__ = ["PriceSource", "collective_prices", "kernel_prices"]


def kernel_prices(
    cluster: Cluster, world: int, prices: PriceSource = "best", silicon: bool | None = None
) -> KernelPricer:
    """Prices of kernels on a cluster's GPUs, for a job of so many; `silicon` as in `kernel_pricer`."""
    pricer = kernel_pricer(cluster.gpu, prices=prices, silicon=silicon)
    return SlowestPricer(pricer, world) if prices != "roofline" and world > 1 else pricer


def collective_prices(
    cluster: Cluster, prices: PriceSource = "best", silicon: bool | None = None
) -> Measurements | None:
    """Measured collectives within a cluster's nodes, where there are such and `silicon` does not forbid them."""
    return silicon_collectives(cluster.gpu) if prices == "best" and silicon is not False else None
