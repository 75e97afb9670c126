"""Small exports as Nsight Systems writes them, for tests: a few rows in the documented tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

PROCESS = 77 << 24
"""A global id: the process above, the thread below."""

TABLES: dict[str, tuple[str, ...]] = {
    "StringIds": ("id", "value"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "TARGET_INFO_GPU": ("id", "name", "totalMemory", "smCount"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "META_DATA_EXPORT": ("name", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName",
        "graphNodeId",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "syncType", "eventId",
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ("deviceId", "streamId", "correlationId", "globalPid", "eventId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId",
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "endGlobalTid", "textId", "domainId"),
}  # fmt: skip


def write_export(path: Path, rows: Mapping[str, Sequence[Sequence[object]]], *, without: Sequence[str] = ()) -> Path:
    """An export with these rows, in the columns above less those named in `without` ("table.column")."""
    connection = sqlite3.connect(path)
    for table, values in rows.items():
        keep = [at for at, name in enumerate(TABLES[table]) if f"{table}.{name}" not in without]
        columns = ", ".join(f"[{TABLES[table][at]}]" for at in keep)
        connection.execute(f"CREATE TABLE [{table}] ({columns})")
        marks = ", ".join("?" * len(keep))
        connection.executemany(f"INSERT INTO [{table}] VALUES ({marks})", [[row[at] for at in keep] for row in values])
    connection.commit()
    connection.close()
    return path


def one_step() -> dict[str, list[tuple[object, ...]]]:
    """A step: a range around an op that launches a GEMM, a copy, and a second stream that waits for the first."""
    main = PROCESS | 1
    return {
        "StringIds": [
            (1, "void gemm<float>(int)"), (2, "gemm"), (3, "cudaLaunchKernel_v7000"), (4, "cudaMemcpyAsync_v3020"),
            (5, "step"), (6, "aten::mm, seq = 4, op_id = 9, sizes = [[8, 4], [4, 2], []]"), (7, "python3"),
            (8, "cudaEventRecord_v3020"), (9, "cudaStreamWaitEvent_v3020"), (10, "add"),
        ],
        "ThreadNames": [(7, 0, main)],
        "PROCESSES": [(PROCESS, 77, "python3 train.py")],
        "TARGET_INFO_GPU": [(0, "NVIDIA H100 80GB HBM3", 85_000_000_000, 132)],
        "META_DATA_EXPORT": [("EXPORT_PRODUCT_VERSION", "2024.6.2.225"), ("EXPORT_SCHEMA_VERSION", "3.16.1")],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (10_000, 30_000, 0, 1, 7, 101, PROCESS, 1, 2, None),
            (41_000, 43_000, 0, 1, 13, 105, PROCESS, 10, 10, None),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(30_000, 31_000, 0, 7, 102, PROCESS, 4096, 1)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (2_000, 4_000, main, 101, 3),
            (5_000, 6_000, main, 102, 4),
            (6_500, 6_700, main, 103, 8),
            (7_000, 7_200, main, 104, 9),
            (7_500, 8_000, main, 105, 3),
        ],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(7_000, 7_200, 0, 13, 104, PROCESS, 2, 55)],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [(0, 7, 90, PROCESS, 55), (0, 7, 103, PROCESS, 55), (0, 7, 110, PROCESS, 55)],
        "NVTX_EVENTS": [
            (1_000, 9_000, 59, None, main, None, 5, 0),
            (1_500, 4_500, 59, None, main, None, 6, 0),
            (1_200, 8_000, 60, "load", main, main, None, 0),
            (3_000, None, 34, "a mark", main, None, None, 0),
        ],
    }  # fmt: skip


def steps(count: int, period_ns: int = 50_000) -> dict[str, list[tuple[object, ...]]]:
    """The step above again and again, with correlations of its own each time."""
    once = one_step()
    times = {"start", "end"}
    found: dict[str, list[tuple[object, ...]]] = {}
    for table, rows in once.items():
        names = TABLES[table]
        moves = "correlationId" in names or table == "NVTX_EVENTS"
        for number in range(count if moves else 1):
            for row in rows:
                shifted = [
                    value + number * (period_ns if name in times else 1000)
                    if name in (*times, "correlationId") and isinstance(value, int)
                    else value
                    for name, value in zip(names, row, strict=True)
                ]
                found.setdefault(table, []).append(tuple(shifted))
    return found
