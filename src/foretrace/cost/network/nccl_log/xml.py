"""Parses the XML that NCCL dumps, with line numbers for errors; document types are refused, so nothing can expand."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from foretrace.basics.errors import InputError, shown
from foretrace.basics.limits import check_limit
from foretrace.basics.numbers import real_field, whole_field

MAX_DEEP: Final = 64
"""PCI bridges nest a few levels deep; a document that nests further is none of NCCL's."""

MAX_XML_BYTES: Final = 16 << 20
"""Bytes of a dump: that of a node of 8 GPUs has 20 kB, that of 72 GPUs on 18 hosts has 300 kB."""

_MAX_ELEMENTS: Final = 20_000
_MAX_WHOLE: Final = 1 << 40
_MAX_RATE: Final = 1e9
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]{1,10}")


@dataclass(frozen=True, slots=True)
class Element:
    """A tag with its attributes in order and what is inside; `line` is where it stands, which equality ignores."""

    tag: str
    attributes: tuple[tuple[str, str], ...] = ()
    children: tuple[Element, ...] = ()
    line: int = field(default=0, compare=False)

    def get(self, name: str) -> str | None:
        """The text of an attribute; None where there is none."""
        return dict(self.attributes).get(name)


@dataclass(slots=True)
class _Open:
    tag: str
    attributes: tuple[tuple[str, str], ...]
    line: int
    children: list[Element] = field(default_factory=list)


def parse_xml(data: bytes, name: str, expected: str) -> Element:
    """Parses a document and returns its root. Errors call the document `name` and hint at `expected`."""
    if not data.strip():
        raise InputError("empty-file", "the file is empty", where=name, hint=expected)
    parser = expat.ParserCreate()
    parser.ordered_attributes = True
    stack: list[_Open] = [_Open("", (), 0)]
    count = 0

    def opened(tag: str, attributes: list[str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if count > _MAX_ELEMENTS:
            check_limit(count, _MAX_ELEMENTS, "tags", f"{name}:{line}")
        if len(stack) > MAX_DEEP:
            raise InputError(
                "bad-syntax", f"more than {MAX_DEEP} levels of tags", where=f"{name}:{line}", hint=expected
            )
        pairs = tuple(zip(attributes[::2], attributes[1::2], strict=True))
        stack.append(_Open(tag, pairs, line))

    def closed(_tag: str) -> None:
        element = stack.pop()
        stack[-1].children.append(Element(element.tag, element.attributes, tuple(element.children), element.line))

    def refused(*_: object) -> None:
        where = f"{name}:{parser.CurrentLineNumber}"
        raise InputError(
            "wrong-format", "a document type is declared, which NCCL never does", where=where, hint=expected
        )

    parser.StartElementHandler = opened
    parser.EndElementHandler = closed
    parser.StartDoctypeDeclHandler = refused
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise InputError(
            "bad-syntax", f"this is no whole XML: {reason}", where=f"{name}:{error.lineno}", hint=expected
        ) from None
    except (ValueError, LookupError) as error:
        raise InputError("bad-syntax", f"this is no XML: {error}", where=name, hint=expected) from None
    return stack[0].children[0]


def whole_number(element: Element, key: str, name: str, default: int | None = None, *, least: int = -1) -> int:
    """Returns an attribute that counts; NCCL writes some in hexadecimal, and -1 where it does not know a number."""
    if element.get(key) is None and default is not None:
        return default
    text, where = _attribute(element, key, name)
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    return whole_field(key, text, where, least=least, most=_MAX_WHOLE)


def rate(element: Element, key: str, name: str, default: float | None = None) -> float:
    """Returns an attribute that is a rate or a time: a number that is not negative."""
    if element.get(key) is None and default is not None:
        return default
    text, where = _attribute(element, key, name)
    return real_field(key, text, where, most=_MAX_RATE)


def _attribute(element: Element, key: str, name: str) -> tuple[str, str]:
    """Returns the text of an attribute, and its place; raises an error where it is missing."""
    where, text = f"{name}:{element.line}", element.get(key)
    if text is None:
        hint = f"expected {key}=, a number"
        raise InputError("missing-field", f"<{shown(element.tag)}> has no {key}", where=where, hint=hint)
    return text, where
