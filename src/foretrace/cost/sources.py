"""Where the prices of a job that says its kernels come from, for a cluster."""

from __future__ import annotations

from typing import Literal

from foretrace.cost.compute import kernel_pricer
from foretrace.cost.compute.interface import KernelPricer
from foretrace.cost.compute.slowest import SlowestPricer
from foretrace.cost.network.silicon import silicon_collectives
from foretrace.formats.nccl_tests import Measurements
from foretrace.hardware.cluster import Cluster

PriceSource = Literal["best", "model", "roofline"]
"""The best source that knows each kernel, the fitted model alone, or the datasheet."""


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
