"""Fits styled lines to the width of a screen: the only place where lines are folded.

A stream folds lines where its width is known: COLUMNS where it is set, otherwise the width of the terminal. A pipe has
neither, and every fact stays on one line there, for `grep` and `cut`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TextIO

from foretrace.basics.errors import one_line, printable

Span = tuple[str, str]
"""Text and its style."""
Line = list[Span]

MIN_WIDTH: Final = 60
_MIN_NAME: Final = 20
_GAP: Final = "  "
_LABEL: Final = re.compile(r" *(?:[0-9]+\. |\S+(?: \S+)* {2,}|(?:error|warning|note): )(?=\S)")
_BREAK: Final = re.compile(r" +")


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table before it is laid out; the last column keeps its text, the others are as wide as their widest cell."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int

    def lines(self, width: int | None) -> list[Line]:
        """Returns the head, whose first cell is bold, and the rows.

        Where they are wider than `width`, the names in the first column are shortened. Where that is not enough, the
        other columns are folded into several blocks below each other, each with the names.
        """
        widths = [max(len(cell) for cell in column) for column in zip(self.heads, *self.rows, strict=True)]
        if width is None:
            return self._block(list(range(1, len(widths))), widths)
        room = width - len(_GAP) - sum(size + len(_GAP) for size in widths[1:])
        if room < widths[0]:
            fixed = max(len(self.heads[0]), _MIN_NAME)
            widths[0] = min(widths[0], max(room, fixed))
        blocks: list[list[int]] = [[]]
        used = start = len(_GAP) + widths[0]
        for number, size in enumerate(widths[1:], 1):
            if blocks[-1] and used + len(_GAP) + size > width:
                blocks.append([])
                used = start
            blocks[-1].append(number)
            used += len(_GAP) + size
        first, *others = (self._block(block, widths) for block in blocks)
        return [*first, *(line for block in others for line in ([], *block))]

    def _block(self, columns: list[int], widths: Sequence[int]) -> list[Line]:
        def cell(cells: Sequence[str], number: int) -> str:
            side = "<" if number < self.text_columns else ">"
            return f"{_shortened(cells[number], widths[number]):{side}{widths[number]}}"

        def text(cells: Sequence[str]) -> str:
            return "".join(_GAP + cell(cells, number) for number in columns)

        lines: list[Line] = [[(_GAP + cell(self.heads, 0), "bold"), (text(self.heads), "")]]
        # A row of a later block that is empty there says nothing.
        rows = [row for row in self.rows if columns[:1] == [1] or any(row[number] for number in columns)]
        return lines + [[(_GAP + cell(row, 0) + text(row), "")] for row in rows]


class TableLine(list[Span]):
    """A line of a table, which is laid out again where it is wider than the screen."""

    def __init__(self, spans: Line, table: TableLayout) -> None:
        super().__init__(spans)
        self.table = table


def line_width(stream: TextIO) -> int | None:
    """Returns the width at which lines are folded; None where the stream is not a terminal and COLUMNS is not set.

    COLUMNS counts as not set where it is not a positive number.
    """
    with suppress(ValueError):
        columns = int(os.environ.get("COLUMNS", ""))
        if columns > 0:
            return max(columns, MIN_WIDTH)
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return max(columns, MIN_WIDTH) if columns > 0 else None


def fit(lines: Sequence[Line], width: int | None) -> list[Line]:
    """Returns lines none of which is longer than `width`, unless one word is; control characters are replaced."""
    fitted: list[Line] = []
    for table, group in groupby(lines, key=lambda line: line.table if isinstance(line, TableLine) else None):
        shown = list(group)
        if table is not None and width is not None and any(_length(line) > width for line in shown):
            shown = table.lines(width)
        for line in shown:
            safe = [(one_line(printable(text)), style) for text, style in line]
            fitted += [safe] if width is None else _folded(safe, width)
    return fitted


def fit_text(text: str, stream: TextIO) -> str:
    """Returns the lines of a message as a stream can show them."""
    lines: list[Line] = [[(line, "")] for line in text.split("\n")]
    return "\n".join("".join(part for part, _ in line) for line in fit(lines, line_width(stream)))


def _length(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def _folded(line: Line, width: int) -> Iterator[Line]:
    """Yields the parts of a line; all but the first begin below its text, after its label."""
    text = "".join(part for part, _ in line).rstrip()
    if len(text) <= width:
        yield line
        return
    indent = _indent(text, width)
    begin, room = 0, width
    while len(text) - begin > room:
        low = begin + (indent if begin == 0 else 0)
        stop, following = _break(text, low, begin + room)
        yield ([] if begin == 0 else [(" " * indent, "")]) + _slice(line, begin, stop)
        begin, room = following, width - indent
        if begin >= len(text):
            return
    yield ([] if begin == 0 else [(" " * indent, "")]) + _slice(line, begin, len(text))


def _indent(text: str, width: int) -> int:
    """Returns where lines go on: after the label of a line, otherwise a little to the right of where it begins."""
    label = _LABEL.match(text)
    if label is not None and label.end() <= width // 3:
        return label.end()
    leading = len(text) - len(text.lstrip())
    return leading if leading > len(_GAP) + 2 else leading + len(_GAP)


def _break(text: str, low: int, high: int) -> tuple[int, int]:
    """Returns where a line ends and where the next begins, best between columns, then items, options and words.

    A number stays with what follows it. A word that is too long is not broken.
    """
    gaps = [gap for gap in _BREAK.finditer(text, low) if gap.start() > low]
    near = [gap for gap in gaps if gap.start() <= high]
    if not near:
        return (gaps[0].start(), gaps[0].end()) if gaps else (len(text), len(text))
    half = (low + high) // 2
    choices = (
        [gap for gap in near if len(gap[0]) > 1],
        [gap for gap in near if text[gap.start() - 1] == "·" and gap.start() > half],
        [gap for gap in near if text.startswith("--", gap.end()) and gap.start() > half],
        [gap for gap in near if not text[gap.start() - 1].isdigit() and text[gap.end() : gap.end() + 1] not in "·%"],
        near,
    )
    chosen = next(choice[-1] for choice in choices if choice)
    return chosen.start(), chosen.end()


def _slice(line: Line, begin: int, stop: int) -> Line:
    part: Line = []
    at = 0
    for text, style in line:
        chosen = text[max(begin - at, 0) : max(stop - at, 0)]
        if chosen:
            part.append((chosen, style))
        at += len(text)
    return part


def _shortened(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
