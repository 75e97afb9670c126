"""What one collective takes on a cluster: the answer of `foretrace network`.

Sizes, algorithm bandwidth and bus bandwidth are those of nccl-tests: bytes by second, and that times what of a size
passes the busiest port in a ring (2(n − 1)/n of an all-reduce), which can be held against what a port carries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from foretrace.analysis.network_words import (
    Called,
    check_ranks,
    check_size,
    name_of,
    read_collective,
)
from foretrace.analysis.seats import SeatedGroups, seated, seated_by
from foretrace.analysis.sharing import check_mode
from foretrace.cost.network import MeasuredNetwork, NcclNetwork, NcclSettings, Network, network_of
from foretrace.cost.network.experts import explain_call, price_call
from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.candidates import Candidate, candidates
from foretrace.cost.network.nccl.layout import Layout
from foretrace.cost.network.sources import measured_collectives
from foretrace.errors import Diagnostic, InputError, UsageError
from foretrace.formats.calibration import Calibration, calibration_of
from foretrace.formats.nccl_tests import Measurements
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.placement import Placement
from foretrace.program.columns import ONE_TO_ONE, Collective
from foretrace.units import parse_bytes

if TYPE_CHECKING:
    from foretrace.analysis.on_links import LinkRun, OnLinks

Mode = Literal["analytic", "flow", "packets"]
"""Formulas; messages that divide the links they meet on; packets, by ns-3."""

MODES: Final[tuple[str, ...]] = get_args(Mode)
WORD_BYTES: Final = 4
"""What a barrier reduces."""

MOST_NAMED: Final = 4
"""Of what is out of service, or carries other traffic, so many are named."""


@dataclass(frozen=True, slots=True, repr=False)
class NetworkAnswer:
    """What a collective takes, and how it runs. Times in seconds, rates in bytes per second.

    `bound_s` is what the bytes need to cross the busiest port at line rates; `band_s` a central 90 % interval. A group
    of one rank takes no time and has no rates. Where groups sit differently, it is the slowest that is told of.
    """

    collective: str
    size_bytes: int
    ranks: int
    nodes: int
    ranks_per_node: int
    """On the node that holds most ranks of the group."""
    groups: int
    """So many such groups are at work at once."""
    cluster: Cluster
    mode: Mode
    time_s: float
    band_s: tuple[float, float]
    latency_s: float
    bound_s: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    algorithm: str
    protocol: str
    channels: int
    limited_by: str
    source: str
    """Whose price it is: a model's, or measurements'."""
    source_band: tuple[float, float]
    """What the source may be off, as factors."""
    way: str = ""
    """How tokens go to their experts, where that is what is asked."""
    candidates: tuple[Candidate, ...] = ()
    """How NCCL could have run it, where it had a choice."""
    links: LinkRun | None = None
    """Message by message or packet by packet: what formulas say instead, and which links are hot."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def bound_share(self) -> float | None:
        """How near the bound it comes: 1 is as fast as the ports allow."""
        return self.bound_s / self.time_s if self.time_s else None

    def __repr__(self) -> str:
        where = f"{self.ranks:,} ranks of {self.cluster.name}"
        how = " ".join(word for word in (self.algorithm, self.protocol) if word)
        return f"<NetworkAnswer: {self.collective} of {self.size_bytes:,} bytes, {where}: {self.time_s:.6g} s, {how}>"


