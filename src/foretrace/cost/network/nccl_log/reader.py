"""Combines logs and dumps of a machine's NCCL into one `Observed`; ranks that disagree are reported."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import InputFile, read_whole
from foretrace.cost.network.nccl.channels import ChannelGraph
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl_log.graph import Graphs, LoggedGraph, graphs_of
from foretrace.cost.network.nccl_log.log import MAX_LINE, Choice, LoggedCommunicator, NcclLog, Tuning, is_log, read_log
from foretrace.cost.network.nccl_log.observations import Expectation, Observation, Observed, refuse_empty
from foretrace.cost.network.nccl_log.system import System, system_of
from foretrace.cost.network.nccl_log.xml import MAX_XML_BYTES, parse_xml
from foretrace.program.columns import Collective

EXPECTED: Final = "expected a log of NCCL_DEBUG=INFO, or what NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE writes"
_HEAD_BYTES: Final = 1 << 16
_GIGA: Final = 1e9


@dataclass(slots=True)
class _Read:
    """The content of the files."""

    logs: list[NcclLog] = field(default_factory=list)
    graphs: list[tuple[Graphs, str]] = field(default_factory=list)
    systems: list[tuple[System, str]] = field(default_factory=list)


def observe(paths: Sequence[str | Path]) -> Observed:
    """Reads what NCCL reports about a machine in these files: logs and dumps of any ranks, told apart by their
    content."""
    read = _Read()
    for path in paths:
        _read_file(InputFile(path), read)
    notes: list[Diagnostic] = []
    observations = [*_of_logs(read.logs, notes), *_of_graphs(read.graphs)]
    versions = sorted({version for log in read.logs for version in log.versions})
    if len(versions) > 1:
        notes.append(
            Diagnostic(
                "warning", "conflicting-values", f"logs of NCCL {' and '.join(versions)} are taken to be of one machine"
            )
        )
    system = _one_system(read.systems, notes)
    nics, rate = _nics(system, read.logs)
    return refuse_empty(
        Observed(
            observations=tuple(observations),
            version=versions[-1] if versions else None,
            nics=nics,
            nic_bytes_per_s=rate,
            forced=_forced(read.logs, notes),
            system=system,
            notes=tuple(notes),
            files=tuple(str(path) for path in paths),
        )
    )


def _read_file(file: InputFile, read: _Read) -> None:
    head, name = file.head(_HEAD_BYTES), str(file)
    if head.lstrip()[:1] != b"<":
        if not head.strip():
            file.open("log or dump of NCCL").close()  # says why there is nothing
            raise InputError("empty-file", "the file is empty", where=name, hint=EXPECTED)
        if b"\0" in head or not (is_log(head) or _is_text(head)):
            raise InputError("wrong-format", "this is neither text nor XML", where=name, hint=EXPECTED)
        read.logs.append(read_log(file))
        return
    root = parse_xml(read_whole(file, "dump of NCCL", EXPECTED, MAX_XML_BYTES), name, EXPECTED)
    if root.tag == "system":
        read.systems.append((system_of(root, name), name))
    else:
        read.graphs.append((graphs_of(root, name), name))


def _is_text(head: bytes) -> bool:
    """Returns whether nearly all of the bytes are printable."""
    odd = sum(byte < 32 and byte not in b"\t\n\r\x1b" for byte in head[:4096])
    return odd < 0.02 * len(head[:4096]) + 1


def _of_logs(logs: Sequence[NcclLog], notes: list[Diagnostic]) -> list[Observation]:
    kinds: dict[tuple[int, int], list[LoggedCommunicator]] = defaultdict(list)
    unsaid = 0
    for log in logs:
        hosts = _hosts_of(log.communicators)
        for communicator in log.communicators:
            nodes = communicator.nodes or (hosts.get(communicator.ranks) if communicator.ranks else None)
            if communicator.ranks is None or nodes is None or communicator.ranks % nodes:
                unsaid += 1
            elif communicator.ranks > 1:
                kinds[communicator.ranks, nodes].append(communicator)
        if log.unplaced:
            message = f"{log.unplaced:,} calls do not say whose they are and are left out"
            notes.append(Diagnostic("note", "rows-skipped", message, log.name))
        if log.long:
            message = f"{log.long:,} lines are longer than {MAX_LINE:,} characters, which none of NCCL's is: left out"
            notes.append(Diagnostic("warning", "rows-skipped", message, log.name))
    if unsaid:
        notes.append(
            Diagnostic(
                "note", "rows-skipped", f"{unsaid:,} communicators do not say on how many nodes they are: left out"
            )
        )
    return [_observation(gpus, nodes, ours, notes) for (gpus, nodes), ours in sorted(kinds.items())]


def _hosts_of(communicators: Iterable[LoggedCommunicator]) -> dict[int, int]:
    """Returns the number of hosts by number of ranks, for communicators of which all ranks are in the log: NCCL prints
    it itself only since 2.19."""
    ranks: dict[int, dict[int, str]] = defaultdict(dict)
    for communicator in communicators:
        if communicator.ranks is not None and communicator.rank is not None:
            ranks[communicator.ranks][communicator.rank] = communicator.host
    return {size: len(set(hosts.values())) for size, hosts in ranks.items() if len(hosts) == size}


def _observation(gpus: int, nodes: int, ours: Sequence[LoggedCommunicator], notes: list[Diagnostic]) -> Observation:
    where = f"{gpus:,} GPUs on {nodes:,} node{'s' if nodes > 1 else ''}"
    graphs = _by_algorithm(graph for our in ours for graph in _named(our.graphs))
    counts = _running(ours, where, notes)
    for name, kinds in graphs.items():
        if len({(graph.nchannels, graph.speed_intra, graph.speed_inter) for graph in kinds}) > 1:
            listed = " and ".join(sorted({f"{graph.nchannels} × {graph.speed_intra:g} GB/s" for graph in kinds}))
            notes.append(
                Diagnostic(
                    "warning",
                    "conflicting-values",
                    f"ranks of {where} differ in their {name} graph ({listed}): the slowest",
                )
            )
    return _with_graphs(
        Observation(
            gpus_per_node=gpus // nodes,
            several_nodes=nodes > 1,
            gpus=gpus,
            nodes=nodes,
            choices=_choices((choice for our in ours for choice in our.choices), where, notes),
            tuning=_tuning(entry for our in ours for entry in our.tuning),
        ),
        {name: min(kinds, key=lambda graph: graph.nchannels * graph.speed_intra) for name, kinds in graphs.items()},
        counts,
    )


def _running(ours: Sequence[LoggedCommunicator], where: str, notes: list[Diagnostic]) -> dict[str, int]:
    """Channels that work at once, by the graph they run over; ranks that differ count with the fewest."""
    channels: dict[str, set[int]] = defaultdict(set)
    for our in ours:
        if our.channels is not None:
            counts = {"ring": our.channels.coll, "tree": our.channels.coll, "nvls": our.channels.nvls}
            counts |= {"collnet-chain": our.channels.collnet, "collnet-direct": our.channels.collnet}
            for name, count in counts.items():
                if count:
                    channels[name].add(count)
    if len(channels["ring"]) > 1:
        listed = " and ".join(map(str, sorted(channels["ring"])))
        notes.append(
            Diagnostic("warning", "conflicting-values", f"ranks of {where} have {listed} channels: the fewest")
        )
    return {name: min(counts) for name, counts in channels.items() if counts}


def _named(graphs: Iterable[LoggedGraph]) -> list[tuple[str, LoggedGraph]]:
    """Graphs of a log with their algorithms: the second search for a tree is CollNet's chain."""
    named, trees = [], 0
    for graph in graphs:
        name = graph.algorithm
        if name == "ring":
            trees = 0
        if name == "tree" and graph.id < 0:
            trees += 1
            name = "tree" if trees == 1 else "collnet-chain"
        if name is not None and graph.nchannels > 0:
            named.append((name, graph))
    return named


