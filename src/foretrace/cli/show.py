"""`foretrace show`: show a model, cluster, node, GPU or NIC, with the sources of its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.basics.errors import UsageError, did_you_mean
from foretrace.basics.files import GivenPath
from foretrace.cli.emit import emit
from foretrace.report.catalogue.hardware import print_item
from foretrace.report.catalogue.hardware import show_json as hardware_json
from foretrace.report.catalogue.models import print_model
from foretrace.report.catalogue.models import show_json as model_json
from foretrace.report.catalogue.show import (
    HARDWARE_KINDS,
    cluster_fabric,
    find_hardware,
    find_model,
    is_hardware,
    is_model,
)

EXAMPLES = """Examples:

foretrace show llama3-70b

foretrace show h100-dgx

foretrace show h100 --as gpu

foretrace show h100-dgx --nodes 128

foretrace show config.json

foretrace show my-cluster.yaml --json"""

_KNOWN = ("model", *HARDWARE_KINDS)


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name of `foretrace list`, or any file that Foretrace can read.", show_default=False
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="KIND", help="model, cluster, node, gpu or nic, where it is several."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", help="Build a cluster's network for N nodes and count its switches."),
    ] = None,
    simai: Annotated[
        Path | None,
        typer.Option("--simai-topology", metavar="OUT", help="Write that network as a topology file of SimAI."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show a model, cluster, node, GPU or NIC and the sources of its figures; of other files what inspect says."""
    if kind is not None and kind not in _KNOWN:
        problem = f"--as {kind} is not known{did_you_mean(kind, _KNOWN)}"
        raise UsageError("unknown-name", problem, hint=f"known: {' '.join(_KNOWN)}")

    def out(result: Any, screen: Any) -> None:
        from foretrace.cli.groups import OutputOptions

        emit(result, screen, OutputOptions(as_json, None))

    path = GivenPath(name)
    if kind == "model" or (kind is None and is_model(path)):
        model = find_model(path)
        out(lambda: model_json(model), lambda: print_model(model))
    elif kind is None and (path.is_file or path.is_folder) and not is_hardware(path):
        from foretrace.inputs.registry import open_input
        from foretrace.report.inventory import print_inventory

        inventory = open_input([path]).inventory()
        out(inventory.to_dict, lambda: print_inventory(inventory))
    else:
        item = find_hardware(
            path, None if kind is None else next(choice for choice in HARDWARE_KINDS if choice == kind)
        )
        fabric = cluster_fabric(item, nodes, simai)
        out(lambda: hardware_json(item, fabric), lambda: print_item(item, fabric))
