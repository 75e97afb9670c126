"""Reads hardware from YAML, both the presets of the package and users' files.

A GPU, a NIC, a node or a cluster is given by the name of a preset, or by a mapping. A mapping with `based_on` states
only what differs from its base, and so does every mapping inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from foretrace.basics.documents import Document, Fields, Parser
from foretrace.basics.errors import InputError
from foretrace.basics.units import (
    format_count,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_factor,
    parse_flops,
    parse_power,
)
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node, check_domain_gpus
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.figures import FIGURES, MAX_COUNTS, check_launch_factor, unusual_figure
from foretrace.hardware.topology_reader import read_ratio, read_topology

if TYPE_CHECKING:
    import yaml

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
"""The dtypes whose dense peak a GPU may state, slowest first."""

PCIE_GEN5_BYTES_PER_S = 64e9
"""One way, 16 lanes: what a GPU without `pcie_bandwidth` is taken to have."""

_GPU = "gpu: {memory: 80GiB, memory_bandwidth: 3.35TB/s, bf16: 989TFLOPS}"
_NIC = "nic: {rate: 400Gbps}"
_NODE = "node: {gpu: h100-sxm, gpus: 8, nic: 400Gbps}"

_ABOUT = ("based_on", "name", "title")
_GROUNDS = ("sources", "notes")
GPU_KEYS = (
    *_ABOUT,
    "vendor",
    "architecture",
    "memory",
    "memory_bandwidth",
    *DTYPES,
    "links",
    "link_bandwidth",
    "bridged_gpus",
    "pcie_bandwidth",
    "host_bandwidth",
    "compute_units",
    "power_w",
    *_GROUNDS,
)
NIC_KEYS = (*_ABOUT, "rate", *_GROUNDS)
NODE_KEYS = (
    *_ABOUT,
    "gpu",
    "gpus",
    "domain_gpus",
    "switched",
    "nic",
    "nics",
    "launch_factor",
    "torch_launch_factor",
    *_GROUNDS,
)
CLUSTER_KEYS = (*_ABOUT, "node", "nodes", "domain_gpus", "topology", "oversubscription", *_GROUNDS)

Part = TypeVar("Part", Gpu, Nic, Node, Cluster)
PartOut = TypeVar("PartOut", Gpu, Nic, Node, Cluster, covariant=True)


class Lookup(Protocol[PartOut]):
    """Finds a preset by the name people type."""

    def __call__(self, name: str, /, *, where: str | None = None) -> PartOut:
        """The preset; `where` is what an error names."""
        ...


@dataclass(frozen=True, slots=True)
class Presets:
    """The presets that names refer to."""

    gpu: Lookup[Gpu]
    nic: Lookup[Nic]
    node: Lookup[Node]
    cluster: Lookup[Cluster]


def read_gpu(document: Document, node: yaml.Node, presets: Presets, *, base: Gpu | None = None, name: str = "") -> Gpu:
    """A GPU: a preset's name, or a mapping."""
    if _is_text(node):
        return presets.gpu(document.text(node, "a GPU"), where=document.where(node))
    fields, base = _opened(document, node, GPU_KEYS, ("memory", "memory_bandwidth", "bf16"), presets.gpu, base, _GPU)
    peaks = dict(base.peak_flops) if base else {}
    peaks |= {dtype: _flops(fields, dtype) for dtype in DTYPES if dtype in fields}
    links = _count(fields, "links", base.links if base else 0, least=0)
    return Gpu(
        **_about(fields, base, name or "custom-gpu"),
        vendor=fields.text("vendor", base.vendor if base else "unknown"),
        architecture=fields.text("architecture", base.architecture if base else "unknown"),
        memory_bytes=float(_figure(fields, "memory", parse_bytes) if "memory" in fields else _of(base).memory_bytes),
        memory_bytes_per_s=_rate(fields, "memory_bandwidth", lambda: _of(base).memory_bytes_per_s),
        peak_flops={dtype: peaks[dtype] for dtype in DTYPES if dtype in peaks},
        links=links,
        link_bytes_per_s=_link_rate(fields, links, base),
        bridged_gpus=_count(fields, "bridged_gpus", base.bridged_gpus if base else 0, least=0),
        base=_preset_of(fields, base),
        pcie_bytes_per_s=_rate(
            fields, "pcie_bandwidth", lambda: base.pcie_bytes_per_s if base else PCIE_GEN5_BYTES_PER_S
        ),
        host_bytes_per_s=_rate(fields, "host_bandwidth", lambda: base.host_bytes_per_s if base else 0.0),
        compute_units=_count(fields, "compute_units", base.compute_units if base else 0, least=8),
        power_w=_power(fields, base.power_w if base else 0.0),
    )


