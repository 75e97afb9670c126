"""`foretrace report`: write saved answers as one page."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from foretrace.basics.errors import InputError
from foretrace.basics.progress import doing
from foretrace.cli.emit import page_of, write_page
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.answer import Answer

EXAMPLES = """Examples:

foretrace report before.answer -o report.html

foretrace report before.answer after.answer -o report.html"""


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="ANSWER...",
            help="Answers that --save wrote. Of several, the page also shows each one's difference to the one before.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.html", help="The page to write.", show_default=False)
    ],
) -> None:
    """Write saved answers as one page to look at and to mail: a file that needs no network."""
    from foretrace.readings.compare import compare
    from foretrace.report.views import view_of

    with doing("reading the answers"):
        answers = [_saved(path) for path in paths]
    comparisons = [compare(after, before) for before, after in pairwise(answers)]
    write_page([*(page_of(answer) for answer in answers), *map(view_of, comparisons)], output)


def _saved(path: str) -> Answer:
    from foretrace.readings.answer.answer_file import open_answer

    job = open_input([path])
    if job.answer_file is None:
        hint = "foretrace simulate … --save job.answer writes one; or add --html report.html to the command"
        raise InputError("wrong-format", f"{job.title} is {job.noun}, not a saved answer", where=path, hint=hint)
    return open_answer(job.answer_file)
