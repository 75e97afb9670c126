"""`foretrace show`: one model, cluster, node, GPU or NIC, with where its figures come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.errors import InputError, UsageError, did_you_mean, nearest

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
    from foretrace.hardware.fabric.fabric import Fabric
    from foretrace.hardware.presets import Kind
    from foretrace.models.model import Model

EXAMPLES = """Examples:

foretrace show llama3-70b

foretrace show h100-dgx

foretrace show h100 --as gpu

foretrace show h100-dgx --nodes 128

foretrace show my-cluster.yaml --json"""

_KINDS: dict[str, Kind] = {"cluster": "cluster", "node": "node", "gpu": "gpu", "nic": "nic"}
_KNOWN = ("model", *_KINDS)
_LIKE = 0.6


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name of `foretrace list`, or a file.", show_default=False)
    ],
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="KIND", help="model, cluster, node, gpu or nic, where it is several."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", help="Build a cluster's network for so many nodes and count its switches."
        ),
    ] = None,
    simai: Annotated[
        Path | None,
        typer.Option("--simai-topology", metavar="FILE", help="Write that network as a topology file of SimAI."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show a model, cluster, node, GPU or NIC and the sources of its figures."""
    if kind is not None and kind not in _KNOWN:
        raise UsageError(f"--as {kind} is not known{did_you_mean(kind, _KNOWN)}", hint=f"known: {' '.join(_KNOWN)}")
    from foretrace.models import presets as models
    from foretrace.models.load import is_file

    if kind == "model" or (kind is None and not ("/" in name and is_file(Path(name))) and models.matches(name)):
        _show_model(name, as_json)
        return
    from foretrace.hardware import presets
    from foretrace.report.hardware import print_item, show_json

    try:
        item = presets.anything(name) if kind is None else presets.OF_KIND[_KINDS[kind]](name)
    except InputError:
        near = nearest(name, models.names(), _LIKE) if kind is None else None
        if near is None:
            raise
        hint = "see foretrace list models (or clusters, nodes, gpus, nics)"
        raise InputError(f'nothing is called "{name}"; did you mean {near}?', hint=hint) from None
    fabric = _network(item, nodes, simai)
    if as_json:
        print(json.dumps(show_json(item, fabric), allow_nan=False))
    else:
        print_item(item, fabric)


def _network(item: Cluster | Node | Gpu | Nic, nodes: int | None, simai: Path | None) -> Fabric | None:
    """The network of a cluster whose nodes are counted, written for SimAI where that was asked for."""
    from foretrace.hardware.cluster import Cluster

    count = nodes if nodes is not None else item.nodes if isinstance(item, Cluster) else None
    if not isinstance(item, Cluster) or count is None:
        if nodes is not None or simai is not None:
            hint = "say for how many: --nodes 16" if isinstance(item, Cluster) else "name a cluster, or --as cluster"
            raise UsageError("only the network of a cluster of so many nodes can be built", hint=hint)
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


def _show_model(name: str, as_json: bool) -> None:
    from foretrace.report.models import print_model, show_json

    model = _model(name)
    if as_json:
        print(json.dumps(show_json(model), allow_nan=False))
    else:
        print_model(model)


def _model(name: str) -> Model:
    """The model that is called so, or that a configuration or a job file describes."""
    if name.lower().endswith((".yaml", ".yml")):
        from foretrace.workload.job_file import read_job

        return read_job(name).model
    from foretrace.models.load import load_model

    return load_model(name)
