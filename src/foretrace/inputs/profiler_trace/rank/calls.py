"""Classifies calls of the CUDA or HIP runtime by name: what each does to the host and to streams."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile


class Does(IntEnum):
    """The effect of a runtime call, next to what it may launch."""

    OTHER = 0
    WAITS_DEVICE = 1
    """The host waits for all streams of its device."""
    WAITS_STREAM = 2
    WAITS_EVENT = 3
    COPIES = 4
    """May hold the host until the copy is done: where memory is pageable, or the call is not asynchronous."""
    RECORDS = 5
    """Marks a place in a stream."""
    HOLDS_STREAM = 6
    """A stream waits for a mark in another."""


WAITING: Final = (Does.WAITS_DEVICE, Does.WAITS_STREAM, Does.WAITS_EVENT)
"""The host waits, and does nothing else."""

_PATTERNS: Final = (
    (re.compile(r"^((cuda|hip)DeviceSynchronize|(cu|hip)CtxSynchronize)"), Does.WAITS_DEVICE),
    (re.compile(r"^(cuda|hip|cu)StreamSynchronize"), Does.WAITS_STREAM),
    (re.compile(r"^(cuda|hip|cu)EventSynchronize"), Does.WAITS_EVENT),
    (re.compile(r"^(cuda|hip|cu)StreamWaitEvent"), Does.HOLDS_STREAM),
    (re.compile(r"^(cuda|hip|cu)EventRecord"), Does.RECORDS),
    (re.compile(r"^(cuda|hip|cu)Memcpy"), Does.COPIES),
)


def does(trace: RankProfile) -> NDArray[np.uint8]:
    """Returns, for each event, what it does as a runtime call; OTHER for all else."""
    by_name = np.array([int(_of_name(name)) for name in trace.strings] or [0], dtype=np.uint8)
    what = by_name[trace.events.name]
    what[trace.events.category != EventCategory.RUNTIME] = Does.OTHER
    return what


def _of_name(name: str) -> Does:
    return next((what for pattern, what in _PATTERNS if pattern.match(name)), Does.OTHER)
