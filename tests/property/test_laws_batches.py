"""Laws of batches: a price is a function of its kernel or call alone, to the bit.

Neither what is priced with it nor the vector units of the CPU change it, so that a search has one result with any
number of workers.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import cache, partial
from typing import Final

import numpy as np
import pytest

import foretrace
from foretrace import Machine, Plan
from foretrace.basics.arrays import Floats
from foretrace.cost.kernels.pricer import kernel_pricer
from foretrace.cost.network.experts import price_call
from foretrace.cost.pricing import unpriced_kernels
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.program.columns import ONE_TO_ONE, Collective
from foretrace.program.kernels import Kernel, parse_kernels

JOBS: Final = (
    ("gpt3-175b", Plan(gpus=64, tp=4, pp=8, gbs=64)),
    ("gpt3-175b", Plan(gpus=64, tp=8, pp=8, gbs=48, mbs=3, recompute="full")),
    ("llama3-70b", Plan(gpus=32, tp=4, pp=4, gbs=64, precision="fp8")),
    ("deepseek-v3", Plan(gpus=256, pp=8, ep=32, gbs=512, recompute="full")),
)
BATCH: Final = 37
"""Prices of an odd number fill no vector unit and no block of a matrix product."""

DISPATCHES: Final = ("", *(f"dispatch style={style} experts=64 topk=4" for style in ("hierarchical", "deepep")))
"""How tokens go to experts."""

Order = list[list[int]]
"""The numbers of what is priced, call by call."""

STEP: Final = """
import foretrace
job = foretrace.model("llama3-8b", foretrace.Plan(gpus=16, tp=2, gbs=32))
answer = foretrace.simulate(job, foretrace.Machine("h100-dgx"), explain=False)
print(answer.step_time_s.hex())
"""


@cache
def kernels() -> tuple[Kernel, ...]:
    """Returns the kernels of all jobs."""
    known: dict[Kernel, None] = {}
    for name, plan in JOBS:
        program = foretrace.model(name, plan).program()
        columns = program.templates.columns
        duration_s = np.asarray(columns["duration_s"], dtype=np.float64)
        rows = unpriced_kernels(columns["kind"], columns["kernel"], duration_s)
        for text in columns["kernel"][rows].tolist():
            known.update(dict.fromkeys(kernel for _, kernel in parse_kernels(program.strings[text])))
    return tuple(known)


def orders(count: int) -> list[Order]:
    """Returns ways to price `count` things: together, one by one, in batches, and in another order."""
    numbers = list(range(count))
    shuffled = random.Random(1).sample(numbers, count)
    batches = [[*numbers[first : first + BATCH]] for first in range(0, count, BATCH)]
    return [[numbers], [[number] for number in numbers], batches, [shuffled]]


def priced(order: Order, price: Callable[[list[int]], Sequence[Floats]]) -> Floats:
    """Returns the columns of the prices, by the numbers of what was priced."""
    columns = np.concatenate([np.array(price(batch)) for batch in order], axis=1)
    return columns[:, np.argsort([number for batch in order for number in batch])]


@pytest.mark.parametrize("name", ["h100-sxm", "a100-80g-sxm", "b200-sxm"])
def test_the_price_of_a_kernel_depends_on_the_kernel_alone(name: str) -> None:
    every = kernels()
    # A pricer remembers prices. A GPU that is not a preset has a new one each time.
    gpu = replace(gpu_preset(name), memory_bytes=1.0)

    def of(order: Order) -> Floats:
        pricer = kernel_pricer(gpu)
        return priced(order, lambda batch: astuple(pricer.price([every[number] for number in batch])))

    together, *others = (of(order) for order in orders(len(every)))
    for other in others:
        np.testing.assert_array_equal(other, together)


@pytest.mark.parametrize("cluster", ["h100-dgx", "a100-dgx"])
@pytest.mark.parametrize("gpus", [8, 64])
def test_the_price_of_a_call_depends_on_the_call_alone(cluster: str, gpus: int) -> None:
    network = Machine(cluster).network_of(gpus, in_training=True)
    sizes = np.random.default_rng(1).integers(0, 1 << 31, 60).astype(np.float64)
    for what in Collective:
        if what is Collective.NONE:
            continue
        members = np.arange(2 if what in ONE_TO_ONE else gpus)[None]
        (layout,), _ = network.layouts(members)
        for way in DISPATCHES if what is Collective.ALL_TO_ALL else ("",):
            call = partial(price_call, network, what, layout, way=way)
            together, *others = (
                priced(order, lambda batch, call=call: astuple(call(sizes[batch]))) for order in orders(len(sizes))
            )
            for other in others:
                np.testing.assert_array_equal(other, together)


def test_a_step_has_the_same_bits_without_the_vector_units_of_the_cpu() -> None:
    from numpy._core import _multiarray_umath as umath

    units = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(units), "OPENBLAS_CORETYPE": "Prescott"}
    ran = subprocess.run(
        [sys.executable, "-c", STEP], env={**os.environ, **plain}, capture_output=True, text=True, check=True
    )
    job = foretrace.model("llama3-8b", Plan(gpus=16, tp=2, gbs=32))
    answer = foretrace.simulate(job, Machine("h100-dgx"), explain=False)
    assert ran.stdout.split() == [answer.step_time_s.hex()]
