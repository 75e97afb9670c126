"""`foretrace inspect`: say what a file is and what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

foretrace inspect job.foretrace

foretrace inspect job.foretrace --json"""


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A program file (.foretrace).", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a file is, what is in it and what is odd about it."""
    from foretrace.analysis.inventory import take_inventory
    from foretrace.program.file import load
    from foretrace.report.inventory import inventory_json, print_inventory

    inventory = take_inventory(load(file), file.stat().st_size)
    if as_json:
        print(json.dumps(inventory_json(inventory), allow_nan=False))
    else:
        print_inventory(inventory, file.name)
