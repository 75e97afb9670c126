"""Profiler tables written from a few rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foretrace.inputs.profiler_table.format import Column, Field, ProfilerTable, TableRow
from write_table import write_table

COLUMNS = (
    Column("Name", Field.NAME),
    Column("Self CPU", Field.SELF_CPU),
    Column("CPU total", Field.CPU_TOTAL),
    Column("Self CUDA", Field.SELF_DEVICE),
    Column("CUDA total", Field.DEVICE_TOTAL),
    Column("# of Calls", Field.CALLS),
)


def write_times(path: Path, times: Iterable[tuple[str, float, float, float, float]], calls: int = 1) -> Path:
    """Writes rows of name, self CPU, CPU total, self device and device total in seconds, each with so many calls."""
    rows = tuple(
        TableRow(name, line, self_cpu_s=own, cpu_total_s=total, self_device_s=busy, device_total_s=under, calls=calls)
        for line, (name, own, total, busy, under) in enumerate(times, start=1)
    )
    path.write_text(write_table(ProfilerTable("t", 1, COLUMNS, rows, "CUDA")), encoding="utf-8")
    return path
