"""Parses logs of NCCL_DEBUG=INFO: how each communicator was set up, and how NCCL chose to run each call.

Logs are most useful with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING. Lines of many ranks are mixed and may have prefixes
(mpirun's tags, srun's labels, times): a line belongs to the process and thread that NCCL prints in it. The formats of
NCCL 2.8 to 2.30 are known. Lines of no interest are skipped and counted. A log is read line by line, since one of
1,024 ranks has hundreds of megabytes. The time to parse a line grows in proportion to its length: fixed words are
looked up first, and patterns are applied to the few characters next to them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from foretrace.basics.errors import InputError
from foretrace.basics.files import AnyFile, open_binary
from foretrace.basics.limits import MAX_GPUS, Deadline, check_limit, limited, too_large
from foretrace.basics.numbers import real_field, whole_field
from foretrace.cost.network.nccl_log.graph import LoggedGraph, checked_graph
from foretrace.cost.network.nccl_log.names import algorithm_called, function_called, protocol_called
from foretrace.program.columns import Collective

EXPECTED: Final = "expected a log with lines such as host:123:456 [0] NCCL INFO …: set NCCL_DEBUG=INFO"
MAX_LINE: Final = 1 << 13
"""Characters of a line. NCCL prints at most 1,024 (`src/debug.cc`); launchers put labels or another line before."""

MAX_BYTES: Final = 4 << 30
"""Bytes of a log: 1,024 ranks write some 400 MB with all subsystems on."""

MAX_SECONDS: Final = 120.0
_BLOCK: Final = 1 << 20
MAX_ENTRIES: Final = 1_000_000
"""Threads, communicators and different calls that are remembered of a log."""

_MAX_CHANNELS: Final = 1024
"""NCCL has at most 64 (`MAXCHANNELS`)."""
_MAX_RATE: Final = 1e6
"""10⁹ bytes/s; NVSwitch has below 10⁴."""
_MAX_LATENCY_US: Final = 1e9
_MAX_BYTES: Final = 1 << 60

_N, _F = r"([0-9]{1,15})", r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
"""A count and a decimal number, none so long that it could not be one."""

_INFO: Final = "] NCCL INFO "
_PREFIX: Final = 320
"""Characters before `_INFO` that hold the host, the process and the thread."""
_BYTES: Final = " Bytes -> Algo "

_VERSION = re.compile(r"NCCL version ([0-9]{1,4}(?:\.[0-9]{1,4}){1,4})")
_SOURCE = re.compile(rf"([^\s:\[\]<>]{{1,255}}):{_N}:{_N} \[[0-9]{{1,15}}$")
_INTERESTING = re.compile(
    rb"coll channels|Bytes -> Algo|Pattern [0-9]|n[rR]anks|Latency/AlgBw|  (?:Algorithm|Protocol) |"
    rb"(?:AllReduce|AllGather|ReduceScatter|Broadcast|Reduce) \||NCCL_[A-Z_]{1,64} set by|NCCL version|NET\["
)
_CHANNELS = re.compile(
    rf"{_N} coll channels,(?: {_N} collnet channels,)?(?: {_N} nvls channels,)? {_N} p2p channels, "
    rf"{_N} p2p channels per peer"
)
_ADDRESS = re.compile(r"comm (0x[0-9a-fA-F]{1,16})")
_COMM = re.compile(rf"{_ADDRESS.pattern},? rank {_N} n[rR]anks {_N}(?: nNodes {_N} localRanks {_N})?")
_GRAPH = re.compile(
    rf"Pattern {_N}, crossNic {_N}, nChannels {_N}, (?:bw|speed) {_F}/{_F}, type ([A-Z0-9]{{1,8}})/([A-Z0-9]{{1,8}}), "
    rf"sameChannels {_N}"
)
_SIZE = re.compile(rf"(?:([A-Za-z]{{1,40}}): )?{_N}$")
_WAY = re.compile(r"(\w{1,40}) proto (\w{1,40})")
_USED = re.compile(rf"channel\{{Lo\.\.Hi\}}=\{{{_N}\.\.{_N}\}}")
_OPERATION = re.compile(r"([A-Za-z]{1,40}): opCount ")
_ROW = re.compile(r"\s*([A-Za-z]{1,40}) \|")
_CELL = re.compile(rf"\s*{_F}/\s*{_F}\s*")
_ENVIRONMENT = re.compile(r"(NCCL_[A-Z0-9_]{1,64}) set by [^ ]{1,64} to (.*)")
_NET = re.compile(rf"NET\[{_F}\] - NET/(\S{{1,64}})")
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
    long: int = 0
    """Lines that are longer than any of NCCL's; they are skipped."""


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


