"""Parses logs of NCCL_DEBUG=INFO: how each communicator was set up, and how NCCL chose to run each call.

Logs are most useful with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING. Lines of many ranks are mixed and may have prefixes
(mpirun's tags, srun's labels, times): a line belongs to the process and thread that NCCL prints in it. The formats of
NCCL 2.8 to 2.30 are known. Lines of no interest are skipped and counted. A log is read line by line, whatever its
length.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.files import AnyFile, open_binary
from foretrace.cost.network.nccl_log.graph import LoggedGraph
from foretrace.cost.network.nccl_log.names import algorithm_called, function_called, protocol_called
from foretrace.program.columns import Collective

EXPECTED: Final = "expected a log with lines such as host:123:456 [0] NCCL INFO …: set NCCL_DEBUG=INFO"
MAX_LINE: Final = 1 << 16

_N, _F = r"([0-9]{1,15})", r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
"""A count and a decimal number, none so long that it could not be one."""

_VERSION = re.compile(r"NCCL version ([0-9]+(?:\.[0-9]+)+)")
_LINE = re.compile(rf"([^\s:\[\]<>]+):{_N}:{_N} \[{_N}\] NCCL INFO (.*)")
_INTERESTING = re.compile(
    rb"coll channels|Bytes -> Algo|Pattern [0-9]|n[rR]anks|Latency/AlgBw|  (?:Algorithm|Protocol) |"
    rb"(?:AllReduce|AllGather|ReduceScatter|Broadcast|Reduce) \||NCCL_[A-Z_]+ set by|NCCL version|NET\["
)
_CHANNELS = re.compile(
    rf"{_N} coll channels,(?: {_N} collnet channels,)?(?: {_N} nvls channels,)? {_N} p2p channels, "
    rf"{_N} p2p channels per peer"
)
_COMM = re.compile(rf"comm (0x[0-9a-fA-F]+),? rank {_N} n[rR]anks {_N}(?: nNodes {_N} localRanks {_N})?")
_GRAPH = re.compile(
    rf"Pattern {_N}, crossNic {_N}, nChannels {_N}, (?:bw|speed) {_F}/{_F}, type ([A-Z0-9]+)/([A-Z0-9]+), "
    rf"sameChannels {_N}"
)
_CHOICE = re.compile(rf"(?:([A-Za-z]+): )?{_N} Bytes -> Algo (\w+) proto (\w+)(.*)")
_USED = re.compile(rf"channel\{{Lo\.\.Hi\}}=\{{{_N}\.\.{_N}\}}")
_ADDRESS = re.compile(r"comm (0x[0-9a-fA-F]+)")
_CALL = re.compile(r"^([A-Za-z]+): opCount .* comm (0x[0-9a-fA-F]+)")
_ROW = re.compile(r"^\s*([A-Za-z]+) \|(.*)$")
_CELL = re.compile(rf"\s*{_F}/\s*{_F}\s*")
_ENVIRONMENT = re.compile(r"(NCCL_[A-Z0-9_]+) set by (?:environment|[^ ]+) to (.*)")
_NET = re.compile(rf"NET\[{_F}\] - NET/(\S+)")
_PER_RANK: Final = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""Since NCCL 2.22 a call is logged with its count, which of these is one rank's share (`src/enqueue.cc`)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How NCCL ran calls of one size: bytes as nccl-tests counts them; 0 channels where that is not printed."""

    collective: Collective
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    calls: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """NCCL's estimate for one way to run a collective: microseconds, and 10⁹ bytes/s of the algorithm (0: not used)."""

    collective: Collective
    algorithm: str
    protocol: str
    latency_us: float
    speed: float


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a communicator: for rings and trees, CollNet, NVLS, sends and receives; None where its version of
    NCCL does not print it."""

    coll: int
    collnet: int | None
    nvls: int | None
    p2p: int
    p2p_per_peer: int


@dataclass(frozen=True, slots=True)
class LoggedCommunicator:
    """What one rank reports about a communicator; None where its log does not say."""

    host: str
    rank: int | None
    ranks: int | None
    nodes: int | None
    local_ranks: int | None
    channels: Channels | None
    graphs: tuple[LoggedGraph, ...]
    tuning: tuple[Tuning, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class NcclLog:
    """Everything of interest in a log."""

    name: str
    versions: tuple[str, ...]
    communicators: tuple[LoggedCommunicator, ...]
    environment: tuple[tuple[str, str], ...]
    """The variables that ranks had set, each variable and value once."""
    nics: tuple[tuple[str, float], ...]
    """NICs of the first host that lists its own, with 10⁹ bytes/s."""
    lines: int
    skipped: int
    """Lines that say nothing that is read here."""
    unplaced: int
    """Choices that no communicator could be found for, or whose collective is not said."""


@dataclass(slots=True)
class _Communicator:
    """One that is being read."""

    host: str
    address: str | None = None
    rank: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    local_ranks: int | None = None
    channels: Channels | None = None
    graphs: list[LoggedGraph] = field(default_factory=list)
    tuning: dict[tuple[Collective, str, str], Tuning] = field(default_factory=dict)
    choices: Counter[tuple[Collective, int, str, str, int]] = field(default_factory=Counter)
    finished: bool = False


@dataclass(slots=True)
class _Thread:
    """The state of a thread between its lines."""

    current: _Communicator | None = None
    columns: tuple[tuple[str, str], ...] = ()
    algorithms: tuple[str, ...] = ()
    call: tuple[str, str] | None = None
    """Function and communicator of the last call it logged."""


def is_log(head: bytes) -> bool:
    """Returns whether the beginning of a file looks like a log with NCCL's lines."""
    return b"NCCL INFO" in head or b"NCCL version" in head


