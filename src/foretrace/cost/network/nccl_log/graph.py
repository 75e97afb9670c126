"""Reads NCCL_GRAPH_DUMP_FILE: the channels that NCCL's search found in a node, for each kind of algorithm.

Rates are those of one channel, in 10⁹ bytes per second as NCCL counts them (`src/graph/search.cc`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import InputError, shown
from foretrace.cost.network.nccl_log.xml import Element, rate, whole_number

MIN_SPEED: Final = 1e-3
"""GB/s of a channel; NCCL's search ends at 0.1 (`src/graph/search.cc`)."""
EXPECTED: Final = 'expected what NCCL_GRAPH_DUMP_FILE writes: <graphs version="1"><graph id="0" pattern="4" …>'

_BY_ID: Final = {0: "ring", 1: "tree", 2: "collnet-chain", 3: "nvls", 4: "collnet-direct"}
"""NCCL, `src/init.cc`: the graphs that every communicator searches."""
_BY_PATTERN: Final = {1: "tree", 2: "tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet-direct"}
"""NCCL, `src/include/graph.h`: NCCL_TOPO_PATTERN_*. A CollNet chain is searched as a tree."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One way through a node: GPUs in the order in which data passes them, between NICs where it leaves the node."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoggedGraph:
    """The search result for one kind of algorithm: the number of channels, and the rate of each within and between
    nodes."""

    id: int
    pattern: int
    crossnic: int
    nchannels: int
    speed_intra: float
    """10⁹ bytes/s of one channel within the node."""
    speed_inter: float
    """10⁹ bytes/s of one channel between nodes."""
    latency_inter: float
    """Microseconds that the network adds."""
    type_intra: str
    """The longest path within the node: NVL, PIX, PHB, SYS, …"""
    type_inter: str
    samechannels: int
    channels: tuple[Channel, ...] = ()

    @property
    def algorithm(self) -> str | None:
        """Returns the algorithm that it is for; None for kinds that are not known."""
        if self.id in (1, 2):
            return _BY_ID[self.id]
        return _BY_PATTERN.get(self.pattern, _BY_ID.get(self.id))

    @property
    def gpus(self) -> int:
        """GPUs of the node that take part; 0 where no channel is listed."""
        return max((len(set(channel.gpus)) for channel in self.channels), default=0)

    @property
    def leaves_node(self) -> bool:
        """Returns whether any channel goes over a NIC."""
        return any(channel.nets for channel in self.channels)


def checked_graph(graph: LoggedGraph, where: str) -> LoggedGraph:
    """Returns a graph; raises an error where its channels carry nothing: NCCL lists no channels then."""
    slow = graph.speed_intra < MIN_SPEED or 0 < graph.speed_inter < MIN_SPEED
    if graph.nchannels > 0 and slow:
        speeds = f"{graph.speed_intra:g}/{graph.speed_inter:g} GB/s"
        raise InputError("out-of-range", f"channels of {speeds} carry nothing", where=where, hint=EXPECTED)
    return graph


@dataclass(frozen=True, slots=True)
class Graphs:
    """A whole file."""

    version: int
    graphs: tuple[LoggedGraph, ...]


def graphs_of(root: Element, name: str) -> Graphs:
    """The graphs that an XML document holds."""
    if root.tag != "graphs":
        raise InputError(
            "wrong-format",
            f"<{shown(root.tag)}> instead of <graphs>",
            where=f"{name}:{root.line}",
            hint=EXPECTED,
        )
    version = whole_number(root, "version", name, 1)
    if version != 1:
        raise InputError(
            "unknown-version", f"version {version} of the dump is not known", where=f"{name}:{root.line}", hint=EXPECTED
        )
    return Graphs(version, tuple(_graph(child, name) for child in root.children if child.tag == "graph"))


def _graph(element: Element, name: str) -> LoggedGraph:
    channels = tuple(_channel(child, name) for child in element.children if child.tag == "channel")
    count = whole_number(element, "nchannels", name, least=0)
    if len(channels) != count:
        problem = f"nchannels is {count}, but {len(channels)} are listed"
        raise InputError(
            "conflicting-values", problem, where=f"{name}:{element.line}", hint="the dump looks cut or edited"
        )
    graph = LoggedGraph(
        id=whole_number(element, "id", name),
        pattern=whole_number(element, "pattern", name),
        crossnic=whole_number(element, "crossnic", name, 0),
        nchannels=count,
        speed_intra=rate(element, "speedintra", name),
        speed_inter=rate(element, "speedinter", name),
        latency_inter=rate(element, "latencyinter", name, 0.0),
        type_intra=element.get("typeintra") or "",
        type_inter=element.get("typeinter") or "",
        samechannels=whole_number(element, "samechannels", name, 0),
        channels=channels,
    )
    return checked_graph(graph, f"{name}:{element.line}")


def _channel(element: Element, name: str) -> Channel:
    gpus = tuple(whole_number(child, "dev", name) for child in element.children if child.tag == "gpu")
    nets = tuple(whole_number(child, "dev", name) for child in element.children if child.tag == "net")
    return Channel(gpus, nets)
