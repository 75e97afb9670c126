"""Prices collectives by measurements, and by the network model corrected by them where nothing was measured.

Each kind of call is priced by the best of: a table of this collective in this layout; tables of it for other numbers of
GPUs, by their ratio to the model; the ratio of the all-reduce to the model, at the size that moves as much through the
busiest port; the model alone. All but the first are the model times a ratio, so the seams between them do not jump.

Tables are of groups that are spread evenly over their nodes and alone on them. Where a group is placed otherwise (8 + 2
GPUs, or NICs shared with other groups), its table is not of this layout and counts by its ratio.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.placement import Placement
from foretrace.cost.network.interface import CallPrices, Explained, Limit, Network
from foretrace.cost.network.nccl.bound import bound_s, passes
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.network import NcclNetwork
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements, MeasurementTable
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import Collective, label
from foretrace.program.program import Source

MIN_BAND: Final = (0.95, 1.05)
"""The spread of repeats of nccl-tests on one machine where nobody measured it: not a fit but a floor for the band."""

ANCHORED_BAND: Final = (0.7, 1.41)
"""The error of the model once it is corrected by measurements of the same machine, at any size: set so that the band
holds nine in ten of 423 all-reduce times from 1 KB to 16 GB on two A100 clusters, each priced by the tables of the
other numbers of GPUs alone (a test does it again). No training step was looked at. That it holds for other collectives
too is an assumption: nobody measured these next to an all-reduce on one machine."""

MIN_BOUND_PART: Final = 0.5
"""The part of the least time by line rates that a measured time may be. A shorter time cannot have been measured on
such a cluster and is not used. A group that leaves GPUs of its nodes idle can use their NICs too: real times of 3 of 8
A100s on each of two nodes are 0.8 of the least time."""

MAX_OFF_MODEL: Final = 10.0
"""The factor, either way, from which on a measured time is reported to differ from the model's, as for kernels
(`foretrace.cost.kernels.plausible`). Real times of small messages are up to 18 times as long (256 A100s)."""

_MODEL, _MEASURED, _ANCHORED = range(3)
"""The numbers of the sources."""

_MEASURED_AS: Final = {Collective.BARRIER: Collective.ALL_REDUCE, Collective.EXCHANGE: Collective.TRANSFER}
"""A barrier is an all-reduce of a word. An exchange goes both ways at once over links and NICs that are full duplex,
and takes what one way takes."""

_UNANCHORED: Final = (Collective.ALL_REDUCE, Collective.TRANSFER)
"""Calls about which the ratio of an all-reduce says nothing: itself, and two ranks among many."""


Seconds = Callable[[Floats], Floats]
"""Seconds by bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeCurve:
    """Seconds by size: knots in rising order, with the model and the bound that hold beyond them.

    The curve is linear between its knots and constant below the first. Beyond the last knot it grows as the model does.
    So it never falls and never jumps.
    """

    size_bytes: Floats
    time_s: Floats
    model: Seconds
    bound: Seconds

    def __call__(self, size_bytes: Floats) -> Floats:
        """Seconds that these sizes take."""
        inside = np.interp(size_bytes, self.size_bytes, self.time_s)
        beyond = size_bytes > self.size_bytes[-1]
        if beyond.any():
            inside[beyond] = self._beyond(size_bytes[beyond])
        return inside

    def _beyond(self, size_bytes: Floats) -> Floats:
        last, time = self.size_bytes[-1:], self.time_s[-1]
        modelled = time * (self.model(size_bytes) / self.model(last))
        # Where the last measurement is faster than the model, the model's growth may lead below the bound; where it
        # beats the bound itself, the bound is taken down with it, so that there is no jump.
        least = self.bound(last)
        held = self.bound(size_bytes) * min(1.0, float(time / least[0]) if least[0] > 0 else 1.0)
        return np.asarray(np.maximum(modelled, held))


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """A table and the layout its group had."""

    table: MeasurementTable
    layout: GroupLayout


@dataclass(frozen=True, slots=True, eq=False)
class _Pricing:
    """The pricing of a call in a layout: a curve, or None for the model alone, and how it came about."""

    curve: TimeCurve | None
    source: int
    how: str = ""