def read_log(path: AnyFile) -> NcclLog:
    """The log of a file."""
    with open_binary(path, "log of NCCL") as stream:
        return parse_log(iter(lambda: stream.readline(MAX_LINE), b""), str(path))


def parse_log(lines: Iterable[bytes], name: str) -> NcclLog:
    """Parses the lines of a log that messages call `name`."""
    reader = _Reader(name)
    for line in lines:
        reader.take(line)
    return reader.log()


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = self.skipped = self.unplaced = 0
        self.seen_nccl = False
        self.versions: dict[str, None] = {}
        self.environment: dict[tuple[str, str], None] = {}
        self.nics: dict[str, dict[str, float]] = {}
        self.threads: dict[tuple[str, str, str], _Thread] = {}
        self.processes: dict[tuple[str, str], list[_Communicator]] = {}

    def take(self, line: bytes) -> None:
        self.lines += 1
        # Most lines of a log are a job's own, or list the ways between two ranks.
        if b"NCCL" not in line or b"NCCL INFO Channel " in line or not _INTERESTING.search(line):
            self.seen_nccl = self.seen_nccl or b"NCCL INFO" in line
            self.skipped += 1
            return
        if b"\0" in line:
            raise InputError("not-text", "the log is not text", where=f"{self.name}:{self.lines}", hint=EXPECTED)
        text = line.decode("utf-8", "replace")
        if version := _VERSION.search(text):
            self.seen_nccl = True
            self.versions.setdefault(version[1])
            return
        match = _LINE.search(text)
        if match is None:
            self.skipped += 1
            return
        self.seen_nccl = True
        host, process, thread, _, message = match.groups()
        if not self._take_message(host, process, thread, message.rstrip()):
            self.skipped += 1

    def _take_message(self, host: str, process: str, thread: str, text: str) -> bool:
        """Takes what one thread says; whether it was of interest."""
        state = self.threads.setdefault((host, process, thread), _Thread())
        if (match := _CHOICE.search(text)) is not None:
            self._choice(state, (host, process), match)
        elif (match := _CALL.match(text)) is not None:
            state.call = (match[1], match[2])
        elif (match := _COMM.search(text)) is not None:
            self._communicator(state, host, process, match, text)
        elif (match := _CHANNELS.search(text)) is not None:
            self._current(state, host, process).channels = _channels(match)
        elif (match := _GRAPH.search(text)) is not None:
            self._current(state, host, process).graphs.append(_graph(match))
        elif (match := _ENVIRONMENT.search(text)) is not None:
            self.environment.setdefault((match[1], match[2].strip().rstrip(".")))
        elif (match := _NET.search(text)) is not None:
            self.nics.setdefault(host, {})[match[2]] = float(match[1])
        else:
            return self._table(state, host, process, text)
        return True

    def _current(self, state: _Thread, host: str, process: str) -> _Communicator:
        """The communicator that a thread is setting up; older logs name it only when it is complete."""
        if state.current is None:
            state.current = _Communicator(host)
            self.processes.setdefault((host, process), []).append(state.current)
        return state.current

    def _communicator(self, state: _Thread, host: str, process: str, match: re.Match[str], text: str) -> None:
        address, rank, ranks, nodes, local = match.groups()
        if state.current is not None and state.current.address not in (None, address):
            state.current = None
        communicator = self._current(state, host, process)
        communicator.address, communicator.rank, communicator.ranks = address, int(rank), int(ranks)
        if nodes is not None:
            communicator.nodes, communicator.local_ranks = int(nodes), int(local)
        if "Init COMPLETE" in text:
            communicator.finished, state.current = True, None

    def _choice(self, state: _Thread, process: tuple[str, str], match: re.Match[str]) -> None:
        function, size, algorithm, protocol, rest = match.groups()
        of = _ADDRESS.search(rest)
        address = of[1] if of else state.call[1] if state.call else None
        if function is None and state.call is not None:
            function = state.call[0]
        ours = self.processes.get(process, [])
        if address is not None:
            ours = [our for our in ours if our.address == address] or ours
        elif len(ours) > 1:
            ours = [our for our in ours if our.rank == 0]
        what = None if function is None else function_called(function)
        way = algorithm_called(algorithm), protocol_called(protocol)
        if len({(our.ranks, our.nodes) for our in ours}) != 1 or what is None or way[0] is None or way[1] is None:
            self.unplaced += 1
            return
        used = _USED.search(rest)
        channels = int(used[2]) - int(used[1]) + 1 if used else 0
        per_rank = used is not None and what in _PER_RANK
        total = int(size) * (ours[-1].ranks or 1) if per_rank else int(size)
        ours[-1].choices[what, total, way[0], way[1], channels] += 1

    def _table(self, state: _Thread, host: str, process: str, text: str) -> bool:
        """Takes a line of the table of latencies and bandwidths; whether it is one."""
        head, _, rest = text.partition("|")
        cells = [cell.strip() for cell in rest.split("|")]
        if head.strip() == "Latency/AlgBw":
            pairs = [cell.split("/") for cell in cells if "/" in cell]
            state.columns = tuple((algorithm_called(a) or "", protocol_called(p) or "") for a, p in pairs)
        elif head.strip() == "Algorithm":
            state.algorithms = tuple(algorithm_called(cell) or "" for cell in cells if cell)
        elif head.strip() == "Protocol":
            protocols = [protocol_called(cell) or "" for cell in cells if cell]
            each = max(len(protocols) // max(len(state.algorithms), 1), 1)
            state.columns = tuple(
                (state.algorithms[min(index // each, len(state.algorithms) - 1)] if state.algorithms else "", protocol)
                for index, protocol in enumerate(protocols)
            )
        elif (row := _ROW.match(text)) is not None and (what := function_called(row[1])) is not None:
            communicator = self._current(state, host, process)
            for (algorithm, protocol), cell in zip(state.columns, row[2].split("|"), strict=False):
                value = _CELL.fullmatch(cell)
                if value and algorithm and protocol:
                    entry = Tuning(what, algorithm, protocol, float(value[1]), float(value[2]))
                    communicator.tuning[what, algorithm, protocol] = entry
        else:
            return False
        return True

    def log(self) -> NcclLog:
        if not self.seen_nccl:
            code, problem = (
                ("empty-file", "the log is empty")
                if self.lines == 0
                else ("wrong-format", "no line of the log is NCCL's")
            )
            raise InputError(code, problem, where=self.name, hint=EXPECTED)
        communicators = [communicator for ours in self.processes.values() for communicator in ours]
        return NcclLog(
            name=self.name,
            versions=tuple(self.versions),
            communicators=tuple(_finished(communicator) for communicator in communicators),
            environment=tuple(self.environment),
            nics=tuple(sorted(next(iter(self.nics.values()), {}).items())),
            lines=self.lines,
            skipped=self.skipped,
            unplaced=self.unplaced,
        )


def _channels(match: re.Match[str]) -> Channels:
    coll, collnet, nvls, p2p, per_peer = (None if group is None else int(group) for group in match.groups())
    assert coll is not None and p2p is not None and per_peer is not None
    return Channels(coll, collnet, nvls, p2p, per_peer)


def _graph(match: re.Match[str]) -> LoggedGraph:
    pattern, crossnic, channels, intra, inter, type_intra, type_inter, same = match.groups()
    return LoggedGraph(
        -1,
        int(pattern),
        int(crossnic),
        int(channels),
        float(intra),
        float(inter),
        0.0,
        type_intra,
        type_inter,
        int(same),
    )


def _finished(communicator: _Communicator) -> LoggedCommunicator:
    choices = tuple(Choice(*key, calls) for key, calls in sorted(communicator.choices.items()))
    tuning = tuple(communicator.tuning.values())
    graphs = tuple(communicator.graphs)
    return LoggedCommunicator(
        communicator.host,
        communicator.rank,
        communicator.ranks,
        communicator.nodes,
        communicator.local_ranks,
        communicator.channels,
        graphs,
        tuning,
        choices,
    )
