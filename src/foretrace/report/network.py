"""The time of a collective: a screen, a table like that of nccl-tests, and JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TextIO

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_bandwidth, format_count, format_difference, format_percent, format_time
from foretrace.cost.network.domains import DomainUse
from foretrace.cost.network.interface import Limit
from foretrace.cost.network.nccl.network import Candidate
from foretrace.hardware.fabric.topology import Topology
from foretrace.report.answer_words import band_text, with_band
from foretrace.report.design import STYLES
from foretrace.report.json import read_record, to_json
from foretrace.report.plots.curves import braille
from foretrace.report.plots.heatmap import HOTTEST, described
from foretrace.report.plots.network_plot import AXES, curves_of, over_of, size_text
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.simulation.network.network import NetworkAnswer, NetworkTable
from foretrace.simulation.network.on_links import LinkRun

NETWORK_SCHEMA = "foretrace.network/1"
TABLE_SCHEMA = "foretrace.network-table/1"
MAX_NOTES = 6


@dataclass(frozen=True, slots=True)
class HotLinkRecord:
    """A link that is among the busiest; `others` counts links that are as busy."""

    link: str
    bytes: float
    utilisation: float
    others: int


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """A collective message by message: what formulas say instead, and which links are hot."""

    analytic_time_s: float
    messages: int
    hot: tuple[HotLinkRecord, ...]

    @classmethod
    def of(cls, run: LinkRun) -> FlowRecord:
        """Reads a run on links."""
        hot = tuple(
            HotLinkRecord(load.label, sum(load.bytes_by_axis.values()), load.utilisation, load.others)
            for load in run.loads.hottest(HOTTEST)
        )
        return cls(run.analytic_time_s, run.messages, hot)


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One answer about a collective."""

    collective: str
    size_bytes: int
    cluster: str
    ranks: int
    nodes: int
    ranks_per_node: int
    groups: int
    network: str
    time_s: float
    band_s: tuple[float, float]
    latency_s: float
    bound_s: float
    bound_share: float | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    nic_bytes_per_s: float | None
    algorithm: str
    protocol: str | None
    channels: int | None
    limit: Limit
    source: str
    way: str | None
    unchanged_time_s: float | None
    domains: DomainUse | None
    candidates: tuple[Candidate, ...]
    flow: FlowRecord | None
    diagnostics: tuple[Diagnostic, ...]

    @classmethod
    def of(cls, answer: NetworkAnswer) -> CollectiveRecord:
        """Reads an answer; what it does not know is null."""
        return read_record(
            cls,
            answer,
            cluster=answer.cluster.name,
            network=answer.mode,
            protocol=answer.protocol or None,
            channels=answer.channels or None,
            way=answer.way or None,
            flow=None if answer.links is None else FlowRecord.of(answer.links),
        )


def network_json(answer: NetworkAnswer) -> dict[str, Any]:
    """Returns one answer."""
    return to_json(NETWORK_SCHEMA, CollectiveRecord.of(answer))


def table_json(results: NetworkTable) -> dict[str, Any]:
    """Returns several answers, in the order of the table."""
    points = [CollectiveRecord.of(answer) for answer in results.answers]
    return to_json(TABLE_SCHEMA, {"interrupted": results.interrupted, "points": points})


