"""Sets recorded steps next to each other, op for op, so that each op can have the mean of its times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.rank.recorded_time import Recorded, from_idle, warm_up
from foretrace.inputs.profiler_trace.rank.steps import Steps
from foretrace.inputs.profiler_trace.rank.streams import Streams
from foretrace.inputs.profiler_trace.rank.trim import waiting_or_launching

_ENOUGH: Final = 3
"""Steps that make a mean; of fewer none is left out for a doubt."""

_TOO_LONG: Final = 5.0
"""A step that takes so many times the median was interrupted, or a clock jumped in it."""

_SAME_NAMES: Final = 0.9
"""The share of equal kernel names from which on steps with the same launches are the same step: libraries may choose
another kernel for the same work."""


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Steps that do the same: row by row a step, column by column an op or a call."""

    steps: Longs
    """Their numbers among the trace's steps."""
    device: Longs
    """Work on devices, in the order of launches."""
    calls: Longs
    """Calls that launch it or wait for it, in the order in which they began."""
    notes: tuple[Diagnostic, ...] = ()

    @property
    def place(self) -> dict[int, tuple[int, int]]:
        """The row and column of each event on a device."""
        rows, columns = np.indices(self.device.shape)
        ravelled = zip(self.device.ravel().tolist(), rows.ravel().tolist(), columns.ravel().tolist(), strict=True)
        return {event: (row, column) for event, row, column in ravelled}


def steady_steps(streams: Streams, steps: Steps, recorded: Recorded, chosen: tuple[int, ...] | None) -> SteadySteps:
    """Returns the steps to build a program of: those chosen, else all that are whole and steady.

    If they do not all do the same, it is the largest set that does; if all differ, the one nearest to the mean.
    """
    where = streams.trace.path
    notes: list[Diagnostic] = []
    usable = _chosen(steps, chosen, where) if chosen is not None else np.flatnonzero(steps.whole)
    if not len(usable):
        raise InputError(
            "nothing-to-do",
            "no step of this trace launches work on a device",
            where=where,
            hint="record whole steps, with device activities: profile(activities=[CPU, CUDA])",
        )
    if chosen is None:
        dropped = [steps.names[at] for at in np.flatnonzero(~steps.whole)]
        if dropped:
            notes.append(
                Diagnostic("note", "steps-left-out", f"left out, since not whole: {', '.join(dropped)}", where)
            )
        usable = _of_usual_length(steps, recorded, usable, notes, where)
        if warm_up(recorded, usable):
            name, took = steps.names[usable[0]], recorded.step_s[usable[0]]
            text = f"{name} took {took * 1e3:.1f} ms, over 20 % off the others: taken for a warm-up and left out"
            notes.append(Diagnostic("note", "steps-left-out", text, where))
            usable = usable[1:]
        elif recorded.bound == "device" and len(usable) > _ENOUGH and from_idle(streams, steps, int(usable[0])):
            text = f"{steps.names[usable[0]]} began on an idle device, as no later step does, and is left out"
            notes.append(Diagnostic("note", "steps-left-out", text, where))
            usable = usable[1:]
    calls = waiting_or_launching(streams)
    parts = {int(at): (_device(streams, steps, int(at)), calls[steps.of_event[calls] == at]) for at in usable}
    used = _largest(streams, parts, recorded)
    if len(used) < len(usable):
        which = "the one nearest to the mean is" if len(used) == 1 else f"{len(used)} that do are"
        text = f"the {len(usable)} steps do not all do the same: {which} taken ({_named(steps, used)})"
        notes.append(Diagnostic("note", "steps-left-out", text, where))
    if not len(parts[used[0]][0]):
        problem, hint = f"{_named(steps, used)}: nothing was launched on a device", "choose another step with --steps"
        raise InputError("nothing-to-do", problem, where=where, hint=hint)
    device = _as_begun(streams, np.array([parts[at][0] for at in used], dtype=np.int64))
    made = np.array([parts[at][1] for at in used], dtype=np.int64).reshape(len(used), -1)
    return SteadySteps(np.array(used, dtype=np.int64), device, made, tuple(notes))