class MeasuredNetwork:
    """A network priced by measured collectives as far as these go, by a model held to them beyond."""

    def __init__(self, model: NcclNetwork | MeasuredNetwork, measurements: Measurements) -> None:
        self.model = model
        self.cluster: Cluster = model.cluster
        self._layouts: dict[tuple[int, int], GroupLayout] = {}
        measurements, impossible = self._possible(measurements)
        self.measurements = measurements
        low, high = min(measurements.spread[0], MIN_BAND[0]), max(measurements.spread[1], MIN_BAND[1])
        self.sources: tuple[Source, ...] = (
            *model.sources,
            Source(measurements.source, low, high),
            Source(
                f"network model, anchored to {measurements.source}",
                min(low, ANCHORED_BAND[0]),
                max(high, ANCHORED_BAND[1]),
            ),
        )
        measured_on, model_here = measurements.measured_on, nccl_model(model)
        self._measured_on = None if measured_on is None else model_here.on_cluster(measured_on)
        self._tables: dict[Collective, list[_Measured]] = defaultdict(list)
        self._pricings: dict[tuple[Collective, GroupLayout], _Pricing] = {}
        own = [note for table in measurements.tables for note in self._take(table)]
        self._misfits: tuple[Diagnostic, ...] = (*measurements.diagnostics, *impossible, *own)
        """Problems of the measurements, and those that do not fit this cluster."""

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Returns the notes on the calls priced so far."""
        return self.notes_on(self._pricings)

    def notes_on(self, calls: Collection[tuple[Collective, GroupLayout]]) -> tuple[Diagnostic, ...]:
        """Returns the problems of the measurements, which of these calls were not measured, and by what these are
        priced."""
        model = self.model.notes_on(calls) if isinstance(self.model, MeasuredNetwork) else self.model.notes
        if self.measurements.partial:
            return (*model, *self._misfits)
        sizes: dict[tuple[Collective, str], set[int]] = defaultdict(set)
        for what, layout in calls:
            pricing = self._find(what, layout)
            if pricing.source != _MEASURED:
                sizes[what, pricing.how].add(layout.size)
        unmeasured = (
            Diagnostic("note", "extrapolated", f"no {_called(what)} measurement of {_listed(sorted(gpus))} GPUs {how}")
            for (what, how), gpus in sizes.items()
        )
        return (*model, *self._misfits, *self._off_model, *unmeasured)

    def layouts(self, groups: NDArray[np.integer]) -> tuple[list[Hashable], Longs]:
        """The kinds of groups among these, and which kind each is: the model's."""
        return self.model.layouts(groups)

    def as_slowest(self, layouts: Sequence[Hashable]) -> list[Hashable]:
        """Returns each layout with the traffic of the slowest of its shape: the model's."""
        return self.model.as_slowest(layouts)

    def price(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> CallPrices:
        """Prices these sizes in a group of this layout."""
        assert isinstance(layout, GroupLayout)
        size = np.asarray(size_bytes, dtype=np.float64)
        modelled = self.model.price(collective, layout, size)
        if layout.size == 1:
            return modelled
        pricing = self._find(collective, layout)
        if pricing.curve is None:
            return modelled
        return self._corrected(pricing.curve, pricing.source, size, modelled)

    def _corrected(self, curve: TimeCurve, source: int, size_bytes: Floats, modelled: CallPrices) -> CallPrices:
        """Returns the prices by a curve of calls that the model prices as `modelled`."""
        duration = curve(size_bytes)
        # The model says which part of a time is latency; measurements do not.
        latency = modelled.latency_s * (duration / modelled.duration_s)
        sources = np.where(size_bytes > curve.size_bytes[-1], _ANCHORED, source) - _MEASURED
        return CallPrices(latency, duration, sources + len(self.model.sources))

    def measures(self, collective: Collective, layout: GroupLayout) -> bool:
        """Returns whether there is a table of this collective in this layout."""
        return self._find(collective, layout).source == _MEASURED

    def explain(self, collective: Collective, layout: Hashable, size_bytes: float) -> Explained:
        """Explains how a call of this size runs, as the model says."""
        return self.explain_all(collective, layout, np.array([size_bytes], dtype=np.float64))[0]

    def explain_all(self, collective: Collective, layout: Hashable, size_bytes: Floats) -> list[Explained]:
        """Explains how calls of these sizes run, as the model says."""
        assert isinstance(layout, GroupLayout)
        modelled = self.model.explain_all(collective, layout, size_bytes)
        pricing = None if layout.size == 1 else self._find(collective, layout)
        if pricing is None or pricing.curve is None:
            return modelled
        latency, duration = (np.array([getattr(call, name) for call in modelled]) for name in ("latency_s", "time_s"))
        alone = CallPrices(latency, duration, np.zeros(len(modelled), dtype=np.int64))
        priced = self._corrected(pricing.curve, pricing.source, size_bytes, alone)
        columns = (modelled, priced.latency_s.tolist(), priced.duration_s.tolist(), priced.source.tolist())
        return [
            replace(call, time_s=time_s, latency_s=latency_s)
            if source != len(self.model.sources)
            else replace(call, time_s=time_s, latency_s=latency_s, algorithm="measured", protocol="", channels=0)
            for call, latency_s, time_s, source in zip(*columns, strict=True)
        ]

    def limit(self, collective: Collective, layout: Hashable, size_bytes: float) -> Limit:
        """Finds what limits a call of this size, as the model says."""
        return self.model.limit(collective, layout, size_bytes)

    def _take(self, table: MeasurementTable) -> list[Diagnostic]:
        """Keeps a table with its layout; returns the warning where it does not fit the cluster."""
        node = self.model.cluster.node
        if -(-table.gpus // table.nodes) > node.gpus:
            if self.measurements.partial:  # of tables that nobody gave, what does not fit is no one's mistake
                return []
            message = f"the measured {_group(table)} is not used: nodes of {self.model.cluster.name} have {node.gpus}"
            return [Diagnostic("warning", "price-source", message, table.files[0])]
        layout = self._layout(table.gpus, table.nodes)
        measured = _Measured(self._converted(table, layout), layout)
        table = measured.table
        self._tables[table.collective].append(measured)
        return []

    def _possible(self, measured: Measurements) -> tuple[Measurements, list[Diagnostic]]:
        """Returns measurements without times that are far below those of line rates, and what beats these."""
        cluster, notes = measured.measured_on or self.cluster, []
        impossible: set[tuple[Collective, int, int]] = set()
        for table in measured.tables:
            if -(-table.gpus // table.nodes) > self.cluster.node.gpus:
                continue
            least = bound_s(cluster, table.collective, self._layout(table.gpus, table.nodes), table.size_bytes)
            part = table.time_s / least
            if (part >= 1).all():
                continue
            worst, is_far = int(part.argmin()), bool(part.min() < MIN_BOUND_PART and not measured.partial)
            impossible |= {(table.collective, table.gpus, table.nodes)} if is_far else set()
            message = (
                f"the measured {_group(table)} beats the line rates of its GPUs and their NICs on {cluster.name} in "
                f"{int((part < 1).sum())} of {len(part)} sizes ({table.size_bytes[worst]:,.0f} bytes in "
                f"{part[worst]:.2g} of the least time); "
                f"{f'times below {MIN_BOUND_PART:g} of it are not used' if is_far else 'it is kept'}"
            )
            notes.append(Diagnostic("warning", "beats-line-rate", message, table.files[0]))
        if not impossible:
            return measured, notes
        rows = [
            row
            for row in measured.rows
            if (row.collective, row.gpus, row.nodes) not in impossible
            or row.time_s >= MIN_BOUND_PART * self._least_s(cluster, row)
        ]
        again = measurements_of(rows, [note for note in measured.diagnostics if note.code != "repaired-input"])
        return replace(measured, rows=again.rows, tables=again.tables, diagnostics=again.diagnostics), notes

    def _least_s(self, cluster: Cluster, row: Measurement) -> float:
        size_bytes = np.array([row.size_bytes], dtype=np.float64)
        return float(bound_s(cluster, row.collective, self._layout(row.gpus, row.nodes), size_bytes)[0])

    @cached_property
    def _off_model(self) -> tuple[Diagnostic, ...]:
        """Reports the measured times that are far off the model's, in one warning."""
        count, total, worst, text, where = 0, 0, 0.0, "", ""
        for measured in (measured for tables in self._tables.values() for measured in tables):
            table = measured.table
            ratio = table.time_s / self._model(table.collective, measured.layout)(table.size_bytes)
            off = np.maximum(ratio, 1 / ratio)
            total += len(off)
            count += int((off >= MAX_OFF_MODEL).sum())
            most = int(off.argmax())
            if off[most] > worst:
                worst, where = float(off[most]), table.files[0]
                way = "long" if ratio[most] > 1 else "short"
                text = f"up to {worst:,.3g} times as {way} ({_group(table)}, {table.size_bytes[most]:,.0f} bytes)"
        if not count:
            return ()
        message = f"{count} of {total} measured times are {MAX_OFF_MODEL:g} times off the model or more, {text}"
        return (Diagnostic("warning", "off-model", message, where),)

    def _converted(self, table: MeasurementTable, layout: GroupLayout) -> MeasurementTable:
        """Returns a table as it would be on this cluster: measured times, times the ratio of the model's times here and
        on the cluster that was measured."""
        if self._measured_on is None:
            return table
        here, there = (
            network.price(table.collective, layout, table.size_bytes).duration_s
            for network in (nccl_model(self.model), self._measured_on)
        )
        return replace(table, time_s=np.maximum.accumulate(table.time_s * (here / there)))

    def _layout(self, gpus: int, nodes: int) -> GroupLayout:
        """Returns the layout of `gpus` GPUs spread evenly over `nodes` nodes, with nothing else on them."""
        if (gpus, nodes) in self._layouts:
            return self._layouts[gpus, nodes]
        number = np.arange(gpus)
        host = number * nodes // gpus
        slot = number - np.searchsorted(host, host)
        cluster = replace(self.model.cluster, nodes=None)
        alone = NcclNetwork(cluster, Placement(host.astype(np.int32), slot.astype(np.int32)))
        layout = alone.layouts(number[None])[0][0]
        assert isinstance(layout, GroupLayout)
        self._layouts[gpus, nodes] = layout
        return layout

    def _find(self, what: Collective, layout: GroupLayout) -> _Pricing:
        key = (what, layout)
        if key not in self._pricings:
            self._pricings[key] = self._search(what, layout)
        return self._pricings[key]

    def _search(self, what: Collective, layout: GroupLayout) -> _Pricing:
        like = _MEASURED_AS.get(what, what)
        near = [table for table in self._tables[like] if _tier(table.layout) == _tier(layout)]
        exact = next((table for table in near if _same(table.layout, layout)), None)
        if exact is not None:
            return _Pricing(self._curve_of(exact), _MEASURED)
        where = ("on one node", "on one node, over PCIe", "over nodes")[_tier(layout)]
        if near:
            curve, sizes = self._between(like, near, layout)
            how = f"that sit like these {where}: the model, anchored to the measured of {_listed(sizes)} GPUs"
            return _Pricing(curve, _ANCHORED, how)
        if isinstance(self.model, MeasuredNetwork) and self.model.measures(what, layout):
            return _Pricing(None, _MODEL, f"{where}: {self.model.measurements.source}")
        if like not in _UNANCHORED:
            anchor = self._search(Collective.ALL_REDUCE, layout)
            if anchor.curve is not None:
                how = f"{where}: the model, anchored to the measured all-reduce"
                return _Pricing(self._anchored(what, layout, anchor.curve), _ANCHORED, how)
        return _Pricing(None, _MODEL, f"{where}: the network model alone")

    def _curve_of(self, measured: _Measured) -> TimeCurve:
        what, table = measured.table.collective, measured.table
        return TimeCurve(
            table.size_bytes, table.time_s, self._model(what, measured.layout), self._bound(what, measured.layout)
        )

    def _between(self, what: Collective, near: Sequence[_Measured], layout: GroupLayout) -> tuple[TimeCurve, list[int]]:
        """The model times the ratio that the next smaller and larger groups have to it, by the logarithm of their
        size; and these sizes."""
        below, above = _neighbours(near, layout)
        size = np.union1d(below.table.size_bytes, above.table.size_bytes)
        ratio = self._ratio(below, size)
        if above is not below:
            span = math.log(above.layout.size / below.layout.size)
            part = math.log(layout.size / below.layout.size) / span
            ratio = ratio + part * (self._ratio(above, size) - ratio)
        sizes = sorted({below.layout.size, above.layout.size})
        return self._held(what, layout, size, ratio), sizes

    def _anchored(self, what: Collective, layout: GroupLayout, reduce: TimeCurve) -> TimeCurve:
        """The model times the all-reduce's ratio to it, at sizes that move the same through the busiest port."""
        ratio = reduce.time_s / self._model(Collective.ALL_REDUCE, layout)(reduce.size_bytes)
        scale = passes(Collective.ALL_REDUCE, layout.size) / passes(what, layout.size)
        return self._held(what, layout, reduce.size_bytes * scale, ratio)

    def _held(self, what: Collective, layout: GroupLayout, size: Floats, ratio: Floats) -> TimeCurve:
        """The model times a ratio at these sizes, never below the bound and never falling."""
        model, bound = self._model(what, layout), self._bound(what, layout)
        time = np.maximum(model(size) * ratio, bound(size))
        return TimeCurve(size, np.maximum.accumulate(time), model, bound)

    def _ratio(self, measured: _Measured, size: Floats) -> Floats:
        """Measured over modelled."""
        return np.asarray(
            self._curve_of(measured)(size) / self._model(measured.table.collective, measured.layout)(size)
        )

    def _model(self, what: Collective, layout: GroupLayout) -> Seconds:
        return lambda size: self.model.price(what, layout, size).duration_s

    def _bound(self, what: Collective, layout: GroupLayout) -> Seconds:
        return lambda size: bound_s(self.model.cluster, what, layout, size)


def nccl_model(network: Network) -> NcclNetwork:
    """Returns the model of NCCL beneath a network and its measurements."""
    while isinstance(network, MeasuredNetwork):
        network = network.model
    assert isinstance(network, NcclNetwork)
    return network


def _tier(layout: GroupLayout) -> int:
    """Returns the slowest path that a group needs: 0 links alone, 1 PCIe, 2 NICs."""
    return 2 if layout.islands > 1 else 1 if layout.domains > 1 else 0


def _same(measured: GroupLayout, layout: GroupLayout) -> bool:
    """Returns whether two layouts are equal; the NICs of a group that needs none do not matter."""
    if measured.islands == 1:
        measured = replace(measured, nics_per_rank=layout.nics_per_rank)
    return measured == layout


def _neighbours(near: Sequence[_Measured], layout: GroupLayout) -> tuple[_Measured, _Measured]:
    """The table of the largest group that is no larger than this one, and of the smallest that is no smaller; where
    there is only one of them, that one twice. Among equal groups it is the one on the most similar
    number of islands."""

    def apart(measured: _Measured) -> float:
        return abs(math.log(measured.layout.islands / layout.islands))

    below = [measured for measured in near if measured.layout.size <= layout.size]
    above = [measured for measured in near if measured.layout.size >= layout.size]
    low = max(below, key=lambda measured: (measured.layout.size, -apart(measured))) if below else None
    high = min(above, key=lambda measured: (measured.layout.size, apart(measured))) if above else None
    if low is not None and (high is None or high.layout.size == low.layout.size):
        return low, low
    assert high is not None
    return low or high, high


def _group(table: MeasurementTable) -> str:
    return f"{_called(table.collective)} of {table.gpus:,} GPUs on {_nodes(table.nodes)}"


def _called(what: Collective) -> str:
    return label(what).replace("_", "-")


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count:,} nodes"


def _listed(sizes: Sequence[int]) -> str:
    """2, 4 and 8."""
    words = [f"{size:,}" for size in sizes]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
