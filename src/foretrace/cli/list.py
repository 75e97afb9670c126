"""`foretrace list`: the models and the hardware that come with the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from foretrace.hardware.presets import Kind

EXAMPLES = """Examples:

foretrace list models

foretrace list clusters

foretrace list gpus --json"""

_KINDS: dict[str, Kind] = {"gpus": "gpu", "nics": "nic", "nodes": "node", "clusters": "cluster"}
_KNOWN = ("models", *_KINDS)


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="models, gpus, nics, nodes or clusters.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List the models, GPUs, NICs, nodes or clusters that can be named."""
    if not kind:
        raise UsageError("a list of what?", hint=f"foretrace list {'|'.join(_KNOWN)}")
    if kind.lower() == "models":
        _list_models(as_json)
        return
    singular = _KINDS.get(kind.lower())
    if singular is None:
        raise UsageError(f'there is no list of "{kind}"{did_you_mean(kind, _KNOWN)}', hint=f"known: {' '.join(_KNOWN)}")
    from foretrace.hardware import presets
    from foretrace.report.hardware import list_json, print_list

    items = [presets.OF_KIND[singular](name) for name in presets.names(singular)]
    if as_json:
        print(json.dumps(list_json(f"{singular}s", items), allow_nan=False))
    else:
        print_list(items)


def _list_models(as_json: bool) -> None:
    from foretrace.models import presets
    from foretrace.report.models import list_json, print_list

    models = [presets.model(name) for name in presets.names()]
    if as_json:
        print(json.dumps(list_json(models), allow_nan=False))
    else:
        print_list(models)
