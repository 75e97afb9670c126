"""Chooses the sources that price the kernels of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.interface import KernelPricer, PriceSource, PriceSources
from foretrace.cost.kernels.slowest import SlowestPricer
from foretrace.hardware.cluster import Cluster, Gpu

if TYPE_CHECKING:
    from foretrace.cost.calibration import Calibration
    from foretrace.cost.kernels.calibrated import CalibratedPricer
    from foretrace.cost.kernels.clocks import Mix


def gpu_pricer(gpu: Gpu, sources: PriceSources, calibration: Calibration | None) -> KernelPricer:
    """Returns what prices kernels on one GPU; a calibration comes before all other sources."""
    if calibration is None:
        return kernel_pricer(gpu, prices=sources.source, silicon=sources.silicon)
    return calibrated_pricer(gpu, calibration, sources.source, sources.silicon)


def job_pricer(pricer: KernelPricer, gpu: Gpu, world: int, sources: PriceSources, mix: Mix | None) -> KernelPricer:
    """Returns the pricer for a job of `world` GPUs, the slowest of which the others wait for.

    Args:
        pricer: Prices kernels on one GPU.
        gpu: The GPU of the job.
        world: GPUs of the job.
        sources: The sources of prices.
        mix: The kernels of the job, where a calibration was recorded at the frequency of a step; its times are
            converted to the job's own frequency.
    """
    if mix is not None and sources.source != "roofline":
        from foretrace.cost.kernels.clocks import ClockedPricer, products_factor

        pricer = ClockedPricer(pricer, products_factor(gpu, mix, pricer))
    return SlowestPricer(pricer, world) if sources.source != "roofline" and world > 1 else pricer


def kernel_prices(cluster: Cluster, world: int, sources: PriceSources | None = None) -> KernelPricer:
    """Returns what prices the kernels of a job on a cluster without a calibration."""
    chosen = sources or PriceSources()
    return job_pricer(gpu_pricer(cluster.gpu, chosen, None), cluster.gpu, world, chosen, None)


def calibrated_pricer(
    gpu: Gpu, calibration: Calibration, prices: PriceSource = "best", silicon: bool | None = None
) -> CalibratedPricer:
    """Returns the usual prices of a GPU, corrected by a calibration of it.

    Args:
        gpu: The GPU to price kernels on.
        calibration: The calibration; an error where it is of another GPU.
        prices: The source of the usual prices.
        silicon: Whether NVIDIA's tables are used; None means if they are installed.
    """
    from foretrace.cost.kernels.calibrated import CalibratedPricer  # most jobs do without, and start faster

    calibration.check_gpu(gpu.name)
    return CalibratedPricer(kernel_pricer(gpu, prices=prices, silicon=silicon), calibration, gpu)
