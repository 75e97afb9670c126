"""Draws the picture of the README: the screen of the demo command, as an SVG made from its real output.

    python tools/answer_picture.py        # writes docs/img/answer.svg

The picture ends before the lines on prices and notes, which are longer than it is wide. The numbers are those of the
core install (`--no-silicon`).
"""

from __future__ import annotations

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "img" / "answer.svg"
COMMAND: Final = "predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024"
WIDTH: Final = 100
_END: Final = "  prices "
"""How the first line begins that the picture leaves out."""


def screen_lines() -> list[Text]:
    """Returns the lines that the picture shows, with their colours: the command, and its screen up to the prices."""
    from foretrace.cli.main import run

    kept = dict(os.environ)
    stream = StringIO()
    try:
        os.environ.pop("NO_COLOR", None)
        os.environ.update(FORCE_COLOR="1", COLUMNS=str(WIDTH), TERM="xterm-256color", COLORTERM="")
        with redirect_stdout(stream):
            run([*COMMAND.split(), "--no-silicon"])
    except SystemExit as stopped:
        if stopped.code:
            raise
    finally:
        os.environ.clear()
        os.environ.update(kept)
    lines = [Text(f"$ foretrace {COMMAND}", style="bold")]
    for line in stream.getvalue().splitlines():
        text = Text.from_ansi(line)
        if text.plain.startswith(_END):
            break
        lines.append(text)
    while not lines[-1].plain.strip():
        lines.pop()
    return lines


def drawn(lines: list[Text]) -> str:
    """Returns an SVG of lines of text."""
    width = max(len(line.plain.rstrip()) for line in lines) + 1
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, soft_wrap=True)
    svg = console.export_svg(title="foretrace", unique_id="answer")
    # Pages that show pictures load no fonts for them.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def picture_lines(svg: str) -> list[str]:
    """Returns the lines of text that an SVG of `drawn` shows, blanks at their ends left out."""
    tree = ElementTree.fromstring(svg)
    rows: dict[float, str] = {}
    for element in tree.iter("{http://www.w3.org/2000/svg}text"):
        if not re.search(r"-line-\d+", element.get("clip-path") or "") or not element.text:
            continue
        x, y, width = (float(element.get(name) or 0) for name in ("x", "y", "textLength"))
        column = round(x / (width / len(element.text))) if width else 0
        rows[y] = rows.get(y, "").ljust(column) + element.text.replace("\N{NO-BREAK SPACE}", " ")
    return [rows[row].rstrip() for row in sorted(rows)]


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(drawn(screen_lines()), encoding="utf-8")
    print(f"{PICTURE} written")
