"""How kernels are timed, on a GPU of paper: it does one thing after another, and each takes what the test says."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretrace.calibrate.gpu.case import Bench, Case, Launch
from foretrace.calibrate.gpu.measure import GROUP, Session, measure_part
from foretrace.calibrate.gpu.monitor import Monitor
from foretrace.calibrate.gpu.timing import COMPUTE_SHARE, WINDOW_S, Clock, Heater, bursts, prepare, sustained
from foretrace.cost.kernels.kernel_profile import read_profile
from foretrace.program.kernels import Gemm, Kernel, Stream

PRODUCT_S, PASS_S = 1.4e-3, 2e-4


class PaperTensor:
    def to(self, _: object) -> PaperTensor:
        return self

    def sum(self) -> PaperTensor:
        return self


@dataclass
class PaperTorch:
    """As much of PyTorch as the heater uses; `now_s` is the time on the GPU."""

    now_s: float = 0.0
    products_s: float = 0.0
    allocated: int = 0
    bfloat16 = float16 = float32 = float8_e4m3fn = "dtype"
    cuda: Any = field(init=False)

    def __post_init__(self) -> None:
        self.cuda = SimpleNamespace(memory_allocated=lambda: self.allocated, empty_cache=lambda: None)

    def randn(self, *_: object, **__: object) -> PaperTensor:
        return PaperTensor()

    def mm(self, *_: object) -> None:
        self.now_s += PRODUCT_S
        self.products_s += PRODUCT_S

    def add(self, *_: object) -> None:
        self.now_s += PASS_S


class PaperClock(Clock):
    def __init__(self, bench: Bench) -> None:
        self._torch: PaperTorch = bench.torch

    def event(self) -> float:
        return self._torch.now_s

    def between_s(self, start: float, end: float) -> float:
        return end - start

    def delay(self, seconds: float) -> None:
        self._torch.now_s += seconds

    def wait(self) -> None:
        pass


def case(kernel: Kernel, seconds: float) -> Case:
    def make(bench: Bench) -> Launch:
        def launch() -> None:
            bench.torch.now_s += seconds
            bench.torch.products_s += seconds if kernel.flops else 0

        return launch

    return Case(kernel, make)


def broken(kernel: Kernel) -> Case:
    def make(_: Bench) -> Launch:
        raise RuntimeError("no such\nkernel")

    return Case(kernel, make)


def paper() -> tuple[Bench, PaperClock, Heater]:
    bench = Bench(PaperTorch())
    clock = PaperClock(bench)
    return bench, clock, Heater(bench, clock)


@pytest.mark.parametrize("seconds", [2e-6, 4e-5, 3e-3])
def test_times_are_those_of_one_launch(seconds: float) -> None:
    bench, clock, heater = paper()
    prepared = prepare(case(Stream("add", 4096, 2048), seconds), bench, clock)
    assert prepared.repeats * seconds >= WINDOW_S or prepared.repeats == 32
    assert bursts([prepared], heater, clock) == pytest.approx([seconds])
    assert sustained([prepared], heater, clock) == pytest.approx([seconds])


@pytest.mark.parametrize("kernel", [Gemm(8192, 8192, 8192), Stream("add", 1 << 30, 1 << 29)])
@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 2e-2])
def test_the_mix_keeps_its_share_of_products(kernel: Kernel, seconds: float) -> None:
    bench, clock, heater = paper()
    prepared = prepare(case(kernel, seconds), bench, clock)
    began_s, products_s = bench.torch.now_s, bench.torch.products_s
    sustained([prepared], heater, clock)
    share = (bench.torch.products_s - products_s) / (bench.torch.now_s - began_s)
    long_passes = seconds > 1e-3 and not kernel.flops  # the heater is not made to outlast what it surrounds
    assert share == pytest.approx(COMPUTE_SHARE, abs=0.03) or (long_passes and 0.2 < share < COMPUTE_SHARE)


def session(out: Path, minutes: float = 10) -> Session:
    bench, clock, heater = paper()
    ends_at = time.monotonic() + 60 * minutes
    return Session(bench, clock, Monitor(4096), heater, out, ends_at, lambda _: None, {"gpu": "paper"}, 1e12)


def test_what_fails_is_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "gpu.profile"
    run = session(out)
    cases = [case(Stream("add", size, 0), 1e-5 * size) for size in range(1, GROUP + 3)]
    cases.insert(3, broken(Stream("neg", 1, 1)))
    measure_part(run, "streams", [*cases, cases[0]])
    read = read_profile(out)
    assert read.kernels == tuple(Stream("add", size, 0) for size in range(1, GROUP + 3))
    assert read.sustained_s == pytest.approx([1e-5 * size for size in range(1, GROUP + 3)])
    assert read.facts["kernels_failed"] == "1"
    assert "## not measured: stream name=neg read=1 write=1: RuntimeError: no such kernel" in out.read_text()


def test_nothing_is_begun_when_time_is_up(tmp_path: Path) -> None:
    run = session(tmp_path / "gpu.profile", minutes=0)
    measure_part(run, "streams", [case(Stream("add", 1, 1), 1e-5)])
    assert run.done == []


def test_groups_end_where_memory_does(tmp_path: Path) -> None:
    run = session(tmp_path / "gpu.profile")
    run.bench.torch.allocated, run.memory_bytes = 2, 1
    said: list[str] = []
    run.say = said.append
    measure_part(run, "streams", [case(Stream("add", size, 1), 1e-5) for size in range(3)])
    assert [line.split(" at ")[0] for line in said] == ["  streams: 1 kernels"] * 3
