"""A profiler table (PyTorch's `key_averages().table()`) as it is written: rows, columns and totals, in SI units."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from foretrace.basics.errors import Diagnostic


class Field(StrEnum):
    """The content of a column, whatever its heading and device are called."""

    NAME = "name"
    OVERLOAD = "overload"
    SELF_CPU_SHARE = "self_cpu_share"
    SELF_CPU = "self_cpu_s"
    CPU_TOTAL_SHARE = "cpu_total_share"
    CPU_TOTAL = "cpu_total_s"
    CPU_AVERAGE = "cpu_average_s"
    SELF_DEVICE = "self_device_s"
    SELF_DEVICE_SHARE = "self_device_share"
    DEVICE_TOTAL_SHARE = "device_total_share"
    DEVICE_TOTAL = "device_total_s"
    DEVICE_AVERAGE = "device_average_s"
    CPU_MEMORY = "cpu_memory_bytes"
    SELF_CPU_MEMORY = "self_cpu_memory_bytes"
    DEVICE_MEMORY = "device_memory_bytes"
    SELF_DEVICE_MEMORY = "self_device_memory_bytes"
    CALLS = "calls"
    NODE = "node"
    SHAPES = "shapes"
    STACK = "stack"
    FLOPS = "flops"
    FLOPS_RATE = "flops_per_s"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading as written, what it holds, and what one of its numbers stands for (FLOPs in millions)."""

    heading: str
    field: Field
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class TableRow:
    """All calls under one name together. None is "no such column", or NaN or -- in it.

    Shares are fractions of one. A row is asynchronous where its share of CPU total is a bare 0: it began and ended
    elsewhere than the host's call stack says, as communication does.
    """

    name: str
    line: int
    cut: bool = False
    """Whether the name goes on: it ends in "..." """
    overload: str = ""
    self_cpu_share: float | None = None
    self_cpu_s: float | None = None
    cpu_total_share: float | None = None
    cpu_total_s: float | None = None
    cpu_average_s: float | None = None
    self_device_s: float | None = None
    self_device_share: float | None = None
    device_total_share: float | None = None
    device_total_s: float | None = None
    device_average_s: float | None = None
    cpu_memory_bytes: int | None = None
    self_cpu_memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    self_device_memory_bytes: int | None = None
    calls: int = 0
    node: int | None = None
    shapes: str = ""
    stack: tuple[str, ...] = ()
    flops: float | None = None
    flops_per_s: float | None = None
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class ProfilerTable:
    """One table of a file; `device` is the word its headings use (CUDA, XPU, …), "" where it has no device columns."""

    path: str
    line: int
    """Of the headings."""
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    device: str = ""
    title: str = ""
    top_level_only: bool = False
    self_cpu_total_s: float | None = None
    self_device_total_s: float | None = None
    """As the lines below the table say."""
    diagnostics: tuple[Diagnostic, ...] = ()

    def at(self, line: int) -> str:
        """A line of its file, as errors and notes name it."""
        return f"{self.path}:{line}"

    def has(self, field: Field) -> bool:
        """Whether there is such a column."""
        return any(column.field is field for column in self.columns)
