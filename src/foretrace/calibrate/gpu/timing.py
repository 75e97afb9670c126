"""Times kernels on a GPU: alone and cool (burst), and amid work like that of training (sustained)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any, Final

from foretrace.calibrate.gpu.case import Bench, Case, Launch

COLD_BYTES: Final = 192 << 20
"""Bytes that operands rotate through: three times the L2 of a Hopper GPU, so that a kernel never finds in it what its
last launch read."""
MAX_SETS: Final = 48
MAX_SET_BYTES: Final = 4 << 30
WINDOW_S: Final = 3e-4
"""Length of the work timed between two events, which take 2 to 4 us themselves."""
MAX_LAUNCHES: Final = 32
MAX_HOST_S: Final = 2e-3
BURSTS: Final = 5
ROUNDS: Final = 24
"""Windows of each kernel under load, of which the median counts."""
SLICE_S: Final = 1.2e-3
"""Heater work before each timed window; it also lets the host run ahead."""
WAKE_UPS: Final = 30
WAKE_S: Final = 0.03
"""An idle GPU lowers its clock, and takes some milliseconds to raise it."""
PREHEAT_S: Final = 0.6
"""A GPU takes some tenths of a second to settle at its power limit."""
COMPUTE_SHARE: Final = 0.7
"""Part of the time of a training step that matrix products and attention take."""
MAX_DEBT_S: Final = 2e-2


@dataclass(slots=True)
class Prepared:
    """A case with its operands on the GPU; one launch takes it `seconds`, and the host `host_s`."""

    case: Case
    launches: Iterator[Launch]
    host_s: float
    seconds: float
    repeats: int


class Clock:
    """Events and delays of a CUDA stream."""

    def __init__(self, bench: Bench) -> None:
        self._cuda: Any = bench.torch.cuda
        self._cycles_per_s = 2e9

    def event(self) -> Any:
        """A mark in the stream, at this point of it."""
        made = self._cuda.Event(enable_timing=True)
        made.record()
        return made

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds between two marks that have passed."""
        return float(start.elapsed_time(end)) * 1e-3

    def delay(self, seconds: float) -> None:
        """Keeps the stream waiting, so that the host can queue what is to follow without gaps."""
        self._cuda._sleep(int(seconds * self._cycles_per_s))

    def wait(self) -> None:
        """Until the GPU has done all it was given."""
        self._cuda.synchronize()


def prepare(case: Case, bench: Bench, clock: Clock) -> Prepared:
    """Makes the operands, launches twice to let libraries choose their kernels, and times roughly."""
    before_bytes = bench.allocated_bytes()
    launch = case.make(bench)
    set_bytes = bench.allocated_bytes() - before_bytes
    launch()
    clock.wait()
    launches = [launch, *(case.make(bench) for _ in range(operand_sets(case.kernel.moved_bytes, set_bytes) - 1))]
    host_s = min(MAX_HOST_S, *(_host_s(launch, clock) for _ in range(3)))
    prepared = Prepared(case, cycle(launches), host_s, 0.0, 2)
    prepared.seconds = _burst(prepared, clock)
    prepared.repeats = max(1, min(MAX_LAUNCHES, math.ceil(WINDOW_S / max(prepared.seconds, 1e-7))))
    return prepared


def operand_sets(moved_bytes: float, set_bytes: float) -> int:
    """Returns how many sets of operands leave the L2 cold, or as many as fit.

    A kernel may move less than it holds: a loss reads one logit of each row.
    """
    needed = math.ceil(COLD_BYTES / max(moved_bytes, 1))
    return max(1, min(needed, MAX_SETS, int(MAX_SET_BYTES / max(set_bytes, 1))))


def _host_s(launch: Launch, clock: Clock) -> float:
    clock.wait()
    began = time.perf_counter()
    launch()
    return time.perf_counter() - began


def bursts(group: Sequence[Prepared], heater: Heater, clock: Clock) -> list[float]:
    """Seconds of one launch of each, on a GPU that is awake but cool: medians of a few windows."""
    heater.run(WAKE_S)
    return [median(_burst(prepared, clock) for _ in range(BURSTS)) for prepared in group]


def _burst(prepared: Prepared, clock: Clock) -> float:
    clock.wait()
    clock.delay(2e-4 + 2 * prepared.repeats * prepared.host_s)
    start = clock.event()
    for _ in range(prepared.repeats):
        next(prepared.launches)()
    end = clock.event()
    clock.wait()
    return clock.between_s(start, end) / prepared.repeats


class Heater:
    """Work that heats the GPU as training does: products of random bf16 matrices and passes over memory, in turn such
    that what is measured and what heats together keep to `COMPUTE_SHARE`."""

    def __init__(self, bench: Bench, clock: Clock, size: int = 8192) -> None:
        self._matrices = (bench.normal(size, size), bench.normal(size, size))
        self._vectors = (bench.normal(2 * size * size), bench.normal(2 * size * size))
        self._torch = bench.torch
        for _ in range(WAKE_UPS):
            self._multiply()
        self._multiply_s = self._time(clock, self._multiply)
        self._pass_s = self._time(clock, self._pass)
        self._debt_s = 0.0

    def _multiply(self) -> None:
        self._torch.mm(*self._matrices)

    def _pass(self) -> None:
        self._torch.add(self._vectors[0], self._vectors[1])

    def _time(self, clock: Clock, work: Callable[[], None]) -> float:
        seconds = []
        for _ in range(4):
            clock.wait()
            start = clock.event()
            work()
            end = clock.event()
            clock.wait()
            seconds.append(clock.between_s(start, end))
        return max(median(seconds[1:]), 1e-6)

    def run(self, seconds: float) -> None:
        """Queues work that takes `seconds`."""
        done = 0.0
        while done < seconds:
            if self._debt_s >= 0:
                self._multiply()
                done += self._multiply_s
                self.count(self._multiply_s, compute=True)
            else:
                self._pass()
                done += self._pass_s
                self.count(self._pass_s, compute=False)

    def count(self, seconds: float, compute: bool) -> None:
        """Takes work into account: the debt is how much more compute the mix wants."""
        self._debt_s += -(1 - COMPUTE_SHARE) * seconds if compute else COMPUTE_SHARE * seconds
        self._debt_s = max(-MAX_DEBT_S, min(MAX_DEBT_S, self._debt_s))


def sustained(group: Sequence[Prepared], heater: Heater, clock: Clock, rounds: int = ROUNDS) -> list[float]:
    """Seconds of one launch of each, amid heater work that never lets the GPU go idle: medians over the rounds."""
    marks: list[list[tuple[Any, Any]]] = [[] for _ in group]
    heater.run(PREHEAT_S)
    for _ in range(rounds):
        for place, prepared in enumerate(group):
            # The host must be done queueing the window before the GPU is done with the heater; and after a long
            # window the mix needs as much of the other kind of work.
            window_s = prepared.repeats * prepared.seconds
            heater.run(max(SLICE_S, 2 * prepared.repeats * prepared.host_s, 0.4 * window_s))
            start = clock.event()
            for _ in range(prepared.repeats):
                next(prepared.launches)()
            marks[place].append((start, clock.event()))
            heater.count(window_s, compute=prepared.case.kernel.flops > 0)
    clock.wait()
    return [
        median(clock.between_s(*pair) for pair in pairs) / prepared.repeats
        for pairs, prepared in zip(marks, group, strict=True)
    ]
