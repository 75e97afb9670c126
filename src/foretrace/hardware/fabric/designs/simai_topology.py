"""Reads and writes SimAI's topology files, and writes a fabric as one.

The first line has six fields: devices, GPUs of a server, NVSwitches, other switches, links, and the name of the GPU.
The second line lists the numbers of all switches, NVSwitches first; GPUs have the numbers below. Every further line is
a link: source, destination, rate (`400Gbps`), latency (`0.0005ms`) and error rate. A file that is read and written
again is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError, shortened
from foretrace.basics.files import read_whole
from foretrace.basics.limits import MAX_GPUS, check_limit
from foretrace.basics.numbers import real_field
from foretrace.basics.outputs import write_whole
from foretrace.basics.units import parse_bandwidth, parse_time
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.graph import FabricGraph
from foretrace.hardware.fabric.routing.attachment import attachment_of

MAX_DEVICES: Final = MAX_GPUS
"""More than any cluster has: a larger number is a slip."""

MAX_LINKS: Final = 4_000_000
"""Links that a file may list: 100,000 GPUs with 8 NICs have fewer."""

MAX_FILE_BYTES: Final = 160 << 20

MIN_LINK_BYTES_PER_S: Final = 1e6
MAX_LINK_BYTES_PER_S: Final = 1e15
MAX_LINK_LATENCY_S: Final = 1.0
"""Limits on the links of all files, in SimAI's format and in YAML."""

_HEADER: Final = "280 8 16 136 1344 H100: devices, GPUs of a server, NVSwitches, other switches, links, GPU"
_MAX_ERROR_RATE: Final = 0.01
"""The largest share of lost packets: RDMA networks lose next to none, and links are taken to lose none."""

_LINK: Final = "0 128 2880Gbps 0.000025ms 0: source, destination, rate, latency, error rate"


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """A link as it is written."""

    source: int
    target: int
    rate: str
    latency: str
    error_rate: str
    line: int

    @property
    def bytes_per_s(self) -> float:
        """One way."""
        return parse_bandwidth(self.rate)

    @property
    def latency_s(self) -> float:
        """Seconds of one crossing."""
        return parse_time(self.latency)


@dataclass(frozen=True, slots=True)
class SimaiTopology:
    """A topology file: counts, switches and links."""

    path: str
    gpus_per_server: int
    nv_switches: int
    switches: int
    gpu: str
    switch_ids: tuple[int, ...]
    """NVSwitches, then the others."""
    links: tuple[TopologyLink, ...]
    trailing_space: bool
    """Whether the line of switches ends in a space, as SimAI's generator writes it."""

    @property
    def gpus(self) -> int:
        """GPUs in all: the devices that are no switches."""
        return min(self.switch_ids)

    @property
    def devices(self) -> int:
        """GPUs and switches."""
        return self.gpus + len(self.switch_ids)


def looks_like_simai(text: str) -> bool:
    """Returns whether the text begins as a topology file does: a line of five numbers and a word."""
    fields = text.split("\n", 1)[0].split()
    return len(fields) == 6 and all(_is_whole(field) for field in fields[:5])


def _is_whole(field: str) -> bool:
    """Returns whether a field is a whole number in ASCII digits."""
    return field.isascii() and field.isdecimal()


def read_topology(path: str | Path) -> SimaiTopology:
    """The topology in a file."""
    data = read_whole(path, "topology file", f"expected a first line like {_HEADER}", MAX_FILE_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            "not-text", "the topology file is not text", where=str(path), hint=f"expected {_HEADER}"
        ) from None
    return parse_topology(text, str(path))


def parse_topology(text: str, path: str) -> SimaiTopology:
    """The topology that the text of a file describes."""
    check_limit(text.count("\n"), MAX_LINKS, "lines", path)
    lines = text.split("\n")
    devices, per_server, nv_switches, switches, count, gpu = _header(lines[0], path)
    if len(lines) < 2:
        raise InputError(
            "missing-field", "the line of switches is missing", where=f"{path}:2", hint="the numbers of all switches"
        )
    ids = _switch_ids(lines[1], path, devices, nv_switches + switches)
    links = tuple(_links(lines[2:], path, devices))
    if len(links) != count:
        hint = "the file may be cut short" if len(links) < count else "correct the fifth number of the first line"
        raise InputError(
            "conflicting-values",
            f"the first line says {count:,} links, there are {len(links):,}",
            where=f"{path}:1",
            hint=hint,
        )
    gpus = devices - len(ids)
    if per_server < 1 or gpus % per_server:
        raise InputError(
            "not-divisible",
            f"{gpus:,} GPUs are no servers of {per_server}",
            where=f"{path}:1",
            hint=f"expected {_HEADER}",
        )
    return SimaiTopology(path, per_server, nv_switches, switches, gpu, ids, links, lines[1].endswith(" "))


