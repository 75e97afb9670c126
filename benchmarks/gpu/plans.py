"""Steps of one model under many plans on the GPU of this machine, as JSON lines: is the order of predictions right?

Needs PyTorch with CUDA and nothing else: `python benchmarks/gpu/plans.py > plans.jsonl`. Plans differ in the size of a
microbatch and in what is recomputed, by PyTorch's own checkpoints alone. Models are those of `memory.py`, times as in
`steps.py`. The whole list runs `ROUNDS` times, and a line has the medians, so that a slow minute of the machine does
not fall on one plan. A plan that runs out of memory has no times.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from statistics import median
from typing import Any

import torch
from memory import GPT, LATENT, MIXTURE, SMALL, Model, Optimizer, full

WARM_UPS, STEPS, ROUNDS = 3, 8, 2
PARTS = ("fwd_ms", "bwd_ms", "opt_ms", "step_ms")

MODELS: dict[str, dict[str, Any]] = {
    "llama-3b-12layers": SMALL,
    "gpt-1.3b-12layers": {**GPT, "layers": 12, "seq": 2048},
    "mla-12layers": LATENT,
    "moe-8layers": MIXTURE,
}
RECOMPUTED: dict[str, tuple[tuple[str, ...], ...]] = {
    "llama-3b-12layers": ((), ("core_attn",), ("mlp",), ("core_attn", "mlp")),
    "gpt-1.3b-12layers": ((), ("core_attn",), ("mlp",), ("core_attn", "mlp")),
    "mla-12layers": ((), ("mlp",)),
    "moe-8layers": ((), ("shared_experts",), ("moe",)),
}
MICROBATCHES = (1, 2, 4, 8)


def cases() -> list[dict[str, Any]]:
    """Returns every plan of every model."""
    plans = []
    for name, sizes in MODELS.items():
        for mbs in MICROBATCHES:
            changes: list[dict[str, Any]] = [{"recompute_modules": list(modules)} for modules in RECOMPUTED[name]]
            plans += [full({**sizes, "name": name, "mbs": mbs, **each}) for each in (*changes, {"recompute": "full"})]
    return plans


def measure(case: dict[str, Any]) -> list[float]:
    """Returns the medians of forward, backward, optimizer and step in ms."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(case)
    optimizer = Optimizer(model, case)
    x, target = (torch.randint(0, case["vocab"], (case["mbs"], case["seq"]), device="cuda") for _ in range(2))
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(WARM_UPS + STEPS)]
    for before, forward_done, backward_done, after in marks:
        before.record()
        loss = model(x, target)
        forward_done.record()
        loss.backward()
        backward_done.record()
        optimizer.step()
        after.record()
    torch.cuda.synchronize()
    spans = ((0, 1), (1, 2), (2, 3), (0, 3))
    return [median(row[first].elapsed_time(row[last]) for row in marks[WARM_UPS:]) for first, last in spans]


def main() -> None:
    """Runs all plans in rounds until time is up, then prints a line for each that was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no plan after so long")
    ends_at = time.monotonic() + parser.parse_args().seconds
    plans = cases()
    times: list[list[list[float]]] = [[] for _ in plans]
    for _ in range(ROUNDS):
        for case, measured in zip(plans, times, strict=True):
            if time.monotonic() < ends_at:
                with suppress(torch.OutOfMemoryError):
                    measured.append(measure(case))
                torch.cuda.empty_cache()
    for case, measured in zip(plans, times, strict=True):
        if measured:
            medians = [round(median(values), 3) for values in zip(*measured, strict=True)]
            print(json.dumps({**case, **dict(zip(PARTS, medians, strict=True)), "ok": True}), flush=True)


if __name__ == "__main__":
    main()