def read_nic(document: Document, node: yaml.Node, presets: Presets, *, base: Nic | None = None, name: str = "") -> Nic:
    """A NIC: a preset's name, a rate such as 400Gbps, or a mapping."""
    if _is_text(node):
        text, where = document.text(node, "a NIC or its rate").strip(), document.where(node)
        if not text[:1].isdecimal():
            if text[:1] in "-+." or text.lower() in ("nan", "inf"):
                parse_bandwidth(text, where=where)
            return presets.nic(text, where=where)
        rate = _figure(Fields(document, node, {"nic": node}), "nic", parse_bandwidth, "rate")
        return Nic(f"{rate * 8 / 1e9:g}gbps", f"NIC of {rate * 8 / 1e9:g} Gb/s", rate)
    fields, base = _opened(document, node, NIC_KEYS, ("rate",), presets.nic, base, _NIC)
    rate = _rate(fields, "rate", lambda: _of(base).bytes_per_s)
    return Nic(**_about(fields, base, name or "custom-nic"), bytes_per_s=rate)


def read_node(
    document: Document, node: yaml.Node, presets: Presets, *, base: Node | None = None, name: str = ""
) -> Node:
    """A node: a preset's name, or a mapping."""
    if _is_text(node):
        return presets.node(document.text(node, "a node"), where=document.where(node))
    fields, base = _opened(document, node, NODE_KEYS, ("gpu", "gpus", "nic"), presets.node, base, _NODE)
    gpu = (
        read_gpu(document, fields["gpu"], presets, base=base.gpu if base else None)
        if "gpu" in fields
        else _of(base).gpu
    )
    gpus = _count(fields, "gpus", base.gpus if base else 0)
    domain = _domain(fields, base, gpu, gpus)
    # Without a switch the links of a GPU are dealt out to its neighbours: pairs over a bridge, AMD's full mesh.
    switched = base.switched if base else domain > 2 and gpu.vendor.upper() != "AMD"
    switched = switched and not gpu.bridged_gpus
    nics = base.nics if base and base.nics != base.gpus else gpus
    return Node(
        **_about(fields, base, name or f"{gpus}x-{gpu.name}"),
        gpu=gpu,
        gpus=gpus,
        domain_gpus=domain,
        switched=fields.flag("switched", switched and domain > 1),
        nic=read_nic(document, fields["nic"], presets, base=base.nic if base else None)
        if "nic" in fields
        else _of(base).nic,
        nics=_count(fields, "nics", nics),
        **_launch_factors(fields, base),
    )


def _launch_factors(fields: Fields, base: Node | None) -> dict[str, Any]:
    """Reads how slow a node's CPU launches kernels; a factor without one for PyTorch serves both."""
    factors: dict[str, Any] = {}
    for name in ("launch_factor", "torch_launch_factor"):
        if name in fields:
            where = fields.where(name)
            factors[name] = parse_factor(fields.text(name, "1x"), where=where)
            check_launch_factor(name, factors[name], where)
    if "launch_factor" not in factors and base is not None:
        kept = {"launch_factor": base.launch_factor, "torch_launch_factor": base.torch_launch_factor}
        factors = {**kept, **factors}
    return factors


def read_cluster(document: Document, node: yaml.Node, presets: Presets, *, name: str) -> Cluster:
    """A cluster: a mapping, named as it says or after its file."""
    fields, base = _opened(document, node, CLUSTER_KEYS, ("node",), presets.cluster, None, document.example)
    inner = base.node if base else None
    about = _about(fields, base, name)
    if "name" not in fields:  # the file's, rather than one made of the base's
        about |= {"name": name, "title": fields.text("title", name)}
    nodes = base.nodes if base else None
    topology = _topology(document, fields, base.topology if base else Topology())
    if base is not None and topology.kind != base.topology.kind:  # grounds of a cluster are those of its network
        about |= {"sources": fields.texts("sources"), "notes": fields.texts("notes")}
    node_of = read_node(document, fields["node"], presets, base=inner) if "node" in fields else _of(inner)
    domain_gpus = base.domain_gpus if base else None
    if "domain_gpus" in fields:
        domain_gpus = _count(fields, "domain_gpus", 0)
        check_domain_gpus(node_of, domain_gpus, fields.where("domain_gpus"))
    return Cluster(
        **about,
        node=node_of,
        nodes=_count(fields, "nodes", 0) if "nodes" in fields else nodes,
        topology=topology,
        domain_gpus=domain_gpus,
        where=None if document.shipped else document.where(node),
        remarks=tuple(document.remarks),
    )


def _is_text(node: yaml.Node) -> bool:
    import yaml

    return isinstance(node, yaml.ScalarNode)


def _opened(
    document: Document,
    node: yaml.Node,
    known: tuple[str, ...],
    required: tuple[str, ...],
    lookup: Lookup[Part],
    base: Part | None,
    example: str,
) -> tuple[Fields, Part | None]:
    """The fields of a mapping and what they change; what is required may come from there."""
    allowed = (*known, "aliases") if document.shipped else known
    speaking = replace(document, example=example)
    fields = speaking.fields(node, allowed, (), f"a mapping with {' and '.join(required)}, or with based_on")
    if "based_on" in fields:
        name = document.text(fields["based_on"], "based_on: a name")
        base = lookup(name, where=fields.where("based_on"))
    if base is None:
        fields = speaking.fields(node, allowed, required)
    return fields, base