def write_topology(topology: SimaiTopology, path: str | Path) -> None:
    """Writes a topology as SimAI reads it."""
    write_whole(Path(path), [topology_text(topology).encode()], "topology file")


def topology_text(topology: SimaiTopology) -> str:
    """A topology as SimAI writes it."""
    counts = (topology.devices, topology.gpus_per_server, topology.nv_switches, topology.switches, len(topology.links))
    lines = [
        f"{' '.join(str(count) for count in counts)} {topology.gpu}",
        " ".join(str(number) for number in topology.switch_ids) + (" " if topology.trailing_space else ""),
        *(f"{link.source} {link.target} {link.rate} {link.latency} {link.error_rate}" for link in topology.links),
    ]
    return "\n".join(lines) + "\n"


def _header(line: str, path: str) -> tuple[int, int, int, int, int, str]:
    fields = line.split()
    if not looks_like_simai(line):
        problem = f'"{shortened(line.strip())}" is no first line of a topology file'
        raise InputError("wrong-format", problem, where=f"{path}:1", hint=f"expected e.g. {_HEADER}")
    numbers = [int(field) if len(field) < 10 else MAX_DEVICES + 1 for field in fields[:5]]
    if max(numbers[:4]) > MAX_DEVICES:
        problem = f"a number of the first line is larger than {MAX_DEVICES:,}"
        raise InputError("out-of-range", problem, where=f"{path}:1", hint=f"expected e.g. {_HEADER}")
    devices, per_server, nv_switches, switches, links = numbers
    if nv_switches + switches == 0:
        problem = "no device is a switch: SimAI's GPUs are joined by switches"
        raise InputError("out-of-range", problem, where=f"{path}:1", hint=f"expected e.g. {_HEADER}")
    if nv_switches + switches >= devices:
        problem = f"of {devices:,} devices {nv_switches + switches:,} are switches, which leaves no GPUs"
        raise InputError("conflicting-values", problem, where=f"{path}:1", hint=f"expected e.g. {_HEADER}")
    return devices, per_server, nv_switches, switches, links, fields[5]


def _switch_ids(line: str, path: str, devices: int, count: int) -> tuple[int, ...]:
    """The numbers of switches, which are those after the GPUs."""
    fields = line.split()
    where = f"{path}:2"
    wrong = next((field for field in fields if not _is_whole(field) or len(field) > 9), None)
    if wrong is not None:
        raise InputError(
            "bad-value", f'"{shortened(wrong)}" is no number of a switch', where=where, hint="whole numbers"
        )
    ids = tuple(int(field) for field in fields)
    if len(ids) != count:
        problem = f"the first line says {count:,} switches, the second lists {len(ids):,}"
        raise InputError(
            "conflicting-values", problem, where=where, hint="the numbers of all switches, NVSwitches first"
        )
    if set(ids) != set(range(devices - count, devices)):
        hint = f"expected the numbers from {devices - count:,} to {devices - 1:,}: GPUs are the lower ones"
        raise InputError("bad-value", "the switches are not numbered after the GPUs", where=where, hint=hint)
    return ids


def _links(lines: list[str], path: str, devices: int) -> Iterator[TopologyLink]:
    """The links, each line checked."""
    checked: set[tuple[str, ...]] = set()  # nearly all links have the figures of another
    for number, line in enumerate(lines, start=3):
        if not line.strip():
            continue
        where, fields = f"{path}:{number}", line.split()
        if len(fields) != 5:
            problem = f'"{shortened(line.strip())}" has {len(fields)} fields, a link has 5'
            raise InputError("bad-syntax", problem, where=where, hint=f"expected e.g. {_LINK}")
        ends = [int(field) if _is_whole(field) and len(field) < 10 else -1 for field in fields[:2]]
        if not all(0 <= end < devices for end in ends) or ends[0] == ends[1]:
            problem = f"{shortened(fields[0])} and {shortened(fields[1])} are not two devices"
            raise InputError(
                "out-of-range", problem, where=where, hint=f"devices are numbered from 0 to {devices - 1:,}"
            )
        figures = tuple(fields[2:])
        if figures not in checked:
            _check_figures(figures, where)
            checked.add(figures)
        yield TopologyLink(ends[0], ends[1], fields[2], fields[3], fields[4], number)


