"""Finds the models and hardware that `foretrace show` shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError, UsageError, nearest
from foretrace.basics.files import AnyFile, GivenPath
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
from foretrace.hardware.fabric.fabric import Fabric
from foretrace.hardware.presets import Kind
from foretrace.models import presets as models
from foretrace.models.load import load_model
from foretrace.models.model import Model

Hardware = Cluster | Node | Gpu | Nic
HARDWARE_KINDS: Final[tuple[Kind, ...]] = ("cluster", "node", "gpu", "nic")
_LIKENESS: Final = 0.6
_YAML: Final = (".yaml", ".yml")
_MODEL_KEY: Final = re.compile(rb"""(?:^|\{)[ \t]*["']?model["']?[ \t]*:""", re.MULTILINE)


def is_hardware(path: GivenPath) -> bool:
    """Returns whether a file is YAML that describes a cluster: a job file has a model."""
    is_yaml = path.is_file and path.text.lower().endswith(_YAML)
    return is_yaml and _MODEL_KEY.search(path.files[0].head()) is None


def find_hardware(path: GivenPath, kind: Kind | None = None) -> Hardware:
    """Returns the hardware of a name or file; an error names what is similar."""
    if kind is None and is_hardware(path):
        return presets.load(path.files[0])
    name = path.text
    try:
        return presets.anything(name) if kind is None else presets.OF_KIND[kind](name)
    except InputError:
        near = nearest(name, models.names(), _LIKENESS) if kind is None else None
        if near is None:
            raise
        hint = "see foretrace list models (or clusters, nodes, gpus, nics)"
        problem = f'nothing is called "{name}"; did you mean {near}?'
        raise InputError("unknown-name", problem, hint=hint) from None


def is_model(path: GivenPath) -> bool:
    """Returns whether a name or file is a model's."""
    if path.is_file:
        return path.text.lower().endswith((".json", *_YAML)) and not is_hardware(path)
    return bool(models.matches(path.text))


def find_model(path: GivenPath) -> Model:
    """Returns the model of a name, or the one that a configuration or a job file describes."""
    file: AnyFile = path.files[0] if path.is_file else path.text
    if path.text.lower().endswith(_YAML):
        from foretrace.workload.job_file import read_job

        return read_job(file).model
    return load_model(file)


def cluster_fabric(item: Hardware, nodes: int | None, simai: Path | None) -> Fabric | None:
    """Builds the network of a cluster whose nodes are counted; writes it for SimAI where that is asked for."""
    count = nodes if nodes is not None else item.nodes if isinstance(item, Cluster) else None
    if not isinstance(item, Cluster) or count is None:
        if nodes is not None or simai is not None:
            hint = "say for how many: --nodes 16" if isinstance(item, Cluster) else "name a cluster, or --as cluster"
            problem = "only the network of a cluster of a known number of nodes can be built"
            raise UsageError("option-not-for-command", problem, hint=hint)
        return None
    from foretrace.hardware.fabric.build import MAX_GPUS, fabric_of

    if nodes is None and simai is None and count * item.node.gpus > MAX_GPUS:
        return None
    fabric = fabric_of(item, count, merge=False)
    if simai is not None:
        from foretrace.hardware.fabric.designs.simai_topology import simai_topology, write_topology

        write_topology(simai_topology(fabric, item.gpu.name, str(simai)), simai)
    return fabric
