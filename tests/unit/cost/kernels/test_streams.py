"""Memory-bound kernels: by memory's rate or by the SMs' clocks, by name, by the length of a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost.kernels.kernel_profile import read_profile
from foretrace.cost.kernels.model import EfficiencyModel
from foretrace.cost.kernels.parameters import DATA, efficiency
from foretrace.cost.kernels.pricer import FUSED_ERROR, kernel_pricer
from foretrace.cost.kernels.streams import row_length
from foretrace.hardware import presets
from foretrace.program.kernels import Kernel, Stream

H200 = presets.gpu("h200-sxm")
SIZE = 2**29


def seconds(*kernels: Kernel, gpu: str = "h200-sxm", clock: float = 1.0) -> list[float]:
    own = presets.gpu(gpu)
    constants = efficiency(own)
    model = EfficiencyModel(own, replace(constants, clock_hz=clock * constants.clock_hz))
    return [float(one) for one in model.seconds(list(kernels))]


def share(name: str, gpu: str = "h200-sxm") -> float:
    return 2 * SIZE / seconds(Stream(name, SIZE, SIZE), gpu=gpu)[0] / presets.gpu(gpu).memory_bytes_per_s


def test_names_differ_and_unknown_ones_are_plain() -> None:
    assert share("elementwise") == share("no-such-kernel") == pytest.approx(0.88, rel=0.02)
    assert share("mul_strided") == share("no-such_strided") < 0.5
    assert 0.8 < share("no-such_fused") < 0.92


def test_instructions_follow_the_clock_and_copies_do_not() -> None:
    for name, least, most in (("copy", 1.0, 1.02), ("gelu", 1.15, 1.25), ("bias_dropout_add", 1.23, 1.26)):
        slow, fast = (seconds(Stream(name, SIZE, SIZE), clock=clock)[0] for clock in (1.0, 1.25))
        assert least <= slow / fast <= most


def test_on_slower_memory_instructions_hold_up_less() -> None:
    assert share("gelu", "a100-80g-sxm") > share("gelu") > share("gelu", "b200")
    assert share("copy", "a100-80g-sxm") == pytest.approx(share("copy"), rel=0.03)


def test_casting_up_is_slower_than_down() -> None:
    up, down = seconds(Stream("cast", SIZE, 2 * SIZE), Stream("cast", 2 * SIZE, SIZE))
    assert up > 2 * down


def test_rows_count_for_norms_alone() -> None:
    assert row_length(Stream("rmsnorm", 1, 1, rows=2048)) == 2048
    assert row_length(Stream("rmsnorm", 1, 1)) > 0
    assert row_length(Stream("grad_norm", 1, 1, rows=7)) == row_length(Stream("reduce", 1, 1, rows=7)) == 0
    short, between, long = seconds(*(Stream("softmax", SIZE, SIZE, rows=rows) for rows in (1024, 2048, 4096)))
    assert short < between < long


def test_each_further_launch_has_its_least() -> None:
    once, often = seconds(Stream("add", 4096, 4096), Stream("add", 4096, 4096, launches=11))
    assert often - once == pytest.approx(10 * efficiency(H200).extra_launch_s)
    # The measured call launches two kernels itself.
    both, alone = (seconds(Stream("rmsnorm_backward", 4096, 4096, launches=count, rows=4096))[0] for count in (2, 1))
    assert both == alone


def test_reads_of_an_embeddings_gradient_are_scattered() -> None:
    reads, writes = seconds(Stream("embedding_backward", SIZE, 0), Stream("embedding_backward", 0, SIZE))
    assert reads > 10 * writes


def test_near_what_was_measured() -> None:
    profile = read_profile(DATA / "h200-sxm.profile")
    own = [i for i, one in enumerate(profile.kernels) if isinstance(one, Stream)]
    modelled = np.array(seconds(*(profile.kernels[i] for i in own)))
    off = np.abs(np.log(modelled / profile.sustained_s[own]))
    assert np.median(off) < 0.03
    assert np.quantile(off, 0.9) < 0.15


def test_frameworks_kernels_that_were_not_measured_are_less_sure() -> None:
    names = ("softmax_fused", "rmsnorm_fused", "permute_fused", "add")
    guessed, published, *measured = kernel_pricer(H200).price([Stream(name, SIZE, SIZE) for name in names]).high
    assert np.log([guessed, published]) == pytest.approx(FUSED_ERROR)
    assert max(measured) < 1.1


def test_launches_that_a_measured_call_states_count_once() -> None:
    """Clamps and biases of experts are several launches a call: the model gives the time of the whole call."""
    profile = read_profile(DATA / "h200-sxm.profile")
    rows = [row for row, kernel in enumerate(profile.kernels) if isinstance(kernel, Stream) and kernel.launches > 1]
    assert len(rows) >= 8
    kernels = [profile.kernels[row] for row in rows]
    assert seconds(*kernels) == pytest.approx(profile.sustained_s[rows].tolist(), rel=0.03)


def test_wider_elements_take_fewer_instructions() -> None:
    """Kernels that instructions hold up move up to twice as many bytes of fp32 as of bf16; a copy does not."""
    for name, least in (("gelu", 1.15), ("mul_broadcast", 1.7), ("copy", 1.0)):
        narrow, wide = seconds(Stream(name, SIZE, SIZE), Stream(name, SIZE, SIZE, element=4))
        assert least <= narrow / wide < 2
    assert seconds(Stream("copy", SIZE, SIZE)) == pytest.approx(seconds(Stream("copy", SIZE, SIZE, element=4)), rel=0.02)


def test_threads_that_walk_along_rows_wait_for_memory() -> None:
    """A loss over 32,128 words with 1,024 tokens of 16 sequences behind them: 35.7 ms on an H200, and its gradient 17.5."""
    size = 16 * 32128 * 1024 * 2
    loss, gradient = seconds(
        Stream("spatial_log_softmax", size, size, rows=32128),
        Stream("spatial_log_softmax_backward", 2 * size, size, rows=32128),
    )
    assert (loss, gradient) == pytest.approx((35.7e-3, 17.5e-3), rel=0.02)
