"""Holds what NCCL reported on a machine in its logs and dumps: channels, their rates, and how calls were run.

NCCL searches channels in one node with its NICs, so its channels hold for any number of nodes with as many GPUs in the
group. Its choices for calls hold for the same number of GPUs and nodes, between the smallest and the largest size that
it ran. Its estimates for each way to run a call (its tuning table) hold for any size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.network.nccl.channels import ChannelGraph
from foretrace.cost.network.nccl.environment import Forced
from foretrace.hardware.cluster import Cluster, Nic
from foretrace.program.columns import Collective

if TYPE_CHECKING:  # jobs without such files start faster
    from foretrace.cost.network.nccl_log.log import Choice
    from foretrace.cost.network.nccl_log.system import System

Way = tuple[str, str]
"""An algorithm and a protocol."""

RUNS_OVER: Final = {"pat": "ring", "nvls-tree": "nvls"}
"""Algorithms that run over the channels of another."""

_LL128_INTRA: Final = frozenset({"LOC", "NVL", "NVB"})
_LL128_INTER: Final = frozenset({"LOC", "NVL", "NVB", "C2C", "PIX", "PXB"})

_RUNS_AS: Final = {Collective.BARRIER: Collective.ALL_REDUCE}
_ARCHITECTURES: Final = {70: "volta", 80: "ampere", 86: "ampere", 89: "ada", 90: "hopper", 100: "blackwell"} | {
    103: "blackwell",
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """The entry of NCCL's tuning table for one way to run a collective, before its corrections by size."""

    latency_s: float
    bytes_per_s: float
    """The size over the time; 0 where NCCL does not use it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One kind of communicator. `graphs` are by algorithm: the channels that NCCL's search found, and the rate of one
    within and between nodes."""

    gpus_per_node: int
    several_nodes: bool
    gpus: int | None = None
    """In all; None where only a node was dumped."""
    nodes: int | None = None
    graphs: Mapping[str, ChannelGraph] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    """Channels that run concurrently, by algorithm."""
    path_types: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The longest path within a node and to the NICs, as NCCL calls them: NVL, PIX, PXB, PXN, PHB, SYS."""
    choices: Mapping[Collective, tuple[Choice, ...]] = field(default_factory=dict)
    """By rising size, one each."""
    tuning: Mapping[tuple[Collective, str, str], Expectation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that was read of a machine; `files` are what it was read from."""

    observations: tuple[Observation, ...]
    version: str | None = None
    nics: int = 0
    """NICs of a node that NCCL uses; 0 where it does not say."""
    nic_bytes_per_s: float = 0.0
    forced: Forced = field(default_factory=Forced)
    """NCCL_ALGO and NCCL_PROTO on the machine."""
    system: System | None = None
    notes: tuple[Diagnostic, ...] = ()
    files: tuple[str, ...] = ()

    def applied_to(self, graphs: Mapping[str, ChannelGraph], gpus: int, nodes: int) -> dict[str, ChannelGraph]:
        """Returns the channels by algorithm of a group of `gpus` GPUs spread evenly over `nodes` nodes: as NCCL
        reported them, else as given."""
        result = dict(graphs)
        for observation in reversed(tuple(self._like(gpus, nodes))):
            for name in result:
                over = RUNS_OVER.get(name, name)
                result[name] = observation.graphs.get(over, result[name])
                if running := observation.running.get(over):
                    result[name] = replace(result[name], running=running)
        return result

    def trusts_ll128(self, hopper: bool, gpus: int, nodes: int) -> bool | None:
        """Returns whether NCCL uses LL128 over the paths it found for rings; None if the paths are not known.

        Within a node these must be links; to the NICs they must be PCIe switches, or another GPU's on Hopper and later
        (`tuning.cc`).
        """
        for observation in self._like(gpus, nodes):
            if "ring" in observation.path_types:
                intra, inter = observation.path_types["ring"]
                far = _LL128_INTER | {"PXN", "P2C"} if hopper else _LL128_INTER
                return intra in _LL128_INTRA and (nodes == 1 or inter in far)
        return None

    def choice(self, collective: Collective, size_bytes: float, gpus: int, nodes: int) -> Way | None:
        """Returns how NCCL ran the call of the nearest size (by its logarithm) in such a group; None outside the sizes
        it ran."""
        what = _RUNS_AS.get(collective, collective)
        for observation in self.observations:
            seen = observation.choices.get(what, ()) if (observation.gpus, observation.nodes) == (gpus, nodes) else ()
            if seen and seen[0].size_bytes <= size_bytes <= seen[-1].size_bytes:
                nearest = _nearest(seen, size_bytes)
                return nearest.algorithm, nearest.protocol
        return None

    def expectations(self, collective: Collective, gpus: int, nodes: int) -> Mapping[Way, Expectation]:
        """NCCL's tuning table for a collective in such a group, without what it does not use; empty if unknown."""
        what = _RUNS_AS.get(collective, collective)
        for observation in self.observations:
            if (observation.gpus, observation.nodes) == (gpus, nodes) and observation.tuning:
                entries = observation.tuning.items()
                return {
                    (way, proto): expected
                    for (of, way, proto), expected in entries
                    if of == what and expected.bytes_per_s > 0
                }
        return {}

    def seen(self, collective: Collective, gpus: int, nodes: int) -> frozenset[Way]:
        """The ways that NCCL was seen to run a collective in such a group."""
        what = _RUNS_AS.get(collective, collective)
        ours = [
            observation.choices.get(what, ())
            for observation in self.observations
            if (observation.gpus, observation.nodes) == (gpus, nodes)
        ]
        return frozenset((choice.algorithm, choice.protocol) for choices in ours for choice in choices)

    def on(self, cluster: Cluster) -> tuple[Cluster, tuple[Diagnostic, ...]]:
        """A cluster with the NICs that NCCL found, and what differs between the two."""
        node, notes = cluster.node, list(self._differences(cluster))
        if not self.nics or (self.nics, self.nic_bytes_per_s) == (node.nics, node.nic.bytes_per_s):
            return cluster, tuple(notes)
        if node.nics == self.nics and math.isclose(node.nic.bytes_per_s, self.nic_bytes_per_s, rel_tol=0.03):
            return cluster, tuple(notes)  # the rate that a driver reports for the same line
        rate = f"{self.nic_bytes_per_s * 8 / 1e9:g}"
        nics = f"{self.nics} NIC{'s' if self.nics > 1 else ''} of {rate} Gb/s"
        has = f"{node.nics} of {node.nic.bytes_per_s * 8 / 1e9:g}"
        notes.append(_note("machine-differs", f"NCCL found {nics} in a node, {cluster.name} has {has}: NCCL's count"))
        try:
            nic = Nic(f"{rate}gbps", f"NIC of {rate} Gb/s", self.nic_bytes_per_s)
            return replace(cluster, node=replace(node, nic=nic, nics=self.nics)), tuple(notes)
        except InputError as error:
            raise error.at(", ".join(self.files)) from None

    def _like(self, gpus: int, nodes: int) -> Iterable[Observation]:
        """Observations whose nodes look like those of such a group, the same group first."""
        if nodes < 1 or gpus % nodes:
            return ()
        same = [
            observation for observation in self.observations if (observation.gpus, observation.nodes) == (gpus, nodes)
        ]
        similar = [
            observation
            for observation in self.observations
            if observation not in same
            and (observation.gpus_per_node, observation.several_nodes) == (gpus // nodes, nodes > 1)
        ]
        return (*same, *similar)

    def _differences(self, cluster: Cluster) -> Iterable[Diagnostic]:
        """Yields where a dump of the node differs from the cluster; only the NICs are taken over.

        Raises an error where the GPUs are of another architecture.
        """
        if self.system is None:
            files = ", ".join(self.files)
            text = f"NCCL's logs do not state their GPU: {files} is taken to be of {cluster.gpu.name}"
            yield _note("gpu-not-stated", text)
            return
        gpu, first = cluster.gpu, self.system.gpus[0]
        family = gpu.architecture.lower().partition(" ")[0]
        if first.sm and _ARCHITECTURES.get(first.sm, family) != family:
            raise InputError(
                "other-gpu",
                f"NCCL found GPUs of compute capability {first.sm / 10:g}, {gpu.name} is {family}",
                where=", ".join(self.files),
                hint="name a cluster of the GPUs that NCCL ran on",
            )
        if (links := max(gpu.links for gpu in self.system.gpus)) != gpu.links:
            yield _warning(
                "machine-differs",
                f"NCCL found {links} NVLinks on a GPU, {gpu.name} has {gpu.links}: the cluster's count",
            )
        hosts = {gpu.host for gpu in self.system.gpus}
        if len(self.system.gpus) > cluster.node.gpus * len(hosts):
            count = len(self.system.gpus)
            yield _warning(
                "machine-differs",
                f"NCCL found {count} GPUs in a node, {cluster.name} has {cluster.node.gpus}: the cluster's",
            )


def _nearest(seen: Sequence[Choice], size_bytes: float) -> Choice:
    index = bisect_left([choice.size_bytes for choice in seen], size_bytes)
    if index == 0 or seen[index].size_bytes == size_bytes:
        return seen[index]
    below, above = seen[index - 1], seen[index]
    return below if size_bytes**2 <= float(below.size_bytes) * above.size_bytes else above


def _note(code: str, message: str) -> Diagnostic:
    return Diagnostic("note", code, message)


def _warning(code: str, message: str) -> Diagnostic:
    return Diagnostic("warning", code, message)


def refuse_empty(observed: Observed) -> Observed:
    """The same; an error where nothing in it could change a price."""
    if observed.observations or observed.nics or observed.system is not None or observed.forced:
        return observed
    raise InputError(
        "nothing-to-do",
        "NCCL says nothing here that a price could use",
        where=", ".join(observed.files),
        hint="run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING",
    )
