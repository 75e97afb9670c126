"""Defines what a profiler table tells: the device's time, the host's time and the communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.profiler_table.communication import TableCollective, communication
from foretrace.inputs.profiler_table.format import ProfilerTable
from foretrace.inputs.profiler_table.host import HostTime, host_time
from foretrace.inputs.profiler_table.parts import DeviceTime, device_time
from foretrace.inputs.profiler_table.rows import ClassifiedRows, sort_rows


@dataclass(frozen=True, slots=True)
class TableProfile:
    """A profiler table, understood: device, host and communication."""

    rows: ClassifiedRows
    device: DeviceTime
    host: HostTime
    calls: tuple[TableCollective, ...]

    @property
    def table(self) -> ProfilerTable:
        """The table itself."""
        return self.rows.table


def understand(table: ProfilerTable) -> TableProfile:
    """Reads a table's meaning off its rows."""
    rows = sort_rows(table)
    device = device_time(rows)
    return TableProfile(rows, device, host_time(rows, device.labels), communication(rows))


def choose_table(tables: Sequence[ProfilerTable]) -> tuple[ProfilerTable, tuple[Diagnostic, ...]]:
    """The table of a file that is simulated: the first with device times; says where there are others."""
    chosen = next((table for table in tables if table.device), tables[0])
    if len(tables) == 1:
        return chosen, ()
    text = f"{len(tables)} tables in the file; this one is taken: the first with device times"
    return chosen, (Diagnostic("warning", "one-of-several", text, chosen.at(chosen.line)),)
