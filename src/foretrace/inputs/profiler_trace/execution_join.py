"""A profiler's trace and an execution trace of the same run, joined: the one has times, the other shapes and data.

PyTorch numbers the calls of its ops; Kineto writes the number as `External id`, the execution trace as `rf_id`. Where
the two were counted from different starts, ops are joined by name and order instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import AnyFile, AnyPath, GivenPath, InputFile, given_path, given_paths
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.execution_trace import (
    ExecutionNode,
    ExecutionTrace,
    looks_like_execution_trace,
    read_execution_trace,
)
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile

_JOINED: Final = (EventCategory.CPU_OP, EventCategory.ANNOTATION)
_TRUSTED: Final = 0.9
"""The share of numbers found in both whose names agree, from which on they are taken to mean the same."""


def read_with_shapes(paths: Iterable[AnyPath]) -> list[RankProfile]:
    """Reads the traces of a job's ranks, with the shapes of the execution traces that are among the files."""
    executions: list[InputFile] = []

    def profiles() -> Iterator[GivenPath]:
        for given in map(given_path, paths):
            if _is_execution_trace(given):
                executions.append(given.files[0])
            else:
                yield given

    # A trace is read before the next file is looked at, so that of many files few are open.
    rest = profiles()
    first = next(rest, None)
    return attach_execution_traces([] if first is None else read_traces(chain((first,), rest)), executions)


def read_joined_traces(paths: Iterable[AnyPath]) -> tuple[list[RankProfile], list[ExecutionTrace]]:
    """Reads traces and execution traces of one job; traces have the shapes of the execution traces of their processes.

    Execution traces alone are read too.
    """
    profiles, files = split_execution_traces(paths)
    executions = [read_execution_trace(file) for file in files]
    return attach_execution_traces(read_traces(profiles), executions) if profiles else [], executions


def split_execution_traces(paths: Iterable[AnyPath]) -> tuple[list[GivenPath], list[InputFile]]:
    """Returns the paths of a profiler's traces, and the files of execution traces among them, which stay open."""
    given = given_paths(paths)
    executions = [path.files[0] for path in given if _is_execution_trace(path)]
    return [path for path in given if path.is_many or path.files[0] not in executions], executions


def _is_execution_trace(given: GivenPath) -> bool:
    return given.is_file and looks_like_execution_trace(given.files[0])


def attach_execution_traces(
    traces: Sequence[RankProfile], executions: Sequence[AnyFile | ExecutionTrace]
) -> list[RankProfile]:
    """Returns the traces, each with the shapes of the execution trace of its process.

    Each of `executions`, files or what was read of them, must belong to a trace.
    """
    if executions and not traces:
        first = executions[0]
        raise InputError(
            "cannot-simulate",
            "an execution trace has no times",
            where=first.path if isinstance(first, ExecutionTrace) else str(first),
            hint="give the profiler's trace of the same run before it: foretrace simulate TRACE EXECUTION_TRACE",
        )
    joined = list(traces)
    for source in executions:
        execution = source if isinstance(source, ExecutionTrace) else read_execution_trace(source)
        at = _owner(joined, execution)
        joined[at] = with_shapes_of(joined[at], execution)
    return joined


def _owner(traces: Sequence[RankProfile], execution: ExecutionTrace) -> int:
    """Returns which trace is of the process of an execution trace; the only trace if it names no process."""
    processes = [{thread.process for thread in trace.threads if thread.process >= 0} for trace in traces]
    same = [at for at, mine in enumerate(processes) if execution.process in mine]
    if len(traces) == 1 and (execution.process < 0 or not processes[0]):
        return 0
    if len(same) != 1:
        count = "several traces are" if same else "no trace is"
        raise InputError(
            "several-inputs",
            f"{count} of process {execution.process}, of which this execution trace is",
            where=execution.path,
            hint="give traces and execution traces of the same run, rank by rank",
        )
    return same[0]


