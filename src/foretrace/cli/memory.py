"""`foretrace memory`: what every stage of a job holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from foretrace.cli import arguments
from foretrace.cli.plan_options import EXPLAINED, with_plan_options

EXAMPLES = """Examples:

foretrace memory llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

foretrace memory llama3-8b --gpus 8 --cluster h100-dgx --zero 3 --json"""


@with_plan_options
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE", help=EXPLAINED, show_default=False)],
    options: dict[str, Any],
    cluster: arguments.Cluster = None,
    no_silicon: arguments.NoSilicon = False,
    as_json: arguments.AsJson = False,
    output: arguments.Output = None,
) -> None:
    """Show what each stage holds at its peak, by kind, and whether it fits; exit code 4 where it does not."""
    import json

    from foretrace.analysis.predict import find_relief, misfit
    from foretrace.cli.predict import predicted
    from foretrace.cli.progress import Progress
    from foretrace.report.json import write_json
    from foretrace.report.memory import memory_json, print_memory

    silicon = False if no_silicon else None
    answer = predicted(model, options, cluster, "best", True, silicon=silicon, explain=False)
    found = None
    if not answer.memory.fits:
        with Progress("looking for what would fit"):
            found = find_relief(answer, silicon=silicon)
    result = memory_json(answer, found)
    if output is not None:
        write_json(result, output)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_memory(answer)
    if not answer.memory.fits:
        raise misfit(answer, found)
