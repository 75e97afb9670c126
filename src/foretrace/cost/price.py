"""Pricing a program: what is written in it stays, what is not is priced by models.

Ops of one template have one price, so prices are found for the templates, and for single ops only where an override or
the other end of an exchange gives them values of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.cost.compute.interface import KernelPricer
from foretrace.cost.network.interface import CallPrices, Network
from foretrace.cost.network.layouts import CallKey, Layouts
from foretrace.cost.prices import Draws, Prices
from foretrace.cost.streaming import stream_s, stream_source, streams
from foretrace.errors import InputError
from foretrace.hardware.cluster import Gpu
from foretrace.program.arrays import distinct
from foretrace.program.columns import Collective, Kind, label
from foretrace.program.expand import Ops
from foretrace.program.kernels import Contention, Load, parse_kernels
from foretrace.program.program import Floats, Longs, Source

CHANNELS: Final = 24
"""SMs that a collective holds, one for each of NCCL's channels: its log shows 24 of them on DGX A100 and H100 nodes. A
product beside it has so many fewer."""

COMMON: Final = 0.6
"""How much of a kernel's own error (as a logarithm) all kernels of a step have in common; the rest cancels among many.
A judgement between two facts: 183 published products of an A100, on which the model was not fitted, are off by up to
20 % each and by 1 % in sum; but on a machine that runs at another clock all are off alike."""


def price(
    ops: Ops, network: Network | None = None, gpu: Gpu | None = None, kernels: KernelPricer | None = None
) -> Prices:
    """The price of every op: as written in the program, and where it is not, the network's, or that of its kernels;
    what only streams memory goes at the rate of the GPU's."""
    rows = _Rows(ops)
    found = _Found(rows)
    if network is not None:
        found.network(network)
    if kernels is not None:
        found.kernels(kernels, gpu)
    if gpu is not None:
        found.streams(gpu)
    _check_priced(rows, found.missing, network, kernels)
    return found.prices()


class _Found:
    """Prices of rows as they are found, source by source."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        enabled = rows.column("enabled").astype(bool)
        self._duration = np.where(enabled, rows.column("duration_s"), 0.0)[None]
        self._latency = np.fmin(np.where(enabled, rows.column("latency_s"), 0.0), self._duration)
        self._source = rows.column("source").astype(np.int64, copy=True)
        self._sources = rows.ops.program.sources
        self._profile_of = np.zeros(rows.ops.program.world, dtype=np.int32)
        self._of_kernels: tuple[Longs, _KernelRows] | None = None
        self._calls: dict[tuple[str, str, int], Floats] = {}
        """Collectives by communicator, name and bytes: seconds for each profile of ranks."""

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which rows have no price yet."""
        return np.asarray(np.isnan(self._duration[0]))

    def network(self, network: Network) -> None:
        """Communication, at the network's prices."""
        chosen = np.flatnonzero(self.missing & (self._rows.column("communicator").astype(np.int64) >= 0))
        if not len(chosen):
            return
        layouts, priced = _network_prices(self._rows, chosen, network)
        self._duration = np.repeat(self._duration, len(layouts.profiles), axis=0)
        self._latency = np.repeat(self._latency, len(layouts.profiles), axis=0)
        self._duration[:, chosen], self._latency[:, chosen] = priced.duration_s, priced.latency_s
        self._source[chosen] = len(self._sources) + priced.source[0]
        self._calls = _calls(self._rows, chosen, priced.duration_s)
        self._sources, self._profile_of = (*self._sources, *network.sources), layouts.profile_of

    def kernels(self, pricer: KernelPricer, gpu: Gpu | None) -> None:
        """Computation that says its kernels, longer where a collective beside it holds SMs."""
        chosen = unpriced_kernels(self._rows.column("kind"), self._rows.column("kernel"), self._duration[0])
        if not len(chosen):
            return
        strings = self._rows.ops.program.strings
        texts = self._rows.column("kernel")[chosen].astype(np.int64)
        numbers = distinct(texts)
        parsed = [parse_kernels(strings[number]) for number in numbers.tolist()]
        at = np.searchsorted(numbers, texts)
        row = _kernel_rows(parsed, pricer).taken(at)
        held = self._held(parsed, gpu)
        self._duration[:, chosen], self._latency[:, chosen] = row.seconds + held[:, at], 0.0
        self._source[chosen] = len(self._sources) + row.shares.argmax(axis=1)
        self._of_kernels = (chosen, row)
        self._first_kernel_source = len(self._sources)
        self._sources = (*self._sources, *pricer.sources)

    def _held(self, parsed: Sequence[tuple[tuple[int, Load], ...]], gpu: Gpu | None) -> Floats:
        """What collectives beside them cost computations: [profiles, texts], in seconds."""
        units = 0 if gpu is None else gpu.compute_units
        share = CHANNELS / (units - CHANNELS) if units > 2 * CHANNELS else 0.0
        lost = np.zeros((len(self._duration), len(parsed)))
        for at, kernels in enumerate(parsed):
            for count, one in kernels:
                if isinstance(one, Contention):
                    called = self._calls.get((one.communicator, one.collective, one.bytes))
                    lost[:, at] += 0.0 if called is None else count * share * called
        return lost

    def streams(self, gpu: Gpu) -> None:
        """Computation that only moves bytes."""
        if not self.missing.any():
            return
        kind = self._rows.column("kind").astype(np.int64)
        flops, moved = (self._rows.column(name).astype(np.float64) for name in ("flops", "moved_bytes"))
        streaming = streams(kind, flops, moved, self._duration[0])
        if streaming.any():
            self._duration[:, streaming], self._latency[:, streaming] = stream_s(moved[streaming], gpu), 0.0
            self._source[streaming] = len(self._sources)
            self._sources = (*self._sources, stream_source(gpu))

    def prices(self) -> Prices:
        """All of it, op by op."""
        low, high = (np.array([getattr(one, end) for one in self._sources])[self._source] for end in ("low", "high"))
        group, mix, mixes = (
            self._source.copy(),
            np.full(len(low), -1, dtype=np.int64),
            np.zeros((0, len(self._sources))),
        )
        if self._of_kernels is not None:
            chosen, row = self._of_kernels
            first = self._first_kernel_source
            # Kernels of one pricer are off together, whichever of its sources knew them.
            low[chosen], high[chosen], group[chosen] = row.low**COMMON, row.high**COMMON, first
            mix[chosen] = np.arange(len(chosen))
            mixes = np.zeros((len(chosen), len(self._sources)))
            mixes[:, first : first + row.shares.shape[1]] = row.shares
        ops, of_op = self._rows.ops, self._rows.of_op
        return Prices(
            duration_s=self._duration[:, of_op],
            latency_s=self._latency[:, of_op],
            source=self._source[of_op],
            sources=self._sources,
            low=low[of_op],
            high=high[of_op],
            group=group[of_op],
            mix=mix[of_op],
            mixes=mixes,
            draws=_draws(ops),
            meeting=_meeting(ops),
            profile_of=self._profile_of,
        )


