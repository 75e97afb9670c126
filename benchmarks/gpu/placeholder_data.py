"""What a GPU's speed owes to the data it works on, and how fast it streams memory: measured, for docs/traces.md.

    python benchmarks/gpu/placeholder_data.py > result.json

1. Expert GEMMs (tokens × 4096 × 14336 and back, bf16), forward and both gradients, on normal random inputs, on zeros,
   and on memory that was freed and taken again, as a faked all-to-all leaves it: the same work draws less power on
   predictable data, so a GPU at its power limit runs it faster. In bursts (like one traced microbatch after ten warm
   ones) and sustained.
2. Scaling a gradient buffer in place (fp32, as Megatron does by 1/dp before the all-reduce): bytes moved per second
   over the datasheet's.

What an H200 gave is in placeholder_data_h200.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

HIDDEN, FFN = 4096, 14336
TOKENS = (336, 2048, 4037, 6535)
DATASHEET_BYTES_PER_S = {"H200": 4.8e12, "H100": 3.35e12, "A100-SXM4-80GB": 2.039e12}


def seconds(work: Callable[[], None], repeats: int) -> list[float]:
    """What each of so many repeats takes, by CUDA events."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def expert(tokens: int, fill: str) -> Callable[[], None]:
    """Forward and backward of one SwiGLU expert: weights are random, what comes in and back is as `fill` says."""
    up = torch.randn(2 * FFN, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    down = torch.randn(HIDDEN, FFN, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def tensor() -> torch.Tensor:
        if fill == "zeros":
            return torch.zeros(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        if fill == "empty":
            torch.cuda.empty_cache()
            return torch.empty(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        return torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)

    came, back = tensor().requires_grad_(True), tensor()

    def work() -> None:
        gate, value = (came @ up.t()).chunk(2, dim=-1)
        out = (torch.nn.functional.silu(gate) * value) @ down.t()
        out.backward(back)
        up.grad = down.grad = came.grad = None

    return work


def experts() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for tokens in TOKENS:
        for fill in ("normal", "zeros", "empty"):
            work = expert(tokens, fill)
            seconds(work, 3)
            time.sleep(2)
            burst = seconds(work, 11)[-1]
            sustained = statistics.median(seconds(work, max(200, int(3.0 / burst)))[-50:])
            rows.append({"tokens": tokens, "fill": fill, "burst_s": burst, "sustained_s": sustained})
    return rows


def streaming() -> list[dict[str, float]]:
    rows = []
    for size in (2**28, 2**30, 2**32, 2**33):
        buffer = torch.randn(size // 4, device="cuda", dtype=torch.float32)
        seconds(lambda buffer=buffer: buffer.mul_(0.125), 3)
        median_s = statistics.median(seconds(lambda buffer=buffer: buffer.mul_(0.125), 20))
        rows.append({"bytes": size, "seconds": median_s, "bytes_per_s": 2 * size / median_s})
        del buffer
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    name = torch.cuda.get_device_name()
    sheet = next((rate for key, rate in DATASHEET_BYTES_PER_S.items() if key in name), None)
    result = {
        "gpu": name,
        "torch": torch.__version__,
        "datasheet_bytes_per_s": sheet,
        "experts": experts(),
        "streaming": streaming(),
    }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
