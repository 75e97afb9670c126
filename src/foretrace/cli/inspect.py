"""`foretrace inspect`: say what a file is and what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLES = """Examples:

foretrace inspect examples/llama405b_1024gpu.txt

foretrace inspect job.foretrace --json"""


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A SimAI/AICB workload or a program (.foretrace).", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a file is, what is in it and what is odd about it."""
    from foretrace.lower.load import file_kind

    result, screen = _program(file) if file_kind(file) == "program" else _workload(file)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        screen()


def _program(file: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.analysis.inventory import take_inventory
    from foretrace.program.file import load
    from foretrace.report.inventory import inventory_json, print_inventory

    inventory = take_inventory(load(file), file.stat().st_size)
    return inventory_json(inventory), lambda: print_inventory(inventory, file.name)


def _workload(file: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.formats.aicb import read_workload
    from foretrace.lower.aicb.inventory import take_inventory
    from foretrace.report.workload import print_workload, workload_json

    inventory = take_inventory(read_workload(file))
    return workload_json(inventory), lambda: print_workload(inventory, file.name)