def unpriced_kernels(kind: NDArray[np.generic], kernel: NDArray[np.generic], duration_s: Floats) -> Longs:
    """Which rows compute, say their kernels, and have no duration."""
    return np.flatnonzero((kind == Kind.COMPUTE) & (kernel.astype(np.int64) >= 0) & np.isnan(duration_s))


@dataclass(frozen=True, slots=True)
class _KernelRows:
    """What texts of kernels take: seconds, the ends of the band as factors, and the share of each source."""

    seconds: Floats
    low: Floats
    high: Floats
    shares: Floats

    def taken(self, at: Longs) -> _KernelRows:
        return _KernelRows(self.seconds[at], self.low[at], self.high[at], self.shares[at])


def _calls(rows: _Rows, chosen: Longs, seconds: Floats) -> dict[tuple[str, str, int], Floats]:
    """What collectives take that were priced: [profiles, chosen] by what they are."""
    communicators = rows.ops.program.communicators
    columns = (rows.column(name)[chosen].tolist() for name in ("communicator", "collective", "bytes"))
    return {
        (communicators[number].name, label(Collective(what)), size): seconds[:, at]
        for at, (number, what, size) in enumerate(zip(*columns, strict=True))
    }


def _kernel_rows(parsed: Sequence[tuple[tuple[int, Load], ...]], pricer: KernelPricer) -> _KernelRows:
    """Kernels of a text run one after the other, and are off together."""
    texts = [[(count, one) for count, one in each if not isinstance(one, Contention)] for each in parsed]
    of_text = np.repeat(np.arange(len(texts)), [len(one) for one in texts])
    counts = np.array([count for one in texts for count, _ in one], dtype=np.float64)
    priced = pricer.price([kernel for one in texts for _, kernel in one])
    seconds = counts * priced.duration_s
    total, low, high = (
        np.bincount(of_text, weights=seconds * factor, minlength=len(texts)).astype(np.float64)
        for factor in (1.0, priced.low, priced.high)
    )
    shares = np.zeros((len(texts), len(pricer.sources)))
    np.add.at(shares, (of_text, priced.source), seconds)
    whole = np.where(total > 0, total, 1.0)
    return _KernelRows(
        total,
        np.where(total > 0, low / whole, 1.0),
        np.where(total > 0, high / whole, 1.0),
        shares / whole[:, None],
    )


