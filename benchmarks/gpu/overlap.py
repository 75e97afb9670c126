"""What kernels take on this machine's GPU while a copy runs beside them, as a collective would: CSV, a row per kernel.

Needs PyTorch with CUDA and its compiler (nvcc): `PYTHONPATH=src python benchmarks/gpu/overlap.py -o overlap.csv`. The
copy (`overlap.cu`) holds SMs, a block on each, from before the first kernel until after the last: `24x10G` is 24 SMs,
each of which copies 10 GB/s (0: it only waits; inf: as fast as it can). Blocks take all shared memory of their SM, so
nothing runs beside them there; those with `room` leave as much as NCCL's own blocks do. Times are of one launch:
medians of three windows of some milliseconds, each after half as long under the same load, operands rotating through
more than the L2. The first row says what is copied with no kernel beside it.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from foretrace.calibrate.gpu import attention, fused, gemms, streams
from foretrace.calibrate.gpu.case import Bench, Case
from foretrace.calibrate.gpu.machine import bench_here, facts_of
from foretrace.calibrate.gpu.timing import Clock, Prepared, prepare
from foretrace.program.kernels import kernel_text

WHOLE_SM_BYTES = 227 << 10
"""The most shared memory a block may have on Hopper; with the 1 KiB the system takes, all there is."""
SHARED_SM_BYTES = 64 << 10
REGION_BYTES = 32 << 20
MAX_BLOCKS = 64
LIMIT_NS = 500_000_000
WINDOW_S = 8e-3
MAX_LAUNCHES = 160
REPEATS = 3
INF = math.inf


@dataclass(frozen=True)
class Load:
    """What runs beside kernels: blocks that hold SMs, and the bytes/s each copies."""

    blocks: int
    pace: float
    shared_bytes: int = WHOLE_SM_BYTES

    def __str__(self) -> str:
        return f"{self.blocks}x{self.pace / 1e9:g}G{' room' if self.shared_bytes == SHARED_SM_BYTES else ''}"


LOADS = (
    Load(1, 0.0),
    *(Load(blocks, pace) for blocks in (8, 16, 24, 32, 64) for pace in (0.0, 10e9, 25e9, INF)),
    Load(24, 0.0, SHARED_SM_BYTES),
    Load(24, 10e9, SHARED_SM_BYTES),
    Load(24, INF, SHARED_SM_BYTES),
)


class Copier:
    """The copy, ready to start and stop within streams."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        library = folder / "liboverlap.so"
        source = Path(__file__).with_suffix(".cu")
        arch = "sm_{}{}".format(*bench.torch.cuda.get_device_capability(0))
        subprocess.run(
            ["nvcc", f"-arch={arch}", "-O3", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(source)],
            check=True,
        )
        self._lib = ctypes.CDLL(str(library))
        torch = bench.torch
        self._torch = torch
        self._stream = torch.cuda.Stream()
        size = MAX_BLOCKS * REGION_BYTES
        self._from = torch.randint(0, 127, (size,), dtype=torch.uint8, device="cuda")
        self._to = torch.empty_like(self._from)
        self._state = torch.zeros(self._lib.overlap_state_bytes(), dtype=torch.uint8, device="cuda")
        self._seen = torch.zeros(2, 3, dtype=torch.int64, device="cuda")
        self._piece = self._lib.overlap_piece_bytes()
        self.registers = self._lib.overlap_registers()
        for _ in range(2):  # a kernel's first launch loads it, which would wait for a copy to end
            for step in (lambda: self.mark(0, Load(0, 0.0)), self.stop):
                step()
        self._check(self._lib.overlap_wait(self._here(), self._at(self._state), 0, ctypes.c_ulonglong(0)))
        torch.cuda.synchronize()

    def start(self, load: Load) -> None:
        """Queues the copy; what the current stream gets next runs once all its blocks hold their SMs."""
        torch = self._torch
        self._state.zero_()
        self._stream.wait_stream(torch.cuda.current_stream())
        pace_ns = -1.0 if load.pace == 0 else 1e9 * self._piece / load.pace
        self._check(
            self._lib.overlap_start(
                ctypes.c_void_p(self._stream.cuda_stream), load.blocks, load.shared_bytes,
                self._at(self._from), self._at(self._to), REGION_BYTES // self._piece,
                ctypes.c_double(pace_ns), self._at(self._state), ctypes.c_ulonglong(LIMIT_NS),
            )
        )  # fmt: skip
        self._check(self._lib.overlap_wait(self._here(), self._at(self._state), load.blocks, ctypes.c_ulonglong(10**9)))

    def mark(self, which: int, load: Load) -> None:
        """Notes in the current stream what has been copied."""
        seen = ctypes.c_void_p(self._seen.data_ptr() + 24 * which)
        self._check(self._lib.overlap_snapshot(self._here(), self._at(self._state), load.blocks, seen))

    def stop(self) -> None:
        """Ends the copy, from the current stream."""
        self._check(self._lib.overlap_stop(self._here(), self._at(self._state)))

    def rate(self, load: Load) -> float:
        """Bytes/s copied between the two marks."""
        (before, began, arrived), (after, ended, _) = self._seen.tolist()
        if arrived != load.blocks:
            raise RuntimeError(f"{arrived} of {load.blocks} blocks held an SM")
        return float(after - before) / (ended - began) * 1e9

    def _here(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)

    @staticmethod
    def _at(tensor: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())

    @staticmethod
    def _check(error: int) -> None:
        if error:
            raise RuntimeError(f"CUDA error {error}")


