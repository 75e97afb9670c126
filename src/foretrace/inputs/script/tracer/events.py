"""Collects the events of a traced rank in the order in which its host issues them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import local

from foretrace.inputs.script.recording import (
    DEFAULT_STREAM,
    CallWait,
    Event,
    HostCopy,
    HostEffort,
    HostWait,
    IssuedCall,
    KernelLaunch,
    Place,
    Signature,
    StreamWait,
)
from foretrace.program.columns import Phase

_NO_EFFORT = HostEffort()


class _Local(local):
    stream: int = DEFAULT_STREAM


class EventLog:
    """The events so far, the stream that is current, and what the host did since the last event.

    `place` returns the place of the next event in the step; `StepPlaces` replaces it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.signatures: list[Signature] = []
        self._local = _Local()
        self.streams = ["default"]
        self.region = 0
        self.place: Callable[[], Place] = lambda: Place(Phase.NONE, -1, 0)
        self.views = self.calls = 0
        self._signature_of: dict[Hashable, int] = {}

    @property
    def stream(self) -> int:
        """The current stream of this thread."""
        return self._local.stream

    @stream.setter
    def stream(self, number: int) -> None:
        self._local.stream = number

    @property
    def next_number(self) -> int:
        """The number that the next event will have."""
        return len(self.events)

    def signature(self, key: Hashable, make: Callable[[], Signature]) -> int:
        """Returns the number of a signature, made when its key is new."""
        number = self._signature_of.get(key)
        if number is None:
            number = self._signature_of[key] = len(self.signatures)
            self.signatures.append(make())
        return number

    def launch(self, signature: int, place: Place, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> None:
        """Adds an op that runs on the current stream."""
        event = KernelLaunch(signature, self.stream, place, self._host_effort(), self.region, reads, writes)
        self.events.append(event)

    def copy(self, size: int, *, to_host: bool, blocking: bool) -> None:
        """Adds a copy between host and device."""
        self.events.append(HostCopy(size, to_host, blocking, self.stream, self.place(), self._host_effort()))

    def call(self, call: IssuedCall) -> int:
        """Adds a collective or transfer on the current stream and at the current place; returns its number."""
        self.events.append(call._replace(stream=self.stream, place=self.place(), host=self._host_effort()))
        return len(self.events) - 1

    def wait_for_call(self, call: int) -> None:
        """Makes the current stream wait for a call."""
        self.events.append(CallWait(call, self.stream))

    def wait_for_stream(self, stream: int, other: int, until: int) -> None:
        """Makes a stream wait for what was issued to another before an event."""
        if stream != other:
            self.events.append(StreamWait(stream, other, until))

    def host_waits(self, streams: tuple[int, ...], reason: str, until: int | None = None) -> None:
        """Makes the host wait for what was issued to some streams, or to all if none is named, before an event."""
        self.events.append(HostWait(streams, self.next_number if until is None else until, reason))

    def new_stream(self) -> int:
        """Returns the number of a new stream."""
        self.streams.append(f"stream {len(self.streams)}")
        return len(self.streams) - 1

    def _host_effort(self) -> HostEffort:
        if not (self.views or self.calls):
            return _NO_EFFORT
        effort = HostEffort(self.views, self.calls)
        self.views = self.calls = 0
        return effort
