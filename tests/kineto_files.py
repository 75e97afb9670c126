"""Small files as the PyTorch profiler writes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOST = {"pid": 10, "tid": 11}


def span(
    cat: str, name: str, ts: float, dur: float, *, pid: Any = 10, tid: Any = 11, **arguments: Any
) -> dict[str, Any]:
    """An event with a duration, in microseconds; arguments with _ for a space."""
    named = {key.replace("_", " ") if key[0].isupper() else key: value for key, value in arguments.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": named}


def kernel(name: str, ts: float, dur: float, correlation: int, *, stream: int = 7, **arguments: Any) -> dict[str, Any]:
    """A kernel on device 0."""
    return span(
        "kernel", name, ts, dur, pid=0, tid=stream, device=0, stream=stream, correlation=correlation, **arguments
    )


def small_step() -> list[dict[str, Any]]:
    """An op that launches a kernel, an annotation around it, and the arrow between the two."""
    return [
        span("user_annotation", "ProfilerStep#3", 100, 50, External_id=1),
        span("cpu_op", "aten::mm", 101.5, 20.25, External_id=2, Sequence_number=5, Input_Dims=[[4, 8], [8, 2]],
             Input_type=["float", "float"]),
        span("cuda_runtime", "cudaLaunchKernel", 105, 4, External_id=2, cbid=211, correlation=77),
        {"ph": "s", "id": 77, "pid": 10, "tid": 11, "ts": 105, "cat": "ac2g", "name": "ac2g"},
        kernel("sgemm", 112.125, 7.5, 77, External_id=2),
        {"ph": "f", "id": 77, "pid": 0, "tid": 7, "ts": 112.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"name": "thread_name", "ph": "M", "ts": 100, "pid": 10, "tid": 11, "args": {"name": "thread 11 (python3)"}},
    ]  # fmt: skip


def document(events: Sequence[Any], **others: Any) -> dict[str, Any]:
    """The whole of a file."""
    return {"schemaVersion": 1, **others, "traceEvents": list(events)}


def write(folder: Path, content: Any, name: str = "trace.json") -> Path:
    """Puts a document, or text, into a file; compressed where its name ends in .gz."""
    text = content if isinstance(content, str) else json.dumps(content)
    data = text.encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path