def with_shapes_of(trace: RankProfile, execution: ExecutionTrace) -> RankProfile:
    """Returns the trace with the inputs and communication arguments that the execution trace has and it lacks."""
    events = trace.events
    nodes = {node.number: node for node in execution.nodes}
    matched, how = _matched(trace, execution.nodes)
    ops = events.of(EventCategory.CPU_OP)
    if not len(matched):
        raise InputError(
            "several-inputs",
            "no op of the trace is in the execution trace",
            where=execution.path,
            hint="both must be recorded in the same run",
        )
    inputs = {entry: number for number, entry in enumerate(trace.inputs)}
    calls = {call: number for number, call in enumerate(trace.calls)}
    new_inputs, new_calls, given = events.inputs.copy(), events.call.copy(), 0
    for event, number in matched.tolist():
        node = nodes[number]
        if new_inputs[event] < 0 and node.inputs.dims:
            new_inputs[event] = inputs.setdefault(node.inputs, len(inputs))
            given += 1
        if new_calls[event] < 0 and node.call is not None:
            new_calls[event] = calls.setdefault(node.call, len(calls))
    joined = int(np.isin(matched[:, 0], ops).sum())
    text = (
        f"{joined:,} of {len(ops):,} ops found in {Path(execution.path).name} by {how}; inputs of {given:,} from there"
    )
    return replace(
        trace,
        inputs=tuple(inputs),
        calls=tuple(calls),
        groups={**{name: ranks for name, ranks in execution.groups.items() if ranks}, **trace.groups},
        events=replace(events, inputs=new_inputs, call=new_calls),
        diagnostics=(*trace.diagnostics, Diagnostic("note", "traces-joined", text, trace.path)),
    )


def _matched(trace: RankProfile, nodes: Sequence[ExecutionNode]) -> tuple[Longs, str]:
    """Returns pairs of an event and the number of a node, and how they were matched."""
    by_number = _by_number(trace, nodes)
    if by_number is not None:
        return by_number, "number"
    return _by_order(trace, nodes), "name and order"


def _by_number(trace: RankProfile, nodes: Sequence[ExecutionNode]) -> Longs | None:
    """Matches by PyTorch's number of the call; returns None where these numbers mean other ops in the two files."""
    events = trace.events
    known = {node.function: node for node in nodes if node.function > 0}
    asked = events.of(*_JOINED)
    pairs, wrong = [], 0
    for event, number, name in zip(asked.tolist(), events.external[asked].tolist(), trace.names(asked), strict=True):
        node = known.get(number)
        if node is None:
            continue
        if node.name == name:
            pairs.append((event, node.number))
        else:
            wrong += 1
    if not pairs or len(pairs) < _TRUSTED * (len(pairs) + wrong):
        return None
    return np.array(pairs, dtype=np.int64)


def _by_order(trace: RankProfile, nodes: Sequence[ExecutionNode]) -> Longs:
    """Matches by name and order between two ops that autograd numbered.

    These numbers are the same in both files, so that one file may begin earlier or end later than the other.
    """
    events = trace.events
    asked = events.of(*_JOINED)
    mine = _placed(zip(asked.tolist(), trace.names(asked), events.sequence[asked].tolist(), strict=True))
    theirs = _placed((node.number, node.name, node.sequence) for node in nodes)
    pairs = [
        pair
        for place, numbers in mine.items()
        if len(numbers) == len(theirs.get(place, ()))
        for pair in zip(numbers, theirs[place], strict=True)
    ]
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _placed(ops: Iterable[tuple[int, str, int]]) -> dict[tuple[int, str], list[int]]:
    """Returns ops, in order, by the last sequence number before them and their own name."""
    by_place: dict[tuple[int, str], list[int]] = {}
    last = -1
    for number, name, sequence in ops:
        last = sequence if sequence >= 0 else last
        by_place.setdefault((last, name), []).append(number)
    return by_place


@dataclass(frozen=True, slots=True)
class DataFlow:
    """Which op needs what another wrote: leaves of an execution trace by position, and the longest chain of them."""

    ops: tuple[ExecutionNode, ...]
    source: Longs
    target: Longs
    longest: int


def data_flow(execution: ExecutionTrace) -> DataFlow:
    """Returns dependencies by data, in the order the ops began.

    An op needs the last op that wrote to a storage it reads.
    """
    ops = execution.leaves()
    writer: dict[int, int] = {}
    depth = [0] * len(ops)
    source: list[int] = []
    target: list[int] = []
    for at, node in enumerate(ops):
        needed = {writer[read.storage] for read in node.reads if read.storage in writer}
        source += sorted(needed)
        target += [at] * len(needed)
        depth[at] = 1 + max((depth[before] for before in needed), default=0)
        for tensor in (*node.writes, *(node.reads if node.in_place else ())):
            writer[tensor.storage] = at
    return DataFlow(
        tuple(ops), np.array(source, dtype=np.int64), np.array(target, dtype=np.int64), max(depth, default=0)
    )