def print_network(answer: NetworkAnswer, stream: TextIO | None = None) -> None:
    """Prints the screen of one answer."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[], *_headline(answer), *_candidates(answer), *_links(answer), [], *_prices(answer)]
    lines += diagnostic_lines(answer.diagnostics, MAX_NOTES)
    see = "--json · 8B..8GiB for a table over sizes · --ranks 2..1024 for one over ranks · --plot out.svg"
    show(screen, [*lines, [(f"  see      {see}", "bright_black")]])


def _headline(answer: NetworkAnswer) -> list[list[Span]]:
    band = band_text(answer.time_s, *answer.band_s)
    what = f"{what_text(answer)} · {where_text(answer)}"
    lines: list[list[Span]] = [
        [("  Time     ", ""), (format_time(answer.time_s), "bold"), (f"{'  ' if band else ''}{band}     {what}", "")],
    ]
    if answer.unchanged_time_s is not None:
        by = format_difference(answer.time_s, answer.unchanged_time_s)
        lines.append([("  Change   ", ""), (by, "bold"), (f" on {format_time(answer.unchanged_time_s)} without", "")])
    if answer.busbw_bytes_per_s is not None and answer.algbw_bytes_per_s is not None:
        bus, own = format_bandwidth(answer.busbw_bytes_per_s), format_bandwidth(answer.algbw_bytes_per_s)
        per_nic = f", {format_bandwidth(answer.nic_bytes_per_s)} per NIC" if answer.nic_bytes_per_s else ""
        lines.append([("  Rate     ", ""), (bus, "bold"), (f" bus bandwidth, {own} algorithm{per_nic}", "")])
        lines.append([(f"  Bound    {format_time(answer.bound_s)}{bound_text(answer)}", "")])
    if answer.ranks > 1:
        lines.append([(f"  Runs as  {way_text(answer)}", "")])
        lines.append([(f"  Limit    {limit_text(answer)}", "")])
    return lines


def bound_text(answer: NetworkAnswer) -> str:
    """Returns what the bound of a collective is, and how near its time is to that."""
    near = f", {format_percent(answer.bound_share)} of the time" if answer.bound_share is not None else ""
    ports = "GPUs' links, PCIe and NICs alone" if answer.nodes > 1 else "the GPUs' links"
    return f"{near}: the bytes at line rate through {ports}"


def limit_text(answer: NetworkAnswer) -> str:
    """Returns what limits a collective."""
    return f"{answer.limit.name}; {format_time(answer.latency_s)} of the time is latency"


def what_text(answer: NetworkAnswer) -> str:
    """Returns a collective with its size, where it has one."""
    sized = answer.algbw_bytes_per_s is not None or answer.ranks == 1
    return f"{answer.collective} of {size_text(answer.size_bytes)}" if sized else answer.collective


def _candidates(answer: NetworkAnswer) -> list[list[Span]]:
    return [[], *candidates_table(answer).lines()] if len(answer.candidates) > 1 else []


def candidates_table(answer: NetworkAnswer) -> TextTable:
    """Returns the ways in which NCCL could run it, with NCCL's estimates and ours."""
    rows = [
        [
            f"{candidate.algorithm} {candidate.protocol}",
            str(candidate.channels),
            format_time(candidate.nccl_time_s),
            format_time(candidate.time_s),
            "chosen" if candidate.chosen else "",
        ]
        for candidate in answer.candidates
    ]
    heads = ["how NCCL could run it", "channels", "NCCL's estimate", "our estimate", ""]
    return TextTable(heads, rows)


def _links(answer: NetworkAnswer) -> list[list[Span]]:
    """Returns how far messages on links are from the formulas, and which links are the hottest."""
    run = answer.links
    if run is None:
        return []
    head = f" {links_text(run)}; the hottest, with the share they carry of what they can"
    lines: list[list[Span]] = [[], [("  on links", "bold"), (head, "")]]
    return lines + [[(f"  {described(load)}", "")] for load in run.loads.hottest(HOTTEST)]


def links_text(run: LinkRun) -> str:
    """Returns the time on links next to that of the formulas."""
    off = run.time_s / run.analytic_time_s - 1
    apart = f"{'+' if off >= 0 else ''}{format_percent(off)}"
    return f"{format_time(run.time_s)}, by formulas {format_time(run.analytic_time_s)} ({apart})"


def where_text(answer: NetworkAnswer) -> str:
    """Returns where a group is placed: "64 GPUs of h100-dgx, 8 nodes × 8"; an oversubscribed network is named."""
    alone = answer.ranks == 1
    text = f"{format_count(answer.ranks)} GPU{'' if alone else 's'} of {answer.cluster.name}"
    if not alone and answer.nodes > 1:
        spread = f"{format_count(answer.nodes)} nodes × {answer.ranks_per_node}"
        even = answer.nodes * answer.ranks_per_node == answer.ranks
        text += _network_text(answer.cluster.topology)
        text += (
            f", {spread if even else f'{format_count(answer.nodes)} nodes, at most {answer.ranks_per_node} on each'}"
        )
    elif not alone:
        text += ", one node"
    if answer.groups > 1:
        text += f" · {format_count(answer.groups)} such groups at once"
    return text


def _network_text(topology: Topology) -> str:
    """Returns the kind of a network and its oversubscription; nothing for trees without any."""
    leaves, cores = topology.oversubscription, topology.core_oversubscription
    narrow = f" {leaves:g}:1" if leaves != 1 else ""
    narrow += f", {cores:g}:1 below the cores" if cores != 1 else ""
    return f" ({topology.kind}{narrow})" if narrow or topology.kind not in ("fat-tree", "rail-optimised") else ""


def title_text(answer: NetworkAnswer) -> str:
    """Returns the title of a picture of an answer."""
    where = where_text(answer).replace(" · ", ", ")
    return f"{what_text(answer)} in {format_time(answer.time_s)}, {where}"


def way_text(answer: NetworkAnswer) -> str:
    """Returns algorithm, protocol and channels, as far as they are known."""
    what = "SM" if answer.way and not answer.protocol else "channel"
    channels = f"{answer.channels} {what}{'' if answer.channels == 1 else 's'}" if answer.channels else ""
    return ", ".join(word for word in (answer.algorithm, answer.protocol, channels) if word)


def _prices(answer: NetworkAnswer) -> list[list[Span]]:
    return [[(f"  prices   {with_band(answer.source, *answer.source_band)}", "")]]


