"""Chooses the recorded steps that a program repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.basics.errors import InputError
from foretrace.inputs.script.recording import CallWait, Event, HostWait, RankRecording, StreamWait


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The events that a program repeats.

    Attributes:
        first: The first event.
        end: The event after the last one.
        period: The distance to the same event of the round before, in events.
        steps: How many steps of the script the window has.
    """

    first: int
    end: int
    period: int
    steps: int = 1

    def __contains__(self, event: int) -> bool:
        return self.first <= event < self.end


def window_of(recording: RankRecording) -> StepWindow:
    """Returns the last recorded step, or all recorded steps where they differ.

    Raises:
        InputError: No step was recorded.
    """
    steps = recording.steps
    if not steps or not all(0 <= first < end <= len(recording.events) for first, end in steps):
        problem = "the script made no step that can be simulated"
        raise InputError("not-recorded", problem, where=f"rank {recording.rank}")
    first, end = steps[-1]
    events = recording.events
    last = _shifted(events[first:end], first)
    if any(_shifted(events[begin:stop], begin) != last for begin, stop in steps[:-1]):
        begin = steps[0][0]
        return StepWindow(begin, end, end - begin, len(steps))
    return StepWindow(first, end, first - steps[-2][0] if len(steps) > 1 else end - first)


def _shifted(events: Sequence[Event], first: int) -> list[Event]:
    """Returns events in which references to other events are relative to `first`."""
    return [_counted_from(first, event) for event in events]


def _counted_from(first: int, event: Event) -> Event:
    if isinstance(event, CallWait):
        return event._replace(call=event.call - first)
    if isinstance(event, StreamWait | HostWait):
        return event._replace(until=event.until - first)
    return event
