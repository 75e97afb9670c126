"""Tells the rows of a profiler table apart: kernels, ops, autograd nodes, users' labels and runtime calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from foretrace.inputs.profiler_table.format import ProfilerTable, TableRow
from foretrace.inputs.torch_ops.ranges import ENGINE, PROFILER_STEP


class RowKind(StrEnum):
    """The kind of thing that a row counts."""

    KERNEL = "kernel"
    """Work of the device: kernels, copies and memsets."""
    DEVICE_LABEL = "device label"
    """A label as it fell on the device: the time from its first kernel to its last."""
    OP = "op"
    NODE = "autograd node"
    ENGINE = "autograd engine"
    """A node together with what the engine does around it."""
    LABEL = "label"
    """A range a user or a library marked (`record_function`)."""
    COLLECTIVE = "collective"
    """A communication as the host called it."""
    PYTHON = "Python function"
    """A frame of `with_stack`, with all that was called under it."""
    RUNTIME = "runtime call"
    ARTEFACT = "profiler artefact"
    """What the profiler itself did. Device time on it is that of kernels whose launch it held up, counted a second
    time."""


_ARTEFACTS: Final = (
    "Command Buffer Full",
    "Activity Buffer Request",
    "Buffer Flush",
    "Instrumentation",
    "Resource",
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
    "Unrecognized",
    "[memory]",
    "Iteration Start: PyTorch Profiler",
    "Record Window End",
)
_RUNTIME: Final = re.compile(r"(cuda|hip|cu|ze|ur|sycl|aclrt|syn|tops|musa|mu)[A-Z]\w*(\.\.\.)?")
_COLLECTIVE: Final = re.compile(
    r"(nccl|gloo|rccl|hccl|ccl|xccl|mpi|ucc):.*|c10d::.*|_c10d_functional::.*|record_param_comms"
)
_LAST_WORD: Final = re.compile(r"\w*")
"""The last word of a name that is read backwards."""
_NODE: Final = re.compile(r"Backward(s|es)?\d*(_\w|$)")
_PYTHON: Final = re.compile(r"\(\d+\): ")
_OP: Final = re.compile(r"[a-z_]\w*(::\w+)+(\.\w+)?|detach_?")
_OLD_OP: Final = re.compile(r"_?[a-z][a-z0-9_]*")
_LABEL_WORDS: Final = re.compile(
    r"(train|eval|optimi[sz]er|step)\w*|forward|backward|layer[-_]?\d*|loss|zero_grad|data", re.IGNORECASE
)
_LIBRARY_LABELS: Final = (
    PROFILER_STEP,
    "Optimizer.",
    "## ",
    "Torch-Compiled Region",
    "DistributedDataParallel",
    "FSDP::",
    "FullyShardedDataParallel",
    "nccl:",
    "enumerate(DataLoader)",
)


@dataclass(frozen=True, slots=True)
class ClassifiedRows:
    """A table with what each of its rows is."""

    table: ProfilerTable
    kinds: tuple[RowKind, ...]

    def of(self, *kinds: RowKind) -> list[TableRow]:
        """The rows of these kinds, in order."""
        return [row for row, kind in zip(self.table.rows, self.kinds, strict=True) if kind in kinds]


def sort_rows(table: ProfilerTable) -> ClassifiedRows:
    """Returns what each row of a table is."""
    on_host = {row.name for row in table.rows if not _on_device(row)}
    old = any(column.heading == "Number of Calls" for column in table.columns)
    return ClassifiedRows(table, tuple(_kind(row, on_host, old) for row in table.rows))


def _on_device(row: TableRow) -> bool:
    """Whether a row took no time of the host, and some of the device."""
    return not row.cpu_total_s and not row.self_cpu_s and (row.self_device_s or row.device_total_s or 0.0) > 0.0


def _kind(row: TableRow, on_host: set[str], old: bool) -> RowKind:
    name = row.name
    if name in _ARTEFACTS:
        return RowKind.ARTEFACT
    if _on_device(row):
        return RowKind.DEVICE_LABEL if name in on_host or name.startswith(_LIBRARY_LABELS) else RowKind.KERNEL
    if _PYTHON.search(name) or name.startswith(("<built-in ", "nn.Module: ")):
        return RowKind.PYTHON
    if name.startswith(ENGINE):
        return RowKind.ENGINE
    if _COLLECTIVE.fullmatch(name):
        return RowKind.COLLECTIVE
    if _RUNTIME.fullmatch(name):
        return RowKind.RUNTIME
    if _is_node(name):
        return RowKind.NODE
    if _OP.fullmatch(name) or (old and _OLD_OP.fullmatch(name) and not _LABEL_WORDS.fullmatch(name)):
        return RowKind.OP
    return RowKind.LABEL


def _is_node(name: str) -> bool:
    """Returns whether a name is one of autograd's: it ends in a word such as AddmmBackward0."""
    if "Backward" not in name:
        return name.startswith("torch::autograd::")
    word = _LAST_WORD.match(name[::-1])
    return name.startswith("torch::autograd::") or bool(word and _NODE.search(name[len(name) - word.end() :]))


def device_s(row: TableRow) -> float:
    """Device time of a row with all that was called under it."""
    return max(row.device_total_s or 0.0, 0.0)


def self_device_s(rows: Iterable[TableRow]) -> float:
    """Device time of rows themselves, without what was called under them."""
    return sum(max(row.self_device_s or 0.0, 0.0) for row in rows)


def host_s(row: TableRow) -> float:
    """Host time of a row with all that was called under it."""
    return max(row.cpu_total_s or 0.0, 0.0)
