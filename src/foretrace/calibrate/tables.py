"""Kernels that a profiler table with shapes recorded (`key_averages(group_by_input_shape=True)`)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from foretrace.basics.errors import InputError
from foretrace.calibrate.recorded import RecordedKernels, as_measured
from foretrace.inputs.profiler_table.format import ProfilerTable, TableRow
from foretrace.inputs.profiler_trace.format.records import Dims, Inputs
from foretrace.inputs.torch_ops.shapes import kernel_of
from foretrace.program.kernels import Kernel

_HINT = "print it with key_averages(group_by_input_shape=True).table(max_shapes_column_width=…), or give the trace"


def tabled_kernels(tables: Iterable[ProfilerTable]) -> RecordedKernels:
    """What ops of a table took on the device, per call; dtypes are not in it, and taken to be bf16."""
    times: dict[Kernel, list[tuple[float, int]]] = {}
    total_s = known_s = 0.0
    path = ""
    for table in tables:
        path = table.path
        for row in table.rows:
            own_s = row.self_device_s or 0.0
            if own_s <= 0 or row.calls <= 0 or "::" not in row.name:
                continue
            total_s += own_s
            kernel = _kernel(row)
            if kernel is not None:
                known_s += own_s
                times.setdefault(kernel, []).append((own_s, row.calls))
    if not times:
        raise InputError(
            "nothing-to-do", "no row of the table has a device time and shapes that can be read", where=path, hint=_HINT
        )
    calls = {kernel: float(sum(count for _, count in rows)) for kernel, rows in times.items()}
    seconds = {kernel: sum(spent for spent, _ in rows) / calls[kernel] for kernel, rows in times.items()}
    return RecordedKernels(seconds, calls, 0.0, 1.0, 1.0 - known_s / total_s, 0)


def _kernel(row: TableRow) -> Kernel | None:
    """What a row's shapes say; None where they are cut off or say nothing."""
    try:
        dims = json.loads(row.shapes) if row.shapes else None
    except ValueError:
        return None
    if not isinstance(dims, list) or not dims:
        return None
    kernel = kernel_of(row.name, Inputs(tuple(_dims(dim) for dim in dims)))
    return None if kernel is None else as_measured(kernel)


def _dims(value: object) -> Dims:
    if isinstance(value, list):
        return tuple(_dims(size) if isinstance(size, list) else size for size in value if isinstance(size, list | int))
    return ()
