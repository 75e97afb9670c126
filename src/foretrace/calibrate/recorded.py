"""Reads kernels, collectives and launches off profiler traces and tables.

A kernel takes the device time of all that its op launched, and after each launch the pause before the next one that was
waiting already. So prices of kernels that follow each other add up to the step. Kernels that ran next to another
stream's are left out, since they took longer than alone.

A recorded collective lasts from where this rank arrived to its end. A rank that came before the others waited for them,
so the shortest call of each kind and size counts, over all ranks that were traced: some rank came last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.numbers import real_field, whole_field
from foretrace.cost.calibration import MAX_LAUNCH_S, MIN_LAUNCH_S, HostFit
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements
from foretrace.inputs.profiler_table.format import ProfilerTable, TableRow
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, Dims, EventCategory, Inputs, RankProfile
from foretrace.inputs.profiler_trace.host_modes import times as host_times
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication, communications
from foretrace.inputs.profiler_trace.profiling_cost import profiling_cost, unprofiled_gap_s
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.inputs.profiler_trace.rank.streams import DEFAULT_GAP_S, MAX_GAP_S
from foretrace.inputs.torch_ops.kinds import communicates, plain_name
from foretrace.inputs.torch_ops.lists import list_kernels
from foretrace.inputs.torch_ops.parameters import parameters
from foretrace.inputs.torch_ops.shapes import kernel_of
from foretrace.program.columns import Collective
from foretrace.program.kernels import Kernel, Stream

MIN_PAIRS: Final = 20
OUTLIER: Final = 3.0
"""Multiple of the median from which a time is an outlier: something held the kernel up, or it was a first launch."""

MIN_CALLS: Final = 3
"""Calls of which the shortest counts: of fewer, each may have waited."""

USUAL_NODE: Final = 8
"""GPUs of a node, where no cluster says."""

MIN_KERNELS: Final = 100
"""Kernels of a step below which its launches say little about others."""

MAX_MEDIANS: Final = 10.0
"""Multiples of the median up to which the host's time before a call counts. Longer times are a user's own code, such as
loading data."""

_MAX_LAUNCHES: Final = 10**12
_OPTIMIZERS: Final = ("fused_adam", "fused_adamw", "fused_sgd")
_NOT_MEASURED: Final = (Collective.NONE, Collective.BARRIER, Collective.EXCHANGE)
_TABLE_HINT: Final = (
    "print it with key_averages(group_by_input_shape=True).table(max_shapes_column_width=…), or give the trace"
)


@dataclass(frozen=True, slots=True)
class RecordedKernels:
    """Kernels of a recorded step.

    `seconds` are those of one call, and `calls` how often a step runs the kernel. The step took `step_s`, the device
    worked for the share `busy` of it, and the share `unknown` of that work is of ops that no kernel stands for.
    """

    seconds: Mapping[Kernel, float]
    calls: Mapping[Kernel, float]
    step_s: float
    busy: float
    unknown: float
    steps: int

    @property
    def products(self) -> int:
        """Matrix products and attentions of a step."""
        return round(sum(count for kernel, count in self.calls.items() if kernel.flops > 0))

    @property
    def flops(self) -> float:
        """FLOPs of these products and attentions."""
        return sum(count * kernel.flops for kernel, count in self.calls.items())


def recorded_kernels(trace: RankProfile) -> RecordedKernels:
    """Returns the kernels of the whole steps of a trace. Raises InputError if it has no kernels or no shapes."""
    links = EventLinks(trace)
    steps = find_steps(trace, links)
    device = _work(trace, steps)
    if not len(device):
        raise InputError(
            "not-recorded",
            "the trace has no kernels on a device",
            where=trace.path,
            hint="record CUDA activities too",
        )
    if not trace.inputs:
        hint = "record it again with profile(record_shapes=True)"
        raise InputError(
            "not-recorded",
            "the trace has no shapes, so no kernel can be told by them",
            where=trace.path,
            hint=hint,
        )
    count = max(len(set(steps.of_event[device].tolist()) - {-1}), 1)
    gap_s = _gap_s(trace, links, device)
    updates = _updates(trace, links)
    times: dict[Kernel, list[float]] = {}
    known_s = 0.0
    for op, its in _by_op(links, device).items():
        kernel = updates.get(op) or _kernel(trace, op, its)
        if kernel is not None:
            spent = float(trace.events.duration_s[its].sum())
            known_s += spent
            times.setdefault(kernel, []).append(spent + gap_s * len(its))
    if not times:
        raise InputError("nothing-to-do", "no kernel of the trace can be told by its op's shapes", where=trace.path)
    span_s, worked_s = _span_s(trace, device, count)
    total_s = float(trace.events.duration_s[device].sum())
    return RecordedKernels(
        {kernel: _typical(seconds) for kernel, seconds in times.items()},
        {kernel: len(seconds) / count for kernel, seconds in times.items()},
        _step_s(trace, span_s / count),
        min(worked_s / span_s, 1.0) if span_s > 0 else 1.0,
        max(1.0 - known_s / total_s, 0.0) if total_s > 0 else 0.0,
        count,
    )


def _work(trace: RankProfile, steps: Steps) -> Longs:
    """Returns the device events of whole steps by start, without communication and what runs next to others."""
    events = trace.events
    device = events.of(*ON_DEVICE)
    device = device[np.argsort(events.start_s[device], kind="stable")]
    start, end = events.start_s[device], events.end_s[device]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]]) if len(device) else end
    after = np.concatenate([start[1:], [np.inf]]) if len(device) else start
    alone = (start >= before - 1e-7) & (after >= end - 1e-7)
    whole = np.append(steps.whole, False)  # the last: of no step
    inside = whole[steps.of_event[device]] | (not steps.whole.any())
    return device[alone & inside & ~trace.named(communicates)[device]]


def _by_op(links: EventLinks, device: Longs) -> dict[int, Longs]:
    """Returns the device events of each op; those of none are left out."""
    op = links.op[device]
    order = np.argsort(op, kind="stable")
    starts = np.flatnonzero(np.diff(op[order], prepend=-2))
    groups = np.split(device[order], starts[1:])
    return {int(links.op[group[0]]): group for group in groups if len(group) and links.op[group[0]] >= 0}


def _kernel(trace: RankProfile, op: int, its: Longs) -> Kernel | None:
    """Returns what an op ran, by its inputs and the longest of its kernels."""
    events = trace.events
    name = trace.strings[events.name[op]]
    if events.inputs[op] < 0 or plain_name(name) in _OPTIMIZERS:
        return None
    longest = trace.strings[events.name[its[events.duration_s[its].argmax()]]]
    kernel = kernel_of(name, trace.inputs[events.inputs[op]], longest)
    return as_measured(kernel) if kernel is not None else None


def as_measured(kernel: Kernel) -> Kernel:
    """Returns a kernel without what does not change its time, so that equal kernels count as one."""
    return replace(kernel, fixed=0) if isinstance(kernel, Stream) else kernel


def _updates(trace: RankProfile, links: EventLinks) -> dict[int, Kernel]:
    """Returns the updates of fused optimizers by op.

    The sizes of their lists of tensors are not recorded, but those of the gradients are.
    """
    launched: dict[str, list[Longs]] = {}
    for op, its in _by_op(links, trace.events.of(EventCategory.KERNEL)).items():
        word = plain_name(trace.strings[trace.events.name[op]])
        if word in _OPTIMIZERS:
            launched.setdefault(word, []).append(its)
    updates = list_kernels(trace, parameters(trace), launched)
    return {int(links.op[its[0]]): as_measured(kernel) for its, kernel in updates}


def _gap_s(trace: RankProfile, links: EventLinks, device: Longs) -> float:
    """Returns the median pause between two kernels of a stream, without what the profiler adds to it.

    Only pairs count whose second kernel was launched before the first began.
    """
    events = trace.events
    gaps: list[Floats] = []
    for stream in np.unique(events.stream[device]):
        its = device[events.stream[device] == stream]
        pause = events.start_s[its][1:] - events.end_s[its][:-1]
        waited = links.issued_s[its][1:] < events.start_s[its][:-1]
        gaps.append(pause[waited & (pause > 0) & (pause < MAX_GAP_S)])
    together = np.concatenate(gaps) if gaps else np.empty(0)
    return float(np.median(unprofiled_gap_s(together))) if len(together) >= MIN_PAIRS else DEFAULT_GAP_S


def _span_s(trace: RankProfile, device: Longs, steps: int) -> tuple[float, float]:
    """Returns the seconds from the first kernel to the end of the last, and those of them in which one ran."""
    events = trace.events
    start, end = events.start_s[device], np.maximum.accumulate(events.end_s[device])
    idle = np.maximum(start[1:] - end[:-1], 0.0)
    span = float(end[-1] - start[0])
    return span, span - float(idle[idle > MAX_GAP_S].sum()) if steps else span


def _step_s(trace: RankProfile, otherwise_s: float) -> float:
    """Returns the recorded step as a replay has it, or `otherwise_s` if the trace cannot be replayed."""
    try:
        return read_step(trace).recorded_s
    except InputError:
        return otherwise_s


def _typical(seconds: list[float]) -> float:
    """Returns the mean without outliers: it adds up to the step, as a median does not."""
    values = np.array(seconds)
    return float(values[values <= OUTLIER * np.median(values)].mean())


def tabled_kernels(tables: Iterable[ProfilerTable]) -> RecordedKernels:
    """Returns what the ops of a table with shapes took on the device, per call.

    Such a table is what `key_averages(group_by_input_shape=True)` prints. It has no dtypes; bf16 is assumed.
    """
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
            kernel = _kernel_of_row(row)
            if kernel is not None:
                known_s += own_s
                times.setdefault(kernel, []).append((own_s, row.calls))
    if not times:
        raise InputError(
            "nothing-to-do",
            "no row of the table has a device time and shapes that can be read",
            where=path,
            hint=_TABLE_HINT,
        )
    calls = {kernel: float(sum(count for _, count in rows)) for kernel, rows in times.items()}
    seconds = {kernel: sum(spent for spent, _ in rows) / calls[kernel] for kernel, rows in times.items()}
    return RecordedKernels(seconds, calls, 0.0, 1.0, 1.0 - known_s / total_s, 0)


def _kernel_of_row(row: TableRow) -> Kernel | None:
    """Returns the kernel that a row's shapes describe; None if they are cut off or describe none."""
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


