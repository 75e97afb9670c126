"""Makes the input of a finding small: takes parts away as long as the same signature comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from fuzz.oracle import Case, judge
from fuzz.run import scratch_folder

Parts = Sequence[bytes]
_PACKED: Final = (".gz", ".sqlite", ".foretrace", ".answer", ".pickle")
"""Files of which no part can be taken away."""


def minimise(case: Case, signature: str, seconds: float = 20.0) -> Case:
    """Returns a smaller input with the same fault, within some CPU time; packed files stay as they are."""
    deadline = time.process_time() + seconds
    with scratch_folder() as folder:

        def fails(candidate: Case) -> bool:
            if time.process_time() > deadline:
                return False
            return any(fault.signature == signature for fault in judge(candidate, folder).faults)

        if not fails(case):
            return case
        for name in [name for name in case.files if not name.endswith(_PACKED) and ":" not in case.target]:
            for split in (_lines, _pieces, _bytes):
                case = _reduced_file(case, name, split, fails)
        return case


def _lines(data: bytes) -> Parts:
    return data.splitlines(keepends=True)


def _pieces(data: bytes) -> Parts:
    """Cuts text after each mark that ends a field."""
    pieces, start = [], 0
    for at, byte in enumerate(data):
        if byte in b",;:{}[]() \t\n":
            pieces.append(data[start : at + 1])
            start = at + 1
    return [*pieces, data[start:]]


def _bytes(data: bytes) -> Parts:
    size = max(len(data) // 2000, 1)
    return [data[at : at + size] for at in range(0, len(data), size)]


def _reduced_file(case: Case, name: str, split: Callable[[bytes], Parts], fails: Callable[[Case], bool]) -> Case:
    """Takes away parts of one file, large groups first (Zeller and Hildebrandt's ddmin, complements only)."""

    def with_parts(parts: Parts) -> Case:
        return replace(case, files={**case.files, name: b"".join(parts)})

    parts = list(split(case.files[name]))
    groups = 2
    while len(parts) >= 2:
        size = max(len(parts) // groups, 1)
        for at in range(0, len(parts), size):
            rest = parts[:at] + parts[at + size :]
            if fails(with_parts(rest)):
                parts, groups = rest, max(groups - 1, 2)
                break
        else:
            if size == 1:
                break
            groups = min(groups * 2, len(parts))
    return with_parts(parts)
