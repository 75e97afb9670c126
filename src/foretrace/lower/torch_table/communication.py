"""What a profiled step communicates, as far as a table tells: which collectives, how often, and seldom how long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.formats.torch_table import Row
from foretrace.lower.torch.kinds import WorkKind, kind_of_kernel
from foretrace.lower.torch_table.rows import RowKind, Rows
from foretrace.program.columns import Collective

_WORDS: Final = (
    (Collective.REDUCE_SCATTER, r"reduce_?scatter"),
    (Collective.ALL_GATHER, r"all_?gather"),
    (Collective.ALL_TO_ALL, r"all_?to_?all|send_?recv"),
    (Collective.BARRIER, r"barrier"),
    (Collective.ALL_REDUCE, r"all_?reduce"),
    (Collective.BROADCAST, r"broadcast"),
    (Collective.GATHER, r"gather"),
    (Collective.SCATTER, r"scatter"),
    (Collective.TRANSFER, r"send|recv"),
    (Collective.REDUCE, r"reduce"),
)
"""Tried in turn, in lower case."""

_BACKEND: Final = re.compile(r"(nccl|gloo|rccl|hccl|ccl|xccl|mpi|ucc):")


@dataclass(frozen=True, slots=True)
class Called:
    """A collective of the table: calls in all, the host's time from each call to its end, and the device's, None where
    it was not recorded."""

    name: str
    collective: Collective
    calls: int
    host_s: float
    device_s: float | None


def collective_of(name: str) -> Collective:
    """What a row or kernel of communication does, by its name."""
    text = name.lower()
    return next((one for one, pattern in _WORDS if re.search(pattern, text)), Collective.NONE)


def communication(rows: Rows) -> tuple[Called, ...]:
    """The collectives of a table: as the backend marks them (nccl:all_reduce), else as ops of c10d."""
    found = rows.of(RowKind.COLLECTIVE)
    marked = [row for row in found if _BACKEND.match(row.name)] or [row for row in found if "::" in row.name]
    kernels = [row for row in rows.of(RowKind.KERNEL) if kind_of_kernel(row.name) is WorkKind.COMMUNICATION]
    calls = [_called(row, kernels) for row in marked if collective_of(row.name) is not Collective.NONE]
    if calls:
        return tuple(calls)
    return tuple(
        Called(row.name, collective_of(row.name), row.calls, 0.0, row.self_device_s)
        for row in kernels
        if collective_of(row.name) is not Collective.NONE
    )


def _called(row: Row, kernels: Sequence[Row]) -> Called:
    mine = [one for one in kernels if collective_of(one.name) is collective_of(row.name)]
    seconds = sum(one.self_device_s or 0.0 for one in mine)
    return Called(row.name, collective_of(row.name), row.calls, row.cpu_total_s or 0.0, seconds if mine else None)