class _Rows:
    """What is priced: the templates, then single ops that have values of their own; `of_op` is each op's row."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self._columns = ops.program.templates.columns
        self._sizes = _larger_ways(ops)
        self._single = distinct(np.concatenate([ops.overridden(), np.array(list(self._sizes), dtype=np.int64)]))
        self.of_op = ops.template
        if len(self._single):
            self.of_op = ops.template.copy()
            self.of_op[self._single] = len(self._columns["kind"]) + np.arange(len(self._single))

    def column(self, name: str) -> NDArray[np.generic]:
        """A column of the program, row by row."""
        if not len(self._single):
            return self._columns[name]
        single = self.ops.column(name)[self._single]
        if name == "bytes":
            known = zip(self._single.tolist(), single.tolist(), strict=True)
            single = np.array([self._sizes.get(op, size) for op, size in known])
        return np.concatenate([self._columns[name], single])


def _larger_ways(ops: Ops) -> dict[int, int]:
    """The bytes of the ops of an exchange whose other end sends more: the larger way decides for both."""
    columns = ops.program.templates.columns
    exchanges = np.flatnonzero((columns["collective"] == Collective.EXCHANGE)[ops.template])
    exchanges = exchanges[ops.order[exchanges] >= 0]
    if not len(exchanges):
        return {}
    communicator = columns["communicator"][ops.template[exchanges]].astype(np.int64)
    meeting = ops.order[exchanges].astype(np.int64) * len(ops.program.communicators) + communicator
    size = ops.ints("bytes")[exchanges]
    larger = np.zeros(int(meeting.max()) + 1, dtype=np.int64)
    np.maximum.at(larger, meeting, size)
    less = np.flatnonzero(size < larger[meeting])
    return dict(zip(exchanges[less].tolist(), larger[meeting[less]].tolist(), strict=True))


def _network_prices(rows: _Rows, chosen: Longs, network: Network) -> tuple[Layouts, CallPrices]:
    """What the chosen rows take for each profile of ranks: [profiles, chosen]. A row has one source for all of them."""
    numbers: dict[CallKey, int] = {}
    names = ("communicator", "collective", "bytes")
    keys = zip(*(rows.column(name)[chosen].tolist() for name in names), strict=True)
    call_of = [numbers.setdefault(key, len(numbers)) for key in keys]
    calls = list(numbers)
    communicators = sorted({communicator for communicator, *_ in calls})
    layouts = Layouts(rows.ops.program, communicators, network)
    column = {number: at for at, number in enumerate(communicators)}
    # Ranks outside a communicator have none of its ops; their profile needs no price of it.
    member = layouts.profiles[:, [column[communicator] for communicator, *_ in calls]] >= 0
    latency, duration, source = np.zeros(member.shape), np.zeros(member.shape), np.full(member.shape, -1)
    for kind, cells, what, sizes in layouts.requests(calls):
        within = member[cells]
        if within.any():
            here = (cells[0][within], cells[1][within])
            priced = network.price(what, kind, sizes[within])
            latency[here], duration[here], source[here] = priced.latency_s, priced.duration_s, priced.source
    source[:] = _least_sure(source, network.sources)
    return layouts, CallPrices(latency[:, call_of], duration[:, call_of], source[:, call_of])


def _least_sure(source: Longs, sources: tuple[Source, ...]) -> Longs:
    """For each call the widest-banded of the sources by which ranks pay for it; -1 is of ranks that do not."""
    width = np.array([*(one.high / one.low for one in sources), 0.0])
    return np.asarray(np.take_along_axis(source, width[source].argmax(axis=0)[None], axis=0)[0])


def _draws(ops: Ops) -> Draws:
    templates, none = ops.program.templates, np.empty(0, dtype=np.int64)
    if not len(templates.draw_op):
        return Draws(none, none, np.empty(0), np.empty(0), ops.program.resources)
    op, row = ops.side_table(templates.draw_op)
    drawn = ops.column("enabled").astype(bool)[op]
    op, row = op[drawn], row[drawn]
    return Draws(
        op,
        templates.draw_resource[row].astype(np.int64),
        templates.draw_amount[row],
        templates.draw_held[row],
        ops.program.resources,
    )


def _meeting(ops: Ops) -> Longs:
    """A number that ops which meet have in common; needed, and found, only where resources are shared."""
    if not ops.program.resources:
        return np.empty(0, dtype=np.int64)
    numbers = ops.order.astype(np.int64) * len(ops.program.communicators) + ops.ints("communicator")
    return np.where(ops.order >= 0, numbers, -1)


def _check_priced(
    rows: _Rows, missing: NDArray[np.bool_], network: Network | None, kernels: KernelPricer | None
) -> None:
    """Raises an error that names the first op without a price; templates that no role places need none."""
    if not missing.any():
        return
    ops = rows.ops
    unpriced = np.flatnonzero(missing[rows.of_op])
    if not len(unpriced):
        return
    first = int(unpriced[0])
    role = ops.program.roles[int(ops.role[first])]
    streams = (ops.floats("moved_bytes")[unpriced] > 0) & (ops.floats("flops")[unpriced] == 0)
    communicates = bool(((ops.ints("communicator")[unpriced] >= 0) | streams).all())
    hint = "this program carries sizes, not times; give every op a duration"
    if communicates and network is None:
        hint = "the job says how many bytes, not how long: name a cluster, as in --cluster h100-dgx"
    elif kernels is None and (ops.ints("kernel")[unpriced] >= 0).any():
        hint = "the job says which kernels run, not how long: name a cluster, as in --cluster h100-dgx"
    raise InputError(
        f'op {first - int(ops.start[ops.role[first]])} "{ops.names[first]}" of role "{role}" has no duration '
        f"({len(unpriced):,} ops in all)",
        hint=hint,
    )
