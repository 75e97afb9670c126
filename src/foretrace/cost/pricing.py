"""Prices a program: durations written in it stay, everything else is priced by models.

Ops of one template have one price. So the templates are priced, and single ops only where an override or the other end
of an exchange gives them values of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, Mask, distinct
from foretrace.basics.elementary import power
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.kernels.interface import KernelPricer
from foretrace.cost.network.call_book import CallBook, book_of
from foretrace.cost.network.interface import CallPrices, Network
from foretrace.cost.network.layouts import CallKey, CallRequest, Layouts, foldable
from foretrace.cost.network.sharing import Calls, Sharing
from foretrace.cost.network.uneven_all_to_all import uneven_prices, uneven_templates
from foretrace.cost.overlap import CallUses, Overlaps, call_uses, text_slowdowns
from foretrace.cost.prices import Draws, NetworkCalls, Prices
from foretrace.hardware.cluster import Gpu
from foretrace.program.columns import Collective, Kind
from foretrace.program.expand import Ops
from foretrace.program.kernels import Kernel, parse_kernels
from foretrace.program.program import Source

_OWN: Final = -2
"""Calls of template t whose price is their own have this less t where others have the string that says how they go."""

COMMON: Final = 0.6
"""The part of a kernel's own error (as a logarithm) that all kernels of a step have in common; the rest cancels among
many. A judgement between two facts: 183 published products of an A100, on which the model was not fitted, are off by up
to 20 % each and by 1 % in sum; but on a machine that runs at another frequency all are off equally."""

STREAM_SHARE: Final = 0.88
"""The share of the datasheet's memory rate that a long stream of reads and writes reaches: an H200 scales a buffer of 1
to 8 GB in place at 4.20 of its 4.8 TB/s (benchmarks/gpu/placeholder_data.py)."""

STREAM_BAND: Final = (0.9, 1.1)
"""The error of that share on another GPU, as factors of the time: a judgement, one GPU having been measured."""


def price(
    ops: Ops,
    network: Network | None = None,
    gpu: Gpu | None = None,
    kernels: KernelPricer | None = None,
    sharing: Sharing | None = None,
    overlap_cost: bool = True,
) -> Prices:
    """Prices every op of a program.

    A price that is written in the program stays. Otherwise communication has the network's price, computation that of
    its kernels, and ops that only stream memory go at the GPU's memory rate.

    Args:
        ops: the ops of the program.
        network: prices communication; a `CallBook` remembers the prices.
        gpu: the GPU that ops run on.
        kernels: prices kernels.
        sharing: makes communication that the network prices draw on the links that the job's calls share; ops priced in
            the program draw what is written there.
        overlap_cost: whether kernels take longer concurrently with a collective.
    """
    rows = _Rows(ops)
    row_prices = _RowPrices(rows)
    book = None if network is None else book_of(network)
    if book is not None:
        row_prices.network(book, sharing)
    if kernels is not None:
        row_prices.kernels(kernels, gpu, book if overlap_cost else None)
    if gpu is not None:
        row_prices.streams(gpu)
    _check_priced(rows, row_prices.missing, network, kernels)
    return row_prices.prices()


class _RowPrices:
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
        self._draws = _draws(rows.ops)
        self._called: tuple[Longs, _NetworkPrices] | None = None
        self._calls: NetworkCalls | None = None
        self._overlaps: Overlaps | None = None
        self._notes: tuple[Diagnostic, ...] = ()

    @property
    def missing(self) -> Mask:
        """Returns which rows have no price yet."""
        return np.asarray(np.isnan(self._duration[0]))

    def network(self, book: CallBook, sharing: Sharing | None = None) -> None:
        """Communication, at the network's prices, and what it draws on links."""
        chosen = np.flatnonzero(self.missing & (self._rows.column("communicator").astype(np.int64) >= 0))
        if not len(chosen):
            return
        call_prices = _network_prices(self._rows, chosen, book)
        layouts, priced, self._called = call_prices.layouts, call_prices.of_rows(), (chosen, call_prices)
        call_of = np.full(self._duration.shape[1], -1, dtype=np.int64)
        call_of[chosen] = call_prices.call_of
        self._calls = NetworkCalls(book.network, layouts, call_prices.calls, call_of.take(self._rows.of_op))
        self._notes = call_prices.notes
        self._duration = np.repeat(self._duration, len(layouts.profiles), axis=0)
        self._latency = np.repeat(self._latency, len(layouts.profiles), axis=0)
        self._duration[:, chosen], self._latency[:, chosen] = priced.duration_s, priced.latency_s
        self._source[chosen] = len(self._sources) + priced.source[0]
        self._sources, self._profile_of = (*self._sources, *book.sources), layouts.profile_of
        if sharing is not None:
            calls = _shared_calls(self._rows, chosen, call_prices)
            self._draws = sharing.draws(self._rows.ops, book, calls).beside(self._draws)

    def kernels(self, pricer: KernelPricer, gpu: Gpu | None, beside: CallBook | None = None) -> None:
        """Prices computation that names its kernels; `beside` prices the concurrent communication that slows it."""
        chosen = unpriced_kernels(self._rows.column("kind"), self._rows.column("kernel"), self._duration[0])
        if not len(chosen):
            return
        strings = self._rows.ops.program.strings
        texts = self._rows.column("kernel")[chosen].astype(np.int64)
        numbers = distinct(texts)
        parsed = [parse_kernels(strings[number]) for number in numbers.tolist()]
        at = np.searchsorted(numbers, texts)
        texts_of = _KernelTexts(parsed, pricer)
        row = texts_of.rows().select(at)
        if beside is not None and gpu is not None and self._called is not None:
            self._overlaps = self._beside(texts_of, chosen, at, beside, gpu)
        self._duration[:, chosen], self._latency[:, chosen] = row.seconds, 0.0
        self._source[chosen] = len(self._sources) + row.shares.argmax(axis=1)
        self._of_kernels = (chosen, row)
        self._first_kernel_source = len(self._sources)
        self._sources = (*self._sources, *pricer.sources)

    def _beside(self, texts: _KernelTexts, chosen: Longs, at: Longs, book: CallBook, gpu: Gpu) -> Overlaps:
        """Returns what communication costs computation where they overlap, row by row."""
        assert self._called is not None
        called, call_prices = self._called
        uses = call_uses(len(call_prices.calls), call_prices.requests, book, gpu)
        kernels_of, uses_of = (np.full(self._duration.shape[1], -1, dtype=np.int64) for _ in range(2))
        kernels_of[chosen], uses_of[called] = at, uses.of_call[call_prices.call_of]
        of_op = self._rows.of_op
        return Overlaps(kernels_of.take(of_op), uses_of.take(of_op), texts.slowdowns(uses, gpu))

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
        low, high = (
            np.array([getattr(source, end) for source in self._sources])[self._source] for end in ("low", "high")
        )
        group, mix, mixes = (
            self._source.copy(),
            np.full(len(low), -1, dtype=np.int64),
            np.zeros((0, len(self._sources))),
        )
        if self._of_kernels is not None:
            chosen, row = self._of_kernels
            first = self._first_kernel_source
            # Kernels of one pricer are off together, whichever of its sources knew them.
            low[chosen], high[chosen], group[chosen] = power(row.low, COMMON), power(row.high, COMMON), first
            mix[chosen] = np.arange(len(chosen))
            mixes = np.zeros((len(chosen), len(self._sources)))
            mixes[:, first : first + row.shares.shape[1]] = row.shares
        ops, of_op = self._rows.ops, self._rows.of_op
        return Prices(
            duration_s=self._duration.take(of_op, axis=1),
            latency_s=self._latency.take(of_op, axis=1),
            source=self._source.take(of_op),
            sources=self._sources,
            low=low.take(of_op),
            high=high.take(of_op),
            group=group.take(of_op),
            mix=mix.take(of_op),
            mixes=mixes,
            draws=self._draws,
            meeting=_meeting(ops, self._draws),
            profile_of=self._profile_of,
            overlaps=self._overlaps,
            calls=self._calls,
            notes=self._notes,
        )