def read_log(file: AnyFile) -> NcclLog:
    """Reads the log in a file or a pipe."""
    try:
        with open_binary(file, "log of NCCL") as stream:
            return parse_log(_lines(stream, str(file)), str(file))
    except OSError as error:
        raise InputError(
            "unreadable-file", f"the log cannot be read: {error.strerror}", where=str(file), hint=EXPECTED
        ) from None


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yields the lines of a log, of long ones no more than `MAX_LINE` + 1 bytes."""
    deadline, most = Deadline(MAX_SECONDS, "reading the log", name), limited(MAX_BYTES)
    size, rest = 0, b""
    while block := stream.read(_BLOCK):
        deadline.check()
        size += len(block)
        if size > most:
            raise too_large(f"the log has more than {most >> 20:,} MiB", name)
        *lines, last = block.split(b"\n")
        if not lines:
            rest = (rest + last)[: MAX_LINE + 1]
            continue
        lines[0] = rest + lines[0]
        rest = last[: MAX_LINE + 1]
        yield from lines
    if rest:
        yield rest


def parse_log(lines: Iterable[bytes], name: str) -> NcclLog:
    """Parses the lines of a log that messages call `name`."""
    reader = _Reader(name)
    for line in lines:
        reader.take(line)
    return reader.log()


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = self.skipped = self.unplaced = self.long = self.entries = 0
        self.seen_nccl = False
        self.versions: dict[str, None] = {}
        self.environment: dict[tuple[str, str], None] = {}
        self.nics: dict[str, dict[str, float]] = {}
        self.threads: dict[tuple[str, str, str], _Thread] = {}
        self.processes: dict[tuple[str, str], list[_Communicator]] = {}

    @property
    def where(self) -> str:
        return f"{self.name}:{self.lines}"

    def take(self, line: bytes) -> None:
        self.lines += 1
        # Most lines of a log are a job's own, or list the ways between two ranks.
        if len(line) > MAX_LINE:
            self.long += b"NCCL INFO" in line
            self.skipped += 1
            return
        if b"NCCL" not in line or b"NCCL INFO Channel " in line or not _INTERESTING.search(line):
            self.seen_nccl = self.seen_nccl or b"NCCL INFO" in line
            self.skipped += 1
            return
        if b"\0" in line:
            raise InputError("not-text", "the log is not text", where=self.where, hint=EXPECTED)
        text = line.decode("utf-8", "replace")
        if "NCCL version" in text and (version := _VERSION.search(text)):
            self.seen_nccl = True
            self._remember(self.versions, version[1])
            return
        source, message = _parted(text)
        if source is None:
            self.skipped += 1
            return
        self.seen_nccl = True
        host, process, thread = source.groups()
        if not self._take_message(host, process, thread, message.rstrip()):
            self.skipped += 1

    def _take_message(self, host: str, process: str, thread: str, text: str) -> bool:
        """Takes what one thread says; whether it was of interest."""
        key = (host, process, thread)
        state = self.threads.get(key)
        if state is None:
            self._count_entry()
            state = self.threads[key] = _Thread()
        at = text.find(_BYTES)
        if (
            at >= 0
            and (size := _SIZE.search(text, max(at - 60, 0), at))
            and (way := _WAY.match(text, at + len(_BYTES)))
        ):
            self._choice(state, (host, process), size, way)
        elif (
            (match := _OPERATION.match(text))
            and (at := text.rfind(" comm 0x")) >= 0
            and (address := _ADDRESS.match(text, at + 1))
        ):
            state.call = (match[1], address[1])
        elif (match := _COMM.search(text)) is not None:
            self._communicator(state, host, process, match, text)
        elif (match := _CHANNELS.search(text)) is not None:
            self._current(state, host, process).channels = self._channels(match)
        elif (match := _GRAPH.search(text)) is not None:
            self._count_entry()
            self._current(state, host, process).graphs.append(self._graph(match))
        elif (match := _ENVIRONMENT.search(text)) is not None:
            self._remember(self.environment, (match[1], match[2].strip().rstrip(".")))
        elif (match := _NET.search(text)) is not None:
            self._count_entry()
            self.nics.setdefault(host, {})[match[2]] = self._real(match[1], _MAX_RATE)
        else:
            return self._table(state, host, process, text)
        return True

    def _remember(self, names: dict[Any, None], name: Any) -> None:
        if name not in names:
            self._count_entry()
            names[name] = None

    def _count_entry(self) -> None:
        """Counts something that is kept until the log ends, which a log must not have without bounds."""
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            check_limit(self.entries, MAX_ENTRIES, "threads, communicators and different calls", self.where)

    def _whole(self, text: str, most: int) -> int:
        return whole_field("number", text, self.where, most=most)

    def _real(self, text: str, most: float) -> float:
        return real_field("number", text, self.where, most=most)

    def _current(self, state: _Thread, host: str, process: str) -> _Communicator:
        """The communicator that a thread is setting up; older logs name it only when it is complete."""
        if state.current is None:
            self._count_entry()
            state.current = _Communicator(host)
            self.processes.setdefault((host, process), []).append(state.current)
        return state.current

    def _communicator(self, state: _Thread, host: str, process: str, match: re.Match[str], text: str) -> None:
        address, rank, ranks, nodes, local = match.groups()
        if state.current is not None and state.current.address not in (None, address):
            state.current = None
        communicator = self._current(state, host, process)
        communicator.address, communicator.rank, communicator.ranks = address, int(rank), self._whole(ranks, MAX_GPUS)
        if nodes is not None:
            communicator.nodes, communicator.local_ranks = self._whole(nodes, MAX_GPUS), int(local)
        if "Init COMPLETE" in text:
            communicator.finished, state.current = True, None

    def _choice(self, state: _Thread, process: tuple[str, str], size: re.Match[str], named_way: re.Match[str]) -> None:
        function, rest = size[1], named_way.string[named_way.end() :]
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
        way = algorithm_called(named_way[1]), protocol_called(named_way[2])
        if len({(our.ranks, our.nodes) for our in ours}) != 1 or what is None or way[0] is None or way[1] is None:
            self.unplaced += 1
            return
        used = _USED.search(rest)
        channels = self._whole(used[2], _MAX_CHANNELS) - self._whole(used[1], _MAX_CHANNELS) + 1 if used else 0
        per_rank = used is not None and what in _PER_RANK
        total = int(size[2]) * (ours[-1].ranks or 1) if per_rank else int(size[2])
        if channels < 0 or total > _MAX_BYTES:
            raise InputError("out-of-range", "the call has an impossible size or channels", where=self.where)
        key, choices = (what, total, way[0], way[1], channels), ours[-1].choices
        if key not in choices:
            self._count_entry()
        choices[key] += 1

    def _table(self, state: _Thread, host: str, process: str, text: str) -> bool:
        """Takes a line of the table of latencies and bandwidths; whether it is one."""
        head, _, rest = text.partition("|")
        cells = [cell.strip() for cell in rest.split("|")]
        if head.strip() == "Latency/AlgBw":
            pairs = [cell.partition("/") for cell in cells if "/" in cell]
            state.columns = tuple((algorithm_called(a) or "", protocol_called(p) or "") for a, _, p in pairs)
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
            for (algorithm, protocol), cell in zip(state.columns, rest.split("|"), strict=False):
                value = _CELL.fullmatch(cell)
                if value and algorithm and protocol:
                    rate = self._real(value[2], _MAX_RATE)
                    entry = Tuning(what, algorithm, protocol, self._real(value[1], _MAX_LATENCY_US), rate)
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
            long=self.long,
        )

    def _channels(self, match: re.Match[str]) -> Channels:
        coll, collnet, nvls, p2p, per_peer = (
            None if group is None else self._whole(group, _MAX_CHANNELS) for group in match.groups()
        )
        assert coll is not None and p2p is not None and per_peer is not None
        return Channels(coll, collnet, nvls, p2p, per_peer)

    def _graph(self, match: re.Match[str]) -> LoggedGraph:
        pattern, crossnic, channels, intra, inter, type_intra, type_inter, same = match.groups()
        graph = LoggedGraph(
            -1,
            int(pattern),
            int(crossnic),
            self._whole(channels, _MAX_CHANNELS),
            self._real(intra, _MAX_RATE),
            self._real(inter, _MAX_RATE),
            0.0,
            type_intra,
            type_inter,
            int(same),
        )
        return checked_graph(graph, self.where)


def _parted(text: str) -> tuple[re.Match[str] | None, str]:
    """Returns host, process and thread of a line of NCCL's, and what the thread says; None where it is not one."""
    at = text.find(_INFO)
    while at >= 0:
        source = _SOURCE.search(text, max(at - _PREFIX, 0), at)
        if source is not None:
            return source, text[at + len(_INFO) :]
        at = text.find(_INFO, at + 1)
    return None, ""


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
