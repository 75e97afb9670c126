"""Whether a file or folder holds rank traces, told by first bytes alone: every input is asked, so this loads little."""

from __future__ import annotations

import re
import stat
from itertools import islice
from pathlib import Path
from typing import Final

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_SNIFFED_BYTES = 4096
_MOST_FILES = 1000
_BEGIN = re.compile(r"rank:[0-9]+:[A-Za-z_][A-Za-z0-9_]*\(")


def looks_like_trace(path: str | Path) -> bool:
    """Whether a file begins like a rank trace, or a folder has a file that does; never an error."""
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            some = islice(Path(path).iterdir(), _MOST_FILES)
            return any(one.suffix == ".txt" and one.is_file() and _begins(one) for one in some)
        # Reading from a pipe would take away what the real reader needs.
        return stat.S_ISREG(mode) and _begins(Path(path))
    except (OSError, ValueError):
        return False


def begins_like_trace(text: str) -> bool:
    """Whether a text begins as a rank trace does."""
    return _BEGIN.match(text) is not None


def _begins(path: Path) -> bool:
    with path.open("rb") as stream:
        head = stream.read(_SNIFFED_BYTES).removeprefix(BYTE_ORDER_MARK)
    return begins_like_trace(head.decode("utf-8", "replace").lstrip())
