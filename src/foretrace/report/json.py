"""Answers as JSON: one object, stable keys, SI units, numbers as numbers; `schema` says the version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foretrace.basics.errors import Diagnostic
from foretrace.basics.files import write_text
from foretrace.basics.plain import to_plain


def write_json(result: dict[str, Any], path: Path) -> None:
    """Writes an answer to a file."""
    write_text(path, json.dumps(result, indent=1, allow_nan=False) + "\n", "JSON file")


def diagnostics_json(diagnostics: tuple[Diagnostic, ...]) -> list[dict[str, Any]]:
    """Returns notes and warnings as plain values."""
    return [to_plain(diagnostic) for diagnostic in diagnostics]
