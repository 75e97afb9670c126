"""`foretrace report`: write saved answers as one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.progress import doing
from foretrace.cli.emit import write_page
from foretrace.cli.groups import check_html
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.answer import Answer

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View

EXAMPLES = """Examples:

foretrace report before.answer -o report.html

foretrace report before.answer after.answer -o report.html"""


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="ANSWER...",
            help="Answers written by --save. With several, the page begins with the difference of each to the one "
            "before.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.html", help="The page to write.", show_default=False)
    ],
) -> None:
    """Write saved answers as one page to look at and to mail: a file that needs no network."""
    check_html(output)
    with doing("reading the answers"):
        answers = dict(zip(_names(paths), map(_saved, paths), strict=True))
    differences = [_difference(*pair) for pair in pairwise(answers.items())]
    write_page([*differences, *(_article(name, answer) for name, answer in answers.items())], output)


def _names(paths: Sequence[str]) -> list[str]:
    """Returns what answers are called: the names of their files, with their folders where two are the same."""
    if len(set(paths)) < len(paths):
        twice = next(path for path, count in Counter(paths).items() if count > 1)
        raise UsageError("repeated-option", f"{twice} is named twice", hint="name each answer once")
    names = [Path(path).name for path in paths]
    return [path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]


def _article(name: str, answer: Answer) -> View:
    """Returns the view of an answer under the name of its file."""
    from foretrace.report.views import view_of

    view = view_of(answer)
    return replace(view, title=f"{name}: {view.title}")


def _difference(before: tuple[str, Answer], after: tuple[str, Answer]) -> View:
    """Returns the difference of two answers. If exactly one was measured, it is the base."""
    from foretrace.readings.compare import compare
    from foretrace.report.views import view_of

    base, subject = before, after
    if subject[1].timeline.recorded and not base[1].timeline.recorded:
        base, subject = subject, base
    view = view_of(compare(subject[1], base[1], names=(subject[0], base[0])))
    return replace(view, title=f"{subject[0]} compared with {base[0]}")


def _saved(path: str) -> Answer:
    from foretrace.readings.answer.answer_file import open_answer

    job = open_input([path])
    if job.answer_file is None:
        hint = "foretrace simulate … --save job.answer writes one; or add --html report.html to the command"
        raise InputError("wrong-format", f"{job.title} is {job.noun}, not a saved answer", where=path, hint=hint)
    return open_answer(job.answer_file)
