"""Reads the step of one trace: everything that is known of it before a program is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.device import DeviceStep, device_step
from foretrace.inputs.profiler_trace.rank.host import HostStep, host_step
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.recorded_time import Recorded, recorded_times
from foretrace.inputs.profiler_trace.rank.steady_steps import SteadySteps, steady_steps
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.inputs.profiler_trace.rank.streams import CrossWaits, Streams, cross_waits
from foretrace.inputs.profiler_trace.rank.trim import trimmed
from foretrace.inputs.profiler_trace.rank.waits import HostWaits, host_waits

_RECORDING = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) records both"

MIN_NOTED_SHARE: Final = 0.001
"""The part of a step from which on a note says what nothing recorded accounts for."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """The step of one trace."""

    trace: RankProfile
    links: EventLinks
    streams: Streams
    steps: Steps
    recorded: Recorded
    steady: SteadySteps
    device: DeviceStep
    host: HostStep
    cross: CrossWaits
    waits: HostWaits

    @property
    def recorded_s(self) -> float:
        """The mean of the steady recorded steps."""
        return float(self.recorded.step_s[self.steady.steps].mean())

    def of_steps(self, names: set[str]) -> RankStep:
        """Returns the same rank with only the steps of these names."""
        rows = np.array([self.steps.names[at] in names for at in self.steady.steps], dtype=bool)
        if rows.all():
            return self
        every = self.steady
        steady = replace(every, steps=every.steps[rows], device=every.device[rows], calls=every.calls[rows])
        device = device_step(self.streams, steady, self.cross)
        host = host_step(self.streams, self.steps, steady, self.waits, device.gap_s)
        return replace(self, steady=steady, device=device, host=host)


def read_step(trace: RankProfile, chosen: tuple[int, ...] | None = None) -> RankStep:
    """Reads the step of a trace, from all steady steps in it or those chosen by their position."""
    _check(trace)
    links = EventLinks(trace)
    streams = Streams(trace, links)
    steps = trimmed(streams, find_steps(trace, links))
    recorded = recorded_times(streams, steps)
    steady = steady_steps(streams, steps, recorded, chosen)
    if (step_s := float(recorded.step_s[steady.steps].mean())) < 0:
        text = f"the recorded step takes {step_s * 1e3:.2f} ms, less than no time"
        raise InputError("out-of-range", text, where=trace.path, hint="times of this trace are wrong; record it again")
    cross, waits = cross_waits(streams), host_waits(streams)
    device = device_step(streams, steady, cross)
    host = host_step(streams, steps, steady, waits, device.gap_s)
    return RankStep(trace, links, streams, steps, recorded, steady, device, host, cross, waits)


def _check(trace: RankProfile) -> None:
    events = trace.events
    device = events.of(*ON_DEVICE)
    if not len(device):
        held = f"{len(events.of(EventCategory.CPU_OP)):,} ops of the host" if len(events) else "no events"
        raise InputError(
            "nothing-to-do", f"the trace holds {held} and no work on a device", where=trace.path, hint=_RECORDING
        )
    if len(events) == 1:
        raise InputError(
            "nothing-to-do", "the trace holds a single event, which is no step", where=trace.path, hint=_RECORDING
        )


def step_notes(rank: RankStep, where: str | None = None) -> list[Diagnostic]:
    """Returns notes on how a trace was read; `where` names the trace among others."""
    notes = [*rank.trace.diagnostics]
    used, recorded = rank.steady.steps, rank.recorded
    times = recorded.step_s[used]
    spread = f" ({times.min() * 1e3:.2f} to {times.max() * 1e3:.2f})" if len(used) > 1 else ""
    count = "1 step" if len(used) == 1 else f"mean of {len(used)} steps"
    text = f"recorded step {rank.recorded_s * 1e3:.2f} ms{spread}: {count} by {rank.steps.how}, on the {recorded.bound}"
    notes.append(Diagnostic("note", "as-recorded", text, where))
    notes += [replace(note, where=where) for note in rank.steady.notes]
    notes += [Diagnostic("note", code, text, where) for code, text in _unknown(rank)]
    return notes


def _unknown(rank: RankStep) -> list[tuple[str, str]]:
    """Returns the codes and texts of notes on what was inferred and what nothing recorded accounts for."""
    device = rank.device
    notes: list[tuple[str, str]] = []
    if device.waits:
        inferred = len(device.waits) - device.exact_waits
        how = f"{inferred:,} of them inferred from calls and times" if inferred else "all recorded"
        notes.append(("guessed", f"{len(device.waits):,} waits between streams in a step, {how}"))
    idle = float(device.idle_s[device.idle_early].sum())
    if idle > MIN_NOTED_SHARE * rank.recorded_s:
        text = f"streams idle for {idle * 1e3:.2f} ms of a step for reasons not recorded, or as steps vary; kept"
        notes.append(("not-recorded", text))
    events = rank.trace.events
    work = events.of(*ON_DEVICE)
    orphans = int((rank.links.launch[work] < 0).sum())
    if orphans == len(work):
        notes.append(("not-recorded", "no launches were recorded: the program has the device's work only"))
    elif orphans:
        notes.append(("rows-skipped", f"left out: {orphans:,} kernels and copies whose launch is not in the trace"))
    return notes
