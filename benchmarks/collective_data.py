"""Measured collectives by data set, for the fit of the network model's constants and for its scoreboard.

Read are NVIDIA's tables (the extra `[silicon]`) and the folder `data/collectives` of `$FORETRACE_SHARED` or of
`../shared`. Not scored: unnamed hardware, rows without bytes, networks that no preset describes (EFA, TCPXO,
Slingshot), and the 256-GPU log, whose times differ by its file.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.placement import Placement
from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine
from foretrace.cost.network.nccl.network import NcclNetwork
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import MeasurementTable
from foretrace.cost.network.silicon_collectives import silicon_tables
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Collective

SILICON = {"a100-80g-sxm": "a100-dgx", "h100-sxm": "h100-dgx", "h200-sxm": "h200-dgx", "b200": "b200-dgx"}
"""GPUs of NVIDIA's tables whose constants are fitted, and the cluster each is priced on."""

SIBLINGS = {"b300": "b300-dgx", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}
"""Those that take the constants of the B200, and of which nothing is fitted."""

FOLDERS = {"a100_40g_ib_1to256": "a100-40g-dgx", "a100_2x8": "a100-dgx", "a800_1x8": "a800-hgx"}
LEFT_OUT_GPUS = {"a100_40g_ib_1to256": (256,)}

NAMED = (
    ("8xA100 SXM NVLink3", "a100-dgx", "A100 8 (published)"),
    ("A100-SXM4-40GB OCI", "a100-40g-dgx", "A100 OCI (published)"),
    ("H200 NVLink4", "h200-dgx", "H200 (published)"),
    ("B200 NVLink5", "b200-dgx", "B200 (published)"),
    ("B200 P6-B200 NVLink5", "b200-dgx", "B200 (published)"),
    ("MI300X", "mi300x", "MI300X (published)"),
)
"""Words of the hardware in `nccl_busbw.csv`, the cluster, and what its data set is called here. The A100-SXM4-40GB of
Azure there are the runs of the logs: they count once."""

COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
}


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Times of one collective in one group."""

    dataset: str
    cluster: Cluster
    collective: Collective
    gpus: int
    nodes: int
    size_bytes: NDArray[np.float64]
    time_s: NDArray[np.float64]
    forced: Forced | None = None
    launches: int = 1
    """Kernels that one process launches for a call, one after the other: nccl-tests' GPUs per process."""

    def modelled_s(self, machine: NcclMachine) -> NDArray[np.float64]:
        """What the model says of them."""
        network, layout = self.network(replace(machine, launch_s=machine.launch_s * self.launches))
        return network.price(self.collective, layout, self.size_bytes).duration_s

    def network(self, machine: NcclMachine) -> tuple[NcclNetwork, GroupLayout]:
        """The group alone on its nodes, spread evenly."""
        number = np.arange(self.gpus)
        host = number * self.nodes // self.gpus
        slot = number - np.searchsorted(host, host)
        placement = Placement(host.astype(np.int32), slot.astype(np.int32))
        network = NcclNetwork(self.cluster, placement, machine=machine, forced=self.forced)
        layout = network.layouts(number[None])[0][0]
        assert isinstance(layout, GroupLayout)
        return network, layout


def silicon(dtype: str = "half") -> list[Measured]:
    """NVIDIA's tables, at the clock they were measured at: of elements of two bytes, or of one (`int8`)."""
    rows = []
    for gpu, cluster in {**SILICON, **SIBLINGS}.items():
        rows += [_of_table(f"silicon {gpu}", cluster, table) for table in silicon_tables(gpu, dtype)]
    return rows


def folder() -> Path:
    """Where the measurements of others lie."""
    shared = Path(os.environ.get("FORETRACE_SHARED", Path(__file__).parents[2] / "shared"))
    return shared / "data" / "collectives"


def published() -> list[Measured]:
    """The logs and tables of others: all-reduce in the folders, what is named of the table of bus bandwidths."""
    rows = []
    for name, cluster in FOLDERS.items():
        tables = read_measurements(folder() / name).tables if (folder() / name).exists() else ()
        rows += [
            _of_table(name, cluster, table)
            for table in tables
            if table.collective is Collective.ALL_REDUCE and table.gpus not in LEFT_OUT_GPUS.get(name, ())
        ]
    return [*rows, *_named()]


def _of_table(dataset: str, cluster: str, table: MeasurementTable) -> Measured:
    place, launches = presets.cluster(cluster), _launches(Path(table.files[0]))
    return Measured(
        dataset, place, table.collective, table.gpus, table.nodes, table.size_bytes, table.time_s, None, launches
    )


def _launches(path: Path) -> int:
    """GPUs per process, as a log of nccl-tests says; 1 where it does not."""
    if path.suffix != ".log":
        return 1
    with path.open(encoding="utf-8", errors="replace") as stream:
        counts = re.search(r"nThread (\d+) nGpus (\d+)", stream.readline())
    return int(counts[1]) * int(counts[2]) if counts else 1


def _named() -> list[Measured]:
    path = folder() / "nccl_busbw.csv"
    if not path.exists():
        return []
    rows: dict[tuple[str, str, Collective, int, int, bool], dict[float, float]] = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            kind = next(((place, name) for word, place, name in NAMED if word in row["hardware"]), None)
            what = COLLECTIVES.get(row["collective"])
            if kind and what is not None and row["bytes"] and (row["time_us"] or row["busbw_GBps"]):
                off = "NVLS off" in row["nccl_algo"]
                key = (kind[1], kind[0], what, int(row["gpus"]), int(row["nodes"] or 1), off)
                rows[key].setdefault(float(row["bytes"]), _seconds(row, what))
    return [
        Measured(
            name,
            presets.cluster(cluster),
            what,
            gpus,
            nodes,
            np.array(sorted(times)),
            np.array([times[size] for size in sorted(times)]),
            Forced.of("^nvls") if off else None,
        )
        for (name, cluster, what, gpus, nodes, off), times in rows.items()
    ]


def _seconds(row: dict[str, str], what: Collective) -> float:
    """From the time or from the bus bandwidth."""
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6
    return float(row["bytes"]) * passes(what, int(row["gpus"])) / (float(row["busbw_GBps"]) * 1e9)