def print_table(results: NetworkTable, stream: TextIO | None = None) -> None:
    """Prints several answers: a row for each, and on a terminal the curve."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[]]
    if results.answers:
        what, where = table_titles(results)
        lines += [[("  ", ""), (what, "bold"), (f" · {where}", "")], [], *points_table(results).lines()]
        if screen.rich:
            lines += _curve(results, screen)
    lines += [[], *_sources(results), *diagnostic_lines(table_notes(results), MAX_NOTES)]
    if results.interrupted:
        lines.append([("  note     ", "yellow"), (f"interrupted: {len(results.answers)} rows are finished", "")])
    show(screen, lines)


def table_titles(results: NetworkTable) -> tuple[str, str]:
    """Returns which collective a table is about, and where it runs."""
    first, over = results.answers[0], over_of(results.answers)
    what = first.collective if over != "ranks" else f"{first.collective} of {size_text(first.size_bytes)}"
    concurrent = f" · {format_count(first.groups)} such groups at once" if first.groups > 1 else ""
    return what, where_text(first) if over == "size" else f"{first.cluster.name}{concurrent}"


def points_table(results: NetworkTable) -> TextTable:
    """Returns a row for each answer."""
    over = over_of(results.answers)
    in_domains = _has_domains(results)
    heads = [*(["ranks", "nodes"] if over != "size" else []), *(["GPUs a domain"] if in_domains else [])]
    heads += ["size"] if over != "ranks" else []
    sources = {answer.source: chr(ord("a") + number) for number, answer in enumerate(_by_source(results))}
    on_links = any(answer.links is not None for answer in results.answers)
    over_nics = any(answer.nic_bytes_per_s for answer in results.answers)
    heads += [
        "time",
        *(["by formulas"] if on_links else []),
        "algbw GB/s",
        "busbw GB/s",
        *(["NIC GB/s"] if over_nics else []),
        "of bound",
        "algorithm",
        "protocol",
        "channels",
    ]
    rows = []
    for answer in results.answers:
        key = [format_count(answer.ranks), format_count(answer.nodes)] if over != "size" else []
        key += [answer.domains.gpus_text if answer.domains else ""] if in_domains else []
        key += [size_text(answer.size_bytes)] if over != "ranks" else []
        rates = [answer.algbw_bytes_per_s, answer.busbw_bytes_per_s]
        rates += [answer.nic_bytes_per_s] if over_nics else []
        times = [format_time(answer.time_s)]
        times += [format_time(answer.links.analytic_time_s)] if answer.links is not None else [""] if on_links else []
        row = [*key, *times, *("" if rate is None else f"{rate / 1e9:.2f}" for rate in rates)]
        row.append("" if answer.bound_share is None else format_percent(answer.bound_share))
        row += [answer.algorithm, answer.protocol, str(answer.channels or "")]
        rows.append([*row, sources[answer.source]] if len(sources) > 1 else row)
    return TextTable([*heads, "price"] if len(sources) > 1 else heads, rows)


def _by_source(results: NetworkTable) -> list[NetworkAnswer]:
    """Returns the first answer of each source."""
    first: dict[str, NetworkAnswer] = {}
    for answer in results.answers:
        first.setdefault(answer.source, answer)
    return list(first.values())


def _sources(results: NetworkTable) -> list[list[Span]]:
    return [[(f"  {'' if number else 'prices':<8} {text}", "")] for number, text in enumerate(source_list(results))]


def source_list(results: NetworkTable) -> list[str]:
    """Returns the sources of all answers; the letters of several are those of the table."""
    texts = [with_band(answer.source, *answer.source_band) for answer in _by_source(results)]
    return [f"{chr(ord('a') + number)}: {text}" for number, text in enumerate(texts)] if len(texts) > 1 else texts


def _has_domains(results: NetworkTable) -> bool:
    """Returns whether a column says how many GPUs of each link domain are used: where ranks vary over domains."""
    varies = over_of(results.answers) != "size"
    return varies and any(answer.domains is not None and answer.domains.domains > 1 for answer in results.answers)


def table_notes(results: NetworkTable) -> tuple[Diagnostic, ...]:
    """Returns the notes of all answers, each once, less those that a column of the table gives."""
    given = ("domain-gpus",) if _has_domains(results) else ()
    notes = (note for answer in results.answers for note in answer.diagnostics if note.code not in given)
    return tuple(dict.fromkeys(notes))


def _curve(results: NetworkTable, screen: Screen) -> list[list[Span]]:
    curves = curves_of(results.answers)
    over = over_of(results.answers)
    lines = braille(curves, AXES[over], min(72, screen.width - 14))
    if not lines:
        return []
    axes = f" over {'ranks' if over == 'ranks' else 'size'}, both logarithmic; dots: the bound at line rates"
    names = [curve.name for curve in curves if not curve.limit]
    legend: list[Span] = [("  ", "")]
    for number, name in enumerate(names if len(names) > 1 else ()):
        legend.append((f"{'  ' if number else ''}━ {name}", STYLES[number % len(STYLES)]))
    return [[], [("  bus bandwidth", "bold"), (axes, "")], *lines, *([legend] if len(names) > 1 else [])]
