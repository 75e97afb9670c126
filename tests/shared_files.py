"""Files that are too large or too foreign for the repository; tests that need one are skipped where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def shared(*parts: str) -> Path:
    """A file or folder of the shared folder: $FORETRACE_SHARED, or `shared` beside the repository.

    The last part may be a pattern such as `002*` that one name matches.
    """
    folder = Path(os.environ.get("FORETRACE_SHARED") or ROOT.parent / "shared")
    found = sorted(folder.glob("/".join(parts)))
    if not found:
        pytest.skip(f"{'/'.join(parts)} is not in the shared folder; set FORETRACE_SHARED to one that has it")
    return found[0]
