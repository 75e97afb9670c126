"""`foretrace list`: list what can be named."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.basics.errors import UsageError, did_you_mean
from foretrace.cli.emit import emit
from foretrace.report.catalogue.lists import KINDS, list_dict, print_list

EXAMPLES = """Examples:

foretrace list models

foretrace list clusters

foretrace list schedules

foretrace list gpus --json"""


def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List what can be named: models, hardware, software, schedules, modules of a layer, precisions, codes …"""
    if not kind:
        raise UsageError("missing-argument", "a list of what?", hint=f"foretrace list {'|'.join(KINDS)}")
    name = kind.lower()
    if name not in KINDS:
        problem = f'there is no list of "{kind}"{did_you_mean(kind, KINDS)}'
        raise UsageError("unknown-name", problem, hint=f"known: {' '.join(KINDS)}")
    from foretrace.cli.groups import OutputOptions

    emit(lambda: list_dict(name), lambda: print_list(name), OutputOptions(as_json, None))
