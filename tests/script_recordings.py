"""Recordings of scripts written by hand, and programs of them with known times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.script.host_costs import HostCosts
from foretrace.inputs.script.recording import (
    CallWait,
    Event,
    Group,
    HostCopy,
    HostEffort,
    HostWait,
    IssuedCall,
    KernelLaunch,
    Place,
    RankRecording,
    Signature,
    StorageLife,
    StreamWait,
    TensorShape,
)
from foretrace.program.columns import Category, Collective, Kind, Phase
from foretrace.program.program import Program

BF16 = "c10::BFloat16"
US = 1e-6

LAUNCHES = HostCosts(
    launch_s=US, python_s=0.0, compiled_s=US, kernel_s=0.0, view_s=0.0, list_op_s=US, listed_tensor_s=0.0, call_s=US,
    copy_s=US, read_s=US, wait_s=0.0,
)  # fmt: skip
"""A host that takes a microsecond for everything it launches."""
FREE = HostCosts(*[0.0] * 11)
"""A host that takes no time."""


def elementwise(name: str) -> Signature:
    """An op over one small tensor; its name is free, so that a test can give it a time."""
    shape = (64, 32)
    return Signature(name, Inputs((shape,), (BF16,), ("",), ((32, 1),)), (TensorShape(shape, BF16, (32, 1)),))


@dataclass
class Script:
    """Records what a rank issues; every method returns the number of its event."""

    rank: int = 0
    world: int = 1
    groups: Sequence[Group] = ()
    phase: Phase = Phase.FORWARD
    module: int = -1
    modules: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    storages: list[StorageLife] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Where the script is now."""
        return Place(self.phase, self.module, 0)

    def launch(self, op: str | Signature, stream: int = 0, host: HostEffort | None = None) -> int:
        """Launches an op on a stream."""
        signature = elementwise(op) if isinstance(op, str) else op
        if signature not in self.signatures:
            self.signatures.append(signature)
        number = self.signatures.index(signature)
        return self._add(KernelLaunch(number, stream, self.place, host or HostEffort()))

    def copy(self, size: int, *, to_host: bool = True, blocking: bool = True) -> int:
        """Copies between host and device."""
        return self._add(HostCopy(size, to_host, blocking, 0, self.place, HostEffort()))

    def call(
        self,
        collective: Collective,
        group: int = 0,
        size: int = 1024,
        *,
        own_stream: bool = True,
        stream: int = 0,
        name: str = "",
        **facts: Any,
    ) -> int:
        """Calls a collective."""
        call = IssuedCall(
            collective, name or collective.name.lower(), group, size, BF16, stream, own_stream, self.place, HostEffort()
        )
        return self._add(call._replace(**facts))

    def send(self, peer: int, *, group: int = 0, size: int = 1024, own_stream: bool = True) -> int:
        """Sends to a rank."""
        return self.call(Collective.TRANSFER, group, size, own_stream=own_stream, name="send", peer=peer, to_peer=True)

    def receive(self, peer: int, *, group: int = 0, size: int = 1024, own_stream: bool = True) -> int:
        """Receives from a rank."""
        return self.call(Collective.TRANSFER, group, size, own_stream=own_stream, name="receive", peer=peer)

    def wait(self, call: int, stream: int = 0, *, by_host: bool = False) -> int:
        """Waits for a call."""
        return self._add(CallWait(call, stream, by_host))

    def stream_wait(self, stream: int, other: int, until: int | None = None) -> int:
        """Makes a stream wait for another."""
        return self._add(StreamWait(stream, other, len(self.events) if until is None else until))

    def synchronize(self, *streams: int) -> int:
        """Makes the host wait."""
        return self._add(HostWait(streams, len(self.events), "synchronize"))

    def storage(self, size: int, allocated: int, released: int = -1, kind: Category = Category.ACTIVATIONS) -> None:
        """Records memory."""
        self.storages.append(StorageLife(size, allocated, released, kind))

    def end_step(self) -> None:
        """Ends a step that began where the one before ended."""
        begin = self.steps[-1][1] if self.steps else 0
        self.steps.append((begin, len(self.events)))

    def recording(self, **facts: Any) -> RankRecording:
        """Returns the recording; without `end_step` all events are one step."""
        recording = RankRecording(
            rank=self.rank,
            world=self.world,
            events=self.events,
            steps=self.steps or [(0, len(self.events))],
            first_step=0,
            signatures=self.signatures,
            modules=self.modules,
            groups=list(self.groups),
            streams=["default", "side"],
            storages=self.storages,
        )
        return replace(recording, **facts)

    def _add(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1


def group(axis: str, own: Sequence[int], *others: Sequence[int]) -> Group:
    """Returns a group among those made together with it."""
    every = sorted([tuple(own), *map(tuple, others)])
    return Group(axis, tuple(own), tuple(every))


def timed(program: Program, seconds: Mapping[str, float], *, repeats: bool = True) -> Program:
    """Returns a program whose device ops take the given times by name, and nothing where none is given."""
    columns = dict(program.templates.columns)
    names = [program.strings[number] for number in columns["name"].tolist()]
    own = np.array([seconds.get(name, 0.0) for name in names])
    columns["duration_s"] = np.where(columns["kind"] == Kind.HOST, columns["duration_s"], own)
    return replace(program, templates=replace(program.templates, columns=columns), repeats=repeats)
