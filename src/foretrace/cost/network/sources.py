"""Which measured collectives price a job's communication before the model does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from foretrace.cost.network.nccl_tests import Measurements
from foretrace.hardware.cluster import Cluster

if TYPE_CHECKING:
    from foretrace.cost.calibration import Calibration
    from foretrace.cost.network.nccl.environment import Forced

NetworkPrices = Literal["best", "model", "roofline"]


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
    from foretrace.cost.network.silicon_collectives import (
        silicon_collectives,  # takes a while, and not every job needs it
    )

    tables = silicon_collectives(cluster.gpu, slowdown)
    return best if tables is None else (*best, tables)
