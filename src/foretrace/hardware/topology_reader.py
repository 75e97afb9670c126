"""Reads the `topology` of a cluster's file: a kind, or a mapping with its sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, get_args

from foretrace.basics.documents import Document, Fields
from foretrace.basics.errors import InputError, did_you_mean, shortened
from foretrace.basics.file_registry import record_named_input
from foretrace.basics.units import (
    format_bandwidth,
    format_count,
    format_time,
    parse_bandwidth,
    parse_count,
    parse_factor,
    parse_time,
)
from foretrace.hardware.fabric.topology import TOPOLOGY_KINDS, Routing, Topology, TopologyKind

if TYPE_CHECKING:
    import yaml

TOPOLOGY_KEYS: Final = (
    *("kind", "routing", "leaf_ports", "pod_gpus", "planes", "tors", "oversubscription", "core_oversubscription"),
    *("dimensions", "hop_latency", "failed", "background", "in_network_reduction", "path", "seed"),
)
_EXAMPLE: Final = "topology: {kind: fat-tree, oversubscription: 2}"
_SPELLINGS: Final = {"rail-optimized": "rail-optimised", "rail": "rail-optimised", "alibaba-hpn": "hpn", "dcn": "dcn+"}
_OF_CLOS: Final = ("leaf_ports", "pod_gpus", "planes", "tors", "core_oversubscription")
_NOT_OF: Final[dict[str, tuple[str, ...]]] = {
    "torus": (*_OF_CLOS, "path"),
    "file": (*_OF_CLOS, "oversubscription", "dimensions", "hop_latency"),
    "dragonfly+": ("planes", "tors", "dimensions", "path"),
}
"""Keys that say nothing of a kind, and would be ignored."""


def read_topology(document: Document, node: yaml.Node, base: Topology) -> Topology:
    """A topology: its kind, or a mapping of which the base says what is left out (unless the kind is another)."""
    import yaml

    speaking = replace(document, example=_EXAMPLE)
    if isinstance(node, yaml.ScalarNode):
        kind = _kind(speaking.text(node, "a kind of network"), document.where(node))
        if kind != base.kind:
            _check_keys(Fields(speaking, node, {}), kind)
            return Topology(kind)
        return base
    fields = speaking.fields(node, TOPOLOGY_KEYS, (), "a kind of network, or a mapping")
    if "kind" in fields:
        kind = _kind(fields.text("kind", ""), fields.where("kind"))
        base = base if kind == base.kind else Topology(kind)
    _check_keys(fields, base.kind)
    return Topology(
        kind=base.kind,
        routing=_routing(fields, base.routing),
        leaf_ports=_count(fields, "leaf_ports", base.leaf_ports, 4_096),
        pod_gpus=_count(fields, "pod_gpus", base.pod_gpus, 10_000_000),
        planes=_count(fields, "planes", base.planes, 64),
        tors=_count(fields, "tors", base.tors, 16),
        oversubscription=read_ratio(fields, "oversubscription", base.oversubscription),
        core_oversubscription=read_ratio(fields, "core_oversubscription", base.core_oversubscription),
        dimensions=_dimensions(fields, base.dimensions),
        hop_latency_s=fields.number("hop_latency", parse_time, 1e-9, 1e-3, format_time)
        if "hop_latency" in fields
        else base.hop_latency_s,
        failed=fields.texts("failed") or base.failed,
        background=_background(fields, base.background),
        in_network_reduction=fields.flag("in_network_reduction", base.in_network_reduction),
        path=_path(fields, document, base.path),
        seed=fields.number("seed", parse_count, 0, 2**31, format_count) if "seed" in fields else base.seed,
    )


def read_ratio(fields: Fields, name: str, default: float) -> float:
    """Reads the ratio of the rate from below to the rate upwards: 2 or 2:1."""
    return fields.number(name, _ratio, 1.0, 1_000.0, "{:g}".format) if name in fields else default


def _ratio(value: str | float, *, where: str | None = None) -> float:
    text = str(value).strip()
    try:
        return parse_factor(text.removesuffix(":1"), where=where)
    except InputError:
        raise InputError(
            "bad-value", f'"{text}" is no oversubscription', where=where, hint="expected a factor: 2 or 2:1"
        ) from None


def _kind(text: str, where: str) -> TopologyKind:
    spelling = "-".join(text.casefold().replace("_", " ").replace("-", " ").split())
    kind = _SPELLINGS.get(spelling, spelling)
    if kind not in TOPOLOGY_KINDS:
        raise InputError(
            "unknown-name",
            f'no kind of network is called "{shortened(text)}"{did_you_mean(kind, TOPOLOGY_KINDS)}',
            where=where,
            hint=f"known: {' '.join(TOPOLOGY_KINDS)}",
        )
    return cast("TopologyKind", kind)


def _check_keys(fields: Fields, kind: TopologyKind) -> None:
    """Raises an error for a key that means nothing here, rather than ignoring it."""
    for name in _NOT_OF.get(kind, ("dimensions", "path")):
        if name in fields:
            raise InputError(
                "unknown-field",
                f"{name} says nothing of a network of kind {kind}",
                where=fields.where(name),
                hint="leave it out",
            )
    needed = {"torus": "dimensions", "file": "path"}.get(kind)
    if needed and needed not in fields:
        example = {"torus": "dimensions: [4, 4]", "file": "path: network.yaml"}[kind]
        raise InputError(
            "missing-field", f"field {needed} is missing", where=fields.where(needed), hint=f"expected e.g. {example}"
        )


def _routing(fields: Fields, default: Routing) -> Routing:
    text = fields.text("routing", default).casefold()
    known = get_args(Routing)
    if text not in known:
        raise InputError(
            "unknown-name",
            f'no routing is called "{shortened(text)}"{did_you_mean(text, known)}',
            where=fields.where("routing"),
            hint=f"known: {' '.join(known)}",
        )
    return cast("Routing", text)


def _count(fields: Fields, name: str, default: int, most: int) -> int:
    return fields.number(name, parse_count, 1, most, format_count) if name in fields else default


def _dimensions(fields: Fields, default: tuple[int, ...]) -> tuple[int, ...]:
    if "dimensions" not in fields:
        return default
    sizes = []
    for text in fields.texts("dimensions"):
        for word in text.casefold().replace("×", "x").split("x"):
            size = parse_count(word.strip(), where=fields.where("dimensions"))
            if not 1 <= size <= 1_000_000:
                problem = f"a torus is not {size:,} nodes long"
                raise InputError(
                    "out-of-range", problem, where=fields.where("dimensions"), hint="for example dimensions: [4, 4]"
                )
            sizes.append(size)
    return tuple(sizes)


def _background(fields: Fields, default: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """Rates by the names of links."""
    if "background" not in fields:
        return default
    document = fields.document
    entries = document.entries(fields["background"], "a mapping of links to rates, e.g. {leaf 3 - spine 1: 100Gbps}")
    return tuple((" ".join(name.split()), _background_rate(document, value)) for name, (_, value) in entries.items())


def _background_rate(document: Document, node: yaml.Node) -> float:
    return Fields(document, node, {"rate": node}).number("rate", parse_bandwidth, 1.0, 1e15, format_bandwidth)


def _path(fields: Fields, document: Document, default: str | None) -> str | None:
    """A path from the folder of the file that names it."""
    if "path" not in fields:
        return default
    path = str(Path(document.path).parent / document.text(fields["path"], "path: a file"))
    record_named_input(path)
    return path
