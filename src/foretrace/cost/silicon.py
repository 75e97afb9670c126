"""Finds NVIDIA's measured tables in the package `aiconfigurator-core` (the extra `[silicon]`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

SYSTEMS: Final = {
    "a100-80g-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
"""The package's name of the system of each GPU that it has tables of."""


def installed() -> bool:
    """Returns whether the tables and their reader are installed."""
    return find_spec("aiconfigurator_core") is not None and find_spec("pyarrow") is not None


def tables_of(system: str) -> Path | None:
    """The folder with a system's tables; None where they cannot be read."""
    spec = find_spec("aiconfigurator_core")
    if not installed() or spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "systems" / "data" / system
