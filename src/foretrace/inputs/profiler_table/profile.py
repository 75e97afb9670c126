"""A profiler table, understood: device, host and communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.profiler_table.communication import Called, communication
from foretrace.inputs.profiler_table.format import Table
from foretrace.inputs.profiler_table.host import HostTime, host_time
from foretrace.inputs.profiler_table.parts import DeviceTime, device_time
from foretrace.inputs.profiler_table.rows import Rows, sort_rows


@dataclass(frozen=True, slots=True)
class Profile:
    """What a table says of device, host and communication."""

    rows: Rows
    device: DeviceTime
    host: HostTime
    calls: tuple[Called, ...]

    @property
    def table(self) -> Table:
        """The table itself."""
        return self.rows.table


def understand(table: Table) -> Profile:
    """Reads a table's meaning off its rows."""
    rows = sort_rows(table)
    device = device_time(rows)
    return Profile(rows, device, host_time(rows, device.labels), communication(rows))


def choose_table(tables: Sequence[Table]) -> tuple[Table, tuple[Diagnostic, ...]]:
    """The table of a file that is simulated: the first with device times; says where there are others."""
    chosen = next((one for one in tables if one.device), tables[0])
    if len(tables) == 1:
        return chosen, ()
    text = f"{len(tables)} tables in the file; this one is taken: the first with device times"
    return chosen, (Diagnostic("warning", "one-of-several", text, chosen.at(chosen.line)),)
