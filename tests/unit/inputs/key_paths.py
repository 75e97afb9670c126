"""The keys of a JSON answer, as paths: `roles[].ops`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FREE = frozenset({"kinds", "groups", "ops", "collectives", "seconds_by_kind", "compute_s", "parameters_by_part"})
"""Objects whose keys are names of the input's own."""
VERSIONS = "traces[].facts"
"""What a profiler's trace says about itself."""


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yields the path of every key; keys that are names of an input's own are left out."""
    if isinstance(value, list):
        for item in value:
            yield from key_paths(item, f"{path}[]")
    elif isinstance(value, dict) and path.rpartition(".")[2] not in FREE and path != VERSIONS:
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            yield below
            yield from key_paths(item, below)
