"""A recorded step with another batch, or on another GPU."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.basics.errors import InputError
from foretrace.cost.kernels import kernel_pricer
from foretrace.hardware.presets import gpu
from foretrace.inputs.torch_ops.recorded_gpu import recorded_gpu, recorded_source
from foretrace.program.columns import UNPRICED
from foretrace.program.kernels import Gemm, Kernel, Stream, kernel_text, parse_kernels
from foretrace.program.program import Program
from foretrace.simulation.rebatch import rebuilt
from foretrace.simulation.rescale import FLOOR_S

FORWARD = Gemm(8192, 4096, 2048)
WEIGHTS = Gemm(4096, 2048, 8192, layout="nt")
ADAM = Stream("adam_bf16", 8 << 24, 6 << 24, fixed=14 << 24)
ACCUMULATE = Stream("add", 4 << 24, 2 << 24, fixed=6 << 24)


def recorded(*ops: tuple[str, Kernel | None, float, str], on: str = "NVIDIA H200") -> Program:
    """A step of kernels one after the other: name, kernel, seconds, phase."""
    build = ProgramBuilder(Mesh(dp=2), title="recorded", tokens_per_step=16384.0)
    role = build.role("rank 0", range(2))
    for name, kernel, seconds, phase in ops:
        text = None if kernel is None else kernel_text(kernel)
        role.compute(name, seconds, kernel=text, phase=phase, source=recorded_source(on))
    return build.program()


def seconds(program: Program) -> list[float]:
    return list(program.templates.columns["duration_s"].tolist())


def texts(program: Program) -> list[str]:
    return [program.strings[number] if number >= 0 else "" for number in program.templates.columns["kernel"].tolist()]


def price(kernel: Kernel, name: str = "h200-sxm") -> float:
    return float(kernel_pricer(gpu(name)).price([kernel]).duration_s[0])


def test_unchanged_it_is_the_same_program() -> None:
    program = recorded(("mm", FORWARD, 1e-4, "forward"))
    assert rebuilt(program) is program


@pytest.mark.parametrize("batch", [0.0, -1.0, float("nan"), float("inf")])
def test_a_batch_is_some_number_of_times_as_large(batch: float) -> None:
    with pytest.raises(InputError) as caught:
        rebuilt(recorded(("mm", FORWARD, 1e-4, "forward")), batch=batch)
    assert caught.value.code == "out-of-range"


def test_recorded_times_anchor_the_ratio_of_prices() -> None:
    program = recorded(("mm", FORWARD, 1e-4, "forward"), ("mm", WEIGHTS, 2e-4, "backward"))
    larger = rebuilt(program, batch=2.0)
    more, deeper = Gemm(16384, 4096, 2048), Gemm(4096, 2048, 16384, layout="nt")
    assert texts(larger) == [kernel_text(more), kernel_text(deeper)]
    expected = [1e-4 * price(more) / price(FORWARD), 2e-4 * price(deeper) / price(WEIGHTS)]
    assert seconds(larger) == pytest.approx(expected)
    assert larger.tokens_per_step == 32768.0


def test_parameters_have_no_samples() -> None:
    ops = (
        ("adam", ADAM, 1e-3, "optimizer"),
        ("accumulate", ACCUMULATE, 1e-4, "backward"),
        ("muon", FORWARD, 1e-4, "optimizer"),
        ("void multi_tensor_apply_kernel<AdamFunctor>", None, 1e-4, "none"),
    )
    program = recorded(*ops)
    assert seconds(rebuilt(program, batch=4.0)) == seconds(program)


def test_kernels_without_shapes_grow_with_the_samples_beyond_their_launch() -> None:
    program = recorded(("something_of_a_user", None, 1e-4, "forward"), ("tiny", None, 2e-6, "forward"))
    larger = rebuilt(program, batch=3.0)
    assert seconds(larger) == pytest.approx([FLOOR_S + 3 * (1e-4 - FLOOR_S), 2e-6])
    assert any("100 % of the computing time has no known shapes" in note.message for note in larger.diagnostics)


def test_on_another_gpu_every_kernel_takes_the_ratio_of_its_prices() -> None:
    program = recorded(("mm", FORWARD, 1e-4, "forward"), ("adam", ADAM, 1e-3, "optimizer"))
    other = rebuilt(program, gpu="A100-SXM4-80GB")
    expected = [
        recorded_s * price(kernel, "a100-80g-sxm") / price(kernel)
        for kernel, recorded_s in ((FORWARD, 1e-4), (ADAM, 1e-3))
    ]
    assert seconds(other) == pytest.approx(expected)
    assert texts(other) == texts(program)
    assert seconds(rebuilt(program, gpu="h200-sxm")) == pytest.approx(seconds(program))


def test_kinds_stand_for_kernels_without_shapes_on_another_gpu() -> None:
    names = ("nvjet_sm90_tst_TNT", "void at::native::vectorized_elementwise_kernel<4>")
    program = recorded(*((name, None, 1e-3, "forward") for name in names))
    slower = [(one - FLOOR_S) / (1e-3 - FLOOR_S) for one in seconds(rebuilt(program, gpu="a100-80g-sxm"))]
    products, memory = 989.4 / 312, 4.8 / 2.039
    assert slower == pytest.approx([products, memory], rel=0.25)


@pytest.mark.parametrize(("on", "code"), [("", "missing-field"), ("Voodoo 2", "unknown-name")])
def test_another_gpu_needs_a_known_one_to_compare_with(on: str, code: str) -> None:
    program = recorded(("mm", FORWARD, 1e-4, "forward"), on=on)
    with pytest.raises(InputError) as caught:
        rebuilt(program, gpu="h100-sxm")
    assert caught.value.code == code
    named = rebuilt(program, gpu="h100-sxm", recorded_gpu="NVIDIA H200")
    assert seconds(named)[0] > 0


def test_a_batch_without_a_known_gpu_goes_by_the_work() -> None:
    program = recorded(
        ("mm", FORWARD, 1e-4, "forward"), ("add", Stream("add", 60, 40, fixed=50), 1e-5, "forward"), on=""
    )
    larger = rebuilt(program, batch=2.0)
    assert seconds(larger) == pytest.approx([2e-4, 1.5e-5])
    assert any("the GPU is not known" in note.message for note in larger.diagnostics)


def test_communication_of_tokens_grows_and_that_of_gradients_does_not() -> None:
    build = ProgramBuilder(Mesh(dp=2))
    group, role = build.communicator("dp"), build.role("rank 0", range(2))
    role.compute("mm", 1e-4, kernel=kernel_text(FORWARD), phase="forward")
    for what, size, phase in (
        ("all_to_all", 1000, "forward"),
        ("all_reduce", 8192 * 4096 * 2, "forward"),  # just what the product writes
        ("all_reduce", 25 << 20, "backward"),
    ):
        role.collective(what, group, 1e-3, bytes=size, phase=phase)
    role.collective("all_to_all", group, UNPRICED, bytes=1000, phase="forward")
    larger = rebuilt(build.program(), batch=2.0, recorded_gpu="NVIDIA H200")
    assert seconds(larger)[1:4] == pytest.approx([2e-3, 2e-3, 1e-3])
    assert np.isnan(seconds(larger)[4])
    assert larger.templates.columns["bytes"].tolist()[1:] == [2000, 2 * 8192 * 4096 * 2, 25 << 20, 2000]


def test_what_was_scaled_says_so_and_carries_a_band() -> None:
    program = recorded(("mm", FORWARD, 1e-4, "forward"), ("adam", ADAM, 1e-3, "optimizer"))
    answer = simulate(rebuilt(program, batch=2.0))
    shares = {one.source: (one.low, one.high) for one in answer.provenance}
    assert shares["recorded on NVIDIA H200"] == (1.0, 1.0)
    low, high = shares["recorded on NVIDIA H200, scaled by kernel to a batch 2×"]
    assert low < 1.0 < high
    assert answer.step_time_band_s is not None
    assert answer.step_time_band_s[0] < answer.step_time_s < answer.step_time_band_s[1]
    assert recorded_gpu(rebuilt(program, batch=2.0)) == "NVIDIA H200"


def test_durations_of_instances_change_too() -> None:
    build = ProgramBuilder(Mesh(dp=1))
    block = build.block("layer")
    block.compute("mm", 1e-4, kernel=kernel_text(FORWARD), phase="forward", source=recorded_source("NVIDIA H200"))
    role = build.role("rank 0", range(1))
    role.place(block)
    role.place(block, override={0: {"duration_s": 2e-4}})
    larger = rebuilt(build.program(), batch=2.0)
    assert larger.instances.override_value.tolist() == pytest.approx([2 * seconds(larger)[0]])
    assert parse_kernels(texts(larger)[0])[0][1] == Gemm(16384, 4096, 2048)
