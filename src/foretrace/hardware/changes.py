"""Changes a cluster by its figures: a faster NIC, more power, another GPU.

A change is a factor (`nic` 2.0 is twice the rate) or, as text, a factor, an amount or a name: `2x`, `800Gbps`, `500W`,
`h200-sxm`. A GPU with changed figures stays a variation of its preset (`Gpu.base`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.units import (
    format_bandwidth,
    format_bytes,
    format_flops,
    marked_factor,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_power,
)
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster, Gpu

Change = float | str
"""A factor, or a text: a factor with x, an amount, a name."""

MAX_CHANGE: Final = 1000.0
"""The factor beyond which a figure is a slip of the pen: efficiencies of today's GPUs say nothing about it."""


MIN_POWER: Final = 0.3
"""The share of a GPU's power below which it cannot run: at rest, an H200 draws 0.15 to 0.2 of its limit (NVML)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a cluster that can be changed.

    Attributes:
        title: What it is, for messages.
        read: Returns the figure in SI units, 0 where the cluster has none.
        scaled: Returns the cluster with the figure multiplied.
        parse: Reads an amount.
        show: Writes an amount.
        example: An amount as a user types it.
    """

    title: str
    read: Callable[[Cluster], float]
    scaled: Callable[[Cluster, float], Cluster]
    parse: Callable[[str], float]
    show: Callable[[float], str]
    example: str


def _gpu_figure(name: str) -> Callable[[Cluster, float], Cluster]:
    def scaled(cluster: Cluster, factor: float) -> Cluster:
        return with_gpu(cluster, _varied(cluster.gpu, **{name: getattr(cluster.gpu, name) * factor}))

    return scaled


def _scaled_peaks(cluster: Cluster, factor: float) -> Cluster:
    peaks = {dtype: peak * factor for dtype, peak in cluster.gpu.peak_flops.items()}
    return with_gpu(cluster, _varied(cluster.gpu, peak_flops=peaks))


def _scaled_nic(cluster: Cluster, factor: float) -> Cluster:
    nic = cluster.node.nic
    name = f"{nic.name.removesuffix('-changed')}-changed"
    faster = replace(nic, name=name, bytes_per_s=nic.bytes_per_s * factor)
    return replace(cluster, node=replace(cluster.node, nic=faster))


def _scaled_pcie(cluster: Cluster, factor: float) -> Cluster:
    """Scales PCIe; a link of another kind to the host stays as it is."""
    return with_gpu(cluster, _varied(cluster.gpu, pcie_bytes_per_s=cluster.gpu.pcie_bytes_per_s * factor))


FIGURES: Final[Mapping[str, Figure]] = {
    "nic": Figure(
        "rate of a NIC",
        lambda cluster: cluster.node.nic.bytes_per_s,
        _scaled_nic,
        parse_bandwidth,
        format_bandwidth,
        "800Gbps",
    ),
    "nvlink": Figure(
        "rate of a GPU's links",
        lambda cluster: cluster.gpu.link_bytes_per_s,
        _gpu_figure("link_bytes_per_s"),
        parse_bandwidth,
        format_bandwidth,
        "900GB/s",
    ),
    "pcie": Figure(
        "rate of PCIe",
        lambda cluster: cluster.gpu.pcie_bytes_per_s,
        _scaled_pcie,
        parse_bandwidth,
        format_bandwidth,
        "128GB/s",
    ),
    "hbm": Figure(
        "memory bandwidth",
        lambda cluster: cluster.gpu.memory_bytes_per_s,
        _gpu_figure("memory_bytes_per_s"),
        parse_bandwidth,
        format_bandwidth,
        "8TB/s",
    ),
    "memory": Figure(
        "memory of a GPU",
        lambda cluster: cluster.gpu.memory_bytes,
        _gpu_figure("memory_bytes"),
        parse_bytes,
        format_bytes,
        "192GiB",
    ),
    "flops": Figure(
        "bf16 peak (other dtypes in proportion)",
        lambda cluster: cluster.gpu.peak_flops.get("bf16", 0.0),
        _scaled_peaks,
        parse_flops,
        format_flops,
        "2000TFLOPS",
    ),
    "power": Figure(
        "power of a GPU",
        lambda cluster: cluster.gpu.power_w,
        _gpu_figure("power_w"),
        parse_power,
        lambda power_w: f"{power_w:,.0f} W" if power_w < 1e6 else f"{power_w:.3g} W",
        "500W",
    ),
}
"""The figures that can be changed, by name."""

PARTS: Final = ("gpu", "cluster")
"""The parts that a preset can replace, by name."""

CHANGES: Final = (*FIGURES, *PARTS)


