"""The contents of profilers' traces and of execution traces as a screen and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from foretrace.formats.execution_trace import ExecutionTrace
from foretrace.lower.profiler_trace.execution import data_flow
from foretrace.lower.profiler_trace.inventory import ProfileInventory
from foretrace.report.table import table
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show
from foretrace.units import format_bytes, format_count, format_time

PROFILES_SCHEMA = "foretrace.profiles/1"
MOST_ROWS = 6
MOST_STEPS = 4
_PRODUCERS = {"kineto": "PyTorch profiler (Kineto)", "nsys": "Nsight Systems"}
_VERSIONS = ("nccl_version", "cuda_driver_version", "cuda_runtime_version", "cupti_version", "hip_driver_version")


def profiles_json(profiles: Sequence[ProfileInventory], executions: Sequence[ExecutionTrace]) -> dict[str, Any]:
    """All of it; sizes in bytes, times in seconds."""
    return {
        "schema": PROFILES_SCHEMA,
        "format": "profiler traces" if profiles else "PyTorch execution traces",
        "traces": [asdict(one) for one in profiles],
        "execution_traces": [_execution(one) for one in executions],
    }


def _execution(trace: ExecutionTrace) -> dict[str, Any]:
    flow = data_flow(trace)
    return {
        "file": trace.path,
        "version": trace.schema,
        "process": trace.process,
        "nodes": len(trace.nodes),
        "ops": dict(Counter(node.name for node in flow.ops).most_common()),
        "dependencies": len(flow.source),
        "longest_chain": flow.longest,
        "collectives": dict(Counter(node.call.name for node in trace.nodes if node.call).most_common()),
        "groups": dict(trace.groups),
    }


def print_profiles(profiles: Sequence[ProfileInventory], executions: Sequence[ExecutionTrace]) -> None:
    """One screen: of the first trace everything, of several a line each."""
    screen = Screen.of(sys.stdout)
    lines: list[list[Span]] = []
    if profiles:
        first = profiles[0]
        lines += [*_facts(first), [], *_streams(first), *_collectives(first)]
        if len(profiles) > 1:
            lines += [[], *_ranks(profiles)]
        lines += [
            [],
            *([(f"  {'cannot tell' if not at else '':<11}  {one}", "")] for at, one in enumerate(first.cannot_tell)),
        ]
        lines += diagnostic_lines(tuple(note for one in profiles for note in one.diagnostics), screen, MOST_ROWS)
    for one in executions:
        lines += [*([[]] if lines else []), *_execution_lines(one)]
    show(screen, lines)


def _facts(one: ProfileInventory) -> list[list[Span]]:
    rank = "rank not said" if one.rank is None else f"rank {one.rank}"
    rank += "" if one.world_size is None else f" of {format_count(one.world_size)}"
    kernels = sum(stream.kernels for stream in one.streams)
    device = one.device or ("a GPU that the trace does not name" if one.devices else "no GPU")
    counts = " · ".join(f"{row.events:,} {row.category}" for row in one.categories)
    lines = [
        f"  {PurePath(one.file).name}: {_PRODUCERS[one.producer]}, {rank}, {format_count(one.events)} events",
        f"  device    {device}{f' and {one.devices - 1} more' if one.devices > 1 else ''} · {kernels:,} kernels on "
        f"{len(one.streams)} stream{'' if len(one.streams) == 1 else 's'}",
        f"  span      {format_time(one.span_s)} in all · {format_time(one.device_span_s)} on the device",
        f"  steps     {_steps(one)}",
        f"  recorded  {_recorded(one.recorded)}",
        f"  host      {_threads(one)}",
        f"  events    {counts.replace('_', ' ')}",
    ]
    versions = [f"{key.removesuffix('_version')} {one.facts[key]}" for key in _VERSIONS if key in one.facts]
    if versions:
        lines.append(f"  versions  {' · '.join(versions)}")
    if one.groups:
        lines.append(f"  groups    {_groups(one.groups)}")
    return [[(line, "")] for line in lines]


def _steps(one: ProfileInventory) -> str:
    times = " · ".join(format_time(seconds) for seconds in one.steps_s[:MOST_STEPS])
    more = f" and {len(one.steps_s) - MOST_STEPS} more" if len(one.steps_s) > MOST_STEPS else ""
    return f"{len(one.steps)} by {one.steps_by}: {times}{more} on the host"


def _recorded(recorded: dict[str, bool]) -> str:
    words = {key: key.replace("_", " ") for key in recorded}
    there = [words[key] for key, true in recorded.items() if true]
    absent = [words[key] for key, true in recorded.items() if not true]
    text = ", ".join(there) or "nothing but times"
    return text + (f"; not {', '.join(absent)}" if absent else "")


def _threads(one: ProfileInventory) -> str:
    busy = sorted((thread for thread in one.threads if thread.ops + thread.runtime_calls), key=lambda row: -row.ops)
    named = " · ".join(
        f"{row.name or f'thread {row.thread}'}: {row.ops:,} ops, {row.runtime_calls:,} runtime calls"
        for row in busy[:3]
    )
    return (named or "nothing") + (f" · {len(busy) - 3} more threads" if len(busy) > 3 else "")


def _groups(groups: dict[str, tuple[int, ...]]) -> str:
    shown = [f'"{name}" {_ranks_text(ranks)}' for name, ranks in list(groups.items())[:3]]
    return " · ".join(shown) + (f" · {len(groups) - 3} more" if len(groups) > 3 else "")


def _ranks_text(ranks: tuple[int, ...]) -> str:
    if len(ranks) <= 4:
        return f"of ranks {', '.join(map(str, ranks))}" if ranks else "of ranks not listed"
    return f"of {len(ranks):,} ranks from {ranks[0]} to {ranks[-1]}"


def _streams(one: ProfileInventory) -> list[list[Span]]:
    if not one.streams:
        return [[("  nothing ran on a device", "")]]
    busiest = sorted(one.streams, key=lambda row: -row.busy_s)
    rows = [
        [f"{row.device}:{row.stream}", f"{row.kernels:,}", f"{row.communications:,}", f"{row.copies:,}",
         format_time(row.busy_s)]
        for row in busiest[:MOST_ROWS]
    ]  # fmt: skip
    more = f"{len(busiest) - MOST_ROWS} more streams in --json" if len(busiest) > MOST_ROWS else ""
    return table(("device:stream", "kernels", "communication", "copies", "busy"), rows, more)


def _collectives(one: ProfileInventory) -> list[list[Span]]:
    if not one.collectives:
        return []
    most = sorted(one.collectives, key=lambda row: -row.seconds)
    rows = [
        [row.collective, row.description or row.group or "not said",
         "?" if row.group_size is None else f"{row.group_size:,}", f"{row.calls:,}",
         "not recorded" if row.bytes is None else format_bytes(row.bytes), format_time(row.seconds)]
        for row in most[:MOST_ROWS]
    ]  # fmt: skip
    more = f"; {len(most) - MOST_ROWS} more in --json" if len(most) > MOST_ROWS else ""
    note = f"bytes of all calls; on the device, with waiting for partners{more}"
    return [[], *table(("collective", "group", "ranks", "calls", "bytes", "time"), rows, note)]


def _ranks(profiles: Sequence[ProfileInventory]) -> list[list[Span]]:
    rows = [
        ["?" if one.rank is None else str(one.rank), f"{one.events:,}", f"{sum(row.kernels for row in one.streams):,}",
         str(len(one.steps)), format_time(one.span_s), PurePath(one.file).name]
        for one in profiles[: 2 * MOST_ROWS]
    ]  # fmt: skip
    more = f"{len(profiles) - 2 * MOST_ROWS} more ranks in --json" if len(profiles) > 2 * MOST_ROWS else ""
    return table(("rank", "events", "kernels", "steps", "span", "file"), rows, more)


def _execution_lines(trace: ExecutionTrace) -> list[list[Span]]:
    said = _execution(trace)
    ops = " · ".join(f"{count:,} {name}" for name, count in list(said["ops"].items())[:MOST_ROWS])
    calls = " · ".join(f"{count:,} {name}" for name, count in said["collectives"].items()) or "none"
    lines = [
        f"  {PurePath(trace.path).name}: PyTorch execution trace {trace.schema}, {len(trace.nodes):,} nodes",
        f"  process   {trace.process}",
        f"  ops       {sum(said['ops'].values()):,}, most often {ops}",
        f"  data      {said['dependencies']:,} dependencies by tensors, at most {said['longest_chain']:,} in a row",
        f"  calls     {calls}",
        f"  groups    {_groups(said['groups']) if said['groups'] else 'none'}",
        "  cannot tell  any time: give it beside the profiler's trace of the same run",
    ]
    return [[(line, "")] for line in lines]
