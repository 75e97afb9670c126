"""Computes the time that SimAI-Analytical gives a collective: by a latency table below 1 MiB, else by bus bandwidth.

The formulas are those of SimAI v1.6 (`Layer::compute_time`, `cal_busbw`, `cal_ratio`), in its own precision. Defects of
single collectives are switches: with the id of a defect in `mended` the formula is as it should have been.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from foretrace.compat.simai.load import Group, Kind
from foretrace.compat.simai.machine import divide, f32, tick
from foretrace.compat.simai.tables import RatioTables

_SMALL_BYTES: Final = 1 << 20
_LATENCY_NS: Final = {2: 10_000, 4: 12_000, 8: 15_000, 16: 66_000, 32: 135_000, 64: 200_000, 128: 320_000}
"""By size of the group alone: not by collective, GPU, or whether it leaves the server."""
_MULTI_GROUP_COLUMN: Final = 9


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """Where a group stands, as SimAI sees it: nodes, GPUs of the group per node, and NICs per node for them."""

    nodes: int
    gpus: int
    nics: float


@dataclass(frozen=True, slots=True)
class BusBandwidth:
    """Bus bandwidth in GB/s, a C++ `float`, and whether NVLink was what bound a ring over several nodes."""

    gb_per_s: float
    nvlink_bound: bool


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Collective times of one job on one cluster, each computed once. `dp` is 0 where there are too few GPUs."""

    tp: int
    ep: int
    dp: int
    gpus_per_server: int
    nics_per_server: int
    nvlink_gb_per_s: float
    nic_gb_per_s: float
    tables: RatioTables
    mended: Set[str] = frozenset()
    _known: dict[tuple[Kind, Group, int, int], int] = field(default_factory=dict, repr=False)

    def time_ns(self, kind: Kind, group: Group, ranks: int, size_bytes: int) -> int:
        """Nanoseconds, unsigned 64-bit, for `ranks` ranks; `SizeBeyondTableError` where SimAI throws."""
        if kind == "NONE":
            return 0
        key = kind, group, ranks, size_bytes
        if key not in self._known:
            self._known[key] = self._time_ns(kind, group, ranks, size_bytes)
        return self._known[key]

    def bus_bandwidth(self, kind: Kind, spread: GroupSpread) -> BusBandwidth:
        """Returns what SimAI's `cal_busbw` does: 0 for a single GPU, -1 without a NIC; rings for all but ALLTOALL."""
        nvlink, nic = f32(self.nvlink_gb_per_s), f32(self.nic_gb_per_s)
        nodes, gpus = spread.nodes, spread.gpus
        if nodes * gpus == 1:
            return BusBandwidth(0.0, False)
        if nvlink <= 0 or nic <= 0 or gpus < 1 or nodes < 1 or not self._has_nic(spread):
            return BusBandwidth(-1.0, False)
        if nodes == 1:
            return BusBandwidth(nvlink, kind == "ALLTOALL")
        nics = f32(nic * f32(spread.nics))
        if kind == "ALLTOALL":
            share = f32(f32(nics / gpus) * (nodes * gpus - 1))
            return BusBandwidth(f32(share / ((nodes - 1) * gpus)), False)
        if gpus == 1:
            return BusBandwidth(nics, False)
        # Rings that may leave by another NIC than they came in by cross NVLink on k-1 of k hops.
        crossing = f32(f32(nvlink * gpus) / (gpus - 1)) if nics > nvlink else nvlink
        return BusBandwidth(crossing, True) if crossing < nics else BusBandwidth(nics, False)

    def spread(self, group: Group, ranks: int) -> GroupSpread | None:
        """Returns how a group of `ranks` is spread over servers; None for a group that costs nothing."""
        server, nics, tp = self.gpus_per_server, self.nics_per_server, self.tp
        if group == "TP":
            return GroupSpread(1, tp, nics) if tp <= server else GroupSpread(tp // server, server, nics)
        if group == "NONE" or ranks <= 1:
            return None
        if group == "EP":
            if tp * ranks <= server:
                return GroupSpread(1, server // tp, nics)
            return GroupSpread(tp * ranks // server, max(server // tp, 1), self._nics_of(server if tp > server else tp))
        if "B7" in self.mended and tp * self.dp <= server:
            return GroupSpread(1, ranks, nics)
        apart = tp * self.ep if group == "DP_EP" else tp
        if apart <= server:
            return GroupSpread(ranks, server // apart, self._nics_of(apart))
        return GroupSpread(ranks, 1, self._nics_of(server))

    def _time_ns(self, kind: Kind, group: Group, ranks: int, size_bytes: int) -> int:
        small = 1 < size_bytes < _SMALL_BYTES
        latency = self._latency_ns(ranks)
        if "B4" not in self.mended:
            return latency if small else self._streaming_ns(kind, group, ranks, size_bytes)
        spread = self.spread(group, ranks)
        if spread is None or size_bytes <= 1 or self.bus_bandwidth(kind, spread).gb_per_s <= 0:
            return latency if small else self._streaming_ns(kind, group, ranks, size_bytes)
        return max(latency, self._streaming_ns(kind, group, ranks, size_bytes))

    def _streaming_ns(self, kind: Kind, group: Group, ranks: int, size_bytes: int) -> int:
        """Size over the bandwidth that this size reaches. SimAI divides GiB by GB/s."""
        spread = self.spread(group, ranks)
        if spread is None or ("B8" in self.mended and ranks <= 1):
            return 0
        if "B8" in self.mended and spread.nodes * spread.gpus == 1:
            spread = GroupSpread(2, 1, spread.nics)
        bandwidth = self.bus_bandwidth(kind, spread)
        ratio = self._ratio(kind, group, ranks, size_bytes, bandwidth.nvlink_bound)
        giga = 1e9 if "B12" in self.mended else 1024.0**3
        time_ns = divide(size_bytes / giga, f32(ratio * bandwidth.gb_per_s)) * 1e9
        if kind == "ALLREDUCE":
            time_ns *= 2
        return tick(divide(time_ns * (ranks - 1), float(ranks)))

    def _ratio(self, kind: Kind, group: Group, ranks: int, size_bytes: int, nvlink_bound: bool) -> float:
        """The part of the bandwidth that a size reaches, for TP rings and all-to-all over TP or EP; else all of it."""
        server, tp = self.gpus_per_server, self.tp
        if kind in ("ALLGATHER", "REDUCESCATTER") and group == "TP":
            table = self.tables.nvlink if nvlink_bound else self.tables.nic
            nodes = 1 if tp < server else tp // server
        elif kind == "ALLTOALL" and group == "EP":
            table = self.tables.all_to_all
            nodes = _MULTI_GROUP_COLUMN if tp >= server else tp * ranks // server
            nodes = 1 if tp * ranks <= server else nodes
        elif kind == "ALLTOALL" and group == "TP":
            table = self.tables.all_to_all
            nodes = 1 if tp <= server else tp // server
        else:
            return 1.0
        return table.ratio(size_bytes, nodes, fill_left="B6" in self.mended, clamp="B9" in self.mended)

    def _nics_of(self, parts: int) -> float:
        """Returns how many NICs of a server one of `parts` may use."""
        return self.nics_per_server / parts if "B8" in self.mended else self.nics_per_server // parts

    def _has_nic(self, spread: GroupSpread) -> bool:
        """Whether SimAI finds a whole NIC for the group, which it asks even where the group stays in one server."""
        return spread.nodes == 1 or spread.nics > 0 if "B8" in self.mended else spread.nics >= 1

    def _latency_ns(self, ranks: int) -> int:
        if ranks in _LATENCY_NS or "B5" not in self.mended:
            return _LATENCY_NS.get(ranks, 0)
        return _interpolated_latency_ns(ranks) if ranks > 1 else 0


def _interpolated_latency_ns(ranks: int) -> int:
    """The latency table, linear in log2 of the ranks between its entries, and beyond as between its last two."""
    known = tuple(_LATENCY_NS)
    high = known[min(bisect_left(known, ranks), len(known) - 1)]
    low = high // 2
    slope = _LATENCY_NS[high] - _LATENCY_NS[low]
    return round(_LATENCY_NS[low] + slope * math.log2(ranks / low))
