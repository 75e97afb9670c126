"""Judges what a command has written: whether files are well formed, and whether screens hold only real numbers.

A format joins by an entry of `CHECKS`, and its option by one of `_FORMATS`; other files are not looked at.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

_UNIT: Final = r"[nµm]?s|min|h|d|days|%|×|x|[kKMGTPE]?i?B(?:/s|ps)?|[KMGTPE]?FLOPS?|W|tokens|GPUs?|ops"
NOT_FINITE: Final = re.compile(rf"(?<![\w.\"'])[-−+±]?(?:nan|inf)(?: ?(?:{_UNIT})(?!\w)|(?=  +[0-9]))")
"""A number that is not one, next to a unit or in a table; `nan` may also be a word of the input."""
NEGATIVE: Final = re.compile(r"^ *(?:Step|Step time|Time|Total|Makespan|Measured|Predicted) +[-−] ?[0-9]", re.MULTILINE)
"""A time that cannot be below zero, as screens begin their lines with it."""
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_VOID_TAGS: Final = ("meta", "link", "br", "hr", "img", "input", "wbr", "col")
_SVG_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?(?:nan|inf)(?!\w)")


class MalformedError(ValueError):
    """A file that is not what its name says, or holds a number that is not finite."""


def screen_problem(text: str) -> str | None:
    """Returns the first thing on a screen that cannot be a result."""
    match = NOT_FINITE.search(text) or NEGATIVE.search(text)
    return None if match is None else text[max(match.start() - 60, 0) : match.end() + 20]


def refuse_constant(constant: str) -> float:
    """Refuses what JSON does not have; Python writes and reads it nevertheless."""
    raise MalformedError(f"{constant} in JSON")


def check_json(path: Path) -> None:
    """Raises an error unless a file is JSON as its standard has it."""
    json.loads(path.read_text("utf-8"), parse_constant=refuse_constant)


def check_svg(path: Path) -> None:
    """Raises an error unless a picture is well-formed XML without control characters, and its numbers are finite."""
    text = path.read_text("utf-8")
    control = _CONTROL.search(text)
    if control is not None:
        raise MalformedError(f"control character {control[0]!r}")
    for element in ElementTree.fromstring(text).iter():
        for name, value in element.attrib.items():
            if name not in ("class", "id") and _SVG_NUMBER.search(value):
                raise MalformedError(f'{element.tag} has {name}="{value[:80]}"')


class _Page(HTMLParser):
    """Reads a page and keeps what is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.problem: str | None = None
        self.is_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Refuses attributes that load something or run code; keeps the tags that have to be closed."""
        values = dict(attrs)
        self.is_data = tag == "script" and "json" in (values.get("type") or "")
        loaded = next((values[name] for name in ("src", "srcset", "data", "action") if values.get(name)), None)
        if loaded is None and tag == "link":
            loaded = values.get("href")
        if loaded is not None and not loaded.startswith("data:"):
            self.problem = f"{tag} loads {loaded[:80]}"
        if any(name.startswith("on") for name in values) or str(values.get("href")).startswith("javascript:"):
            self.problem = f"{tag} runs code: {attrs}"[:200]
        if tag not in _VOID_TAGS:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Looks at an element of SVG that closes itself."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """Closes the innermost tag."""
        if tag not in _VOID_TAGS and (not self.open_tags or self.open_tags.pop() != tag):
            self.problem = self.problem or f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        """Reads the data of charts."""
        if self.is_data:
            json.loads(data, parse_constant=refuse_constant)


def check_html(path: Path) -> None:
    """Raises an error unless a page loads nothing, runs only its own scripts, and its tags and numbers are right."""
    text = path.read_text("utf-8")
    control = _CONTROL.search(text)
    if control is not None:
        raise MalformedError(f"control character {control[0]!r}")
    page = _Page()
    page.feed(text)
    page.close()
    if page.problem or page.open_tags:
        raise MalformedError(page.problem or f"{page.open_tags} are not closed")


def check_csv(path: Path) -> None:
    """Raises an error unless every row of a table has as many cells as its first."""
    with path.open(newline="", encoding="utf-8") as file:
        widths = {len(row) for row in csv.reader(file, strict=True) if row and not row[0].startswith("#")}
    if len(widths) > 1:
        raise MalformedError(f"rows of {sorted(widths)} cells")


def check_yaml(path: Path) -> None:
    """Raises an error unless a file is YAML and its numbers are finite."""
    import yaml

    open_: list[Any] = [yaml.safe_load(path.read_text("utf-8"))]
    while open_:
        node = open_.pop()
        if isinstance(node, dict):
            open_ += node.values()
        elif isinstance(node, list):
            open_ += node
        elif isinstance(node, float) and not math.isfinite(node):
            raise MalformedError(f"{node} in YAML")


def check_opens(path: Path) -> None:
    """Raises an error unless Foretrace itself reads a file that it has written."""
    import foretrace

    job = foretrace.open(path)
    if isinstance(job, foretrace.Answer):
        job.to_dict()
    else:
        job.program()


def check_perfetto(path: Path) -> None:
    """Raises an error unless a file is a sequence of packets of a protocol buffer, each with known wire types."""
    data = path.read_bytes()
    for number, wire, start, end in _fields(data, 0, len(data)):
        if (number, wire) != (1, 2):
            raise MalformedError(f"field {number} of wire type {wire} between packets")
        for _ in _fields(data, start, end):
            pass


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the number, the wire type and the range of each field of a message."""
    while at < end:
        key, at = _varint(data, at, end)
        wire, start = key & 7, at
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire == 2:
            size, start = _varint(data, at, end)
            at = start + size
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise MalformedError(f"wire type {wire}")
        if at > end or not key >> 3:
            raise MalformedError("a field reaches past its message")
        yield key >> 3, wire, start, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < end and shift < 70:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    raise MalformedError("a number has no end")


