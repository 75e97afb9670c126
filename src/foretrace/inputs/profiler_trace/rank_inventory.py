"""Lists the content of the trace of one rank, and what it cannot tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication, communications
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.program.columns import label


@dataclass(frozen=True, slots=True)
class CategoryInventory:
    """Events of one category: how many, and their seconds, in which what is nested counts again."""

    category: str
    events: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StreamInventory:
    """The work of a stream: kernels, of them communication, copies and memsets, and the seconds it was busy."""

    device: int
    stream: int
    kernels: int
    communications: int
    copies: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class ThreadInventory:
    """The work of a host thread: ops and calls of the runtime."""

    process: int
    thread: int
    name: str
    ops: int
    runtime_calls: int


@dataclass(frozen=True, slots=True)
class CallInventory:
    """Calls of one collective over one group: bytes of all of them (null where one does not say) and their seconds on
    the device, waiting for partners included."""

    collective: str
    group: str
    description: str
    group_size: int | None
    calls: int
    bytes: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ProfileInventory:
    """The contents of one trace. `steps_s` are the lengths of the steps found."""

    file: str
    producer: str
    rank: int | None
    world_size: int | None
    device: str
    devices: int
    facts: dict[str, str]
    groups: dict[str, tuple[int, ...]]
    events: int
    span_s: float
    device_span_s: float
    steps_by: str
    steps: tuple[str, ...]
    steps_s: tuple[float, ...]
    recorded: dict[str, bool]
    categories: tuple[CategoryInventory, ...]
    streams: tuple[StreamInventory, ...]
    threads: tuple[ThreadInventory, ...]
    collectives: tuple[CallInventory, ...]
    cannot_tell: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def take_inventory(trace: RankProfile) -> ProfileInventory:
    """Counts what a trace holds."""
    events = trace.events
    links = EventLinks(trace)
    calls = communications(trace, links)
    steps = find_steps(trace, links)
    on_device = events.of(*ON_DEVICE)
    used = sorted(set(events.device[on_device].tolist()))
    names = {device.number: device.name for device in trace.devices}
    collectives = tuple(_calls(trace, calls))
    recorded = _recorded(trace)
    return ProfileInventory(
        file=trace.path,
        producer=trace.producer,
        rank=trace.rank,
        world_size=trace.world,
        device=", ".join(dict.fromkeys(names[number] for number in used if names.get(number))),
        devices=len(used),
        facts=dict(trace.facts),
        groups=dict(trace.groups),
        events=len(events),
        span_s=float(events.end_s.max(initial=0.0)),
        device_span_s=_span_s(trace, on_device),
        steps_by=steps.how,
        steps=steps.names,
        steps_s=tuple((steps.end_s - steps.start_s).tolist()),
        recorded=recorded,
        categories=tuple(_categories(trace)),
        streams=tuple(_streams(trace, on_device, calls)),
        threads=tuple(_threads(trace)),
        collectives=collectives,
        cannot_tell=tuple(_cannot_tell(trace, recorded, collectives, steps)),
        diagnostics=trace.diagnostics,
    )


def _span_s(trace: RankProfile, at: Longs) -> float:
    if not len(at):
        return 0.0
    return float(trace.events.end_s[at].max() - trace.events.start_s[at].min())


def _recorded(trace: RankProfile) -> dict[str, bool]:
    category = trace.events.category
    return {
        "shapes": bool((trace.events.inputs >= 0).any()),
        "stacks": trace.facts.get("with_stack") == "1",
        "memory": trace.facts.get("profile_memory") == "1",
        "synchronisation": bool((category == EventCategory.SYNC).any()),
        "collective_arguments": bool(trace.calls),
        "annotations": bool((category == EventCategory.ANNOTATION).any()),
    }


def _categories(trace: RankProfile) -> Iterable[CategoryInventory]:
    count = np.bincount(trace.events.category, minlength=len(EventCategory))
    seconds = np.bincount(trace.events.category, weights=trace.events.duration_s, minlength=len(EventCategory))
    for category in EventCategory:
        if count[category]:
            yield CategoryInventory(label(category), int(count[category]), float(seconds[category]))


def _streams(trace: RankProfile, at: Longs, calls: dict[int, RecordedCommunication]) -> Iterable[StreamInventory]:
    events = trace.events
    lanes = np.stack([events.device[at], events.stream[at]], axis=1)
    for device, stream in np.unique(lanes, axis=0).tolist():
        here = at[(lanes[:, 0] == device) & (lanes[:, 1] == stream)]
        kernels = here[events.category[here] == EventCategory.KERNEL]
        yield StreamInventory(
            device,
            stream,
            len(kernels),
            sum(kernel in calls for kernel in kernels.tolist()),
            len(here) - len(kernels),
            _busy_s(trace, here),
        )


def _busy_s(trace: RankProfile, at: Longs) -> float:
    """Returns the seconds in which at least one of these events, given in order of their start, ran."""
    start, end = trace.events.start_s[at], trace.events.end_s[at]
    latest = np.maximum.accumulate(end)
    begun = np.maximum(start[1:], latest[:-1])
    return float(end[0] - start[0] + np.maximum(latest[1:] - begun, 0.0).sum())


def _threads(trace: RankProfile) -> Iterable[ThreadInventory]:
    events = trace.events
    for number, thread in enumerate(trace.threads):
        mine = events.category[events.thread == number]
        ops, calls = int((mine == EventCategory.CPU_OP).sum()), int((mine == EventCategory.RUNTIME).sum())
        yield ThreadInventory(thread.process, thread.thread, thread.name, ops, calls)


def _calls(trace: RankProfile, calls: dict[int, RecordedCommunication]) -> Iterable[CallInventory]:
    together: dict[tuple[str, str, str, int], list[int]] = {}
    for event, call in calls.items():
        key = (label(call.collective), call.group.name, call.group.description, call.group.size)
        together.setdefault(key, []).append(event)
    for (collective, group, description, size), several in sorted(together.items()):
        sizes = [calls[event].bytes for event in several]
        seconds = float(trace.events.duration_s[several].sum())
        total = sum(sizes) if min(sizes) >= 0 else None
        yield CallInventory(collective, group, description, size if size > 0 else None, len(several), total, seconds)


def _cannot_tell(
    trace: RankProfile, recorded: dict[str, bool], collectives: tuple[CallInventory, ...], steps: Steps
) -> Iterable[str]:
    """Yields what a reader might look for in vain, and how to record it."""
    events = trace.events
    if not len(events.of(*ON_DEVICE)):
        yield "what a GPU did: no kernel was recorded (ProfilerActivity.CUDA), so it cannot be simulated"
        return
    if not len(events.of(EventCategory.RUNTIME)):
        yield "who launched a kernel: no runtime calls were recorded"
    if not recorded["shapes"]:
        yield "shapes of ops (record_shapes=True): another batch cannot be worked out"
    if any(collective.bytes is None for collective in collectives):
        yield "bytes of some collectives: newer PyTorch writes them with each call"
    if not recorded["synchronisation"] and len(set(events.stream[events.of(*ON_DEVICE)].tolist())) > 1:
        yield "waits between streams (no cuda_sync events): they are taken from runtime calls and times"
    if collectives and trace.world is None:
        yield "how many ranks there were"
    if steps.how == "whole trace":
        yield "where a step begins (call profiler.step(), or mark steps with record_function)"