def _by_algorithm(named: Iterable[tuple[str, LoggedGraph]]) -> dict[str, list[LoggedGraph]]:
    graphs: dict[str, list[LoggedGraph]] = defaultdict(list)
    for name, graph in named:
        graphs[name].append(graph)
    return graphs


def _with_graphs(
    observation: Observation, graphs: Mapping[str, LoggedGraph], running: Mapping[str, int]
) -> Observation:
    """An observation with the channels of its graphs: those found and those that run, which may be more."""
    channels = {
        name: ChannelGraph(graph.nchannels, graph.speed_intra * _GIGA, graph.speed_inter * _GIGA)
        for name, graph in graphs.items()
    }
    paths = {name: (graph.type_intra, graph.type_inter) for name, graph in graphs.items()}
    return replace(observation, graphs=channels, running=dict(running), path_types=paths)


def _of_graphs(files: Sequence[tuple[Graphs, str]]) -> list[Observation]:
    observations = []
    for graphs, _ in files:
        named = _by_algorithm(_named(graphs.graphs))
        gpus = max((graph.gpus for kinds in named.values() for graph in kinds), default=0)
        several = any(graph.leaves_node for kinds in named.values() for graph in kinds)
        if gpus:
            observations.append(
                _with_graphs(Observation(gpus, several), {name: kinds[0] for name, kinds in named.items()}, {})
            )
    return observations


