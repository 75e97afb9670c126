"""Answers what one collective takes on a cluster: the answer of `foretrace network`.

Sizes, algorithm bandwidth and bus bandwidth are those of nccl-tests. The algorithm bandwidth is bytes per second. The
bus bandwidth is that times the share of the size that passes the busiest port in a ring (2(n − 1)/n of an all-reduce),
and can be compared with what a port carries. For an all-to-all it counts peers over links too and may exceed the
line rate of a NIC; the rate per NIC counts only what leaves through it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from foretrace.basics.errors import Diagnostic, InputError, UsageError
from foretrace.basics.numbers import whole_field
from foretrace.basics.placement import Placement
from foretrace.basics.units import format_percent, format_time, parse_bytes
from foretrace.basics.viewable import Viewable
from foretrace.cost.machine import Machine, NetworkMode
from foretrace.cost.network import Network
from foretrace.cost.network.domains import DomainUse
from foretrace.cost.network.experts import explain_call, limit_call, price_call
from foretrace.cost.network.interface import Explained, Limit
from foretrace.cost.network.measured_network import nccl_model
from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.network import Candidate, candidates
from foretrace.cost.network.nccl_log.names import as_nccl_writes
from foretrace.hardware.cluster import Cluster
from foretrace.program.columns import ONE_TO_ONE, Collective
from foretrace.simulation.network.placed_groups import PlacedGroups, groups_of_placement, placed_groups
from foretrace.simulation.network.words import CollectiveRequest, check_ranks, check_size, name_of, read_collective

if TYPE_CHECKING:
    from foretrace.simulation.network.on_links import LinkRun, OnLinks

WORD_BYTES: Final = 4
"""Bytes that a barrier reduces."""

SLOWER_CHOICE: Final = "slower-choice"
WORTH_ASKING: Final = 0.1
"""The share of the estimated time of NCCL's choice from which on another way that saves it is named."""

MAX_NAMED: Final = 4
"""Failed or busy parts of a network that a note names."""


@dataclass(frozen=True, slots=True, repr=False)
class NetworkAnswer(Viewable):
    """The time of a collective, and how it runs. Times in seconds, rates in bytes per second.

    `bound_s` is the time that the bytes need to cross the busiest port at line rates; `band_s` is a central 90 %
    interval. A group of one rank takes no time and has no rates. If groups are placed differently, the slowest is
    described.
    """

    collective: str
    size_bytes: int
    ranks: int
    nodes: int
    ranks_per_node: int
    """On the node that holds most ranks of the group."""
    groups: int
    """Groups that communicate at once."""
    cluster: Cluster
    mode: NetworkMode
    time_s: float
    band_s: tuple[float, float]
    latency_s: float
    bound_s: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    nic_bytes_per_s: float | None
    """The bytes that a NIC sends per second, mean over the NICs of the group's ranks; None where none is used."""
    algorithm: str
    protocol: str
    channels: int
    limit: Limit
    source: str
    """Whose price it is: a model's, or measurements'."""
    source_band: tuple[float, float]
    """The band of the source, as factors."""
    way: str = ""
    """How tokens go to their experts, where that is what is asked."""
    domains: DomainUse | None = None
    """The link domains of all groups, where a domain reaches over nodes and no placement was given."""
    candidates: tuple[Candidate, ...] = ()
    """How NCCL could have run it, where it had a choice."""
    links: LinkRun | None = None
    """Message by message or packet by packet: what formulas say instead, and which links are hot."""
    diagnostics: tuple[Diagnostic, ...] = ()
    unchanged_time_s: float | None = None
    """The time on the machine before what-ifs changed it; None where none did."""

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

    def compared_with(self, unchanged: NetworkTable) -> NetworkTable:
        """Returns the answers with the times of the same calls on the machine before it was changed."""
        pairs = zip(self.answers, unchanged.answers, strict=False)
        answers = tuple(replace(answer, unchanged_time_s=before.time_s) for answer, before in pairs)
        return NetworkTable(answers, self.interrupted or unchanged.interrupted)