CHECKS: Final[dict[str, Callable[[Path], None]]] = {
    "json": check_json,
    "svg": check_svg,
    "html": check_html,
    "csv": check_csv,
    "yaml": check_yaml,
    "program": check_opens,
    "answer": check_opens,
    "perfetto": check_perfetto,
}
"""The check of each format of outputs."""

_FORMATS: Final = {
    **dict.fromkeys(("--plot", "--svg", "--heatmap"), "svg"),
    "--html": "html",
    "--csv": "csv",
    "--save": "answer",
    "--perfetto": "perfetto",
}
"""The format that an option writes, whatever the name of its file."""
_FORMATS_OF_COMMANDS: Final = {
    **dict.fromkeys(("init", "calibrate"), "yaml"),
    **dict.fromkeys(("generate", "measure"), ""),
    "report": "html",
}
"""What `-o` writes where it is not JSON; nothing where another option says it."""


def format_of(words: Sequence[str], name: str) -> str:
    """Returns the format that a command line writes to a file; nothing where that is not known."""
    option = ""
    for before, word in zip(("", *words), words, strict=False):
        flag, _, value = word.rpartition("=")
        if word == name and before.startswith("-"):
            option = before
        elif value == name and flag.startswith("--"):
            option = flag
    if option in ("-o", "--output", "--out"):
        formats = [
            word
            for word in (word.removeprefix("--format=") for word in words)
            if word in ("program", "launch", "megatron-trace", "aicb")
        ]
        if words[0] == "generate" and formats[-1:] == ["program"] and name.endswith(".foretrace"):
            return "program"
        return _FORMATS_OF_COMMANDS.get(words[0], "json")
    return "" if name.endswith(".gz") else _FORMATS.get(option, "")


def output_problem(words: Sequence[str], path: Path) -> str | None:
    """Returns what is wrong with a file that a command line has written; None where nothing is known about it."""
    check = CHECKS.get(format_of(words, path.name))
    if check is None or not path.is_file():
        return None
    try:
        check(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return None
