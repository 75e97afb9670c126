"""Jobs opened as a user opens them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretrace import Program
from foretrace.inputs.registry import open_input


def program_of(paths: str | Path | Sequence[str | Path], **options: Any) -> Program:
    """The program of a file, a folder, or several that belong together."""
    given = [paths] if isinstance(paths, str | Path) else paths
    return open_input(given).with_options(**options).program()
