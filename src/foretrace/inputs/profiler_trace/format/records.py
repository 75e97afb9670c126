"""The records of one process that a profiler wrote: host calls, device work and what joins them, in columns.

Kineto's JSON and Nsight Systems' SQLite are read into the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, Mask
from foretrace.basics.errors import Diagnostic

Dims: TypeAlias = "tuple[int | Dims, ...]"
"""A tensor's sizes; of a list of tensors, theirs; () where an input is no tensor."""


class EventCategory(IntEnum):
    """The kind of an event."""

    CPU_OP = 0
    ANNOTATION = 1
    """A range a user marked on the host: record_function, ProfilerStep, NVTX."""
    RUNTIME = 2
    """A call of the CUDA or HIP runtime or driver."""
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    """A wait as the driver recorded it: of a stream or event, or of the host."""
    DEVICE_ANNOTATION = 7
    """A host range as it fell on a stream."""
    OVERHEAD = 8
    """The cost of profiling itself, where the profiler noticed."""
    PYTHON = 9
    """A Python function (`with_stack`)."""
    OTHER = 10


ON_DEVICE: Final = (EventCategory.KERNEL, EventCategory.MEMCPY, EventCategory.MEMSET)


FURTHEST_NS: Final = 86_400e9
"""Events further than a day from the middle one were not timed: drivers give some a time of 0."""


def usable_times(start_ns: Longs, duration_ns: NDArray[Any], among: Mask, where: str) -> tuple[Mask, list[Diagnostic]]:
    """Returns which events of those `among` have times that can be, and the remarks on the others."""
    negative = among & (duration_ns < 0)
    long = among & (duration_ns > FURTHEST_NS)
    kept = among & ~negative & ~long
    far = np.zeros_like(kept)
    if kept.any():
        # As floats, since the difference of two times may not fit 64 bits.
        middle = float(np.median(start_ns[kept].astype(np.float64)))
        far = kept & (np.abs(start_ns - middle) > FURTHEST_NS)
    notes = [
        Diagnostic("warning", "rows-skipped", f"{int(some.sum()):,} events {what}: left out", where)
        for some, what in (
            (negative, "have a negative duration"),
            (long, "take more than a day"),
            (far, "are more than a day from the others"),
        )
        if some.any()
    ]
    return kept & ~far, notes


@dataclass(frozen=True, slots=True)
class TracedDevice:
    """A GPU as the profiler saw it; 0 where it does not say."""

    number: int
    name: str
    sms: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread."""

    process: int
    thread: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """An op's inputs, one by one: sizes, types ("c10::BFloat16", "Scalar", ""), and values where they were recorded."""

    dims: tuple[Dims, ...]
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    strides: tuple[Dims, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveArguments:
    """A collective or a transfer as its arguments say: elements of this rank's input and output; -1 or () where they do
    not."""

    name: str
    """As PyTorch calls it: allreduce, _allgather_base, reduce_scatter, all_to_allv, send, ..."""
    in_elements: int = -1
    out_elements: int = -1
    dtype: str = ""
    group: str = ""
    group_size: int = -1
    ranks: tuple[int, ...] = ()
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    peer: int = -1
    """The other rank of a transfer."""
    description: str = ""
    """The purpose of the group, as its maker stated it: "default_pg", "mesh_dp", ..."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order of their start, those that began together the longer first. -1 means "not recorded"."""

    category: NDArray[np.uint8]
    name: Ints
    """Numbers of the trace's `strings`."""
    start_s: Floats
    """From the trace's origin."""
    duration_s: Floats
    thread: Ints
    """Numbers of the trace's `threads`; -1 on a device."""
    device: Ints
    stream: Ints
    correlation: Longs
    """The same for a runtime call and the device work it launched, or the wait it was."""
    external: Longs
    """The same for an op and the runtime calls and device work under it (Kineto's External id)."""
    sequence: Longs
    """The same for a forward op and the backward op of it."""
    bytes: Longs
    """The size of a copy or memset."""
    inputs: Ints
    """Numbers of the trace's `inputs`."""
    call: Ints
    """Numbers of the trace's `calls`."""
    waits_stream: Ints
    """The stream that a SYNC waits for."""
    waits_correlation: Longs
    """The correlation of the cudaEventRecord that a SYNC waits for."""
    bytes_per_s: Floats | None = None
    """The bandwidth of a copy or memset as the profiler states it. It is finer than bytes by duration where times are
    whole microseconds. Below 0 where it states none; None where it never does."""
    blocks_per_sm: Floats | None = None
    """The blocks of a kernel per SM of its GPU. Below 0 where not recorded; None where never recorded."""

    def __len__(self) -> int:
        return len(self.category)

    @property
    def end_s(self) -> Floats:
        """When each ended."""
        return self.start_s + self.duration_s

    def rows(self, at: NDArray[np.generic]) -> Events:
        """Returns some of the events, by number or mask."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return Events(**{name: column[at] for name, column in columns.items() if column is not None})

    def of(self, *categories: EventCategory) -> Longs:
        """Returns the numbers of the events of these categories."""
        return np.flatnonzero(np.isin(self.category, categories))


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One file: a process on one host, mostly one rank."""

    path: str
    producer: Literal["kineto", "nsys"]
    rank: int | None
    world: int | None
    devices: tuple[TracedDevice, ...]
    groups: Mapping[str, tuple[int, ...]]
    """Ranks of process groups by name."""
    facts: Mapping[str, str]
    """Versions and switches: nccl_version, cuda_driver_version, record_shapes, with_stack, profile_memory, ..."""
    strings: tuple[str, ...]
    threads: tuple[Thread, ...]
    inputs: tuple[Inputs, ...]
    calls: tuple[CollectiveArguments, ...]
    events: Events
    diagnostics: tuple[Diagnostic, ...] = ()
    origin_ns: int = 0
    """When time 0 of the events was, in nanoseconds of the recording host's clock (of the epoch, where it says)."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """The purpose of process groups by name, where the trace states it."""

    def names(self, at: Longs) -> list[str]:
        """Returns the names of some events."""
        return [self.strings[number] for number in self.events.name[at].tolist()]

    def named(self, test: Callable[[str], bool]) -> Mask:
        """Returns, for each event, whether its name passes a test."""
        passed = np.array([test(text) for text in self.strings] or [False], dtype=bool)
        return passed[self.events.name]
