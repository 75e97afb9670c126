"""Splits a line into its fields, and the list of sub-operations into its strings.

Fields are `key=value` joined by commas; a value may hold commas of its own.
"""

from __future__ import annotations

import re
from typing import Final

_COMMA: Final = re.compile(r",(?=[A-Za-z_][A-Za-z0-9_]*=)")
"""The separator of fields: a comma before a key."""

_PLAIN = re.compile(r"""[^\[\](){}'"]*(?:\[[0-9, ]*\][^\[\](){}'"]*)*""")
_TOKENS = re.compile(rf"""'[^']*'|"[^"]*"|[(\[{{]|[)\]}}]|{_COMMA.pattern}""")
_STRING = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_BROKEN = "sub_operations is not a list of strings in quotes"
_UNENDED = "sub_operations does not end: ] is missing"
_ESCAPED: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}


def split_fields(text: str) -> dict[str, str]:
    """Keys and values in their order; ValueError says what is wrong.

    A comma counts outside brackets and quotes only, since descriptions are free text. Text whose brackets do not match
    is parted at every comma before a key.
    """
    if not text:
        raise ValueError("there are no fields")
    parts = _COMMA.split(text)
    if not _PLAIN.fullmatch(text):
        parts = _split_carefully(text) or parts
    fields: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not (key.isascii() and key.isidentifier()):
            raise ValueError("fields are not key=value")
        if key in fields:
            raise ValueError(f"{key} is given twice")
        fields[key] = value
    return fields


def join_fields(fields: list[tuple[str, str]]) -> str:
    """The text of fields, as `split_fields` takes it."""
    return ",".join([f"{key}={value}" for key, value in fields])


def split_strings(text: str, start: int) -> tuple[list[str], int]:
    """The strings of a Python list that begins at `start`, and where it ends; ValueError says what is wrong."""
    if text.startswith("['", start) and text.endswith("']") and "\\" not in text:
        # A list that nothing follows and whose strings have neither quotes nor escapes: nearly all are.
        strings = text[start + 2 : -2].split("', '")
        if text.count("'", start) == 2 * len(strings):
            return strings, len(text)
    if not text.startswith("[", start):
        raise ValueError("sub_operations is not a list")
    strings, at = [], start + 1
    while not text.startswith("]", at):
        match = _STRING.match(text, at)
        if match is None:
            raise ValueError(_BROKEN if at < len(text) else _UNENDED)
        strings.append(_unescaped(match[1] if match[2] is None else match[2]))
        at = match.end()
        if text.startswith(",", at):
            at += 2 if text.startswith(", ", at) else 1
        elif not text.startswith("]", at):
            raise ValueError(_BROKEN if at < len(text) else _UNENDED)
    return strings, at + 1


def _split_carefully(text: str) -> list[str] | None:
    """Parts of a text at commas outside brackets and quotes; None where brackets do not match."""
    parts, begin, depth = [], 0, 0
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if mark[0] == ",":
            if depth == 0:
                parts.append(text[begin : token.start()])
                begin = token.end()
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            if depth == 0:
                return None
            depth -= 1
    parts.append(text[begin:])
    return parts if depth == 0 else None


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    word = match[1]
    if len(word) > 1:
        code = int(word[1:], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError("sub_operations has an escape that is no character")
        return chr(code)
    if word not in _ESCAPED:
        raise ValueError(f"sub_operations has an unknown escape, \\{word}")
    return _ESCAPED[word]
