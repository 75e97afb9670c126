"""Describes what a job runs on: GPUs, nodes, NICs and the cluster. All rates are one way, in SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretrace.basics.arguments import check_fields, checked
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.figures import check_count, check_figure, check_launch_factor


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its datasheet describes it: dense peaks by dtype, memory, and links to other GPUs."""

    name: str
    title: str
    vendor: str
    architecture: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flops: Mapping[str, float]
    """Dense peak by dtype of the operands: tf32, bf16, fp16, fp8, fp4, …; without sparsity."""
    links: int
    """Links to other GPUs (NVLink, Infinity Fabric); 0 where there are none."""
    link_bytes_per_s: float
    """All links together, one way, as the datasheet counts them."""
    pcie_bytes_per_s: float
    compute_units: int
    """SMs or CUs; 0 where a user's file does not say."""
    power_w: float
    """The highest power of the module; 0 where a user's file does not say."""
    host_bytes_per_s: float = 0.0
    """To and from the host's memory where that is no PCIe (NVLink-C2C); 0: PCIe."""
    bridged_gpus: int = 0
    """GPUs that bridges join, for cards that no switch joins; 0 for the others."""
    base: str = ""
    """The preset that it changes some figures of, so that measurements of that one hold where those figures do not
    matter; empty where it is a preset itself, or stands alone."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Figures that are assumed or not public."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "memory_bytes_per_s", "pcie_bytes_per_s"):
            check_figure(name, getattr(self, name))
        for name in ("link_bytes_per_s", "host_bytes_per_s", "power_w"):
            check_figure(name, getattr(self, name), zero=True)
        if not isinstance(self.peak_flops, Mapping) or not self.peak_flops:
            raise InputError("bad-value", "peak_flops names no dtype", hint='expected e.g. {"bf16": 989e12}')
        for dtype, flops in self.peak_flops.items():
            check_figure(f"peak_flops of {dtype}", flops)
        check_count("links", self.links, 0)
        check_count("compute_units", self.compute_units, 0)


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card and the rate of its line."""

    name: str
    title: str
    bytes_per_s: float
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_figure("bytes_per_s", self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Node:
    """A server: its GPUs, how many of them one domain of links joins (over nodes in an NVL72), its NICs."""

    name: str
    title: str
    gpu: Gpu
    gpus: int
    domain_gpus: int
    """GPUs that reach each other over links: 8 in a DGX, 72 in an NVL72 rack, 1 where there are no links."""
    switched: bool
    """Whether a switch joins the domain (NVSwitch), so that any pair has all links; otherwise links are dealt out."""
    nic: Nic
    nics: int
    launch_factor: float = 1.0
    """How many times as long as a usual x86 server its CPU takes to launch a kernel."""
    torch_launch_factor: float | None = None
    """The same for launches of plain PyTorch; None: as long."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_launch_factor("launch_factor", self.launch_factor)
        if self.torch_launch_factor is not None:
            check_launch_factor("torch_launch_factor", self.torch_launch_factor)
        check_count("gpus", self.gpus)
        check_count("domain_gpus", self.domain_gpus)
        check_count("nics", self.nics)

    @property
    def island_gpus(self) -> int:
        """GPUs that need no NIC to reach each other: those of a link domain, or of the node where it has more."""
        return max(self.domain_gpus, self.gpus)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of one kind and the network between them; `nodes` None means as many as the job needs."""

    name: str
    title: str
    node: Node
    nodes: int | None = None
    topology: Topology = field(default_factory=Topology)
    """The network that joins the nodes."""
    domain_gpus: int | None = None
    """GPUs of each link domain that a job uses; None: as many as `cost.network.domains` chooses for the job."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    where: str | None = None
    """`file:line` of a user's file."""
    remarks: tuple[Diagnostic, ...] = field(default=(), compare=False, repr=False)
    """Warnings of figures in a user's file that no hardware has."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.nodes is not None:
            check_count("nodes", self.nodes)
        if self.domain_gpus is not None:
            check_domain_gpus(self.node, self.domain_gpus, self.where)

    @property
    def gpu(self) -> Gpu:
        """The GPU of every node."""
        return self.node.gpu

    @property
    def oversubscription(self) -> float:
        """Returns how many times the traffic that NICs could send exceeds what the network above their leaves can
        carry."""
        return self.topology.oversubscription

    @property
    def gpus(self) -> int | None:
        """GPUs in all, None where there are as many as the job needs."""
        return None if self.nodes is None else self.nodes * self.node.gpus

    @checked
    def check_fits(self, world: int, where: str | None = None) -> None:
        """Raises an error where a job has more ranks than the cluster has GPUs."""
        if self.gpus is not None and world > self.gpus:
            size = f"{self.nodes:,} nodes of {self.node.gpus}"
            raise InputError(
                "cluster-too-small",
                f"the job has {world:,} GPUs, the cluster {self.name} {self.gpus:,} ({size})",
                where=where,
                hint=f"ask for fewer with --gpus, or raise nodes in {self.where or 'the cluster'}",
            )


def check_domain_gpus(node: Node, gpus: int, where: str | None = None) -> None:
    """Raises an error unless a job can use `gpus` GPUs of each link domain: whole nodes, no more than there are."""
    domain = node.island_gpus
    hint = f"expected a multiple of {node.gpus} up to {domain}" if domain > node.gpus else f"it can only be {domain}"
    if not isinstance(gpus, int) or isinstance(gpus, bool) or not 1 <= gpus <= domain:
        text = f"domain_gpus is {gpus}, but a link domain of {node.name} has {domain} GPUs"
        raise InputError("out-of-range", text, where=where, hint=hint)
    if gpus % node.gpus:
        text = f"domain_gpus is {gpus}, which is not a number of whole nodes of {node.gpus} GPUs"
        raise InputError("not-divisible", text, where=where, hint=hint)
