"""Which ops of a program cost each other something where they overlap, and how much: `Overlaps`, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.cost.network.experts import explain_call
from foretrace.cost.network.interface import Network
from foretrace.cost.network.layouts import CallKey, Layouts
from foretrace.cost.overlap import ResourceUse, slowdowns, taken_by
from foretrace.hardware.cluster import Gpu
from foretrace.program.dispatch import COPIES
from foretrace.program.kernels import Kernel

STEP: Final = 0.02
"""Calls whose share of the memory's rate differs by less are alike."""


@dataclass(frozen=True, slots=True)
class CallsTaken:
    """What calls take of a GPU: the different kinds of it, and the number of each call's."""

    kinds: tuple[ResourceUse, ...]
    of_call: Longs
    """-1: it takes nothing."""


def calls_taken(calls: Sequence[CallKey], layouts: Layouts, network: Network, gpu: Gpu) -> CallsTaken:
    """What each call takes of the GPUs in it, as the network says it runs; for all ranks as for the first that it is
    asked for, since only where they sit tells them apart."""
    numbers: dict[ResourceUse, int] = {}
    of_call = np.full(len(calls), -1, dtype=np.int64)
    step = max(gpu.memory_bytes_per_s * STEP, 1.0)
    for kind, (_, columns), what, sizes, way in layouts.requests(calls):
        for call, size in zip(columns.tolist(), sizes.tolist(), strict=True):
            if of_call[call] < 0 and way != COPIES:
                one = taken_by(explain_call(network, what, kind, size, way), what)
                alike = ResourceUse(one.sms, step * round(one.bytes_per_s / step))
                of_call[call] = numbers.setdefault(alike, len(numbers))
    return CallsTaken(tuple(numbers), of_call)


def text_slowdowns(
    of_text: Longs, texts: int, kernels: Sequence[Kernel], alone_s: Floats, counts: Floats, taken: CallsTaken, gpu: Gpu
) -> Floats:
    """How many times as long texts of kernels take: [texts, kinds]. Each kernel is of a text, which runs it `counts`
    times, `alone_s` each."""
    slower = slowdowns(kernels, alone_s, taken.kinds, gpu)
    seconds = counts * alone_s
    whole = np.bincount(of_text, weights=seconds, minlength=texts)
    found = np.ones((texts, len(taken.kinds)))
    for at in range(len(taken.kinds)):
        under = np.bincount(of_text, weights=seconds * slower[:, at], minlength=texts)
        found[:, at] = np.where(whole > 0, under / np.where(whole > 0, whole, 1.0), 1.0)
    return found
