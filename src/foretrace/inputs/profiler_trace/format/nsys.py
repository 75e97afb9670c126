"""Nsight Systems: the SQLite export of a report, read into the same records as Kineto's traces.

Kernels, copies, runtime calls, waits and NVTX ranges are joined as there: by correlation between host and device, by
thread and time between calls and ranges. A report may hold several processes, each a rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from foretrace.basics.arrays import Ints, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import AnyFile
from foretrace.basics.records import read_json
from foretrace.inputs.profiler_trace.format.arguments import count, nested_sizes, whole
from foretrace.inputs.profiler_trace.format.names import rank_in_name
from foretrace.inputs.profiler_trace.format.nsys_tables import NsysTables, opened
from foretrace.inputs.profiler_trace.format.records import (
    ON_DEVICE,
    Dims,
    EventCategory,
    Events,
    Inputs,
    RankProfile,
    Thread,
    TracedDevice,
    usable_times,
)

_S: Final = 1e-9
"""Times are whole nanoseconds."""

_KIND: Final = "CUPTI_ACTIVITY_KIND_"
_PROCESS_BITS: Final = 24
"""A global id holds a thread in its low bits and the process above them (Nsight Systems documentation, "Serialized
Process and Thread Identifiers")."""

_NONE_32: Final = 0xFFFFFFFF
"""CUPTI's stream or event that is none (CUPTI_SYNCHRONIZATION_INVALID_VALUE)."""

_COPIES: Final = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
"""CUpti_ActivityMemcpyKind, in Kineto's words."""

_WAITS: Final = ("Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
"""CUpti_ActivitySynchronizationType, in Kineto's words."""

_NESTED_RANGES, _OTHER_RANGES = (59, 70), (60, 71)
"""Event types of push/pop and start/end ranges, as the program made them or as imported from text."""

_VERSIONED: Final = re.compile(r"(?:_v\d{1,9}|_ptsz|_ptds){1,4}$")

_OP: Final = re.compile(r"[A-Za-z_]\w{0,200}::\w")
_PARTS: Final = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
"""Beginnings of the parts of an NVTX range, in their order, as PyTorch's `getNvtxStr` writes them
(torch/csrc/profiler/util.cpp): "aten::mm, seq = 7, op_id = 12, sizes = [[4, 8], [8, 2]], input_op_ids = [(11, 0)]"."""


def read_nsys(path: AnyFile) -> RankProfile:
    """Reads the process of an export that used its GPU most."""
    processes = read_nsys_processes(path)
    if len(processes) == 1:
        return processes[0]
    busiest = max(processes, key=lambda process: len(process.events.of(*ON_DEVICE)))
    note = Diagnostic(
        "warning",
        "guessed",
        f"{len(processes)} processes in one report: that with the most work on a GPU is taken "
        f"({busiest.facts['process']})",
        str(path),
    )
    return replace(busiest, diagnostics=(*busiest.diagnostics, note))


def read_nsys_processes(path: AnyFile) -> list[RankProfile]:
    """Reads the processes of an export that used a GPU.

    A report does not state ranks. The rank of a single process is in the name of its file; several processes count as
    ranks in the order of the GPUs they used.
    """
    with opened(path) as tables:
        if not any(f"{_KIND}{name}" in tables.names for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")):
            raise InputError(
                "not-recorded",
                "the export has no CUDA activity",
                where=str(path),
                hint="profile with: nsys profile --trace=cuda,nvtx … (tables CUPTI_ACTIVITY_KIND_* are missing)",
            )
        processes = _Reader(tables).processes()
    if len(processes) == 1:
        return [replace(processes[0], rank=rank_in_name(Path(path).name))]
    processes.sort(key=lambda process: (_first_device(process), process.facts["process"]))
    note = Diagnostic(
        "note", "guessed", f"{len(processes)} processes in one report, ranks in the order of their GPUs", str(path)
    )
    return [
        replace(process, rank=rank, world=len(processes), diagnostics=(*process.diagnostics, *([] if rank else [note])))
        for rank, process in enumerate(processes)
    ]


def _first_device(trace: RankProfile) -> int:
    used = trace.events.device[trace.events.of(*ON_DEVICE)]
    return int(used.min()) if len(used) else -1


class _Reader:
    """Puts the tables' rows into one list of events."""

    def __init__(self, tables: NsysTables) -> None:
        self.tables = tables
        self.texts = tables.strings()
        self.thread_names = {
            whole(thread): self.texts.get(whole(name), "")
            for thread, name in tables.rows("ThreadNames", "globalTid", "nameId")
        }
        self.strings: dict[str, int] = {}
        self.threads: dict[tuple[int, str], int] = {}
        self.inputs: dict[Inputs, int] = {}
        self.parts: list[dict[str, Longs]] = []
        self.notes: list[Diagnostic] = []

    def processes(self) -> list[RankProfile]:
        self._device_work()
        self._runtime()
        self._waits()
        self._ranges()
        columns = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        columns = self._timed(columns)
        process = columns.pop("process")
        on_device = np.isin(columns["category"], ON_DEVICE)
        known = sorted(set(process[on_device].tolist()) - {-1}) or sorted(set(process.tolist()) - {-1}) or [-1]
        if len(known) == 1:  # rows that name no process are of the only one there is
            process = np.where(process < 0, known[0], process)
        elif (process[on_device] < 0).any():
            self._note(
                "warning", "rows-skipped", f"{int((process[on_device] < 0).sum()):,} kernels name no process: left out"
            )
        if self.tables.missing:
            self._note("note", "not-recorded", f"this version of the export lacks {_some(self.tables.missing)}")
        if self.tables.replaced:
            self._note("note", "not-text", "some names hold bytes that are not UTF-8: shown as \ufffd")
        return [
            self._trace(number, {name: column[process == number] for name, column in columns.items()})
            for number in known
        ]

    def _timed(self, columns: Mapping[str, Longs]) -> dict[str, Longs]:
        """Returns the rows whose times can be: a session counts from 0 on."""
        start, end = columns["start"], columns["end"]
        early = (start < 0) | (end < 0)
        if early.any():
            self._note("warning", "rows-skipped", f"{int(early.sum()):,} events begin before the session: left out")
        # As floats, since the difference of two times may not fit 64 bits.
        duration = end.astype(np.float64) - start
        kept, notes = usable_times(start, duration, ~early, self.tables.path)
        self.notes += notes
        if len(start) and not kept.any():
            raise InputError("nothing-to-do", "no event of the export has a usable time", where=self.tables.path)
        return {name: column[kept] for name, column in columns.items()}

    def _trace(self, process: int, columns: Mapping[str, Longs]) -> RankProfile:
        order = np.lexsort((columns["start"] - columns["end"], columns["start"]))
        origin = int(columns["start"][order[0]]) if len(order) else 0
        pid = process & ((1 << _PROCESS_BITS) - 1)
        return RankProfile(
            path=self.tables.path,
            producer="nsys",
            rank=None,
            world=None,
            devices=self._devices(pid),
            groups={},
            facts=self._facts(process),
            strings=tuple(self.strings),
            threads=tuple(Thread(*self._thread_numbers(thread), name) for thread, name in self.threads),
            inputs=tuple(self.inputs),
            calls=(),
            events=_events(columns, order, origin),
            diagnostics=tuple(self.notes),
            origin_ns=origin + self._session_ns(),
        )

    def _device_work(self) -> None:
        common = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        kernels = self.tables.numbers(f"{_KIND}KERNEL", (*common, "demangledName"))
        if "demangledName" not in self.tables.columns(f"{_KIND}KERNEL"):
            kernels["demangledName"] = self.tables.numbers(f"{_KIND}KERNEL", ("shortName",))["shortName"]
        self._add(EventCategory.KERNEL, kernels, self._named(kernels["demangledName"]))
        copies = self.tables.numbers(f"{_KIND}MEMCPY", (*common, "copyKind", "bytes"))
        kind = np.where((copies["copyKind"] >= 0) & (copies["copyKind"] < len(_COPIES)), copies["copyKind"], 0)
        names = np.array([self._string(f"Memcpy {copy}".rstrip()) for copy in _COPIES], dtype=np.int64)
        self._add(EventCategory.MEMCPY, copies, names[kind], bytes=copies["bytes"])
        sets = self.tables.numbers(f"{_KIND}MEMSET", (*common, "bytes"))
        memset = np.full(len(sets["start"]), self._string("Memset (Device)"), dtype=np.int64)
        self._add(EventCategory.MEMSET, sets, memset, bytes=sets["bytes"])
        graphs = self.tables.numbers(f"{_KIND}GRAPH_TRACE", (*common, "graphId"))
        if len(graphs["start"]):
            self._note(
                "warning",
                "not-recorded",
                f"{len(graphs['start']):,} CUDA graphs were traced as wholes, their kernels not: "
                "profile with --cuda-graph-trace=node to see them",
            )
        named = np.array([self._string(f"CUDA graph {graph}") for graph in graphs["graphId"].tolist()], dtype=np.int64)
        self._add(EventCategory.KERNEL, graphs, named)

    def _runtime(self) -> None:
        for table in (f"{_KIND}RUNTIME", f"{_KIND}DRIVER"):
            calls = self.tables.numbers(table, ("start", "end", "globalTid", "correlationId", "nameId"))
            names = self._named(calls["nameId"], _VERSIONED)
            self._add(EventCategory.RUNTIME, calls, names, thread=self._thread_of(calls["globalTid"]))

    def _waits(self) -> None:
        columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        waits = self.tables.numbers(f"{_KIND}SYNCHRONIZATION", (*columns, "syncType", "eventId"))
        if not len(waits["start"]):
            return
        kind = np.where((waits["syncType"] >= 0) & (waits["syncType"] < len(_WAITS)), waits["syncType"], 0)
        names = np.array([self._string(wait) for wait in _WAITS], dtype=np.int64)
        waits["streamId"] = np.where(waits["streamId"] == _NONE_32, -1, waits["streamId"])
        stream, correlation = self._waited_for(waits)
        self._add(EventCategory.SYNC, waits, names[kind], waits_stream=stream, waits_correlation=correlation)

    def _waited_for(self, waits: Mapping[str, Longs]) -> tuple[Longs, Longs]:
        """Returns the stream and the correlation of the cudaEventRecord that each wait is for: the last of its event
        before."""
        records = self.tables.numbers(
            f"{_KIND}CUDA_EVENT", ("streamId", "correlationId", "globalPid", "eventId"), "eventId IS NOT NULL"
        )
        count = len(waits["start"])
        none = np.full(count, -1, dtype=np.int64)
        waiting = (waits["eventId"] >= 0) & (waits["eventId"] != _NONE_32)
        if not len(records["eventId"]) or not waiting.any():
            if waiting.any():
                self._note(
                    "note", "as-recorded", "events that streams wait for were not recorded: such waits are as they took"
                )
            return none, none
        # A call's correlation grows with time within a process, and it is all that both tables have.
        last = _last_before(
            (records["globalPid"], records["eventId"], records["correlationId"]),
            (waits["globalPid"], waits["eventId"], waits["correlationId"]),
        )
        matched = waiting & (last >= 0)
        stream = np.where(matched, records["streamId"][last], -1)
        return stream, np.where(matched, records["correlationId"][last], -1)

    def _ranges(self) -> None:
        """Adds NVTX ranges; start/end ranges need not nest, and get a thread of their own."""
        table = "NVTX_EVENTS"
        has_type = table in self.tables.names and "eventType" in self.tables.columns(table)
        kinds = ",".join(map(str, _NESTED_RANGES + _OTHER_RANGES))
        among = f"eventType IN ({kinds}) AND [end] IS NOT NULL" if has_type else "[end] IS NOT NULL"
        ranges = self.tables.numbers(table, ("start", "end", "globalTid", "textId", "eventType", "rowid"), among)
        if not len(ranges["start"]):
            return
        own = {whole(row): str(text) for row, text in self._own_texts(table)}
        seen: dict[str, tuple[int, bool, int, int]] = {}
        facts = np.empty((len(ranges["start"]), 4), dtype=np.int64)
        for at, (number, row) in enumerate(zip(ranges["textId"].tolist(), ranges["rowid"].tolist(), strict=True)):
            text = own.get(row) or self.texts.get(number, "")
            if text not in seen:
                seen[text] = self._range(text)
            facts[at] = seen[text]
        aside = np.isin(ranges["eventType"], _OTHER_RANGES)
        thread = np.where(
            aside,
            self._thread_of(ranges["globalTid"], "start/end ranges"),
            self._thread_of(ranges["globalTid"]),
        )
        category = np.where(facts[:, 1] == 1, EventCategory.CPU_OP, EventCategory.ANNOTATION).astype(np.int64)
        columns = {"thread": thread, "sequence": facts[:, 2], "inputs": facts[:, 3]}
        self._add(category, ranges, facts[:, 0], **columns)

    def _own_texts(self, table: str) -> list[tuple[object, ...]]:
        return [row for row in self.tables.rows(table, "rowid", "text") if row[1] is not None]

    def _range(self, text: str) -> tuple[int, bool, int, int]:
        """Returns the name, kind, sequence and inputs of a range."""
        parsed = read_nvtx_text(text)
        inputs = -1 if parsed.inputs is None else self.inputs.setdefault(parsed.inputs, len(self.inputs))
        return self._string(parsed.name), parsed.is_op, parsed.sequence, inputs

    def _add(self, category: EventCategory | Longs, rows: Mapping[str, Longs], name: Longs, **more: Longs) -> None:
        """Appends the rows of a table as events."""
        count = len(rows["start"])
        none = np.full(count, -1, dtype=np.int64)
        end = np.where(rows["end"] < 0, rows["start"], rows["end"])
        owner = rows.get("globalPid", rows.get("globalTid", none))
        self.parts.append(
            {
                "process": np.where(owner < 0, -1, owner >> _PROCESS_BITS),
                "category": category if isinstance(category, np.ndarray) else np.full(count, int(category)),
                "name": name,
                "start": rows["start"],
                "end": end,
                "thread": more.get("thread", none),
                "device": rows.get("deviceId", none),
                "stream": rows.get("streamId", none),
                "correlation": rows.get("correlationId", none),
                "sequence": more.get("sequence", none),
                "bytes": more.get("bytes", none),
                "inputs": more.get("inputs", none),
                "waits_stream": more.get("waits_stream", none),
                "waits_correlation": more.get("waits_correlation", none),
            }
        )

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def _named(self, numbers: Longs, less: re.Pattern[str] | None = None) -> Longs:
        """Returns the trace's numbers of the names that an export's numbers stand for, without what `less` matches."""
        distinct, at = np.unique(numbers, return_inverse=True)
        texts = [self.texts.get(number, "") for number in distinct.tolist()]
        own = [self._string(text if less is None else less.sub("", text)) for text in texts]
        return np.array(own, dtype=np.int64)[at] if len(distinct) else np.empty(0, dtype=np.int64)

    def _thread_of(self, global_ids: Longs, aside: str = "") -> Longs:
        distinct, at = np.unique(global_ids, return_inverse=True)
        own = [
            self.threads.setdefault((thread, f"{self.thread_names.get(thread, '')} {aside}".strip()), len(self.threads))
            for thread in distinct.tolist()
        ]
        return np.array(own, dtype=np.int64)[at] if len(distinct) else np.empty(0, dtype=np.int64)

    def _thread_numbers(self, global_id: int) -> tuple[int, int]:
        mask = (1 << _PROCESS_BITS) - 1
        return (global_id >> _PROCESS_BITS) & mask, global_id & mask

    def _devices(self, pid: int) -> tuple[TracedDevice, ...]:
        table = self.tables.rows("TARGET_INFO_GPU", "id", "name", "smCount", "totalMemory") or [
            (*row, 0, 0) for row in self.tables.rows("TARGET_INFO_GPU", "id", "name")
        ]
        gpus = {whole(row[0]): row for row in table}
        pairs = self.tables.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        numbers = {whole(cuda): whole(gpu) for gpu, cuda, owner in pairs if whole(owner) == pid}
        return tuple(
            TracedDevice(number, str(gpus[gpu][1] or ""), max(whole(gpus[gpu][2]), 0), max(whole(gpus[gpu][3]), 0))
            for number, gpu in sorted((numbers or {gpu: gpu for gpu in gpus}).items())
            if gpu in gpus
        )

    def _session_ns(self) -> int:
        """Returns when the session began, from which times count, in nanoseconds of the wall clock; 0 if not stated."""
        rows = self.tables.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        return max(whole(rows[0][0]), 0) if rows else 0

    def _facts(self, process: int) -> dict[str, str]:
        """Returns versions and the process, and nothing of its environment, which a report also holds."""
        meta = {
            str(name): str(value)
            for table in ("META_DATA_EXPORT", "EXPORT_META_DATA")
            for name, value in self.tables.rows(table, "name", "value")
            if str(name) in ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION")
        }
        names = {
            whole(global_pid) >> _PROCESS_BITS: str(name)
            for global_pid, name in self.tables.rows("PROCESSES", "globalPid", "name")
        }
        pid = process & ((1 << _PROCESS_BITS) - 1)
        facts = {"process": f"{pid} {names.get(process, '')}".strip() if process >= 0 else "not named"}
        facts["nsys_version"] = meta.get("EXPORT_PRODUCT_VERSION", "")
        facts["nsys_schema"] = meta.get("EXPORT_SCHEMA_VERSION", "")
        return {name: value for name, value in facts.items() if value}

    def _note(self, level: str, code: str, text: str) -> None:
        self.notes.append(Diagnostic("warning" if level == "warning" else "note", code, text, self.tables.path))


def _events(columns: Mapping[str, Longs], order: Longs, origin: int) -> Events:
    """Returns the rows in an order, their times counted from an origin."""

    def ints(name: str) -> Ints:
        return columns[name][order].astype(np.int32)

    start = columns["start"][order]
    none = np.full(len(order), -1, dtype=np.int64)
    return Events(
        category=columns["category"][order].astype(np.uint8),
        name=ints("name"),
        start_s=(start - origin).astype(np.float64) * _S,
        duration_s=np.maximum(columns["end"][order] - start, 0) * _S,
        thread=ints("thread"),
        device=ints("device"),
        stream=ints("stream"),
        correlation=columns["correlation"][order],
        external=none,
        sequence=columns["sequence"][order],
        bytes=columns["bytes"][order],
        inputs=ints("inputs"),
        call=none.astype(np.int32),
        waits_stream=ints("waits_stream"),
        waits_correlation=columns["waits_correlation"][order],
    )


def _last_before(known: tuple[Longs, ...], asked: tuple[Longs, ...]) -> Longs:
    """Returns, for each asked (a, b, time), the latest known row before with the same a and b, else -1."""
    count = len(known[0])
    columns = [np.concatenate(pair) for pair in zip(known, asked, strict=True)]
    order = np.lexsort((np.arange(count + len(asked[0])), columns[2], columns[1], columns[0]))
    is_known = order < count
    last = np.maximum.accumulate(np.where(is_known, np.arange(len(order)), -1))
    at = order[np.maximum(last, 0)]
    same = (columns[0][order] == columns[0][at]) & (columns[1][order] == columns[1][at]) & (last >= 0)
    latest = np.full(len(order), -1, dtype=np.int64)
    latest[order] = np.where(same, at, -1)
    return latest[count:]


def _some(names: list[str]) -> str:
    shown = list(dict.fromkeys(names))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


class NvtxRange(NamedTuple):
    """The parts of a range's text; -1 and None where it states none."""

    name: str
    is_op: bool
    sequence: int = -1
    inputs: Inputs | None = None


def read_nvtx_text(text: str) -> NvtxRange:
    """Returns the op a range stands for, or the user's annotation that it is."""
    if not (_OP.match(text) or ", seq = " in text or ", op_id = " in text or ", sizes = " in text):
        return NvtxRange(text, is_op=False)
    rest, parts = text, dict[str, str]()
    for begin in reversed(_PARTS):  # from the end, so that a name may hold commas
        if begin in rest:
            rest, _, parts[begin] = rest.rpartition(begin)
    sequence, sizes = parts.get(_PARTS[0]), parts.get(_PARTS[2])
    dims = None if sizes is None else _dims(sizes)
    return NvtxRange(rest, True, -1 if sequence is None else count(sequence), None if dims is None else Inputs(dims))


def _dims(text: str) -> tuple[Dims, ...] | None:
    """Returns the sizes of all inputs; None where they cannot be read."""
    try:
        sizes = read_json(text, "NVTX")
        if not isinstance(sizes, list) or not all(isinstance(size, list) for size in sizes):
            return None
        return tuple(nested_sizes(size) for size in sizes)
    except (InputError, ValueError):
        return None
