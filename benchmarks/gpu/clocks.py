"""What a GPU's clock and its products' times become under mixes of products and other work: JSON lines.

Needs PyTorch with CUDA, nvidia-smi and nothing else: `PYTHONPATH=src python benchmarks/gpu/clocks.py > clocks.jsonl`.
Each mix runs for some seconds without a gap, after a pause in which the GPU cools. `share` is the part of the time that
products (or attention) take, the rest are passes over memory. Times of a product are medians in microseconds: of the
first tenths of a second (`early_us`) and of the last second (`late_us`); clock and power are means over the last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from steps import Model
from torch.nn import functional

from foretrace.calibrate.gpu.monitor import Monitor

SHARES = (0.0, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RUN_S, LATE_S, EARLY_S, PAUSE_S = 2.4, 1.0, 0.3, 0.6

LLAMA = {"head_dim": 128, "style": "llama", "vocab": 32000, "recompute": "none"}
STEPS: tuple[dict[str, Any], ...] = (
    {"name": "tinyllama-1.1b", "layers": 22, "seq": 2048, "mbs": 4, "hidden": 2048, "ffn": 5632, "heads": 32, "kv": 4}
    | LLAMA
    | {"head_dim": 64},
    {"name": "llama-5120", "layers": 5, "seq": 4096, "mbs": 3, "hidden": 5120, "ffn": 13824, "heads": 40, "kv": 8}
    | LLAMA,
    {"name": "gpt-6144", "layers": 5, "seq": 2048, "mbs": 4, "hidden": 6144, "ffn": 24576, "heads": 48, "kv": 48}
    | LLAMA
    | {"style": "gpt"},
)


class Mix:
    """Keeps the GPU at work with two kinds of work in turn, and times the first kind as it goes."""

    def __init__(self, monitor: Monitor, product: Callable[[], Any], other: Callable[[], Any]) -> None:
        self.monitor, self.work = monitor, (product, other)
        self.seconds = [self._time(work) for work in self.work]

    def _time(self, work: Callable[[], Any]) -> float:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(9)]
        for mark in marks:
            work()
            mark.record()
        torch.cuda.synchronize()
        return median(a.elapsed_time(b) for a, b in itertools.pairwise(marks[3:])) * 1e-3

    def run(self, share: float) -> dict[str, Any]:
        """The mix with products for this share of the time."""
        torch.cuda.synchronize()
        time.sleep(PAUSE_S)
        debt, marks, began = 0.0, [], time.monotonic()
        while time.monotonic() - began < RUN_S:
            for _ in range(64):
                compute = debt >= 0 and share > 0
                before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                before.record()
                self.work[0 if compute else 1]()
                after.record()
                debt += -(1 - share) * self.seconds[0] if compute else share * self.seconds[1]
                marks.append((compute, time.monotonic() - began, before, after))
            marks[-64][3].synchronize()  # the host runs ahead by little
        torch.cuda.synchronize()
        ended = time.monotonic()
        clock, power = self.monitor.mean(ended - LATE_S, ended)
        times = [(at, a.elapsed_time(b) * 1e3) for product, at, a, b in marks if product]
        others = [a.elapsed_time(b) * 1e3 for product, at, a, b in marks if not product and at > RUN_S - LATE_S]
        early = [us for at, us in times if at < EARLY_S]
        late = [us for at, us in times if at > RUN_S - LATE_S]
        row = {"share": share, "clock_mhz": clock, "power_w": power}
        names = {"early_us": early, "late_us": late, "other_us": others}
        return row | {name: round(median(times_us), 2) for name, times_us in names.items() if times_us}


def mixes(monitor: Monitor) -> None:
    """Products, and attention, amid passes over memory."""
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    a, b = torch.randn(8192, 2048, **options), torch.randn(11264, 2048, **options)
    x, y = torch.randn(1 << 27, **options), torch.randn(1 << 27, **options)
    q, k, v = (torch.randn(4, 32, 2048, 128, **options) for _ in range(3))
    out = torch.empty_like(x)

    def attend() -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    kinds = {"gemm": lambda: functional.linear(a, b), "attention": attend}
    for name, work in kinds.items():
        mix = Mix(monitor, work, lambda: torch.add(x, y, out=out))
        for share in SHARES if name == "gemm" else SHARES[3::2]:
            print(json.dumps({"mix": name, **mix.run(share)}), flush=True)


def step(monitor: Monitor, case: dict[str, Any], seconds: float = 6.0) -> dict[str, Any]:
    """A training step repeated: its times soon after the start and later on, with clock and power then."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    x, target = (torch.randint(0, case["vocab"], (case["mbs"], case["seq"]), device="cuda") for _ in range(2))
    marks, began = [], time.monotonic()
    while time.monotonic() - began < seconds:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)
        model(x, target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if len(marks) > 3:
            marks[-3].synchronize()
    torch.cuda.synchronize()
    ended = time.monotonic()
    clock, power = monitor.mean(ended - 2.0, ended)
    first = monitor.mean(began + 0.5, began + 1.5)
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return {
        "step": case["name"],
        "early_ms": round(median(times[4:14]), 3),
        "late_ms": round(median(times[-15:]), 3),
        "clock_mhz": clock,
        "power_w": power,
        "early_clock_mhz": first[0],
        "early_power_w": first[1],
    }


def main() -> None:
    """Mixes, then steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", action="store_true", help="training steps too")
    monitor = Monitor()
    try:
        mixes(monitor)
        for case in STEPS if parser.parse_args().steps else ():
            print(json.dumps(step(monitor, case)), flush=True)
            torch.cuda.empty_cache()
    finally:
        monitor.close()


if __name__ == "__main__":
    main()
