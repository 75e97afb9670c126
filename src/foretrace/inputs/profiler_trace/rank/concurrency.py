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
"""Of the busiest stream's time: a second stream with less changes less than that, and sharing takes long to run."""

_MET_ALREADY: Final = 0.1
"""Of the kernels' time: from so much overlap on, what was recorded holds what overlapping costs."""

BEGINS_S: Final = 0.8e-6
"""Of each kernel: until its blocks are on the SMs and have read their first operands, another's have room. A kernel
that does next to nothing takes so long (the shortest of the H200 traces: 0.76 to 0.80 µs)."""


def gpu_share(streams: Streams, device: Longs) -> Floats:
    """The part of its GPU that each of these columns draws: of kernels that compute the part of the SMs that have a
    block, where more than one stream of the GPU has a part of them worth counting and they hardly met when recorded;
    else 0. Copies have engines of their own, and communication holds few SMs."""
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
    """Of each event, 1 at most; 1 where nothing says it."""
    blocks = streams.trace.events.blocks_per_sm
    if blocks is None:
        return np.ones(len(streams.key))
    return np.where(blocks > 0, np.minimum(blocks, 1.0), 1.0)


def alone_s(streams: Streams, device: Longs) -> Floats:
    """What each column's work takes when nothing else runs: of the time that n kernels run at once, each is given an
    n-th. Mean over the rows."""
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
    """Which events are kernels other than communication."""
    trace = streams.trace
    return np.asarray((trace.events.category == EventCategory.KERNEL) & ~trace.named(communicates))