def recorded_collectives(traces: Sequence[RankProfile], node_gpus: int | None) -> Measurements | None:
    """Returns what collectives of these traces took; None if they have none of known size in a known group.

    `node_gpus` is how many GPUs a node has, where that is known.
    """
    shortest: dict[tuple[Collective, int, int, int], list[float]] = {}
    for trace in traces:
        for event, call in communications(trace, EventLinks(trace)).items():
            if call.collective in _NOT_MEASURED or call.bytes <= 0 or call.group.size < 2:
                continue
            key = (call.collective, call.group.size, _nodes(call, node_gpus or USUAL_NODE), call.bytes)
            shortest.setdefault(key, []).append(float(trace.events.duration_s[event]))
    name = traces[0].path if traces else ""
    kept = {key: min(times) for key, times in shortest.items() if len(times) >= MIN_CALLS and min(times) > 0}
    gpu = next((device.name for trace in traces for device in trace.devices), "")
    rows = [Measurement(*key, time_s, name, 1, gpu) for key, time_s in sorted(kept.items())]
    if not rows:
        return None
    notes = [
        Diagnostic(
            "note", "price-source", "of recorded collectives the shortest call of each size counts: others waited", name
        )
    ]
    if node_gpus is None:
        text = f"nodes of {USUAL_NODE} GPUs are assumed for recorded collectives (say --cluster)"
        notes.append(Diagnostic("note", "assumed", text, name))
    return measurements_of(rows, notes, name)