def _choices(choices: Iterable[Choice], where: str, notes: list[Diagnostic]) -> dict[Collective, tuple[Choice, ...]]:
    """The choice of each size: the one that most calls had."""
    calls: dict[tuple[Collective, int], Counter[tuple[str, str, int]]] = defaultdict(Counter)
    for choice in choices:
        calls[choice.collective, choice.size_bytes][choice.algorithm, choice.protocol, choice.channels] += choice.calls
    by_collective: dict[Collective, list[Choice]] = defaultdict(list)
    mixed = 0
    for (collective, size), ways in sorted(calls.items()):
        mixed += len({way[:2] for way in ways}) > 1
        way, _ = max(ways.items(), key=lambda item: (item[1], item[0]))
        by_collective[collective].append(Choice(collective, size, *way, ways.total()))
    if mixed:
        message = f"calls of {mixed:,} sizes among {where} were run in several ways: the most frequent"
        notes.append(Diagnostic("note", "odd-input", message))
    return {collective: tuple(ours) for collective, ours in by_collective.items()}


def _tuning(entries: Iterable[Tuning]) -> dict[tuple[Collective, str, str], Expectation]:
    expectations: dict[tuple[Collective, str, str], Expectation] = {}
    for entry in entries:
        expected = Expectation(entry.latency_us * 1e-6, entry.speed * _GIGA)
        expectations.setdefault((entry.collective, entry.algorithm, entry.protocol), expected)
    return expectations


def _one_system(systems: Sequence[tuple[System, str]], notes: list[Diagnostic]) -> System | None:
    """The node of the dumps; where several differ, the first, which is said."""
    if not systems:
        return None
    first, _ = systems[0]
    for other, name in systems[1:]:
        if _looks(other) != _looks(first):
            message = f"the node differs from that of {systems[0][1]} ({_looks(other)}, not {_looks(first)}): the first"
            notes.append(Diagnostic("warning", "conflicting-values", message, name))
    return first


def _looks(system: System) -> str:
    nics = system.fastest_nics
    rate = f" of {nics[0].bytes_per_s * 8 / 1e9:g} Gb/s" if nics else ""
    return f"{len(system.gpus)} GPUs with {system.gpus[0].links} NVLinks, {len(nics)} NICs{rate}"


def _nics(system: System | None, logs: Sequence[NcclLog]) -> tuple[int, float]:
    if system is not None and system.fastest_nics:
        hosts = len({gpu.host for gpu in system.gpus})
        return max(len(system.fastest_nics) // hosts, 1), system.fastest_nics[0].bytes_per_s
    for log in logs:
        most = max((rate for _, rate in log.nics), default=0.0)
        if most > 0:
            return sum(rate == most for _, rate in log.nics), most * _GIGA
    return 0, 0.0


def _forced(logs: Sequence[NcclLog], notes: list[Diagnostic]) -> Forced:
    """Returns NCCL_ALGO and NCCL_PROTO; a text that means nothing today is reported and left out."""
    texts: dict[str, str] = {}
    for log in logs:
        for name, text in log.environment:
            if name in ("NCCL_ALGO", "NCCL_PROTO") and texts.setdefault(name, text) != text:
                notes.append(
                    Diagnostic(
                        "warning",
                        "conflicting-values",
                        f"ranks had {name}={texts[name]} and {text}: the first",
                        log.name,
                    )
                )
    try:
        forced = Forced.of(texts.get("NCCL_ALGO"), texts.get("NCCL_PROTO"))
    except InputError as error:
        notes.append(
            Diagnostic(
                "warning", error.code, f"{error.where or 'what was forced'} of the log is left out: {error.message}"
            )
        )
        return Forced()
    for name, text in texts.items():
        notes.append(Diagnostic("note", "price-source", f"the machine ran with {name}={text}, and so it is priced"))
    return forced
