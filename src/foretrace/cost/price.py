"""Pricing a program: what is written in it stays, what is not is priced by models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.cost.network.interface import Network
from foretrace.cost.network.layouts import CallKey, Layouts
from foretrace.cost.prices import Draws, Prices
from foretrace.errors import InputError
from foretrace.program.columns import Collective
from foretrace.program.expand import Ops
from foretrace.program.program import Longs


def price(ops: Ops, network: Network | None = None) -> Prices:
    """The price of every op: as written in the program, and where it is not, the network's."""
    prices = _as_written(ops)
    missing = np.isnan(prices.duration_s[0])
    if network is not None and missing.any():
        prices = _with_network(ops, prices, missing & (ops.ints("communicator") >= 0), network)
        missing = np.isnan(prices.duration_s[0])
    if missing.any():
        raise _unpriced(ops, np.flatnonzero(missing), network)
    return prices


def _as_written(ops: Ops) -> Prices:
    """The durations a program carries; NaN where it has none."""
    enabled = ops.column("enabled").astype(bool)
    duration = np.where(enabled, ops.floats("duration_s"), 0.0)
    latency = np.where(enabled, ops.floats("latency_s"), 0.0)
    templates = ops.program.templates
    op, row = ops.side_table(templates.draw_op)
    drawn = enabled[op]
    op, row = op[drawn], row[drawn]
    draws = Draws(
        op,
        templates.draw_resource[row].astype(np.int64),
        templates.draw_amount[row],
        templates.draw_held[row],
        ops.program.resources,
    )
    communicators = len(ops.program.communicators)
    meeting = np.where(ops.order >= 0, ops.order.astype(np.int64) * communicators + ops.ints("communicator"), -1)
    return Prices(
        duration_s=duration[None],
        latency_s=np.fmin(latency, duration)[None],
        source=ops.ints("source"),
        sources=ops.program.sources,
        draws=draws,
        meeting=meeting,
        profile_of=np.zeros(ops.program.world, dtype=np.int32),
    )


def _with_network(ops: Ops, prices: Prices, chosen: NDArray[np.bool_], network: Network) -> Prices:
    """The prices with those of the chosen ops from a network; ranks whose groups sit differently pay differently."""
    calls, call_of = _calls(ops, chosen)
    layouts = Layouts(ops.program, sorted({communicator for communicator, *_ in calls}), network)
    shape = (len(layouts.profiles), len(calls))
    latency, duration = np.empty(shape), np.empty(shape)
    for kind, column, what, sizes in layouts.requests(calls):
        priced = network.price(what, kind, sizes)
        latency[column], duration[column] = priced.latency_s, priced.duration_s
    at = call_of[chosen]
    duration_s = np.repeat(prices.duration_s, len(layouts.profiles), axis=0)
    latency_s = np.repeat(prices.latency_s, len(layouts.profiles), axis=0)
    duration_s[:, chosen], latency_s[:, chosen] = duration[:, at], latency[:, at]
    return replace(
        prices,
        duration_s=duration_s,
        latency_s=latency_s,
        source=np.where(chosen, len(prices.sources), prices.source),
        sources=(*prices.sources, network.source),
        profile_of=layouts.profile_of,
    )


def _calls(ops: Ops, chosen: NDArray[np.bool_]) -> tuple[list[CallKey], Longs]:
    """The distinct (communicator, collective, bytes) among the chosen ops, and the number of each op's."""
    columns = ops.program.templates.columns
    numbers: dict[CallKey, int] = {}
    used = np.flatnonzero(np.bincount(ops.template[chosen], minlength=len(columns["kind"])))
    keys = zip(*(columns[name][used].tolist() for name in ("communicator", "collective", "bytes")), strict=True)
    of_template = np.full(len(columns["kind"]), -1, dtype=np.int64)
    of_template[used] = [numbers.setdefault(key, len(numbers)) for key in keys]
    call_of = of_template[ops.template]
    # Overrides and the other end of an exchange give single ops another size.
    sizes = _sizes(ops)
    other = np.flatnonzero(chosen & (sizes != columns["bytes"][ops.template]))
    for op in other.tolist():
        communicator, collective = (int(columns[n][ops.template[op]]) for n in ("communicator", "collective"))
        call_of[op] = numbers.setdefault((communicator, collective, int(sizes[op])), len(numbers))
    return list(numbers), call_of


def _sizes(ops: Ops) -> Longs:
    """The bytes that set each op's price; the larger way decides for both ends of an exchange."""
    size = ops.ints("bytes")
    exchanges = np.flatnonzero((ops.column("collective") == Collective.EXCHANGE) & (ops.order >= 0))
    if len(exchanges):
        communicators = len(ops.program.communicators)
        communicator = ops.program.templates.columns["communicator"][ops.template[exchanges]]
        meeting = ops.order[exchanges].astype(np.int64) * communicators + communicator.astype(np.int64)
        larger = np.zeros(int(meeting.max()) + 1, dtype=np.int64)
        np.maximum.at(larger, meeting, size[exchanges])
        size = size.copy()
        size[exchanges] = larger[meeting]
    return size


def _unpriced(ops: Ops, unpriced: NDArray[np.int64], network: Network | None) -> InputError:
    first = int(unpriced[0])
    role = ops.program.roles[int(ops.role[first])]
    communicates = bool((ops.ints("communicator")[unpriced] >= 0).all())
    hint = "this program carries sizes, not times; give every op a duration"
    if communicates and network is None:
        hint = "the job says how many bytes, not how long: name a cluster, as in --cluster h100-dgx"
    return InputError(
        f'op {first - int(ops.start[ops.role[first]])} "{ops.names[first]}" of role "{role}" has no duration '
        f"({len(unpriced):,} ops in all)",
        hint=hint,
    )
