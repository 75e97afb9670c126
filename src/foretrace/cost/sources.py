"""Which sources the prices of kernels come from, for a job that says its kernels."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from foretrace.cost.compute import kernel_pricer
from foretrace.cost.compute.interface import KernelPricer, PriceSource
from foretrace.cost.compute.slowest import SlowestPricer
from foretrace.hardware.cluster import Cluster, Gpu

if TYPE_CHECKING:
    from foretrace.cost.compute.calibrated import CalibratedPricer
    from foretrace.cost.compute.clocks import Mix
    from foretrace.formats.calibration import Calibration

__all__ = ["PriceSource", "calibrated_pricer", "kernel_prices"]

_MOST_KEPT: Final = 8
_kept: OrderedDict[tuple[int, str, PriceSource, bool | None], tuple[Calibration, CalibratedPricer]] = OrderedDict()
"""Pricers by calibration, so that many jobs of one process price a kernel once."""


def kernel_prices(
    cluster: Cluster,
    world: int,
    prices: PriceSource = "best",
    silicon: bool | None = None,
    calibration: Calibration | None = None,
    mix: Mix | None = None,
) -> KernelPricer:
    """Prices of kernels on a cluster's GPUs, for a job of so many; `silicon` as in `kernel_pricer`. A calibration comes
    before all others, whatever these are; `mix` is what the job runs: times that were recorded at the clocks of a step
    are kept as of a kernel profile's, and turned into those of the job's own."""
    pricer: KernelPricer
    if calibration is None:
        pricer = kernel_pricer(cluster.gpu, prices=prices, silicon=silicon)
    else:
        pricer = calibrated_pricer(cluster.gpu, calibration, prices, silicon)
        if mix is not None and prices != "roofline" and calibration.at_step_clocks:
            from foretrace.cost.compute.clocks import ClockedPricer, products_factor

            pricer = ClockedPricer(pricer, products_factor(cluster.gpu, mix, pricer))
    return SlowestPricer(pricer, world) if prices != "roofline" and world > 1 else pricer


def calibrated_pricer(
    gpu: Gpu, calibration: Calibration, prices: PriceSource = "best", silicon: bool | None = None
) -> CalibratedPricer:
    """The usual prices of a GPU, corrected by a calibration of it; an error where it is of another."""
    from foretrace.cost.compute.calibrated import CalibratedPricer  # most jobs do without, and start faster

    calibration.check_gpu(gpu.name)
    key = (id(calibration), gpu.name, prices, silicon)
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][1]
    pricer = CalibratedPricer(kernel_pricer(gpu, prices=prices, silicon=silicon), calibration, gpu)
    _kept[key] = (calibration, pricer)  # the calibration too: its id must stay its own
    if len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return pricer
