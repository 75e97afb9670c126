"""Reads the device memory of a recorded step: what is held from before, what is allocated, what is released.

The caching allocator of PyTorch gives memory when the host asks for it, whatever the device still has to do. So memory
follows the order of the host, and a program allocates and releases it with the ops of the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from foretrace.inputs.script.recording import KernelLaunch, RankRecording, StorageLife
from foretrace.inputs.script.window import StepWindow, window_of
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.products import FACTORS
from foretrace.program.columns import Category, Phase, label

ALLOCATION_BYTES: Final = 512
"""The allocator of PyTorch rounds each request up to a multiple of this (kMinBlockSize of CUDACachingAllocator.cpp)."""


WORKSPACE_BYTES: Final = 32 << 20
"""The workspace of cuBLAS for each thread that multiplies, as PyTorch chooses it for Hopper (CublasHandlePool.cpp). It
is 8 MiB on older GPUs."""


@dataclass(slots=True)
class HostMemory:
    """The memory that the host allocates before and releases after each of its ops, and holds when the step begins.

    All are bytes by category: `resident` at the beginning of the step, `allocated` and `released` by the number of an
    event.
    """

    resident: dict[str, int] = field(default_factory=dict)
    allocated: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    released: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))


def rounded_bytes(storage: StorageLife) -> int:
    """Returns the bytes that the allocator gives to a storage."""
    return -(-storage.bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES


def host_memory(recording: RankRecording, window: StepWindow, op_after: Callable[[int], int]) -> HostMemory:
    """Returns the memory of the events in a window.

    Args:
        recording: What a rank issued.
        window: The events.
        op_after: The number of the first event at or after an event that the host has an op for; the end of the window
            where there is none.
    """
    memory = HostMemory()
    if workspaces := workspace_bytes(recording):
        memory.resident[label(Category.BUFFERS)] = workspaces
    before = _ops_before(window, op_after)
    for storage in recording.storages:
        size, category = rounded_bytes(storage), label(storage.category)
        allocated = _in_step(storage.allocated, window)
        if is_held(storage, window.first):
            memory.resident[category] = memory.resident.get(category, 0) + size
        elif not allocated:
            continue
        if allocated:
            _add(memory.allocated[op_after(storage.allocated)], category, size)
        if window.first < storage.released <= window.end:
            # Memory that an op both allocates and releases is held while it runs.
            held_by = op_after(storage.allocated if allocated else window.first)
            _add(memory.released[max(before[storage.released], held_by)], category, size)
    return memory


def workspace_bytes(recording: RankRecording) -> int:
    """Returns the bytes that cuBLAS holds: a workspace for the script's thread, and one for the autograd engine's."""
    multiplies = {
        number for number, signature in enumerate(recording.signatures) if plain_name(signature.op) in FACTORS
    }
    backward = (Phase.BACKWARD, Phase.RECOMPUTE)
    threads = {
        event.place.phase in backward
        for event in recording.events
        if isinstance(event, KernelLaunch) and event.signature in multiplies
    }
    return len(threads) * WORKSPACE_BYTES


def is_held(storage: StorageLife, event: int) -> bool:
    """Whether a storage exists before an event and before what its op allocates."""
    return storage.allocated < event and not 0 <= storage.released <= event


def peak_bytes(recording: RankRecording) -> int:
    """Returns the most bytes that the allocator holds at once within the recorded step."""
    return sum(peak_by_category(recording).values())


def peak_by_category(recording: RankRecording) -> dict[Category, int]:
    """Returns the bytes of each category when the allocator first holds most."""
    window = window_of(recording)
    held = dict.fromkeys(Category, 0)
    held[Category.BUFFERS] = workspace_bytes(recording)
    for storage in recording.storages:
        if is_held(storage, window.first):
            held[storage.category] += rounded_bytes(storage)
    total = peak_total = sum(held.values())
    peak = dict(held)
    for _, turn, size, category in sorted(_changes(recording, window)):
        change = size if turn == _ALLOCATES else -size
        held[category] += change
        total += change
        if total > peak_total:
            peak, peak_total = dict(held), total
    return {category: size for category, size in peak.items() if size}


_RELEASES, _ALLOCATES, _RELEASES_OWN = range(3)
"""The turns of changes between two events: releases, allocations by the op of the next event, and releases of what
that op needs only while it runs."""


def _changes(recording: RankRecording, window: StepWindow) -> Iterator[tuple[int, int, int, Category]]:
    """Yields the event, the turn, the bytes and the category of each allocation and release within the window."""
    for storage in recording.storages:
        size, allocated = rounded_bytes(storage), _in_step(storage.allocated, window)
        if not allocated and not is_held(storage, window.first):
            continue
        if allocated:
            yield storage.allocated, _ALLOCATES, size, storage.category
        if window.first < storage.released <= window.end:
            own = allocated and storage.released == storage.allocated
            yield storage.released, _RELEASES_OWN if own else _RELEASES, size, storage.category


def _in_step(allocated: int, window: StepWindow) -> bool:
    return window.first <= allocated < window.end


def _ops_before(window: StepWindow, op_after: Callable[[int], int]) -> dict[int, int]:
    """Returns for each event the last one before it that the host has an op for, or the first such one."""
    before, last = {}, op_after(window.first)
    for event in range(window.first, window.end + 1):
        before[event] = last
        last = event if op_after(event) == event else last
    return before


def _add(sizes: dict[str, int], category: str, size: int) -> None:
    sizes[category] = sizes.get(category, 0) + size
