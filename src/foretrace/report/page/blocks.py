"""Defines what an answer looks like as a page: a view of sections, each a few blocks.

A block is plain text and numbers; `markup` turns it into HTML and escapes it. All blocks can be read without a picture:
bars, stacks and charts come with their numbers as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from foretrace.basics.errors import Diagnostic
from foretrace.basics.origin import Origin

if TYPE_CHECKING:
    from foretrace.report.page.gantt_chart import GanttChart

Tone = Literal["", "good", "bad", "muted"]


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A headline number: its name, its value with unit, and a remark. `share` fills a bar below it, up to 1."""

    name: str
    value: str
    remark: str = ""
    tone: Tone = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """The headline numbers; the first is the answer and is written large."""

    figures: Sequence[KeyFigure]


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar list. `value` is its length; `colour` names a colour of `design`."""

    name: str
    value: float
    text: str
    colour: str = "blue"
    remark: str = ""
    share: str = ""
    """A second number, such as a share of the whole."""
    options: str = ""
    """Options of a command line that make the change of this row; the served page offers to try them."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A list of bars from a common zero; values below zero go to the left."""

    bars: Sequence[Bar]
    head: tuple[str, str, str] = ("", "", "")
    """The headings of names, values and remarks."""
    whole: float = 0.0
    """The total that the bars are parts of. A bar of this length fills its column."""


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A row of a stacked list: its name, and the lengths of its parts."""

    name: str
    values: Sequence[float]
    text: str


@dataclass(frozen=True, slots=True)
class StackedBars:
    """Bars of parts that add up, all on one scale. `parts` are the names and colours of the parts."""

    parts: Sequence[tuple[str, str]]
    stacks: Sequence[StackedBar]
    unit: Literal["s", "bytes"] = "s"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. `sort` is what a column of numbers is sorted by, where the text does not say it."""

    text: str
    sort: float | None = None
    tone: Tone = ""
    options: str = ""
    """Options of a command line that this row stands for; the served page offers to open them."""


Row = Sequence[str | Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption. Columns in `right` hold numbers. Rows beyond `shown` are folded away."""

    head: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    right: Sequence[int] = ()
    shown: int = 12
    summary: str = ""
    """Where it is not empty, the whole table is folded away under these words."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of `report/plots`, and what it shows in words."""

    svg: str
    alt: str


@dataclass(frozen=True, slots=True)
class Gantt:
    """The interactive pipeline."""

    chart: GanttChart


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class FactList:
    """Names, each with a text; a name that repeats is shown once. Spaces in front of a name indent it."""

    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Notes:
    """Warnings and notes, each with its place and code."""

    diagnostics: Sequence[Diagnostic]


@dataclass(frozen=True, slots=True)
class Code:
    """A text to copy: a command, a launch script."""

    text: str
    label: str = "command"


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are opened by a click."""

    summary: str
    blocks: Sequence[Block]


Block = KeyFigures | Bars | StackedBars | Table | Picture | Gantt | Text | FactList | Notes | Code | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a view, with a heading. `key` is its address within the page: letters and hyphens."""

    key: str
    title: str
    blocks: Sequence[Block]
    remark: str = ""
    wide: bool = True
    """Whether the section needs the whole width; others may stand next to each other."""


@dataclass(frozen=True, slots=True)
class View:
    """An answer as sections. `kind` says in words what it is: prediction, comparison, plan search."""

    title: str
    kind: str
    sections: Sequence[Section]
    subtitle: str = ""
    origin: Origin | None = None
    """The origin of a saved answer; None for an answer that the page's command made."""
    facts: Sequence[tuple[str, str]] = field(default=())
    """The versions and inputs of the page."""
    command: str = ""
    """The command that makes the page; empty where it was made in another way."""

    def chosen(self, *keys: str) -> list[Section]:
        """Returns the sections with some keys, in the order of the keys, without those that the view does not have."""
        sections = {section.key: section for section in self.sections}
        return [sections[key] for key in keys if key in sections]

    @property
    def states_origin(self) -> bool:
        """Whether the view says what it was made of."""
        return self.origin is not None or bool(self.facts or self.command)