def window(prepared: Prepared, copier: Copier, clock: Clock, load: Load | None) -> tuple[float, float]:
    """Seconds of a launch under a load, and the bytes/s copied meanwhile."""
    launches = max(2, min(MAX_LAUNCHES, math.ceil(WINDOW_S / prepared.seconds)))
    warm = max(1, launches // 2)
    clock.wait()
    clock.delay(3e-4 + 1.3 * (launches + warm) * prepared.host_s)
    if load is not None:
        copier.start(load)
    for _ in range(warm):
        next(prepared.launches)()
    if load is not None:
        copier.mark(0, load)
    start = clock.event()
    for _ in range(launches):
        next(prepared.launches)()
    end = clock.event()
    if load is not None:
        copier.mark(1, load)
        copier.stop()
    clock.wait()
    return clock.between_s(start, end) / launches, 0.0 if load is None else copier.rate(load)


def copy_alone(copier: Copier, clock: Clock, load: Load) -> float:
    """Bytes/s that the copy reaches with nothing beside it."""
    copier.start(load)
    clock.delay(2e-3)
    copier.mark(0, load)
    clock.delay(5e-3)
    copier.mark(1, load)
    copier.stop()
    clock.wait()
    return copier.rate(load)


def chosen() -> Iterator[Case]:
    """Kernels of a few microseconds to some milliseconds, evenly out of each kind, kinds in turn."""
    kinds: list[tuple[Sequence[Case], int]] = [
        (gemms.layer_gemms(), 34),
        (streams.norms(), 10),
        (attention.attentions("cudnn"), 12),
        (streams.elementwise(), 10),
        (gemms.grid_forward(), 14),
        (streams.optimizers(), 5),
        (gemms.grid_backward(), 6),
        (attention.attentions("flash2"), 6),
        (gemms.grouped_gemms(), 6),
        (gemms.accumulating_gemms(), 4),
        (gemms.fp8_gemms(), 4),
        (streams.losses(), 3),
        (streams.lookups(), 4),
        (gemms.batched_gemms(), 3),
        (fused.fused(), 4),
    ]
    picked = []
    for cases, count in kinds:
        fit = [case for case in cases if 12e-6 < case.kernel.flops / 7e14 + case.kernel.moved_bytes / 4e12 < 3e-3]
        count = min(count, len(fit))
        picked.append([((place + 0.5) / count, fit[int((place + 0.5) * len(fit) / count)]) for place in range(count)])
    # every kind's share of the list at every point of it, in case time is up
    yield from (
        case for _, case in sorted((pair for kind in picked for pair in kind), key=lambda pair: pair[0] * 7.3 % 1)
    )


def measure(case: Case, bench: Bench, clock: Clock, copier: Copier) -> tuple[float, list[float], list[float]]:
    """Seconds of a launch alone, then under each load, and the bytes/s copied by each load meanwhile."""
    prepared = prepare(case, bench, clock)
    times: dict[Load | None, list[tuple[float, float]]] = {load: [] for load in (None, *LOADS)}
    for _ in range(REPEATS):
        for load, samples in times.items():
            samples.append(window(prepared, copier, clock, load))
    seconds, rates = ([median(sample[at] for sample in samples) for samples in times.values()] for at in (0, 1))
    return seconds[0], seconds[1:], rates[1:]


def main() -> None:
    """Measures until all is done or time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop measuring after so long")
    given = parser.parse_args()
    began = time.monotonic()
    bench = bench_here()
    clock = Clock(bench)
    with tempfile.TemporaryDirectory() as folder, given.out.open("w", newline="") as file:
        copier = Copier(bench, Path(folder))
        print(facts_of(bench), f"{copier.registers} registers", flush=True)
        matrix = bench.normal(8192, 8192)
        for _ in range(200):  # an idle GPU is slow
            matrix @ matrix
        clock.delay(1e-3)
        clock.wait()
        writer = csv.writer(file, lineterminator="\n")
        copying = [at for at, load in enumerate(LOADS) if load.pace > 0]
        copies = [f"copy_bytes_per_s {LOADS[at]}" for at in copying]
        writer.writerow(["kernel", "alone_s", *(f"under_s {load}" for load in LOADS), *copies])
        alone = [median(copy_alone(copier, clock, LOADS[at]) for _ in range(3)) for at in copying]
        writer.writerow(["(none)", "", *[""] * len(LOADS), *(f"{rate:.4g}" for rate in alone)])
        for case in chosen():
            if time.monotonic() - began > given.seconds:
                break
            text = kernel_text(case.kernel)
            try:
                alone_s, under_s, rates = measure(case, bench, clock, copier)
            except Exception as error:  # what a library cannot do is said, and the rest goes on
                print("not measured:", text, " ".join(str(error).split())[:200], flush=True)
                continue
            cells = [alone_s, *under_s, *(rates[at] for at in copying)]
            writer.writerow([text, *(f"{cell:.4g}" for cell in cells)])
            file.flush()
            print(f"{time.monotonic() - began:4.0f} s  {max(under_s) / alone_s:.2f}  {text}", flush=True)
            bench.torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
