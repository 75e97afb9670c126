"""Finds the models and hardware that `foretrace show` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from foretrace.documents import Document
from foretrace.errors import ForetraceError, InputError, UsageError, nearest
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
from foretrace.hardware.fabric.fabric import Fabric
from foretrace.hardware.presets import Kind
from foretrace.models import presets as models
from foretrace.models.load import load_model
from foretrace.models.model import Model

Hardware = Cluster | Node | Gpu | Nic
Emit = Callable[[Callable[[], dict[str, Any]], Callable[[], object]], None]
"""Prints JSON or a screen."""

HARDWARE_KINDS: Final[tuple[Kind, ...]] = ("cluster", "node", "gpu", "nic")
_LIKENESS: Final = 0.6
_YAML: Final = (".yaml", ".yml")


def is_hardware(path: str) -> bool:
    """Returns whether a file describes a cluster, by the keys of its YAML."""
    if not path.lower().endswith(_YAML) or not Path(path).is_file():
        return False
    try:
        document = Document(path, "file", "expected YAML", "")
        keys = document.entries(document.compose(document.read()), "a mapping")
    except ForetraceError:
        return False
    return "model" not in keys


def find_hardware(name: str, kind: Kind | None = None) -> Hardware:
    """Returns the hardware of a name or file; an error names what is similar."""
    try:
        return presets.anything(name) if kind is None else presets.OF_KIND[kind](name)
    except InputError:
        near = nearest(name, models.names(), _LIKENESS) if kind is None else None
        if near is None:
            raise
        hint = "see foretrace list models (or clusters, nodes, gpus, nics)"
        problem = f'nothing is called "{name}"; did you mean {near}?'
        raise InputError("unknown-name", problem, hint=hint) from None


def show_hardware(name: str, emit: Emit) -> None:
    """Shows a cluster, node, GPU or NIC with the sources of its figures."""
    from foretrace.report.hardware import print_item, show_json

    item = find_hardware(name)
    emit(lambda: show_json(item), lambda: print_item(item))


def find_model(name: str) -> Model:
    """Returns the model of a name, or the one that a configuration or a job file describes."""
    if name.lower().endswith(_YAML):
        from foretrace.workload.job_file import read_job

        return read_job(name).model
    return load_model(name)


def is_model(name: str) -> bool:
    """Returns whether a name or file is a model's."""
    if Path(name).is_file():
        return name.lower().endswith(".json") or (name.lower().endswith(_YAML) and not is_hardware(name))
    return bool(models.matches(name))


def cluster_fabric(item: Hardware, nodes: int | None, simai: Path | None) -> Fabric | None:
    """Builds the network of a cluster whose nodes are counted; writes it for SimAI where that is asked for."""
    count = nodes if nodes is not None else item.nodes if isinstance(item, Cluster) else None
    if not isinstance(item, Cluster) or count is None:
        if nodes is not None or simai is not None:
            hint = "say for how many: --nodes 16" if isinstance(item, Cluster) else "name a cluster, or --as cluster"
            problem = "only the network of a cluster of a known number of nodes can be built"
            raise UsageError("option-not-for-command", problem, hint=hint)
        return None
    from foretrace.hardware.fabric.build import MOST_GPUS, fabric_of

    if nodes is None and simai is None and count * item.node.gpus > MOST_GPUS:
        return None
    fabric = fabric_of(item, count, merge=False)
    if simai is not None:
        from foretrace.formats.simai_topology import write_topology
        from foretrace.hardware.fabric.simai import simai_topology

        write_topology(simai_topology(fabric, item.gpu.name, str(simai)), simai)
    return fabric
