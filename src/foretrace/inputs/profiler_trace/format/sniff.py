"""Whether a file is a profile, by its first bytes."""

from __future__ import annotations

import re
from typing import Final

from foretrace.basics.files import AnyFile
from foretrace.inputs.profiler_trace.format.text import head_of

SQLITE: Final = b"SQLite format 3\0"
"""How an export of Nsight Systems begins."""

ENDINGS: Final = (".json", ".json.gz", ".sqlite")
"""How the names of profiles end; of a folder's files, only these are looked into."""

REPORTS: Final = (".nsys-rep", ".qdrep")
"""Reports of Nsight Systems itself, which only it can read."""

HEAD_BYTES: Final = 1 << 16
_EVENT = re.compile(rb'\s*\{[^{}]*"ph"\s*:\s*"')
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BESIDE = (b'"deviceProperties"', b'"distributedInfo"', b'"trace_id"', b'"baseTimeNanoseconds"')


def looks_like_profile(path: AnyFile) -> bool:
    """Returns whether a file begins as a profile does. Never an error; an `InputFile` stays open to be read."""
    return begins_as_profile(head_of(path, HEAD_BYTES))


def begins_as_profile(head: bytes) -> bool:
    """Returns whether these bytes, unpacked, begin a profiler's trace.

    That is an object with a list of events, or with what Kineto writes before it, a list of events, or SQLite.
    """
    if head.startswith(SQLITE):
        return True
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return _EVENT.match(text, 1) is not None
    if not text.startswith(b"{"):
        return False
    if _LIST.search(text):
        return True
    # Where groups of many ranks are listed first, the events begin later than this.
    return b'"schemaVersion"' in text and any(word in text for word in _BESIDE)
