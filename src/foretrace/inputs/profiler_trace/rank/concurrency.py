"""Kernels of several streams that run at once: what each would take alone, and which share the GPU.

A kernel with a block for every SM fills the GPU: two at once take as long as one after the other. On an H200 two
streams of products, norms and elementwise kernels did 1.02 times the work of one in the same time
(`benchmarks/replays.py`: a CUDA graph against the same kernels alone). So where a change lets
kernels overlap that hardly did, they share a resource of capacity 1: each draws the part of the SMs it has blocks for,
and nothing while it begins. Where many overlapped already, their recorded times hold what that costs, and are kept.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.streams import Streams
from foretrace.inputs.torch_ops.kinds import communicates

_WORTH: Final = 0.05
"""The least share of the busiest stream's time that a second stream must have: sharing takes long to run."""

_MET_ALREADY: Final = 0.1
"""The share of the kernels' time from which on overlap, as recorded, includes what overlapping costs."""

BEGINS_S: Final = 0.8e-6
"""The start of a kernel: until its blocks are on the SMs and have read their first operands, another's have room.
A kernel that does next to nothing takes this long (the shortest of the H200 traces: 0.76 to 0.80 µs)."""


def gpu_share(streams: Streams, device: Longs) -> Floats:
    """Returns the part of its GPU that each of these columns draws.

    A kernel that computes draws the part of the SMs that have a block, if more than one stream of the GPU has such
    kernels and they hardly met when recorded; otherwise 0. Copies have engines of their own, and communication holds
    few SMs.
    """
    computes = _computes(streams)[device[0]]
    own = float(streams.trace.events.duration_s[device].mean(axis=0)[computes].sum())
    alone = float(alone_s(streams, device)[computes].sum())
    if own - alone > _MET_ALREADY * own:
        return np.zeros(len(computes))
    seconds = np.where(computes, streams.trace.events.duration_s[device[0]], 0.0)
    keys, which = np.unique(streams.key[device[0]], return_inverse=True)
    of_stream = np.bincount(which, weights=seconds, minlength=len(keys))
    worth = of_stream > _WORTH * max(float(of_stream.max()), 1e-12)
    gpus, counts = np.unique(keys[worth] >> 32, return_counts=True)
    several = np.isin(streams.key[device[0]] >> 32, gpus[counts > 1])
    return np.where(computes & several, _blocks_per_sm(streams)[device[0]], 0.0)


def _blocks_per_sm(streams: Streams) -> Floats:
    """Returns the blocks per SM of each event, at most 1; 1 where they were not recorded."""
    blocks = streams.trace.events.blocks_per_sm
    if blocks is None:
        return np.ones(len(streams.key))
    return np.where(blocks > 0, np.minimum(blocks, 1.0), 1.0)


def alone_s(streams: Streams, device: Longs) -> Floats:
    """Returns the time that each column's work takes when nothing else runs, as a mean over the rows.

    If n kernels run at once, each is given an n-th of that time.
    """
    events = streams.trace.events
    alone = events.duration_s.copy()
    computes = np.flatnonzero(_computes(streams))
    for number in np.unique(events.device[computes]).tolist():
        mine = computes[events.device[computes] == number]
        times = np.concatenate([events.start_s[mine], streams.end_s[mine]])
        change = np.repeat([1, -1], len(mine))
        order = np.lexsort((change, times))
        at, running = times[order], np.cumsum(change[order])
        given = np.append(0.0, np.cumsum(np.diff(at) / np.maximum(running[:-1], 1)))
        alone[mine] = np.interp(streams.end_s[mine], at, given) - np.interp(events.start_s[mine], at, given)
    return np.asarray(alone[device].mean(axis=0))


def _computes(streams: Streams) -> Mask:
    """Returns which events are kernels other than communication."""
    trace = streams.trace
    return np.asarray((trace.events.category == EventCategory.KERNEL) & ~trace.named(communicates))
