"""Parses the XML that NCCL dumps, with line numbers for errors; document types are refused, so nothing can expand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from foretrace.basics.errors import InputError, shortened

MAX_DEEP: Final = 64
"""PCI bridges nest a few levels deep; a document that nests further is none of NCCL's."""


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

    def opened(tag: str, attributes: list[str]) -> None:
        line = parser.CurrentLineNumber
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


def whole_number(element: Element, key: str, name: str, default: int | None = None) -> int:
    """An attribute that counts something; NCCL writes some in hexadecimal."""
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        value = int(str(text), 16 if str(text).lower().startswith("0x") else 10)
    except ValueError:
        value = -2
    if text is None or value < -1 or len(text) > 20:
        raise _wrong(element, key, name, "a whole number")
    return value


def rate(element: Element, key: str, name: str, default: float | None = None) -> float:
    """An attribute that is a rate or a time: a number that is not negative."""
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        value = float(str(text))
    except ValueError:
        value = -1.0
    if text is None or not 0 <= value < 1e9:
        raise _wrong(element, key, name, "a number")
    return value


def _wrong(element: Element, key: str, name: str, expected: str) -> InputError:
    where = f"{name}:{element.line}"
    text = element.get(key)
    if text is None:
        return InputError(
            "missing-field", f"<{element.tag}> has no {key}", where=where, hint=f"expected {key}=, {expected}"
        )
    return InputError("bad-value", f'{key} is "{shortened(text)}"', where=where, hint=f"expected {expected}")
