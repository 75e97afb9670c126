"""Chooses the sources that price the kernels and the collectives of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from foretrace.cost import kernels
from foretrace.cost.kernels.interface import KernelPricer, PriceSource, PriceSources
from foretrace.cost.kernels.parameters import base_of
from foretrace.hardware.cluster import Cluster, Gpu

if TYPE_CHECKING:
    from foretrace.cost.calibration import Calibration
    from foretrace.cost.kernels.calibrated import CalibratedPricer
    from foretrace.cost.kernels.clocks import Mix
    from foretrace.cost.network.nccl.environment import Forced
    from foretrace.cost.network.nccl_tests.records import Measurements


NetworkPrices = Literal["best", "model", "roofline"]
"""The sources of collective prices; see `PriceSource`."""


def gpu_pricer(gpu: Gpu, sources: PriceSources, calibration: Calibration | None) -> KernelPricer:
    """Returns what prices kernels on one GPU; a calibration comes before all other sources.

    A hypothetical GPU has the prices of the preset that it changes, converted by its own figures.
    """
    base = base_of(gpu)
    if base is not None and sources.source != "roofline":
        from foretrace.cost.kernels.hypothetical import HypotheticalPricer  # most jobs do without, and start faster

        return HypotheticalPricer(gpu_pricer(base, sources, calibration), base, gpu)
    if calibration is None:
        return kernels.kernel_pricer(gpu, prices=sources.source, silicon=sources.silicon)
    return calibrated_pricer(gpu, calibration, sources.source, sources.silicon)


def job_pricer(
    pricer: KernelPricer, gpu: Gpu, world: int, sources: PriceSources, mix: Mix | None, *, calibrated: bool = True
) -> KernelPricer:
    """Returns the pricer for a job of `world` GPUs, the slowest of which the others wait for.

    Args:
        pricer: Prices kernels on one GPU.
        gpu: The GPU of the job.
        world: GPUs of the job.
        sources: The sources of prices.
        mix: The kernels of the job, where a calibration was recorded at the frequency of a step; its times are
            converted to the job's own frequency.
        calibrated: Whether streams are priced as within a step, rather than as in a kernel profile.
    """
    if sources.source == "roofline":
        return pricer
    from foretrace.cost.kernels.clocks import ClockedPricer, SlowestPricer, products_factor  # starts faster without

    if mix is not None:
        pricer = ClockedPricer(pricer, products_factor(gpu, mix, pricer), None if calibrated else gpu)
    return SlowestPricer(pricer, world) if world > 1 else pricer


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
    return CalibratedPricer(kernels.kernel_pricer(gpu, prices=prices, silicon=silicon), calibration, gpu)


def measured_collectives(
    cluster: Cluster,
    own: Measurements | None = None,
    prices: NetworkPrices = "best",
    silicon: bool | None = None,
    slowdown: float = 1.0,
    forced: Forced | None = None,
    calibration: Calibration | None = None,
) -> tuple[Measurements, ...]:
    """Returns measured collectives, best first: a user's own, those of a calibration, then NVIDIA's tables.

    The tables count where `prices` is "best" and `silicon` is not False; None uses them if they are installed.

    NVIDIA measured what NCCL chooses by itself, so where a user forces a choice, the tables say nothing.
    """
    best = () if own is None else (own,)
    if calibration is not None and calibration.collectives is not None:
        best = (*best, calibration.collectives)
    if prices != "best" or silicon is False or forced:
        return best
    # Reading the tables takes a while, and not every job needs them.
    from foretrace.cost.network.silicon_collectives import silicon_collectives

    tables = silicon_collectives(cluster.gpu, slowdown)
    return best if tables is None else (*best, tables)
