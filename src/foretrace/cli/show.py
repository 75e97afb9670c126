"""`foretrace show`: one cluster, node, GPU or NIC, with where its figures come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from foretrace.hardware.presets import Kind

EXAMPLES = """Examples:

foretrace show h100-dgx

foretrace show h100 --as gpu

foretrace show my-cluster.yaml --json"""

_KINDS: dict[str, Kind] = {"cluster": "cluster", "node": "node", "gpu": "gpu", "nic": "nic"}


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name of `foretrace list`, or a cluster file.", show_default=False)
    ],
    kind: Annotated[
        str | None, typer.Option("--as", metavar="KIND", help="cluster, node, gpu or nic, where a name is several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show a cluster, node, GPU or NIC and the sources of its figures."""
    if kind is not None and kind not in _KINDS:
        raise UsageError(f"--as {kind} is not known{did_you_mean(kind, _KINDS)}", hint=f"known: {' '.join(_KINDS)}")
    from foretrace.hardware import presets
    from foretrace.report.hardware import print_item, show_json

    item = presets.anything(name) if kind is None else presets.OF_KIND[_KINDS[kind]](name)
    if as_json:
        print(json.dumps(show_json(item), allow_nan=False))
    else:
        print_item(item)
