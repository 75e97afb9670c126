"""NVIDIA's measured NCCL tables, as the package `aiconfigurator-core` carries them (the extra `[silicon]`).

They are of groups within one node: 2, 4 and 8 GPUs, 2 and 4 of an NVL72. Sizes are counted in elements there. Several
folders repeat each other's rows under other versions, up to four times apart; only those that do not are read, and the
version of NCCL behind them counts as unknown.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretrace.cost.compute.parameters import efficiency
from foretrace.formats.nccl_tests import Measurements, Table
from foretrace.hardware.cluster import Gpu
from foretrace.program.columns import Collective

SYSTEMS: Final = {
    "a100-80g-sxm": ("a100_sxm", "2.27.3"),
    "h100-sxm": ("h100_sxm", "2.29.2"),
    "h100-96g-500w": ("h100_sxm", "2.29.2"),
    "h200-sxm": ("h200_sxm", "2.29.2"),
    "b200": ("b200_sxm", "2.29.2"),
    "b300": ("b300_sxm", "2.29.2"),
    "gb200": ("gb200", "2.29.2"),
    "gb300": ("gb300", "2.29.2"),
}
"""The system whose tables a GPU has, and the folder among them without repeated rows."""

_CALLS: Final = {
    "all_gather": Collective.ALL_GATHER,
    "all_reduce": Collective.ALL_REDUCE,
    "alltoall": Collective.ALL_TO_ALL,
    "reduce_scatter": Collective.REDUCE_SCATTER,
}
_ELEMENT_BYTES: Final = 2

NAME: Final = "NVIDIA's NCCL tables"


_BOOST_HZ: Final = {"Ampere": 1.41e9, "Hopper": 1.98e9}
_BLACKWELL_HZ: Final = 1.965e9
"""The clock of an idle GPU's SMs, with which nccl-tests run: nvidia-smi's maximum."""


def silicon_collectives(gpu: Gpu) -> Measurements | None:
    """What collectives take among GPUs of one node in training; None where there are no tables of this GPU, or no
    package.

    NCCL moves data with SMs, whose clock falls under training's load, and these tables are far from what the links
    carry: times grow by what the clock falls.
    """
    boost = _BOOST_HZ.get(gpu.architecture, _BLACKWELL_HZ)
    return _collectives(gpu.name, max(boost / efficiency(gpu).clock_hz, 1.0))


@cache
def _collectives(gpu: str, longer: float) -> Measurements | None:
    path = _path(gpu)
    if path is None or find_spec("pyarrow") is None:
        return None
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"]
    rows = parquet.read_table(path, columns=columns).to_pylist()
    times: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        if row["nccl_dtype"] == "half" and row["op_name"] in _CALLS and row["latency"] > 0 and row["message_size"] > 0:
            sizes = times.setdefault((row["op_name"], int(row["num_gpus"])), {})
            sizes[_ELEMENT_BYTES * int(row["message_size"])] = row["latency"] * 1e-3 * longer
    tables = tuple(
        Table(
            _CALLS[name],
            gpus,
            1,
            np.array(sorted(sizes), dtype=np.float64),
            np.maximum.accumulate(np.array([sizes[size] for size in sorted(sizes)])),
            (path.name,),
        )
        for (name, gpus), sizes in sorted(times.items())
        if gpus > 1
    )
    return Measurements((), tables, name=NAME, source=NAME) if tables else None


def _path(gpu: str) -> Path | None:
    spec = find_spec("aiconfigurator_core")
    if gpu not in SYSTEMS or spec is None or not spec.submodule_search_locations:
        return None
    system, version = SYSTEMS[gpu]
    folder = Path(spec.submodule_search_locations[0]) / "systems" / "data" / system / "comm" / "nccl" / version
    return next(iter(sorted(folder.glob("*.parquet"))), None)
