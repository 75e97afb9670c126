"""The network model against published nccl-tests results, where these are at hand.

    python benchmarks/collectives.py [FOLDER]

FOLDER holds `nccl_busbw.csv` (source, hardware, gpus, nodes, collective, bytes, time_us, busbw_GBps, …); by default
`data/collectives` of `$FORETRACE_SHARED` or of `../shared`. Prints measured / modelled; nothing is fitted.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.cost.network import network_of
from foretrace.hardware import presets
from foretrace.program.columns import Collective

CLUSTERS = {
    "H100": "h100-dgx",
    "H200": "h200-dgx",
    "B200": "b200-dgx",
    "A100": "a100-dgx",
    "MI300X": "mi300x",
}
COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
}
OTHER_NETWORKS = ("EFA", "a3-mega")
"""Networks that no preset describes: shown, not counted."""

LARGE = 16e6
SHOWN = (1 << 16, 1 << 20, 1 << 24, 1 << 30, 1 << 33)


def main() -> None:
    """Prints a row for each hardware and number of GPUs, and what nine in ten of the large ones lie between."""
    shared = Path(os.environ.get("FORETRACE_SHARED", Path(__file__).parents[2] / "shared"))
    table = (Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "data" / "collectives") / "nccl_busbw.csv"
    if not table.exists():
        print(f"{table}: not there; nothing to compare with")
        return
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    with table.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            preset = next((name for word, name in CLUSTERS.items() if word in row["hardware"]), None)
            what = COLLECTIVES.get(row["collective"])
            if preset and what and row["bytes"] and (row["time_us"] or row["busbw_GBps"]):
                key = (row["hardware"][:44], int(row["gpus"]), row["collective"])
                found[key].append((float(row["bytes"]), measured(row, what) / modelled(row, what, preset)))
    print(
        f"  {'hardware':<44} {'GPUs':>4} {'collective':<14} {'rows':>4}  "
        "measured / modelled at 64 KB, 1 MB, 16 MB, 1 GB, 8 GB"
    )
    counted: list[float] = []
    for (hardware, gpus, collective), points in found.items():
        points.sort()
        sizes, ratios = np.array(points).T
        shown = "  ".join(at(size, sizes, ratios) for size in SHOWN)
        print(f"  {hardware:<44} {gpus:>4} {collective:<14} {len(points):>4}  {shown}")
        if not any(word in hardware for word in OTHER_NETWORKS):
            counted += ratios[sizes >= LARGE].tolist()
    low, middle, high = np.percentile(counted, [5, 50, 95])
    print(f"  {len(counted)} of 16 MB and more: median {middle:.2f}, nine in ten between {low:.2f} and {high:.2f}")


def at(size: int, sizes: NDArray[np.float64], ratios: NDArray[np.float64]) -> str:
    """The ratio at the size nearest to one, within a factor of two; blank where there is none."""
    nearest = np.abs(np.log2(sizes / size)).argmin()
    return f"{ratios[nearest]:5.2f}" if 0.5 <= sizes[nearest] / size <= 2 else "    -"


def measured(row: dict[str, str], what: Collective) -> float:
    """Seconds, from the time or from the bus bandwidth."""
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6
    n = int(row["gpus"])
    passes = (2 if what is Collective.ALL_REDUCE else 1) * (n - 1) / n
    return float(row["bytes"]) * passes / (float(row["busbw_GBps"]) * 1e9)


def modelled(row: dict[str, str], what: Collective, preset: str) -> float:
    """Seconds on the preset, ranks packed."""
    cluster, gpus = presets.cluster(preset), int(row["gpus"])
    network = network_of(cluster, gpus)
    (layout,), _ = network.layouts(np.arange(gpus)[None])
    return float(network.price(what, layout, np.array([float(row["bytes"])])).duration_s[0])


if __name__ == "__main__":
    main()
