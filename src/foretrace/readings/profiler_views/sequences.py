"""Which kernels an op launches one after the other, and which of these sequences come again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Ints, Longs
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.readings.profiler_views.rank import Rank


@dataclass(frozen=True, slots=True)
class KernelSequence:
    """The kernels of an op, in order of their start, as often as they came."""

    rank: int
    op: str
    kernels: tuple[str, ...]
    count: int
    device_s: float
    """Durations of all of them, in all."""
    host_s: float
    """Durations of the op, in all."""


@dataclass(frozen=True, slots=True)
class KernelSequences:
    """Sequences of kernels, the most frequent first."""

    op: str
    """What an op's name had to contain."""
    sequences: tuple[KernelSequence, ...]


def sequences(rank: Rank, op: str, least_length: int) -> tuple[KernelSequence, ...]:
    """Returns the sequences of kernels under each outermost op whose name contains `op`; shorter ones are left out."""
    work = rank.work
    root = _roots(rank, op)
    mine = np.flatnonzero(root >= 0)
    mine = mine[np.argsort(root[mine], kind="stable")]  # work is in order of start already
    if not len(mine):
        return ()
    first = np.flatnonzero(np.append(True, root[mine][1:] != root[mine][:-1]))
    length = np.diff(np.append(first, len(mine)))
    roots = root[mine][first]
    events = rank.trace.events
    names = np.column_stack([events.name[roots].astype(np.uint64), _fingerprints(work.name[mine], first, length)])
    group = np.unique(names, axis=0, return_inverse=True)[1].ravel()
    device_s = np.add.reduceat(work.duration_s[mine], first)
    rows = []
    kept = np.flatnonzero(length >= least_length)
    for number in np.unique(group[kept]).tolist():
        members = kept[group[kept] == number]
        at = int(members[0])
        kernels = work.event[mine[first[at] : first[at] + length[at]]]
        rows.append(
            KernelSequence(
                rank=rank.number,
                op=rank.trace.strings[events.name[roots[at]]],
                kernels=tuple(rank.trace.names(kernels)),
                count=len(members),
                device_s=float(device_s[members].sum()),
                host_s=float(events.duration_s[roots[members]].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.count, -row.device_s, row.op, row.kernels)))


def _roots(rank: Rank, op: str) -> Longs:
    """Returns, for each piece of work, the outermost op above it whose name contains a word; -1 if there is none."""
    events = rank.trace.events
    named = np.array([op in name for name in rank.trace.strings], dtype=bool)
    matches = named[events.name] & (events.category == EventCategory.CPU_OP)
    above = rank.links.op[rank.work.event]
    root = np.full(len(above), -1, dtype=np.int64)
    while (above >= 0).any():
        held = above >= 0
        root = np.where(held & matches[above], above, root)
        above = np.where(held, rank.links.op[above], -1)
    return root


def _fingerprints(names: Ints, first: Longs, length: Longs) -> NDArray[np.uint64]:
    """Returns a number for each stretch of names, equal for equal stretches.

    It is a polynomial of random numbers, modulo 2^64.
    """
    draws = np.random.default_rng(0).integers(1, 2**63, size=int(names.max()) + 1, dtype=np.uint64)
    powers = np.full(int(length.max()), 0x9E3779B97F4A7C15, dtype=np.uint64)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint64)
    place = np.arange(len(names)) - np.repeat(first, length)
    return np.add.reduceat(draws[names] * powers[place], first)
