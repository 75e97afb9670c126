"""Kernels that a profiler's trace recorded: what each took in the midst of a training step.

A kernel takes the time on the device of all that its op launched, and after each launch the pause before the next one
that was waiting already: so prices of kernels that follow each other add up to the step. What another stream worked
beside is left out, since it took longer than alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.profiling_cost import unprofiled_gap_s
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.rank_step import read_step
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.inputs.profiler_trace.rank.streams import DEFAULT_GAP_S, MAX_GAP_S
from foretrace.inputs.torch_ops.kinds import communicates, plain_name
from foretrace.inputs.torch_ops.lists import list_kernels
from foretrace.inputs.torch_ops.parameters import parameters
from foretrace.inputs.torch_ops.shapes import kernel_of
from foretrace.program.kernels import Kernel, Stream

MIN_PAIRS: Final = 20
OUTLIER: Final = 3.0
"""Times so many times the median are of a kernel that something held up, or of a first launch."""

_OPTIMIZERS: Final = ("fused_adam", "fused_adamw", "fused_sgd")


@dataclass(frozen=True, slots=True)
class RecordedKernels:
    """What a trace tells of kernels: the seconds of each, how often a step runs it; the seconds of the recorded step,
    in which part of the time the device worked, and which part of that work no kernel of ours stands for."""

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
        """Of these."""
        return sum(count * kernel.flops for kernel, count in self.calls.items())


def recorded_kernels(trace: RankProfile) -> RecordedKernels:
    """The kernels of the whole steps of a trace, where it recorded shapes."""
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
    """Device events of whole steps in order of their start, communication and what runs beside others left out."""
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
    """The device events of each op; those of none are left out."""
    op = links.op[device]
    order = np.argsort(op, kind="stable")
    starts = np.flatnonzero(np.diff(op[order], prepend=-2))
    groups = np.split(device[order], starts[1:])
    return {int(links.op[group[0]]): group for group in groups if len(group) and links.op[group[0]] >= 0}


def _kernel(trace: RankProfile, op: int, its: Longs) -> Kernel | None:
    """What an op ran, by its inputs and the longest of its kernels."""
    events = trace.events
    name = trace.strings[events.name[op]]
    if events.inputs[op] < 0 or plain_name(name) in _OPTIMIZERS:
        return None
    longest = trace.strings[events.name[its[events.duration_s[its].argmax()]]]
    kernel = kernel_of(name, trace.inputs[events.inputs[op]], longest)
    return as_measured(kernel) if kernel is not None else None


def as_measured(kernel: Kernel) -> Kernel:
    """A kernel without what does not change its time, so that equal ones are one."""
    return replace(kernel, fixed=0) if isinstance(kernel, Stream) else kernel


def _updates(trace: RankProfile, links: EventLinks) -> dict[int, Kernel]:
    """The updates of fused optimizers by op: the sizes of their lists are not recorded, but those of gradients are."""
    launched: dict[str, list[Longs]] = {}
    for op, its in _by_op(links, trace.events.of(EventCategory.KERNEL)).items():
        word = plain_name(trace.strings[trace.events.name[op]])
        if word in _OPTIMIZERS:
            launched.setdefault(word, []).append(its)
    updates = list_kernels(trace, parameters(trace), launched)
    return {int(links.op[its[0]]): as_measured(kernel) for its, kernel in updates}


def _gap_s(trace: RankProfile, links: EventLinks, device: Longs) -> float:
    """The median pause between two that follow each other on a stream, the second launched before the first began,
    without what the profiler adds to it."""
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
    """Seconds from the first kernel to the end of the last, and those of them in which one ran."""
    events = trace.events
    start, end = events.start_s[device], np.maximum.accumulate(events.end_s[device])
    idle = np.maximum(start[1:] - end[:-1], 0.0)
    span = float(end[-1] - start[0])
    return span, span - float(idle[idle > MAX_GAP_S].sum()) if steps else span


def _step_s(trace: RankProfile, otherwise_s: float) -> float:
    """The recorded step, as a replay has it, where there is one to replay."""
    try:
        return read_step(trace).recorded_s
    except InputError:
        return otherwise_s


def _typical(seconds: list[float]) -> float:
    """The mean without outliers: it adds up to the step, as a median does not."""
    values = np.array(seconds)
    return float(values[values <= OUTLIER * np.median(values)].mean())
