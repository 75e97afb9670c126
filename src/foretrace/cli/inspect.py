"""`foretrace inspect`: say what a file is and what is in it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.basics.files import given_paths
from foretrace.cli.emit import emit
from foretrace.cli.groups import JOB, OUTPUT, OutputOptions, takes
from foretrace.inputs.registry import open_input
from foretrace.report.catalogue.hardware import print_item, show_json
from foretrace.report.catalogue.show import find_hardware, is_hardware
from foretrace.report.inventory import print_inventory
from foretrace.report.views import view_of

EXAMPLES = """Examples:

foretrace inspect examples/llama405b_1024gpu.txt

foretrace inspect examples/traces/moe_ex_situ_rank2.txt

foretrace inspect rank0.json.gz

foretrace inspect config.json --gpus 64

foretrace inspect job.foretrace --json"""


@takes(JOB, OUTPUT)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Anything that Foretrace can read: a workload, folders of rank traces, a program, profiler tables and "
            "traces, a saved answer, a config.json, a job.yaml, a cluster file.",
            show_default=False,
        ),
    ],
    options: dict[str, Any],
    output: OutputOptions,
) -> None:
    """Say what a file is, what is in it and what is odd about it."""
    given = given_paths(paths)
    if len(given) == 1 and is_hardware(given[0]):
        item = find_hardware(given[0])
        emit(lambda: show_json(item), lambda: print_item(item), output, lambda: view_of(item))
        return
    inventory = open_input(given, options).inventory()
    emit(inventory.to_dict, lambda: print_inventory(inventory), output, lambda: view_of(inventory))