def unpriced_kernels(kind: NDArray[np.generic], kernel: NDArray[np.generic], duration_s: Floats) -> Longs:
    """Returns which rows compute, name their kernels, and have no duration."""
    return np.flatnonzero((kind == Kind.COMPUTE) & (kernel.astype(np.int64) >= 0) & np.isnan(duration_s))


@dataclass(frozen=True, slots=True)
class _KernelRows:
    """The prices of texts of kernels: seconds, the ends of the band as factors, and the share of each source."""

    seconds: Floats
    low: Floats
    high: Floats
    shares: Floats

    def select(self, at: Longs) -> _KernelRows:
        return _KernelRows(self.seconds[at], self.low[at], self.high[at], self.shares[at])


class _KernelTexts:
    """Texts of kernels, with what each kernel takes alone. Kernels of a text run one after the other, and are off
    together."""

    def __init__(self, texts: Sequence[tuple[tuple[int, Kernel], ...]], pricer: KernelPricer) -> None:
        self._texts, self._sources = len(texts), len(pricer.sources)
        self._of_text = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        self._counts = np.array([count for text in texts for count, _ in text], dtype=np.float64)
        self._kernels = [kernel for text in texts for _, kernel in text]
        self._priced = pricer.price(self._kernels)

    def rows(self) -> _KernelRows:
        """Returns the prices of the texts."""
        priced = self._priced
        seconds = self._counts * priced.duration_s
        total, low, high = (
            np.bincount(self._of_text, weights=seconds * factor, minlength=self._texts).astype(np.float64)
            for factor in (1.0, priced.low, priced.high)
        )
        shares = np.zeros((self._texts, self._sources))
        np.add.at(shares, (self._of_text, priced.source), seconds)
        whole = np.where(total > 0, total, 1.0)
        return _KernelRows(
            total,
            np.where(total > 0, low / whole, 1.0),
            np.where(total > 0, high / whole, 1.0),
            shares / whole[:, None],
        )

    def slowdowns(self, uses: CallUses, gpu: Gpu) -> Floats:
        """Returns how many times as long texts take concurrently with each kind of call: [texts, kinds]."""
        alone = self._priced.duration_s
        return text_slowdowns(self._of_text, self._texts, self._kernels, alone, self._counts, uses, gpu)