def _check_figures(fields: Sequence[str], where: str) -> None:
    """Raises an error where the rate, the latency or the error rate of a link cannot be meant."""
    rate, latency, error_rate = fields
    problem = ""
    if not MIN_LINK_BYTES_PER_S <= parse_bandwidth(rate, where=where) <= MAX_LINK_BYTES_PER_S:
        problem = f"rate {shortened(rate)} is not from {MIN_LINK_BYTES_PER_S:g} to {MAX_LINK_BYTES_PER_S:g} B/s"
    elif not 0 <= parse_time(latency, where=where) <= MAX_LINK_LATENCY_S:
        problem = f"latency {shortened(latency)} is not from 0 to {MAX_LINK_LATENCY_S:g} s"
    else:
        real_field("error rate", error_rate, where, most=_MAX_ERROR_RATE, hint="lost packets are not modelled")
    if problem:
        raise InputError("out-of-range", problem, where=where, hint=f"expected e.g. {_LINK}")


def simai_topology(fabric: Fabric, gpu: str, path: str) -> SimaiTopology:
    """Returns the fabric as a SimAI topology.

    SimAI knows neither NICs nor PCIe. So each GPU is linked to the switches beyond its NICs, with the rate of the
    narrowest link on the way and the latencies of all of them.
    """
    direct = (fabric.kind[fabric.source] == Device.GPU) & (fabric.kind[fabric.target] == Device.GPU)
    if direct.any():
        hint = "SimAI's GPUs are joined by switches; clusters whose nodes are switched can be written"
        raise InputError("bad-topology", "SimAI's topologies have no links from GPU to GPU", where=path, hint=hint)
    kept = np.flatnonzero(np.isin(fabric.kind, (Device.LINK_SWITCH, Device.LEAF, Device.SPINE, Device.CORE)))
    kept = kept[np.argsort(fabric.kind[kept], kind="stable")]
    number = np.full(fabric.devices, -1, dtype=np.int64)
    number[: fabric.gpus] = np.arange(fabric.gpus)
    number[kept] = fabric.gpus + np.arange(len(kept))
    nv_switches = int((fabric.kind == Device.LINK_SWITCH).sum())
    links = [*_inner(fabric, number), *_outer(fabric, number)]
    links.sort(key=lambda link: (link.source, link.target))
    ids = tuple(range(fabric.gpus, fabric.gpus + len(kept)))
    switches = len(kept) - nv_switches
    return SimaiTopology(path, fabric.gpus_per_node, nv_switches, switches, gpu, ids, tuple(links), True)


def _inner(fabric: Fabric, number: Longs) -> list[TopologyLink]:
    """Returns the links whose two ends SimAI has, in one direction, without those from GPUs to the network (`_outer`).

    Between switches of the network there is one for each cable.
    """
    near, far = number[fabric.source], number[fabric.target]
    once = np.flatnonzero((near >= 0) & (far > near) & ~_out_of_gpus(fabric))
    between = fabric.kind[fabric.source[once]] >= Device.LEAF
    times = np.where(between, fabric.cable_counts[once], 1)
    each = [
        _link(
            int(near[link]), int(far[link]), float(fabric.bytes_per_s[link]) / int(count), float(fabric.latency_s[link])
        )
        for link, count in zip(once, times, strict=True)
    ]
    return [link for link, count in zip(each, times, strict=True) for _ in range(int(count))]


def _out_of_gpus(fabric: Fabric) -> Mask:
    """Links from GPUs to switches of the network, which `_outer` writes."""
    return np.asarray((fabric.kind[fabric.source] == Device.GPU) & (fabric.kind[fabric.target] >= Device.LEAF))


def _outer(fabric: Fabric, number: Longs) -> list[TopologyLink]:
    """A link for each exit of each GPU."""
    graph = FabricGraph(fabric)
    held = attachment_of(graph)
    gpu = np.repeat(np.arange(fabric.gpus), np.diff(held.exit_start))
    there = held.exit_path >= 0
    rate = np.where(there, fabric.bytes_per_s[held.exit_path], np.inf).min(axis=1)
    # The way back has the switch's latency too; SimAI has one number for both, so both get the mean.
    both = (fabric.latency_s + fabric.latency_s[graph.back]) / 2
    out = np.where(there, both[held.exit_path], 0.0).sum(axis=1)
    return [
        _link(int(source), int(number[switch]), float(each), float(seconds))
        for source, switch, each, seconds in zip(gpu, held.exit_switch, rate, out, strict=True)
    ]


def _link(source: int, target: int, bytes_per_s: float, latency_s: float) -> TopologyLink:
    rate, latency = f"{bytes_per_s * 8 / 1e9:.10g}Gbps", f"{latency_s * 1e3:.10g}ms"
    return TopologyLink(source, target, rate, latency, "0", 0)