@dataclass(frozen=True, slots=True)
class CollectiveQuestion:
    """Everything that a question about a collective states, except its size and number of ranks."""

    called: CollectiveRequest
    machine: Machine
    cluster: Cluster
    """The machine's cluster as its NCCL sees it."""
    groups: int = 1
    ranks_per_node: int | None = None
    notes: tuple[Diagnostic, ...] = ()

    @property
    def collective(self) -> Collective:
        """The collective that is priced."""
        return self.called.collective


def network(
    collective: str,
    size_bytes: int | str,
    machine: Machine,
    *,
    ranks: int | None = None,
    ranks_per_node: int | None = None,
    groups: int = 1,
    way: str | None = None,
) -> NetworkAnswer:
    """Returns what a collective takes in a group of ranks, alone on the machine but for `groups` − 1 others like it.

    Args:
        collective: Its name: "all-reduce".
        size_bytes: The size as nccl-tests counts it, a number or text such as "256MiB".
        machine: What it runs on. Its network mode says whether formulas answer (`analytic`), messages that divide the
            links of the cluster (`flow`), or packets (`packets`).
        ranks: Ranks of one group; None is a node's GPUs, or 2 for a transfer.
        ranks_per_node: Ranks on each node; None fills nodes in order. A placement of the machine decides instead.
        groups: How many such groups are at work at once.
        way: How tokens go to their experts, for "dispatch" and "combine": "style=deepep experts=256 topk=8".
    """
    question = ask_network(collective, machine, ranks_per_node=ranks_per_node, groups=groups, way=way)
    count = default_ranks(question) if ranks is None else _checked_count("ranks", ranks)
    return network_table(question, [parse_bytes(size_bytes, where="size")], [count]).answers[0]


def _checked_count(name: str, value: object) -> int:
    """Returns a count that a caller gave; raises an error where it is not a whole number."""
    return whole_field(name, value.item() if isinstance(value, np.generic) else value, None)


def ask_network(
    collective: str,
    machine: Machine,
    *,
    ranks_per_node: int | None = None,
    groups: int = 1,
    way: str | None = None,
) -> CollectiveQuestion:
    """Checks a question about a collective; the arguments are those of `network`."""
    groups = _checked_count("groups", groups)
    ranks_per_node = None if ranks_per_node is None else _checked_count("ranks_per_node", ranks_per_node)
    called = read_collective(collective, way)
    if machine.placement is not None and ranks_per_node is not None:
        problem = "a placement says how many ranks a node has"
        raise UsageError("conflicting-options", problem, hint="leave out --ranks-per-node")
    if called.way and machine.network != "analytic":
        raise UsageError(
            "conflicting-options",
            f"{called.name}: messages on links are those of NCCL's own all-to-all",
            hint="ask for all-to-all without --way, or for --network analytic",
        )
    if machine.collectives is not None and machine.network != "analytic":
        problem = "measured collectives are whole times, without links"
        raise UsageError("conflicting-options", problem, hint="leave out --collectives")
    cluster, differences = machine.nccl.on(machine.needed_cluster())
    notes = [*called.notes, *differences]
    fit = machine.calibration
    if fit is not None and (machine.network != "analytic" or fit.collectives is None):
        why = "its collectives are whole times" if fit.collectives is not None else "it has no collectives"
        notes.append(Diagnostic("note", "price-source", f"{fit.name} is not used: {why}"))
    if machine.collectives is not None:
        notes.append(machine.collectives_note(cluster))
    return CollectiveQuestion(called, machine, cluster, groups, ranks_per_node, tuple(notes))


def default_ranks(question: CollectiveQuestion) -> int:
    """Returns the default size of a group: 2 for a transfer, the ranks of a placement, or the GPUs of a node."""
    if question.collective in ONE_TO_ONE:
        return 2
    if isinstance(question.machine.placement, Placement):
        return question.machine.placement.world // max(question.groups, 1)
    return question.cluster.node.gpus


