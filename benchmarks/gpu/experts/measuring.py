"""Times kernels in groups and writes rows: for all parts of the measurement."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.calibrate.gpu.machine import bench_here
from foretrace.calibrate.gpu.monitor import Monitor
from foretrace.calibrate.gpu.timing import Clock, Heater, Prepared, bursts, prepare, sustained
from foretrace.program.kernels import Kernel, kernel_text

DEVICE = "cuda"
GROUP = 40
MAX_GROUP_BYTES = 48 << 30
HANG_S = 75.0
"""A part that goes on for so long after its time was up hangs."""
TOP = 8
FP8_LARGEST = 448.0
EXPERTS = 256
LT_WORKSPACE_BYTES = 32 << 20
STREAMS = 4
ROUNDS = 16
"""Windows of each kernel under load: there is time for no more."""


@dataclass(frozen=True)
class Item:
    """A kernel to measure: `how` says whose it is, `labels` what its text does not say."""

    how: str
    case: Case
    labels: dict[str, Any]


def item(how: str, kernel: Kernel, make: Callable[[Bench], Launch], **labels: Any) -> Item:
    """Returns an item of one kernel."""
    return Item(how, Case(kernel, make), labels)


class Session:
    """A child's measurements: the file they go to, and until when."""

    def __init__(self, out: Path, ends_at: float, library: Path) -> None:
        self._file = out.open("a")
        self._end = self.ends_at = ends_at
        self.library = library
        self.part = "start"
        self.bench = bench_here()
        self.clock = Clock(self.bench)
        self.heater = Heater(self.bench, self.clock)
        self.monitor = Monitor()

    def write(self, row: str, **values: Any) -> None:
        """Writes a row at once."""
        text = json.dumps({"row": row, "part": self.part, **values})
        self._file.write(text + "\n")
        self._file.flush()
        if row not in ("kernel", "host"):
            print(text[:300], flush=True)

    def begin(self, part: str, limit_s: float) -> None:
        """Starts a part that has `limit_s` seconds."""
        self.part = part
        self.ends_at = min(self._end, time.monotonic() + limit_s)
        self.write("part", state="started", at_s=round(time.monotonic(), 1))

    @property
    def over(self) -> bool:
        """Whether the part's time is up."""
        return time.monotonic() >= self.ends_at

    def fail(self, what: str, error: BaseException) -> None:
        """Writes why something could not be measured; raises if the GPU's context is lost."""
        self.write("failed", what=what, reason=" ".join(f"{type(error).__name__}: {error}".split())[:400])
        self.bench.normal(8).sum()
        self.clock.wait()

    def check(self, name: str, got: Any, want: Any, tolerance: float = 1e-2) -> None:
        """Writes how far a result is from what it should be: the norm of the difference over that of the result."""
        got, want = got.double(), want.double()
        error = float((got - want).norm() / want.norm().clamp(min=1e-30))
        self.write("check", name=name, error=error, passed=error <= tolerance)

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Reports an error within the block and goes on."""
        try:
            yield
        except Exception as error:
            self.fail(what, error)


def measure(session: Session, items: Iterable[Item]) -> None:
    """Measures items in groups that fit into memory, until the part's time is up."""
    group: list[tuple[Item, Prepared]] = []
    skipped: dict[str, int] = {}
    for entry in items:
        if session.over:
            skipped[entry.how] = skipped.get(entry.how, 0) + 1
            continue
        try:
            group.append((entry, prepare(entry.case, session.bench, session.clock)))
        except Exception as error:
            session.fail(f"{entry.how}: {kernel_text(entry.case.kernel)}", error)
        if len(group) >= GROUP or session.bench.allocated_bytes() > MAX_GROUP_BYTES:
            measure_group(session, group)
    if group:
        measure_group(session, group)
    if skipped:
        session.write("skipped", reason="time was up", counts=skipped)


def measure_group(session: Session, group: list[tuple[Item, Prepared]]) -> None:
    """Times a group alone and under load, writes its rows and frees its operands."""
    prepared = [entry for _, entry in group]
    try:
        alone_s = bursts(prepared, session.heater, session.clock)
        start = time.monotonic()
        amid_s = sustained(prepared, session.heater, session.clock, ROUNDS)
        clock_mhz, power_w = session.monitor.mean(start + 0.3, time.monotonic())
    except Exception as error:
        session.fail(f"group of {len(group)}, first {kernel_text(group[0][0].case.kernel)}", error)
    else:
        for (entry, ready), alone, amid in zip(group, alone_s, amid_s, strict=True):
            kernel = entry.case.kernel
            session.write(
                "kernel",
                how=entry.how,
                kernel=kernel_text(kernel),
                burst_s=alone,
                sustained_s=amid,
                tflops=round(kernel.flops / amid * 1e-12, 1),
                gbytes_per_s=round(kernel.moved_bytes / amid * 1e-9, 1),
                host_us=round(ready.host_s * 1e6, 1),
                clock_mhz=round(clock_mhz),
                power_w=round(power_w),
                **entry.labels,
            )
        print(f"  {session.part}: {len(group)} kernels at {clock_mhz:.0f} MHz, {power_w:.0f} W", flush=True)
    group.clear()
    prepared.clear()
    torch.cuda.empty_cache()


def fastest(session: Session, name: str, launches: dict[Any, Launch]) -> Any:
    """Returns the configuration whose launch takes least; one that fails counts as infinitely slow."""
    times: dict[Any, float] = {}
    for config, launch in launches.items():
        with session.trying(f"{name} {config}"):
            launch()
            session.clock.delay(1e-3)
            marks = [session.clock.event()]
            for _ in range(7):
                launch()
                marks.append(session.clock.event())
            session.clock.wait()
            times[config] = median(session.clock.between_s(*pair) for pair in pairwise(marks[2:]))
    if not times:
        raise RuntimeError(f"no configuration of {name} runs")
    best = min(times, key=lambda config: times[config])
    session.write("tuning", name=name, best=str(best), us={str(c): round(s * 1e6, 1) for c, s in times.items()})
    return best
