"""Reads NCCL_TOPO_DUMP_FILE: the GPUs of a node with their NVLinks, its NICs, and the PCIe between them.

NCCL lists the GPUs of the communicator that wrote the dump, which may be fewer than the node has, and every NIC that
its network plugin found, also one for management.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import InputError, shown
from foretrace.cost.network.nccl_log.xml import Element, rate, whole_number

EXPECTED: Final = 'expected what NCCL_TOPO_DUMP_FILE writes: <system version="1"><cpu …><pci …><gpu …>'

_TRANSFERS = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*GT/s")
_ENCODING: Final = {2.5: 0.8, 5.0: 0.8}
"""8b/10b in the first two generations of PCIe, 128b/130b since."""

_GPU_CLASS: Final = "0x03"
"""PCI class of what an NVLink leads to when it is another GPU; a switch is a bridge, 0x068000."""


@dataclass(frozen=True, slots=True)
class SystemGpu:
    """A GPU: its number in the node, compute capability (90: 9.0), NVLinks, and PCIe towards the CPU."""

    dev: int
    sm: int
    links: int
    """NVLinks in all."""
    switched: bool
    """Whether its NVLinks lead to switches rather than to other GPUs."""
    pcie_bytes_per_s: float
    """One way, the narrowest link to the CPU; 0 where the machine does not say (virtual machines)."""
    host: str
    """The machine it is in, where the dump is of several (NVL72); empty for one."""


@dataclass(frozen=True, slots=True)
class SystemNic:
    """A port of a network card."""

    name: str
    dev: int
    bytes_per_s: float
    pcie_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class System:
    """The GPUs and NICs of a node."""

    gpus: tuple[SystemGpu, ...]
    nics: tuple[SystemNic, ...]

    @property
    def fastest_nics(self) -> tuple[SystemNic, ...]:
        """The NICs of the highest rate: those that a job's traffic goes over."""
        most = max((nic.bytes_per_s for nic in self.nics), default=0.0)
        return tuple(nic for nic in self.nics if nic.bytes_per_s == most > 0)


def system_of(root: Element, name: str) -> System:
    """The node that an XML document holds."""
    if root.tag != "system":
        raise InputError(
            "wrong-format",
            f"<{shown(root.tag)}> instead of <system>",
            where=f"{name}:{root.line}",
            hint=EXPECTED,
        )
    gpus, nics = [], []
    for element, above in _with_ancestors(root, ()):
        if element.tag == "gpu":
            gpus.append(_gpu(element, above, name))
        elif element.tag == "net":
            nics.append(_nic(element, above, name))
    if not gpus:
        raise InputError("missing-field", "no GPU is listed", where=name, hint=EXPECTED)
    return System(tuple(gpus), tuple(nics))


def _with_ancestors(element: Element, above: tuple[Element, ...]) -> Iterator[tuple[Element, tuple[Element, ...]]]:
    yield element, above
    for child in element.children:
        yield from _with_ancestors(child, (*above, element))


def _gpu(element: Element, above: tuple[Element, ...], name: str) -> SystemGpu:
    links = [child for child in element.children if child.tag == "nvlink"]
    counts = [whole_number(link, "count", name, least=0) for link in links]
    switched = any(not (link.get("tclass") or "").startswith(_GPU_CLASS) for link in links)
    return SystemGpu(
        dev=whole_number(element, "dev", name),
        sm=whole_number(element, "sm", name, 0, least=0),
        links=sum(counts),
        switched=switched,
        pcie_bytes_per_s=_pcie(above),
        host=next((element.get("host_hash") or "" for element in above if element.tag == "cpu"), ""),
    )


def _nic(element: Element, above: tuple[Element, ...], name: str) -> SystemNic:
    return SystemNic(
        name=element.get("name") or "",
        dev=whole_number(element, "dev", name),
        bytes_per_s=rate(element, "speed", name) * 1e6 / 8,
        pcie_bytes_per_s=_pcie(above),
    )


def _pcie(above: tuple[Element, ...]) -> float:
    """The narrowest PCIe link between a card and its CPU, one way; 0 where none says its speed."""
    least = math.inf
    for bridge in above:
        speed = _TRANSFERS.match(bridge.get("link_speed") or "")
        width = bridge.get("link_width") or ""
        if bridge.tag == "pci" and speed and width.isdecimal() and 0 < int(width[:4]) <= 32:
            transfers = float(speed[1])
            least = min(least, int(width[:4]) * transfers * 1e9 / 8 * _ENCODING.get(transfers, 128 / 130))
    return least if least < math.inf else 0.0
