"""The clock that a job's own power leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.clocks import (
    ARITHMETIC_DYNAMIC,
    CLOCK_POWER,
    FIXED,
    MEMORY_DYNAMIC,
    MEMORY_FIXED,
    ClockedPricer,
    Mix,
    clock_of,
    products_factor,
    profiled_clock,
)
from foretrace.cost.mix import mix_of
from foretrace.hardware import presets
from foretrace.program.expand import expand
from foretrace.program.kernels import Attention, Gemm, Stream
from foretrace.step import build_step
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import read_training_runs
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec
from shared_files import ROOT

MEASURED = ROOT / "benchmarks" / "gpu" / "clocks_h200.jsonl"
MAX_MHZ = 1980
H200, A100 = presets.gpu("h200-sxm"), presets.gpu("a100-80g-sxm")
PRODUCT, PASS = Gemm(8192, 11264, 2048), Stream("add", 2**29, 2**28)


def test_measured_mixes_come_out() -> None:
    """bf16 products (0.76 of the peak) and attention (0.51) amid passes over memory, on an H200."""
    reached = {"gemm": 0.76, "attention": 0.505}
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    mixes = [row for row in rows if "mix" in row and row["share"] > 0]
    assert len(mixes) == 11
    for row in mixes:
        share = row["share"]
        fixed = FIXED + MEMORY_FIXED * (1 - share)
        dynamic = share * ARITHMETIC_DYNAMIC * reached[row["mix"]] + (1 - share) * MEMORY_DYNAMIC
        assert MAX_MHZ * clock_of(fixed, dynamic) == pytest.approx(row["clock_mhz"], rel=0.05), row


LLAMA = {"head_dim": 128, "style": "llama", "vocab": 32000, "step_ms": 1.0}
STEPS = {
    "tinyllama-1.1b": LLAMA
    | {"layers": 22, "seq": 2048, "mbs": 4, "hidden": 2048, "ffn": 5632, "heads": 32, "kv": 4, "head_dim": 64},
    "llama-5120": LLAMA | {"layers": 5, "seq": 4096, "mbs": 3, "hidden": 5120, "ffn": 13824, "heads": 40, "kv": 8},
    "gpt-6144": LLAMA
    | {"layers": 5, "seq": 2048, "mbs": 4, "hidden": 6144, "ffn": 24576, "heads": 48, "kv": 48, "style": "gpt"},
}


@pytest.mark.parametrize("name", STEPS)
def test_clocks_of_training_steps_come_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text(json.dumps(STEPS[name]))
    job = job_of(read_training_runs(tmp_path / "steps.jsonl").runs[0].config)
    mix = mix_of(expand(build_step(step_spec(settle(job.model, job.plan)))))
    slower = products_factor(H200, mix, kernel_pricer(H200, prices="model"))
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    (measured,) = (row["clock_mhz"] for row in rows if row.get("step") == name)
    assert MAX_MHZ * profiled_clock() / slower ** (1 / CLOCK_POWER) == pytest.approx(measured, rel=0.02)


def test_the_mix_of_kernel_profiles_has_their_clock() -> None:
    assert MAX_MHZ * profiled_clock() == pytest.approx(1560, rel=0.02)  # what the H200's profile has beside its times


def factor(products: float, passes: float, busy: float = 1.0, gpu: object = H200) -> float:
    assert isinstance(gpu, type(H200))
    pricer = kernel_pricer(gpu, prices="model")
    each = pricer.price([PRODUCT, PASS]).duration_s.tolist()
    return products_factor(gpu, Mix({PRODUCT: products / each[0], PASS: passes / each[1]}, busy), pricer)


def test_more_products_leave_a_lower_clock() -> None:
    factors = [factor(share, 1 - share) for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)]
    assert factors == sorted(factors) and factors[0] < 0.92 and factors[-1] > 1.01
    assert factors[0] >= 0.893, "never faster than a burst"
    assert factor(0.7, 0.3) == pytest.approx(1.0, abs=0.02), "a profile's own mix"


def test_a_gpu_that_waits_for_its_host_runs_faster() -> None:
    assert factor(0.9, 0.1, busy=0.5) < factor(0.9, 0.1)


def test_clocks_that_hold_do_not_move() -> None:
    assert factor(1.0, 0.0, gpu=A100) == 1.0


def test_jobs_without_products_have_no_factor() -> None:
    assert products_factor(H200, Mix({PASS: 1.0}), kernel_pricer(H200, prices="model")) == 1.0


def test_products_and_attention_take_longer_streams_do_not() -> None:
    base = kernel_pricer(H200, prices="model")
    kernels = [PRODUCT, Attention(1, 32, 32, 4096, 4096, 128, 128, 4096 * 2048), PASS]
    ratio = ClockedPricer(base, 1.1).price(kernels).duration_s / base.price(kernels).duration_s
    assert ratio.tolist() == [pytest.approx(1.1), pytest.approx(1.1), 1.0]
    (note,) = ClockedPricer(base, 1.1).notes
    assert note.code == "power-clock" and note.message.startswith("products take 10.0% longer")
    assert ClockedPricer(base, 1.001).notes == base.notes


def test_streams_that_instructions_hold_up_follow_the_clock_of_a_job() -> None:
    base = kernel_pricer(H200, prices="model")
    kernels = [Stream("gelu", 2**29, 2**29), Stream("copy", 2**29, 2**29)]
    ratio = ClockedPricer(base, 0.9, H200).price(kernels).duration_s / base.price(kernels).duration_s
    assert ratio.tolist() == [pytest.approx(0.9), 1.0]
