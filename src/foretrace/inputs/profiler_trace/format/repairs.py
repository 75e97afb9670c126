"""Events that older profilers wrote as invalid JSON, made valid.

Names of Python functions and paths of Windows were written as they are (pytorch#98432, #113001, #130622, kineto#336):
with backslashes, quotes and control characters; and numbers that are none as C++ prints them.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NO_NUMBER: Final = re.compile(r"(?<=: )(-?)(nan|inf)(?=[\s,}\]])")
_TEXTS: Final = re.compile(
    r'("(?:name|Call stack|Module Hierarchy)"\s*:\s*")(.*?)("\s*(?:,\s*"[\w .%()/-]+"\s*:|\}))', re.DOTALL
)
"""What may hold a quote: up to one that a key or the end of an object follows."""
_QUOTE: Final = re.compile(r'(?<!\\)((?:\\\\)*)"')


def repaired(event: str) -> str:
    """The text of one event with backslashes and quotes in its strings escaped and numbers as Python's decoder takes
    them. Control characters stay: a decoder that is not strict takes them."""
    text = _NO_NUMBER.sub(lambda match: "NaN" if match[2] == "nan" else f"{match[1]}Infinity", event)
    text = _ESCAPE.sub(r"\\\\", text)
    return _TEXTS.sub(lambda match: match[1] + _QUOTE.sub(r'\1\\"', match[2]) + match[3], text)