def _of_usual_length(steps: Steps, recorded: Recorded, usable: Longs, notes: list[Diagnostic], where: str) -> Longs:
    """Returns the steps without those that take less than no time, or, after the first, many times as long as usual.

    Raises:
        InputError: No step is left.
    """
    took_s = recorded.step_s[usable]
    odd = took_s < 0
    if len(usable) >= _ENOUGH and not odd.all():
        odd[1:] |= took_s[1:] > _TOO_LONG * np.median(took_s[~odd])
    if not odd.any():
        return usable
    if odd.all():
        text = f"the recorded step takes {float(took_s.mean()) * 1e3:.2f} ms, less than no time"
        raise InputError("out-of-range", text, where=where, hint="times of this trace are wrong; record it again")
    first = int(usable[odd][0])
    usual_s = float(np.median(took_s[~odd]))
    text = f"{steps.names[first]} took {recorded.step_s[first] * 1e3:.1f} ms, the others {usual_s * 1e3:.1f} ms: "
    text += f"{int(odd.sum())} such steps are left out"
    notes.append(Diagnostic("warning", "steps-left-out", text, where))
    return usable[~odd]


def _chosen(steps: Steps, chosen: tuple[int, ...], where: str) -> Longs:
    for at in chosen:
        if not 0 <= at < len(steps):
            raise InputError(
                "no-such-rank", f"there is no step {at}", where=where, hint=f"the trace has steps 0 to {len(steps) - 1}"
            )
    return np.array(sorted(set(chosen)), dtype=np.int64)


def _device(streams: Streams, steps: Steps, step: int) -> Longs:
    """Returns the work launched in a step, by its launch.

    Work of one launch (a graph's) is in the order of streams, because which of two streams begins first varies.
    """
    mine: Longs = streams.queued[steps.of_event[streams.queued] == step]
    issued = np.where(streams.links.launch[mine] >= 0, streams.issued_s[mine], -np.inf)
    return mine[np.lexsort((streams.trace.events.start_s[mine], streams.key[mine], issued))]


def _as_begun(streams: Streams, device: Longs) -> Longs:
    """Returns the columns with those of one launch in the order in which they mostly began."""
    events = streams.trace.events
    began = (events.start_s[device] - events.start_s[device].min(axis=1, keepdims=True)).mean(axis=0)
    return device[:, np.lexsort((began, streams.links.launch[device[0]]))]


def _largest(streams: Streams, parts: dict[int, tuple[Longs, Longs]], recorded: Recorded) -> list[int]:
    """Returns the largest set of steps that do the same, or the one nearest to the mean."""
    events = streams.trace.events
    groups: dict[tuple[bytes, ...], list[list[int]]] = {}
    for at, (device, calls) in parts.items():
        launched = np.searchsorted(calls, streams.links.launch[device])
        columns = (streams.key[device], launched, events.thread[calls], events.name[calls])
        shape = tuple(column.tobytes() for column in columns)
        for group in groups.setdefault(shape, []):
            other = parts[group[0]][0]
            if np.mean(events.name[device] == events.name[other]) >= _SAME_NAMES:
                group.append(at)
                break
        else:
            groups[shape].append([at])
    sets = [group for kind in groups.values() for group in kind]
    best = max(sets, key=len)
    if len(best) > 1 or len(parts) == 1:
        return best
    mean = float(np.mean([recorded.step_s[at] for at in parts]))
    return [min(parts, key=lambda at: abs(float(recorded.step_s[at]) - mean))]


def _named(steps: Steps, used: list[int]) -> str:
    names = [steps.names[at] for at in used]
    return ", ".join(names if len(names) < 5 else [*names[:2], "…", names[-1]])


def mean_time(times: Floats) -> Floats:
    """Returns the mean of each column over the rows that have a number; NaN where none has."""
    finite = np.isfinite(times)
    total = np.where(finite, times, 0.0).sum(axis=0)
    count = finite.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