def _nodes(call: RecordedCommunication, node_gpus: int) -> int:
    """Returns on how many nodes a group is, if ranks fill them in order."""
    ranks = call.group.ranks or tuple(range(call.group.size))
    return len({rank // node_gpus for rank in ranks})


def profiled_host(facts: Mapping[str, str], where: str) -> HostFit | None:
    """Returns the launch time that the header of a kernel profile reports; None if it reports none."""
    parts = []
    for way in ("forward", "backward"):
        time_name, count_name = f"host_{way}_us", f"host_{way}_launches"
        if time_name not in facts or count_name not in facts:
            return None
        least_us, most_us = 1e6 * MIN_LAUNCH_S, 1e6 * MAX_LAUNCH_S
        each_us = real_field(time_name, facts[time_name], where, least=least_us, most=most_us)
        parts.append((each_us, whole_field(count_name, facts[count_name], where, most=_MAX_LAUNCHES)))
    launches = sum(count for _, count in parts)
    spent_us = sum(us * count for us, count in parts)
    return HostFit(1e-6 * spent_us / launches, launches) if launches > 0 and spent_us > 0 else None


def host_fit(trace: RankProfile) -> HostFit | None:
    """Returns the host's time per launched kernel, without waits and without the profiler's own time.

    Returns None if the trace has no steps, no launches or too few of them.
    """
    try:
        rank = read_step(trace)
    except InputError:
        return None
    # At the recorded pace: scaling it to that of other hosts would remove what is particular to this machine.
    work_s = host_times(rank, "unprofiled").work_s / profiling_cost(trace).pace
    device = rank.steady.device
    kernels = int((trace.events.category[device] == EventCategory.KERNEL).sum()) // max(len(device), 1)
    if kernels < MIN_KERNELS or not len(work_s) or (rank.links.launch[device] < 0).any():
        return None
    spent_s = float(np.minimum(work_s, MAX_MEDIANS * np.median(work_s)).sum())
    if not MIN_LAUNCH_S <= spent_s / kernels <= MAX_LAUNCH_S:
        return None
    compiled = any(name.startswith("triton_") for name in trace.strings)
    return HostFit(spent_s / kernels, kernels, "compiled" if compiled else "eager")