@dataclass(frozen=True, slots=True)
class NetworkTable:
    """Answers over sizes, or numbers of ranks, or both; those finished, where it was `interrupted`."""

    answers: tuple[NetworkAnswer, ...]
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything a question says besides size and number of ranks, with files read."""

    called: Called
    cluster: Cluster
    groups: int = 1
    ranks_per_node: int | None = None
    placement: str | Path | Placement | None = None
    mode: Mode = "analytic"
    measured: tuple[Measurements, ...] = ()
    nccl: NcclSettings | None = None
    notes: tuple[Diagnostic, ...] = ()

    @property
    def collective(self) -> Collective:
        """What is priced."""
        return self.called.collective


def network(
    collective: str,
    size_bytes: int | str,
    *,
    cluster: Cluster | str | Path,
    ranks: int | None = None,
    ranks_per_node: int | None = None,
    groups: int = 1,
    placement: str | Path | Placement | None = None,
    mode: Mode = "analytic",
    prices: Literal["best", "model"] = "best",
    silicon: bool | None = None,
    collectives: str | Path | None = None,
    nccl: NcclSettings | None = None,
    way: str | None = None,
    calibration: Calibration | str | Path | None = None,
) -> NetworkAnswer:
    """What a collective of so many bytes takes in a group of so many ranks, alone on the cluster but for `groups` − 1
    others like it.

    `size_bytes` is nccl-tests' size, a number or text such as "256MiB". `ranks` are those of one group (None: a node's
    GPUs, or 2 for a transfer); they fill nodes in order, `ranks_per_node` on each, or sit as `placement` says. `mode`
    says whether formulas answer, messages that divide the links of the cluster (`flow`), or packets (`packets`).
    `collectives` names measurements of nccl-tests, which come before NVIDIA's tables (`silicon`: None if they are
    installed) and these before the model; `prices="model"` leaves the tables out. `nccl` is what a user says of NCCL.
    `way` says how tokens go to their experts, for "dispatch" and "combine": "style=deepep experts=256 topk=8".
    `calibration` names one with collectives, which come after `collectives` and before the tables.
    """
    asked = asked_for(
        collective,
        cluster=cluster,
        ranks_per_node=ranks_per_node,
        groups=groups,
        placement=placement,
        mode=mode,
        prices=prices,
        silicon=silicon,
        collectives=collectives,
        nccl=nccl,
        way=way,
        calibration=calibration,
    )
    count = default_ranks(asked) if ranks is None else ranks
    return network_table(asked, [parse_bytes(size_bytes, where="size")], [count]).answers[0]


def asked_for(
    collective: str,
    *,
    cluster: Cluster | str | Path,
    ranks_per_node: int | None = None,
    groups: int = 1,
    placement: str | Path | Placement | None = None,
    mode: Mode = "analytic",
    prices: Literal["best", "model"] = "best",
    silicon: bool | None = None,
    collectives: str | Path | None = None,
    nccl: NcclSettings | None = None,
    way: str | None = None,
    calibration: Calibration | str | Path | None = None,
) -> Asked:
    """A question with its files read; as in `network`."""
    called = read_collective(collective, way)
    check_mode(mode, MODES)
    if placement is not None and ranks_per_node is not None:
        raise UsageError("a placement says how many ranks a node has", hint="leave out --ranks-per-node")
    if called.way and mode != "analytic":
        raise UsageError(
            f"{called.name}: messages on links are those of NCCL's own all-to-all",
            hint="ask for all-to-all without --way, or for --network analytic",
        )
    if collectives is not None and mode != "analytic":
        raise UsageError("measured collectives are whole times, without links", hint="leave out --collectives")
    where = cluster if isinstance(cluster, Cluster) else load_cluster(str(cluster))
    notes = list(called.notes)
    if nccl is not None and nccl.observed is not None:
        where, differences = nccl.observed.on(where)
        notes += [*nccl.observed.notes, *differences]
    forced = None if nccl is None else nccl.forced
    # What was measured says nothing of the links that messages meet on.
    source = prices if mode == "analytic" else "model"
    fit = calibration_of(calibration, where.gpu.name)
    if fit is not None and (mode != "analytic" or fit.collectives is None):
        why = "its collectives are whole times" if fit.collectives is not None else "it has no collectives"
        notes.append(Diagnostic("note", f"{fit.name} is not used: {why}"))
        fit = None
    measured = measured_collectives(where, collectives, prices=source, silicon=silicon, forced=forced, calibration=fit)
    if collectives is not None:
        text = f"measured collectives of {collectives} are taken to be {where.name}'s own"
        notes.append(Diagnostic("note", text))
    return Asked(called, where, groups, ranks_per_node, placement, mode, measured, nccl, tuple(notes))


def default_ranks(asked: Asked) -> int:
    """How many ranks a group has where nobody says: the two of a transfer, the GPUs of a node, a rank for each of what
    is placed."""
    if asked.collective in ONE_TO_ONE:
        return 2
    if isinstance(asked.placement, Placement):
        return asked.placement.world // max(asked.groups, 1)
    return asked.cluster.node.gpus


def network_table(
    asked: Asked, sizes: Sequence[int], ranks: Sequence[int], starts: Callable[[int, int], None] | None = None
) -> NetworkTable:
    """An answer for each number of ranks and size. What cannot be asked is an error before anything runs; an interrupt
    ends the table and keeps what is finished. `starts` is told how many of how many are finished."""
    for size in sizes:
        check_size(size)
        if asked.collective is Collective.BARRIER and size > WORD_BYTES:
            raise InputError("a barrier has no size: it is an all-reduce of a word", hint="leave the size out")
    for count in ranks:
        check_ranks(count, asked.groups)
        if asked.collective in ONE_TO_ONE and count != 2:
            name = name_of(asked.collective)
            article = "an" if name[0] in "aeiou" else "a"
            raise InputError(f"{article} {name} is between 2 ranks, not {count:,}", hint="leave out --ranks")
    # The largest first: if any is too large, that is said at once.
    built = {count: _Group.of(asked, count) for count in sorted(ranks, reverse=True)}
    groups = [built[count] for count in ranks]
    found: list[NetworkAnswer] = []
    try:
        for group in groups:
            on_links = group.on_links()
            for size in sizes:
                if starts is not None:
                    starts(len(found), len(sizes) * len(groups))
                answer = group.analytic(size)
                found.append(answer if on_links is None else _with_links(answer, on_links.run(answer)))
    except KeyboardInterrupt:
        return NetworkTable(tuple(found), interrupted=True)
    return NetworkTable(tuple(found))


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Groups in their places on a priced network, and the kinds they are of."""

    asked: Asked
    seats: SeatedGroups
    network: Network
    layouts: tuple[Hashable, ...]

    @classmethod
    def of(cls, asked: Asked, ranks: int) -> _Group:
        world, placed = asked.groups * ranks, asked.placement
        if placed is None:
            seats = seated(asked.cluster, ranks, asked.groups, asked.ranks_per_node)
        else:
            placed = placed if isinstance(placed, Placement) else Placement.load(placed, world)
            seats = seated_by(placed, ranks, asked.groups)
        network = network_of(asked.cluster, world, seats.placement, asked.measured, asked.nccl)
        return cls(asked, seats, network, tuple(network.layouts(seats.groups)[0]))

    def on_links(self) -> OnLinks | None:
        """The groups on the links of the cluster; None where formulas answer."""
        if self.asked.mode == "analytic" or self.seats.groups.shape[1] == 1:
            return None
        from foretrace.analysis.on_links import OnLinks  # formulas do without, and start faster

        return OnLinks.of(self.asked.collective, self.seats, self.asked.cluster, self.asked.mode)

    def analytic(self, size_bytes: int) -> NetworkAnswer:
        """The answer of the slowest kind of group, by formulas."""
        asked, ranks, way = self.asked, self.seats.groups.shape[1], self.asked.called.way
        what, size = asked.collective, float(size_bytes)
        explained = [explain_call(self.network, what, layout, size, way) for layout in self.layouts]
        slowest = max(range(len(explained)), key=lambda number: explained[number].time_s)
        one, layout = explained[slowest], self.layouts[slowest]
        if one.algorithm == "measured":
            # A measurement does not say how NCCL ran it; its rule does.
            rule = _model(self.network).explain(what, layout, size)
            one = replace(one, algorithm=rule.algorithm, protocol=rule.protocol, channels=rule.channels)
        priced = price_call(self.network, what, layout, np.array([size]), way)
        source = self.network.sources[int(priced.source[0])]
        algbw = size_bytes / one.time_s if one.time_s and what is not Collective.BARRIER else None
        return NetworkAnswer(
            collective=asked.called.name,
            size_bytes=size_bytes,
            ranks=ranks,
            nodes=self.seats.nodes,
            ranks_per_node=self.seats.most_on_a_node,
            groups=asked.groups,
            cluster=asked.cluster,
            mode="analytic",
            time_s=one.time_s,
            band_s=(one.time_s * source.low, one.time_s * source.high),
            latency_s=one.latency_s,
            bound_s=one.bound_s,
            algbw_bytes_per_s=algbw,
            busbw_bytes_per_s=None if algbw is None else algbw * passes(what, ranks),
            algorithm=one.algorithm,
            protocol=one.protocol,
            channels=one.channels,
            limited_by=one.limited_by,
            source=source.name,
            source_band=(source.low, source.high),
            way=way,
            candidates=() if way else _candidates(self.network, what, layout, size),
            diagnostics=self._notes(),
        )

    def _notes(self) -> tuple[Diagnostic, ...]:
        notes = [*self.asked.notes, *self.network.notes]
        if self.seats.groups.shape[1] == 1:
            notes.append(Diagnostic("note", "a group of one rank communicates with nobody: it takes no time"))
        if len(self.layouts) > 1:
            notes.append(Diagnostic("note", f"the groups sit in {len(self.layouts)} ways; this is the slowest"))
        topology = self.asked.cluster.topology
        if topology.failed:
            notes.append(Diagnostic("note", f"out of service: {_named(topology.failed)}"))
        if topology.background:
            busy = _named([where for where, _ in topology.background])
            notes.append(Diagnostic("note", f"other traffic is on {busy}"))
        return tuple(notes)