class _Rows:
    """The rows that are priced: the templates, then single ops that have values of their own; `of_op` is each op's
    row."""

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

    def uneven(self, chosen: Longs) -> tuple[Longs, Longs]:
        """The templates among chosen rows that are all-to-alls of different parts, and what says how each row goes."""
        template = np.concatenate([np.arange(len(self._columns["kind"])), self.ops.template[self._single]])[chosen]
        uneven = uneven_templates(self.ops.program.templates)
        mine = np.isin(template, uneven) & (self.column("bytes")[chosen] == self._columns["bytes"][template])
        return distinct(template[mine]), np.where(mine, _OWN - template, self.column("kernel")[chosen].astype(np.int64))


def _larger_ways(ops: Ops) -> dict[int, int]:
    """The bytes of the ops of an exchange whose other end sends more: the larger way decides for both."""
    columns = ops.program.templates.columns
    is_exchange = columns["collective"] == Collective.EXCHANGE
    if not is_exchange.any():
        return {}
    exchanges = np.flatnonzero(is_exchange[ops.template])
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


@dataclass(frozen=True, slots=True)
class _NetworkPrices:
    """The different calls among some rows, the call of each row, and what calls take: [profiles, calls]."""

    layouts: Layouts
    calls: list[CallKey]
    call_of: Longs
    prices: CallPrices
    requests: list[CallRequest]
    notes: tuple[Diagnostic, ...] = ()

    def of_rows(self) -> CallPrices:
        """Returns the price of each row: [profiles, rows]."""
        prices = self.prices
        return CallPrices(
            prices.latency_s[:, self.call_of], prices.duration_s[:, self.call_of], prices.source[:, self.call_of]
        )


