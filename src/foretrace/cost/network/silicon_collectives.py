"""Reads NVIDIA's measured NCCL tables (`foretrace.cost.silicon`).

They are of groups within one node: 2, 4 and 8 GPUs, and 2 and 4 of an NVL72. Sizes are counted in elements. Several
folders repeat the rows of others under other versions, with times up to four times apart. Only folders that do not are
read, and the version of NCCL behind them counts as unknown.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretrace.cost.kernels.parameters import efficiency
from foretrace.cost.network.nccl_tests.aggregation import falling_removed
from foretrace.cost.network.nccl_tests.records import Measurements, MeasurementTable
from foretrace.cost.silicon import SYSTEMS, tables_of
from foretrace.hardware.cluster import Gpu
from foretrace.hardware.presets import gpu as preset
from foretrace.program.columns import Collective

NETWORK_SYSTEMS: Final = {**SYSTEMS, "h100-96g-500w": "h100_sxm"}
"""The system whose links are a GPU's: those of the H100 with less power are the H100's."""

_FOLDER, _FOLDERS = "2.29.2", {"a100_sxm": "2.27.3"}
"""The folder without repeated rows: most systems', and those where it is another."""

_CALLS: Final = {
    "all_gather": Collective.ALL_GATHER,
    "all_reduce": Collective.ALL_REDUCE,
    "alltoall": Collective.ALL_TO_ALL,
    "reduce_scatter": Collective.REDUCE_SCATTER,
}
_ELEMENT_BYTES: Final = {"half": 2, "int8": 1}

NAME: Final = "NVIDIA's NCCL tables"


def silicon_collectives(gpu: Gpu, slowdown: float = 1.0) -> Measurements | None:
    """Returns the measured collectives of GPUs of one node whose SMs run `slowdown` times slower than in the tables;
    None where there are no tables of this GPU, or no package, or its links are not those that were measured. A
    hypothetical GPU has those of its preset."""
    name = gpu.base or gpu.name
    if name not in NETWORK_SYSTEMS or not (gpu.base or _links(gpu) == _links(preset(name))):
        return None
    return _collectives(name, slowdown)


def slowdown_in_training(gpu: Gpu) -> float:
    """Returns by how much SMs run slower under training's load than when collectives are measured alone.

    NCCL moves data with SMs, and its measured rates are far below what the links carry: times grow as the frequency
    falls.
    """
    clocks = efficiency(gpu)
    return max(clocks.most_clock_hz / clocks.clock_hz, 1.0)


def silicon_tables(gpu: str, dtype: str = "half") -> tuple[MeasurementTable, ...]:
    """The tables of a GPU at the clock they were measured at; none where there are no such tables, or no package. Those
    of elements of one byte (`int8`) price nothing: they are there to judge by."""
    measurements = _collectives(gpu, 1.0, dtype)
    return () if measurements is None else measurements.tables


def _links(gpu: Gpu) -> tuple[float, ...]:
    return (gpu.links, gpu.link_bytes_per_s, gpu.bridged_gpus)


@cache
def _collectives(gpu: str, longer: float, dtype: str = "half") -> Measurements | None:
    path = _path(gpu)
    if path is None:
        return None
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"]
    # read_table would import all of pyarrow's datasets: five times as long as the rest.
    rows = parquet.ParquetFile(path).read(columns=columns).to_pylist()
    times: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        if row["nccl_dtype"] == dtype and row["op_name"] in _CALLS and row["latency"] > 0 and row["message_size"] > 0:
            sizes = times.setdefault((row["op_name"], int(row["num_gpus"])), {})
            sizes[_ELEMENT_BYTES[dtype] * int(row["message_size"])] = row["latency"] * 1e-3 * longer
    tables = tuple(
        MeasurementTable(
            _CALLS[name],
            gpus,
            1,
            np.array(sorted(sizes), dtype=np.float64),
            # A row that is longer than those of larger sizes was disturbed: it is taken down, not they up.
            falling_removed(np.array([sizes[size] for size in sorted(sizes)])),
            (path.name,),
        )
        for (name, gpus), sizes in sorted(times.items())
        if gpus > 1
    )
    return Measurements((), tables, name=NAME, source=NAME, partial=True) if tables else None


def _path(gpu: str) -> Path | None:
    system = NETWORK_SYSTEMS.get(gpu)
    root = None if system is None else tables_of(system)
    if system is None or root is None:
        return None
    folder = root / "comm" / "nccl" / _FOLDERS.get(system, _FOLDER)
    return next(iter(sorted(folder.glob("*.parquet"))), None)