def changed_cluster(cluster: Cluster, changes: Mapping[str, Change]) -> Cluster:
    """Returns a cluster with some figures or parts changed.

    Args:
        cluster: What to change.
        changes: Factors, amounts or names, by the names in `CHANGES`. A cluster is replaced before a GPU, and both
            before figures.

    Raises:
        InputError: A name, an amount or a factor cannot be meant, or the cluster has no such figure.
    """
    if "cluster" in changes:
        cluster = presets.cluster(str(changes["cluster"]))
    if "gpu" in changes:
        gpu = presets.gpu(str(changes["gpu"]))
        cluster = replace(with_gpu(cluster, gpu), name=f"{cluster.name} with {gpu.name}")
    figures = {name: change for name, change in changes.items() if name in FIGURES}
    description = ", ".join(describe_change(name, change) for name, change in figures.items())
    for name, change in figures.items():
        cluster = _scaled(cluster, name, change)
    return replace(cluster, name=f"{cluster.name} with {description}") if description else cluster


def check_change(name: str, text: str) -> None:
    """Raises an error where the text of a change cannot be read."""
    if name == "cluster":
        presets.cluster(text)
    elif name == "gpu":
        presets.gpu(text)
    else:
        _factor(name, text, 1.0, FIGURES[name])


def with_gpu(cluster: Cluster, gpu: Gpu) -> Cluster:
    """Returns a cluster whose nodes have another GPU, as many of them, and the same NICs."""
    node = cluster.node
    domain = node.domain_gpus if gpu.links and node.gpu.links else node.gpus if gpu.links else 1
    if gpu.bridged_gpus and node.gpus % gpu.bridged_gpus == 0:
        domain = gpu.bridged_gpus
    # GPUs of one maker are joined as they were: a switch joins NVIDIA's, and direct links AMD's.
    switched = node.switched if gpu.vendor == node.gpu.vendor else gpu.vendor == "NVIDIA"
    switched = switched and domain > 2 and not gpu.bridged_gpus
    return replace(cluster, node=replace(node, gpu=gpu, domain_gpus=domain, switched=switched))


def factor_of(name: str, change: Change) -> float:
    """Returns a change as a factor; an error where it is an amount or a name."""
    factor = marked_factor(change) if isinstance(change, str) else change
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not factor > 0:
        raise InputError("bad-value", f"what-if {name}: {change!r} is not a factor", hint=f"for example {name}=2x")
    return float(factor)


def describe_change(name: str, change: Change) -> str:
    """Returns a change in words: "nic 2×", "power 500 W", "gpu h200-sxm"."""
    if isinstance(change, str):
        factor = marked_factor(change)
        change = change.strip() if factor is None else factor
    return f"{name} {change}" if isinstance(change, str) else f"{name} {change:g}×"


def _varied(gpu: Gpu, **figures: object) -> Gpu:
    """Returns a variation of a GPU: measurements of its preset hold where the changed figures do not matter.

    A GPU that a file describes without a preset has no measurements, and neither has its variation.
    """
    if gpu.base:
        return replace(gpu, **figures)  # type: ignore[arg-type]
    base = gpu.name if gpu.name in presets.names("gpu") else ""
    named = {"name": f"{gpu.name}-changed", "title": f"{gpu.title}, changed", "base": base}
    return replace(gpu, **named, **figures)  # type: ignore[arg-type]


def _scaled(cluster: Cluster, name: str, change: Change) -> Cluster:
    figure = FIGURES[name]
    before = figure.read(cluster)
    if before <= 0:
        raise InputError(
            "missing-field",
            f"what-if {name}: {cluster.name} does not state the {figure.title}",
            hint="name another cluster, or write a cluster file that does",
        )
    factor = _factor(name, change, before, figure)
    if not 1 / MAX_CHANGE <= factor <= MAX_CHANGE:
        problem = (
            f"what-if {name}: {figure.show(before * factor)} is {factor:g} times the {figure.show(before)} there are"
        )
        raise InputError("out-of-range", problem, hint=f"factors lie between {1 / MAX_CHANGE:g} and {MAX_CHANGE:g}")
    if name == "power" and factor < MIN_POWER:
        problem = f"what-if power: {figure.show(before * factor)} is about what {cluster.gpu.title} draws at rest"
        raise InputError("out-of-range", problem, hint=f"at least {figure.show(MIN_POWER * before)}")
    return cluster if factor == 1 else figure.scaled(cluster, factor)


def _factor(name: str, change: Change, before: float, figure: Figure) -> float:
    if not isinstance(change, str):
        return factor_of(name, change)
    try:
        factor = marked_factor(change)
        return figure.parse(change) / before if factor is None else factor
    except InputError as error:
        hint = f"a factor or an amount: {name}=2x, {name}={figure.example}"
        raise InputError(error.code, f"what-if {name}={change}: {error.message}", hint=hint) from None