def network_table(
    question: CollectiveQuestion,
    sizes: Sequence[int],
    ranks: Sequence[int],
    starts: Callable[[int, int], None] | None = None,
) -> NetworkTable:
    """Returns an answer for each number of ranks and size; an interrupt keeps those that are finished.

    Args:
        question: The collective, the machine and the groups.
        sizes: Sizes in bytes.
        ranks: Numbers of ranks of a group.
        starts: Called before each answer with the number of answers finished and the number of all.

    Raises:
        InputError: A size or number of ranks cannot be run; nothing has run then.
    """
    for size in sizes:
        check_size(size)
        if question.collective is Collective.BARRIER and size > WORD_BYTES:
            problem = "a barrier has no size: it is an all-reduce of a word"
            raise InputError("unknown-collective", problem, hint="leave the size out")
    for count in ranks:
        check_ranks(count, question.groups)
        if question.collective in ONE_TO_ONE and count != 2:
            name = name_of(question.collective)
            article = "an" if name[0] in "aeiou" else "a"
            problem = f"{article} {name} is between 2 ranks, not {count:,}"
            raise InputError("unknown-collective", problem, hint="leave out --ranks")
    # The largest first: if any is too large, the error comes at once.
    built = {count: _Group.of(question, count) for count in sorted(ranks, reverse=True)}
    groups = [built[count] for count in ranks]
    answers: list[NetworkAnswer] = []
    try:
        for group in groups:
            on_links = group.on_links()
            for size in sizes:
                if starts is not None:
                    starts(len(answers), len(sizes) * len(groups))
                answer = group.analytic(size)
                answers.append(answer if on_links is None else _with_links(answer, on_links.run(answer)))
    except KeyboardInterrupt:
        if not answers:
            raise
        return NetworkTable(tuple(answers), interrupted=True)
    return NetworkTable(tuple(answers))


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Groups in their places on a priced network, and the kinds they are of."""

    question: CollectiveQuestion
    groups: PlacedGroups
    network: Network
    layouts: tuple[Hashable, ...]

    @classmethod
    def of(cls, question: CollectiveQuestion, ranks: int) -> _Group:
        machine = question.machine
        if machine.placement is None:
            groups = placed_groups(question.cluster, ranks, question.groups, question.ranks_per_node)
        else:
            groups = groups_of_placement(machine.placed(question.groups * ranks), ranks, question.groups)
        network = machine.network_for(groups.placement)
        return cls(question, groups, network, tuple(network.layouts(groups.ranks)[0]))

    def on_links(self) -> OnLinks | None:
        """Returns the groups on the links of the cluster; None where formulas answer."""
        if self.question.machine.network == "analytic" or self.groups.ranks.shape[1] == 1:
            return None
        from foretrace.simulation.network.on_links import OnLinks  # formulas do without, and start faster

        return OnLinks.of(self.question.collective, self.groups, self.question.cluster, self.question.machine.network)

    def analytic(self, size_bytes: int) -> NetworkAnswer:
        """Returns the answer of the slowest kind of group, by formulas."""
        question, ranks, way = self.question, self.groups.ranks.shape[1], self.question.called.way
        what, size = question.collective, float(size_bytes)
        explained = [explain_call(self.network, what, layout, size, way) for layout in self.layouts]
        slowest = max(range(len(explained)), key=lambda number: explained[number].time_s)
        estimate, layout = explained[slowest], self.layouts[slowest]
        if estimate.algorithm == "measured":
            # A measurement does not say how NCCL ran it; its rule does.
            rule = nccl_model(self.network).explain(what, layout, size)
            estimate = replace(estimate, algorithm=rule.algorithm, protocol=rule.protocol, channels=rule.channels)
        priced = price_call(self.network, what, layout, np.array([size]), way)
        source = self.network.sources[int(priced.source[0])]
        ways = () if way else _candidates(self.network, what, layout, size)
        algbw = size_bytes / estimate.time_s if estimate.time_s and what is not Collective.BARRIER else None
        return NetworkAnswer(
            collective=question.called.name,
            size_bytes=size_bytes,
            ranks=ranks,
            nodes=self.groups.nodes,
            ranks_per_node=self.groups.max_on_a_node,
            groups=question.groups,
            cluster=question.cluster,
            mode="analytic",
            time_s=estimate.time_s,
            band_s=(estimate.time_s * source.low, estimate.time_s * source.high),
            latency_s=estimate.latency_s,
            bound_s=estimate.bound_s,
            algbw_bytes_per_s=algbw,
            busbw_bytes_per_s=None if algbw is None else algbw * passes(what, ranks),
            nic_bytes_per_s=_nic_rate(estimate, layout),
            algorithm=estimate.algorithm,
            protocol=estimate.protocol,
            channels=estimate.channels,
            limit=limit_call(self.network, what, layout, size, way),
            source=source.name,
            source_band=(source.low, source.high),
            way=way,
            domains=self.groups.domains,
            candidates=ways,
            diagnostics=(*self._notes(), *slower_choice(ways, estimate.time_s)),
        )

    def _notes(self) -> tuple[Diagnostic, ...]:
        notes = [*self.question.cluster.remarks, *self.question.notes, *self.network.notes]
        domains = None if self.groups.domains is None else self.groups.domains.note()
        notes += [] if domains is None else [domains]
        if self.groups.ranks.shape[1] == 1:
            text = "a group of one rank communicates with nobody: it takes no time"
            notes.append(Diagnostic("note", "odd-input", text))
        if len(self.layouts) > 1:
            text = f"the groups sit in {len(self.layouts)} ways; this is the slowest"
            notes.append(Diagnostic("note", "slowest-group", text))
        topology = self.question.cluster.topology
        if topology.failed:
            notes.append(Diagnostic("note", "impaired-network", f"out of service: {_named(topology.failed)}"))
        if topology.background:
            busy = _named([where for where, _ in topology.background])
            notes.append(Diagnostic("note", "impaired-network", f"other traffic is on {busy}"))
        return tuple(notes)


def slower_choice(ways: Sequence[Candidate], time_s: float) -> tuple[Diagnostic, ...]:
    """Returns a note on the way that is worth requesting from NCCL by our estimate, and how; nothing where there is
    none. `time_s` is the price of the call, which may be measured and less than our estimate of the way chosen."""
    chosen = next((candidate for candidate in ways if candidate.chosen), None)
    if chosen is None:
        return ()
    best = min(ways, key=lambda candidate: candidate.time_s)
    if best.time_s > (1 - WORTH_ASKING) * min(chosen.time_s, time_s):
        return ()
    algorithm, protocol = as_nccl_writes(best.algorithm), as_nccl_writes(best.protocol)
    off = format_percent(best.time_s / chosen.time_s - 1)
    text = (
        f"NCCL chooses {chosen.algorithm} {chosen.protocol}; {best.algorithm} {best.protocol} takes "
        f"{format_time(best.time_s)} by our estimate ({off}): NCCL_ALGO={algorithm} NCCL_PROTO={protocol}"
    )
    return (Diagnostic("note", SLOWER_CHOICE, text),)


def _nic_rate(estimate: Explained, layout: Hashable) -> float | None:
    """Returns the bytes per second that a NIC sends in a call, mean over NICs; None where the call uses none."""
    sent = dict(estimate.draws).get("nic", 0.0)
    if not sent or not estimate.time_s or not isinstance(layout, GroupLayout):
        return None
    return sent / layout.nics_per_rank / estimate.time_s


def _named(places: Sequence[str]) -> str:
    """Returns the first of these names, and the number of the others."""
    more = len(places) - MAX_NAMED
    return ", ".join(places[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _candidates(network: Network, what: Collective, layout: Hashable, size_bytes: float) -> tuple[Candidate, ...]:
    """Returns the algorithms and protocols that NCCL could have chosen."""
    assert isinstance(layout, GroupLayout)
    return candidates(nccl_model(network), what, layout, size_bytes)


def _with_links(analytic: NetworkAnswer, run: LinkRun) -> NetworkAnswer:
    """Returns the answer with the time that messages or packets take on links."""
    factor = run.time_s / analytic.time_s
    rates = (analytic.algbw_bytes_per_s, analytic.busbw_bytes_per_s, analytic.nic_bytes_per_s)
    algbw, busbw, per_nic = (None if rate is None else rate / factor for rate in rates)
    low, high = analytic.source_band
    # The estimates of the other ways are those of formulas.
    notes = (note for note in analytic.diagnostics if note.code != SLOWER_CHOICE)
    return replace(
        analytic,
        mode=run.mode,
        time_s=run.time_s,
        band_s=(run.time_s * low, run.time_s * high),
        latency_s=min(analytic.latency_s, run.time_s),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        nic_bytes_per_s=per_nic,
        source=f"{'packets' if run.mode == 'packets' else 'messages'} on the links of {analytic.cluster.name}",
        links=run,
        diagnostics=(*notes, *run.notes),
    )