def _of(base: Part | None) -> Part:
    """The base of what was not required because there is one."""
    assert base is not None
    return base


def _about(fields: Fields, base: Gpu | Nic | Node | Cluster | None, name: str) -> dict[str, Any]:
    """Name, title and grounds. A changed part loses its name, because measured tables go by name."""
    default = f"{base.name}-changed" if base else name
    called = fields.text("name", default)
    title = fields.text("title", f"{base.title}, changed" if base and "name" not in fields else called)
    sources, notes = fields.texts("sources"), fields.texts("notes")
    if base is not None:
        sources, notes = (*sources, *base.sources), (*notes, *base.notes)
    return {"name": called, "title": title, "sources": sources, "notes": notes}


def _rate(fields: Fields, name: str, default: Callable[[], float]) -> float:
    """A bandwidth in bytes per second."""
    return float(round(_figure(fields, name, parse_bandwidth))) if name in fields else default()


def _flops(fields: Fields, name: str) -> float:
    return float(round(_figure(fields, name, parse_flops, "flops")))


def _figure(fields: Fields, name: str, parse: Parser[Any], kind: str = "") -> float:
    """Returns a figure within what is possible; a document remembers the warning for one that no hardware has."""
    figure = FIGURES[kind or name]
    value = float(fields.number(name, parse, figure.least, figure.most, figure.show))
    unusual = unusual_figure(kind or name, name, value, fields.where(name))
    if unusual is not None:
        fields.document.remarks.append(unusual)
    return value


def _watts(value: str | float, *, where: str | None = None) -> float:
    """Reads a power: `700` or `700W`."""
    text = str(value).strip()
    return parse_power(text if text[-1:].isalpha() else f"{text}W", where=where)


def _power(fields: Fields, default: float) -> float:
    """A power in watts."""
    if "power_w" not in fields:
        return default
    return _figure(fields, "power_w", _watts)


def _count(fields: Fields, name: str, default: int, *, least: int = 1) -> int:
    return fields.number(name, parse_count, least, MAX_COUNTS[name], format_count) if name in fields else default


def _topology(document: Document, fields: Fields, base: Topology) -> Topology:
    """The network, or its oversubscription alone."""
    if "topology" not in fields:
        return replace(base, oversubscription=read_ratio(fields, "oversubscription", base.oversubscription))
    if "oversubscription" in fields:
        raise InputError(
            "conflicting-values",
            "oversubscription is given beside topology",
            where=fields.where("oversubscription"),
            hint="give it once, within topology: {kind: fat-tree, oversubscription: 2}",
        )
    return read_topology(document, fields["topology"], base)


def _link_rate(fields: Fields, links: int, base: Gpu | None) -> float:
    """All links together; links and their rate come together or not at all."""
    if links == 0:
        if "link_bandwidth" in fields:
            problem = "link_bandwidth is given for a GPU without links"
            raise InputError(
                "conflicting-values",
                problem,
                where=fields.where("link_bandwidth"),
                hint="say how many links there are: links: 18",
            )
        return 0.0
    if "link_bandwidth" not in fields and (base is None or base.links == 0):
        problem = "links are given without link_bandwidth"
        raise InputError(
            "missing-field",
            problem,
            where=fields.where("links"),
            hint="all links together, one way: link_bandwidth: 450GB/s",
        )
    # Links of a base that are fewer or more keep their own rate.
    return _rate(fields, "link_bandwidth", lambda: _of(base).link_bytes_per_s * links / _of(base).links)


def _preset_of(fields: Fields, base: Gpu | None) -> str:
    """Returns the preset that a GPU changes; none where it is another chip."""
    if base is None or "architecture" in fields or "vendor" in fields:
        return ""
    return base.base or base.name


def _domain(fields: Fields, base: Node | None, gpu: Gpu, gpus: int) -> int:
    """GPUs that links join: of a base that joins all of a node or reaches beyond, else as given, else the node's."""
    kept = base.domain_gpus if base and base.domain_gpus != base.gpus else gpus
    if gpu.bridged_gpus and gpus % gpu.bridged_gpus == 0:
        kept = gpu.bridged_gpus
    domain = _count(fields, "domain_gpus", kept if gpu.links else 1)
    where = fields.where("domain_gpus" if "domain_gpus" in fields else "gpus")
    if domain > 1 and gpu.links == 0:
        raise InputError(
            "conflicting-values",
            f"domain_gpus is {domain}, but {gpu.name} has no links",
            where=where,
            hint="leave it out",
        )
    if max(domain, gpus) % min(domain, gpus):
        hint = "a domain is part of a node, a node, or several nodes: 2, 8 or 72"
        raise InputError(
            "conflicting-values", f"domains of {domain} GPUs do not fit nodes of {gpus}", where=where, hint=hint
        )
    return domain
