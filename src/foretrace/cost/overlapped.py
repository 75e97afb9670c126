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
from foretrace.cost.overlap import ResourceUse, resource_use, slowdowns
from foretrace.hardware.cluster import Gpu
from foretrace.program.dispatch import COPIES
from foretrace.program.kernels import Kernel

STEP: Final = 0.02
"""Calls whose share of the memory's rate differs by less are alike."""


@dataclass(frozen=True, slots=True)
class CallUses:
    """What calls take of a GPU: the different kinds of it, and the number of each call's."""

    kinds: tuple[ResourceUse, ...]
    of_call: Longs
    """-1: it takes nothing."""


def call_uses(calls: Sequence[CallKey], layouts: Layouts, network: Network, gpu: Gpu) -> CallUses:
    """What each call takes of the GPUs in it, as the network says it runs; for all ranks as for the first that it is
    asked for, since only where they sit tells them apart."""
    numbers: dict[ResourceUse, int] = {}
    of_call = np.full(len(calls), -1, dtype=np.int64)
    step = max(gpu.memory_bytes_per_s * STEP, 1.0)
    for kind, (_, columns), what, sizes, way in layouts.requests(calls):
        for call, size in zip(columns.tolist(), sizes.tolist(), strict=True):
            if of_call[call] < 0 and way != COPIES:
                use = resource_use(explain_call(network, what, kind, size, way), what)
                rounded = ResourceUse(use.sms, step * round(use.bytes_per_s / step))
                of_call[call] = numbers.setdefault(rounded, len(numbers))
    return CallUses(tuple(numbers), of_call)


def text_slowdowns(
    of_text: Longs, texts: int, kernels: Sequence[Kernel], alone_s: Floats, counts: Floats, uses: CallUses, gpu: Gpu
) -> Floats:
    """How many times as long texts of kernels take: [texts, kinds]. Each kernel is of a text, which runs it `counts`
    times, `alone_s` each."""
    slower = slowdowns(kernels, alone_s, uses.kinds, gpu)
    seconds = counts * alone_s
    whole = np.bincount(of_text, weights=seconds, minlength=texts)
    slowdown = np.ones((texts, len(uses.kinds)))
    for at in range(len(uses.kinds)):
        under = np.bincount(of_text, weights=seconds * slower[:, at], minlength=texts)
        slowdown[:, at] = np.where(whole > 0, under / np.where(whole > 0, whole, 1.0), 1.0)
    return slowdown