def _network_prices(rows: _Rows, chosen: Longs, book: CallBook) -> _NetworkPrices:
    """Prices the chosen rows for each profile of ranks. A row has one source for all of them."""
    numbers: dict[CallKey, int] = {}
    uneven, ways = rows.uneven(chosen)
    names = ("communicator", "collective", "bytes")
    keys = zip(*(rows.column(name)[chosen].tolist() for name in names), ways.tolist(), strict=True)
    call_of = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    calls = list(numbers)
    communicators = sorted({communicator for communicator, *_ in calls})
    layouts, notes = foldable(Layouts(rows.ops.program, communicators, book), rows.ops, calls)
    column = {number: at for at, number in enumerate(communicators)}
    # Ranks outside a communicator have none of its ops; their profile needs no price of it.
    member = layouts.profiles[:, [column[communicator] for communicator, *_ in calls]] >= 0
    latency, duration, source = np.zeros(member.shape), np.zeros(member.shape), np.full(member.shape, -1)
    requests = list(layouts.requests(calls))
    for kind, cells, what, sizes, way in requests:
        within = member[cells]
        if within.any():
            here = (cells[0][within], cells[1][within])
            priced = book.price(what, kind, sizes[within], way)
            latency[here], duration[here], source[here] = priced.latency_s, priced.duration_s, priced.source
    for uneven_call in uneven_prices(rows.ops, uneven, layouts, book):
        profiles, priced = uneven_call.profiles, uneven_call.price
        for call in np.flatnonzero(np.array([key[3] for key in calls]) == _OWN - uneven_call.template).tolist():
            latency[profiles, call], duration[profiles, call] = priced.latency_s, priced.duration_s
            source[profiles, call] = priced.source
    source[:] = _least_sure(source, book.sources)
    return _NetworkPrices(layouts, calls, call_of, CallPrices(latency, duration, source), requests, notes)


def _shared_calls(rows: _Rows, chosen: Longs, priced: _NetworkPrices) -> Calls:
    """The calls of the chosen rows, op by op, as `Sharing` asks for them."""
    ops = rows.ops
    at = np.full(len(rows.column("kind")), -1, dtype=np.int64)
    at[chosen] = priced.call_of
    op = np.flatnonzero(at[rows.of_op] >= 0)
    what, part = rows.column("collective")[rows.of_op[op]], np.ones(len(op))
    sends = np.isin(ops.template[op], ops.program.templates.send_op)
    part[(what == Collective.TRANSFER) & ~sends] = 0.0
    exchange = np.flatnonzero(what == Collective.EXCHANGE)
    larger = rows.column("bytes")[rows.of_op[op[exchange]]].astype(np.float64)
    part[exchange] = ops.ints("bytes")[op[exchange]] / np.maximum(larger, 1.0)
    busy = priced.prices.duration_s - priced.prices.latency_s
    return Calls(priced.calls, op, at[rows.of_op[op]], part, busy, priced.layouts)


def _least_sure(source: Longs, sources: tuple[Source, ...]) -> Longs:
    """For each call the widest-banded of the sources by which ranks pay for it; -1 is of ranks that do not."""
    width = np.array([*(source.high / source.low for source in sources), 0.0])
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


def _meeting(ops: Ops, draws: Draws) -> Longs:
    """A number that ops which meet have in common; needed, and found, only where resources are shared."""
    if not draws.resources:
        return np.empty(0, dtype=np.int64)
    numbers = ops.order.astype(np.int64) * len(ops.program.communicators) + ops.ints("communicator")
    return np.where(ops.order >= 0, numbers, -1)


def _check_priced(rows: _Rows, missing: Mask, network: Network | None, kernels: KernelPricer | None) -> None:
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
        "unpriced-op",
        f'op {first - int(ops.start[ops.role[first]])} "{ops.names[first]}" of role "{role}" has no duration '
        f"({len(unpriced):,} ops in all)",
        hint=hint,
    )


def streams(kind: NDArray[np.integer], flops: Floats, moved_bytes: Floats, duration_s: Floats) -> Mask:
    """Returns which ops only stream memory and have no duration of their own.

    Such ops state bytes and no kernels, as workload files do for optimizer updates, copies, casts and zeroing. They
    compute so little on each byte that the memory rate alone decides. Ops with flops are excluded: bytes alone would
    make a GEMM far too fast.
    """
    return np.asarray((kind == Kind.COMPUTE) & (flops == 0) & (moved_bytes > 0) & np.isnan(duration_s))


def stream_s(moved_bytes: Floats, gpu: Gpu) -> Floats:
    """Returns the seconds to read and write `moved_bytes` in total."""
    return np.asarray(moved_bytes / (gpu.memory_bytes_per_s * STREAM_SHARE))


def stream_source(gpu: Gpu) -> Source:
    """Returns the source of the prices of streaming ops."""
    return Source(f"memory bandwidth of {gpu.name}", *STREAM_BAND)
