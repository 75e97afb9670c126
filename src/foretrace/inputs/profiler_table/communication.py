"""Finds the collectives of a profiled step: which, how often, and in few tables how long."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.inputs.profiler_table.format import TableRow
from foretrace.inputs.profiler_table.rows import ClassifiedRows, RowKind
from foretrace.inputs.torch_ops.collectives import collective_of
from foretrace.inputs.torch_ops.kinds import communicates
from foretrace.program.columns import Collective

_BACKEND: Final = re.compile(r"(nccl|gloo|rccl|hccl|ccl|xccl|mpi|ucc):")

_Named = tuple[TableRow, Collective]


@dataclass(frozen=True, slots=True)
class TableCollective:
    """A collective of the table: calls in all, the host's time from each call to its end, and the device's, None where
    it was not recorded."""

    name: str
    collective: Collective
    calls: int
    host_s: float
    device_s: float | None


def communication(rows: ClassifiedRows) -> tuple[TableCollective, ...]:
    """Returns the collectives of a table.

    They are read as the backend marks them (nccl:all_reduce), else as ops of c10d, else by kernels.
    """
    collectives = rows.of(RowKind.COLLECTIVE)
    marked = [row for row in collectives if _BACKEND.match(row.name)] or [
        row for row in collectives if "::" in row.name
    ]
    named = [(row, what) for row in marked if (what := collective_of(row.name))]
    exchanges = _exchanges({what for _, what in named})
    kernels = [
        (row, exchanges if what is Collective.TRANSFER else what)
        for row in rows.of(RowKind.KERNEL)
        if communicates(row.name) and (what := collective_of(row.name))
    ]
    if not named:
        return tuple(TableCollective(row.name, what, row.calls, 0.0, row.self_device_s) for row, what in kernels)
    seconds, calls = _totals(kernels, lambda row: row.self_device_s or 0.0), _totals(named, lambda row: row.calls)
    # Kernels do not name their row, so several rows of one collective share the time by their calls.
    return tuple(
        TableCollective(
            row.name,
            what,
            row.calls,
            row.cpu_total_s or 0.0,
            seconds[what] * row.calls / max(calls[what], 1) if what in seconds else None,
        )
        for row, what in named
    )


def _exchanges(named: set[Collective]) -> Collective:
    """Returns the collective of NCCL's kernel for sends and receives, which runs all-to-alls too."""
    transfers = Collective.TRANSFER in named and Collective.ALL_TO_ALL not in named
    return Collective.TRANSFER if transfers else Collective.ALL_TO_ALL


def _totals(named: Sequence[_Named], amount: Callable[[TableRow], float]) -> dict[Collective, float]:
    """Returns the sum over the rows of every collective."""
    totals: dict[Collective, float] = {}
    for row, what in named:
        totals[what] = totals.get(what, 0) + amount(row)
    return totals