def _named(places: Sequence[str]) -> str:
    """Some of these names, and how many more there are."""
    more = len(places) - MOST_NAMED
    return ", ".join(places[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _candidates(network: Network, what: Collective, layout: Hashable, size_bytes: float) -> tuple[Candidate, ...]:
    """What NCCL could have chosen from."""
    model = _model(network)
    if not isinstance(model, NcclNetwork) or not isinstance(layout, Layout):
        return ()
    return candidates(model, what, layout, size_bytes)


def _model(network: Network) -> Network:
    """The model beneath all measurements."""
    while isinstance(network, MeasuredNetwork):
        network = network.model
    return network


def _with_links(analytic: NetworkAnswer, run: LinkRun) -> NetworkAnswer:
    """The answer with the time that messages or packets take on links."""
    factor = run.time_s / analytic.time_s
    rates = (analytic.algbw_bytes_per_s, analytic.busbw_bytes_per_s)
    algbw, busbw = (None if rate is None else rate / factor for rate in rates)
    low, high = analytic.source_band
    return replace(
        analytic,
        mode=run.mode,
        time_s=run.time_s,
        band_s=(run.time_s * low, run.time_s * high),
        latency_s=min(analytic.latency_s, run.time_s),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        source=f"{'packets' if run.mode == 'packets' else 'messages'} on the links of {analytic.cluster.name}",
        links=run,
        diagnostics=(*analytic.diagnostics, *run.notes),
    )
