"""A small profiler's trace of training steps, whose kernels and times a test knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kineto_files import document, kernel, span, write

BF16 = "c10::BFloat16"
H200 = [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]
FLAT = [[1024, 1], [1, 1024]]


def product(at: float, dur: float, number: int, rows: int, *, launched: float | None = None) -> list[dict[str, Any]]:
    """A linear layer of 1,024 inputs and 4,096 outputs for so many rows, its kernel at `at` (microseconds)."""
    host = at - 50 if launched is None else launched
    return [
        span("cpu_op", "aten::mm", host, 10, External_id=number, Input_Dims=[[rows, 1024], [1024, 4096]],
             Input_type=[BF16, BF16], Input_Strides=FLAT),
        span("cuda_runtime", "cudaLaunchKernel", host + 2, 4, External_id=number, correlation=number),
        kernel("nvjet_sm90_TNT", at, dur, number, External_id=number),
    ]  # fmt: skip


def steps(count: int = 3, rows: tuple[int, ...] = (4096, 8192), dur: float = 100.0) -> list[dict[str, Any]]:
    """So many steps of a product for each number of rows, each of these twice, kernels 2 us apart."""
    events: list[dict[str, Any]] = []
    at, number = 1000.0, 1
    for step in range(count):
        events.append(span("user_annotation", f"ProfilerStep#{step}", at - 60, len(rows) * 2 * (dur + 2)))
        for place, one in enumerate((*rows, *rows)):
            events += product(at + place * (dur + 2), dur, number, one, launched=at - 55 + 12 * place)
            number += 1
        at += len(rows) * 2 * (dur + 2)
    return events


def trace_file(folder: Path, name: str = "step.json", **others: Any) -> Path:
    """The trace of three such steps, on an H200."""
    return write(folder, document(steps(**others), deviceProperties=H200), name)
