"""Lists the content of PyTorch's and Nsight Systems' profiler traces, and of PyTorch's execution traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, counted_text, some_of
from foretrace.inputs.profiler_trace.execution_join import data_flow
from foretrace.inputs.profiler_trace.format.execution_trace import ExecutionTrace
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.rank.steps import WHOLE_TRACE
from foretrace.inputs.profiler_trace.rank_inventory import ProfileInventory, take_inventory

SCHEMA: Final = "foretrace.profiles/1"
MAX_ROWS: Final = 6
MAX_RANKS: Final = 12
MAX_STEPS: Final = 4
MAX_THREADS: Final = 3
MAX_GROUPS: Final = 3
_PRODUCERS: Final = {"kineto": "PyTorch profiler (Kineto)", "nsys": "Nsight Systems"}
_VERSIONS: Final = ("nccl", "cuda_driver", "cuda_runtime", "cupti", "hip_driver")


@dataclass(frozen=True, slots=True)
class ExecutionInventory:
    """The contents of one execution trace.

    `ops` counts by name those that call no other; `dependencies` are between ops, by tensors, and `longest_chain` is
    the most of them in a row.
    """

    file: str
    version: str
    process: int
    nodes: int
    ops: Mapping[str, int]
    dependencies: int
    longest_chain: int
    collectives: Mapping[str, int]
    groups: Mapping[str, tuple[int, ...]]


def traces_inventory(traces: Sequence[RankProfile], executions: Sequence[ExecutionTrace], title: str) -> Inventory:
    """Counts what traces of the ranks of a job hold, and execution traces of the same run.

    The screen has everything about the first trace, and a line for each of several.
    """
    profiles = [take_inventory(trace) for trace in traces]
    counted = [_count_execution(trace) for trace in executions]
    return Inventory(
        SCHEMA,
        kind="profiler-trace",
        format="profiler traces" if profiles else "PyTorch execution traces",
        title=title,
        world_size=max((profile.world_size for profile in profiles if profile.world_size is not None), default=None),
        contents={"traces": profiles, "execution_traces": counted},
        facts=(
            *_facts(profiles),
            *(fact for execution in counted for fact in _execution_facts(execution)),
            *_no_times(profiles),
        ),
        tables=tuple(_tables(profiles)),
        diagnostics=tuple(note for profile in profiles for note in profile.diagnostics),
        see=("foretrace explain FILE", "foretrace simulate FILE") if _has_device_work(profiles) else (),
    )


def _has_device_work(profiles: Sequence[ProfileInventory]) -> bool:
    return any(profile.streams for profile in profiles)


def _count_execution(trace: ExecutionTrace) -> ExecutionInventory:
    flow = data_flow(trace)
    return ExecutionInventory(
        file=trace.path,
        version=trace.schema,
        process=trace.process,
        nodes=len(trace.nodes),
        ops=dict(Counter(node.name for node in flow.ops).most_common()),
        dependencies=len(flow.source),
        longest_chain=flow.longest,
        collectives=dict(Counter(node.call.name for node in trace.nodes if node.call).most_common()),
        groups=dict(trace.groups),
    )


def _facts(profiles: Sequence[ProfileInventory]) -> Iterator[tuple[str, str]]:
    """Yields the facts of the first trace; its file is named where there are several."""
    if not profiles:
        return
    first = profiles[0]
    rank = "rank not recorded" if first.rank is None else f"rank {first.rank}"
    rank += "" if first.world_size is None else f" of {format_count(first.world_size)}"
    file = f"{PurePath(first.file).name}{SEPARATOR}" if len(profiles) > 1 else ""
    yield "trace", f"{file}{_PRODUCERS[first.producer]} · {rank} · {counted_text(first.events, 'event')}"
    yield "device", _device(first)
    yield "span", f"{format_time(first.span_s)} in all · {format_time(first.device_span_s)} on the device"
    yield "steps", _steps(first)
    yield "recorded", _recorded(first.recorded)
    yield "host", _threads(first)
    yield (
        "events",
        SEPARATOR.join(f"{row.events:,} {row.category.replace('_', ' ')}" for row in first.categories),
    )
    versions = [
        f"{name.replace('_', ' ')} {first.facts[f'{name}_version']}"
        for name in _VERSIONS
        if f"{name}_version" in first.facts
    ]
    if versions:
        yield "versions", SEPARATOR.join(versions)
    if first.groups:
        yield "groups", _groups(first.groups)
    for text in first.cannot_tell:
        yield "cannot tell", text


def _device(profile: ProfileInventory) -> str:
    if not profile.streams:
        return "nothing ran on a device"
    name = profile.device or "a GPU that the trace does not name"
    more = f" and {profile.devices - 1} more" if profile.devices > 1 else ""
    kernels = sum(stream.kernels for stream in profile.streams)
    return f"{name}{more} · {counted_text(kernels, 'kernel')} on {counted_text(len(profile.streams), 'stream')}"


def _steps(profile: ProfileInventory) -> str:
    times = some_of([format_time(seconds) for seconds in profile.steps_s], MAX_STEPS)
    how = "the whole trace is one" if profile.steps_by == WHOLE_TRACE else f"{len(profile.steps)} by {profile.steps_by}"
    return f"{how}, on the host: {times}"


def _recorded(recorded: Mapping[str, bool]) -> str:
    present = [key.replace("_", " ") for key, is_present in recorded.items() if is_present]
    absent = [key.replace("_", " ") for key, is_present in recorded.items() if not is_present]
    text = ", ".join(present) or "nothing but times"
    return text + (f"; not {', '.join(absent)}" if absent else "")


def _threads(profile: ProfileInventory) -> str:
    busy = sorted((row for row in profile.threads if row.ops + row.runtime_calls), key=lambda row: -row.ops)
    texts = [
        f"{row.name or f'thread {row.thread}'}: {counted_text(row.ops, 'op')}, "
        f"{counted_text(row.runtime_calls, 'runtime call')}"
        for row in busy
    ]
    return some_of(texts, MAX_THREADS) or "nothing"


def _groups(groups: Mapping[str, tuple[int, ...]]) -> str:
    return some_of([f'"{name}" {_ranks_text(ranks)}' for name, ranks in groups.items()], MAX_GROUPS)


def _ranks_text(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "with ranks that are not listed"
    if len(ranks) <= 4:
        return f"with ranks {', '.join(map(str, ranks))}"
    return f"with {len(ranks):,} ranks from {ranks[0]} to {ranks[-1]}"


def _execution_facts(counted: ExecutionInventory) -> Iterator[tuple[str, str]]:
    file = PurePath(counted.file).name
    yield "execution", f"{file} · version {counted.version} · {counted.nodes:,} nodes · process {counted.process}"
    most = [f"{count:,} {name}" for name, count in counted.ops.items()]
    yield "ops", f"{sum(counted.ops.values()):,}, most often {some_of(most, MAX_ROWS)}"
    yield "data", f"{counted.dependencies:,} dependencies by tensors, at most {counted.longest_chain:,} in a row"
    calls = [f"{count:,} {name}" for name, count in counted.collectives.items()]
    yield "calls", SEPARATOR.join(calls) or "none"
    yield "groups", _groups(counted.groups) if counted.groups else "none"


def _no_times(profiles: Sequence[ProfileInventory]) -> Iterator[tuple[str, str]]:
    if not profiles:
        yield "cannot tell", "any time: give it together with the profiler's trace of the same run"


def _tables(profiles: Sequence[ProfileInventory]) -> Iterator[InventoryTable]:
    if not profiles:
        return
    first = profiles[0]
    if first.streams:
        yield _stream_table(first)
    if first.collectives:
        yield _collective_table(first)
    if len(profiles) > 1:
        yield _rank_table(profiles)


def _stream_table(profile: ProfileInventory) -> InventoryTable:
    streams = sorted(profile.streams, key=lambda row: -row.busy_s)
    rows = [
        (
            f"{row.device}:{row.stream}",
            f"{row.kernels:,}",
            f"{row.communications:,}",
            f"{row.copies:,}",
            format_time(row.busy_s),
        )
        for row in streams[:MAX_ROWS]
    ]
    note = f"{len(streams) - MAX_ROWS:,} more streams in --json" if len(streams) > MAX_ROWS else ""
    return InventoryTable(("device:stream", "kernels", "communication", "copies", "busy"), rows, note)


def _collective_table(profile: ProfileInventory) -> InventoryTable:
    calls = sorted(profile.collectives, key=lambda row: -row.seconds)
    rows = [
        (
            row.collective,
            row.description or row.group or "not recorded",
            "unknown" if row.group_size is None else f"{row.group_size:,}",
            f"{row.calls:,}",
            "not recorded" if row.bytes is None else format_bytes(row.bytes),
            format_time(row.seconds),
        )
        for row in calls[:MAX_ROWS]
    ]
    more = f"; {len(calls) - MAX_ROWS:,} more in --json" if len(calls) > MAX_ROWS else ""
    note = f"bytes of all calls; times on the device, with waiting for partners{more}"
    return InventoryTable(("collective", "group", "ranks", "calls", "bytes", "time"), rows, note, text_columns=2)


def _rank_table(profiles: Sequence[ProfileInventory]) -> InventoryTable:
    rows = [
        (
            PurePath(profile.file).name,
            "not recorded" if profile.rank is None else str(profile.rank),
            f"{profile.events:,}",
            f"{sum(row.kernels for row in profile.streams):,}",
            str(len(profile.steps)),
            format_time(profile.span_s),
        )
        for profile in profiles[:MAX_RANKS]
    ]
    note = f"{len(profiles) - MAX_RANKS:,} more ranks in --json" if len(profiles) > MAX_RANKS else ""
    return InventoryTable(("file", "rank", "events", "kernels", "steps", "span"), rows, note)
