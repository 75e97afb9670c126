"""Predictions from a model's name: what they contain, and that the parts agree with each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace import Answer, Machine, Plan, load_model, model, simulate
from foretrace.basics.errors import InfeasibleError, InputError
from foretrace.hardware import presets as hardware
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import gpu
from foretrace.models.parameters import parameters
from foretrace.readings.answer.memory_fit import MemoryFit
from foretrace.readings.answer.model_figures import ModelFigures, peak_flops
from foretrace.readings.scenario import Scenario
from foretrace.step.spec import CudaGraphs
from foretrace.workload.stack import HostPace
from foretrace.workload.stacks import stack

PLAN = Plan(gpus=16, tp=2, pp=2, gbs=32, mbs=1, recompute="full")


@pytest.fixture(scope="module")
def answer() -> Answer:
    return simulate(model("llama3-8b", PLAN), Machine("h100-dgx", prices="model"))


def figures_of(answer: Answer) -> ModelFigures:
    assert answer.model is not None
    return answer.model


def memory_of(answer: Answer) -> MemoryFit:
    assert answer.memory is not None
    return answer.memory


def test_rates_follow_from_the_step(answer: Answer) -> None:
    tokens = 32 * 8192
    assert answer.tokens_per_s_per_gpu == pytest.approx(tokens / answer.step_time_s / 16)
    assert model("llama3-8b", PLAN).program().tokens_per_step == tokens
    mfu, figures = answer.mfu, figures_of(answer)
    assert mfu == pytest.approx(figures.model_flops / (answer.step_time_s * 16 * 989.4e12))
    assert figures.flops_per_s_per_gpu(answer.step_time_s) == pytest.approx(mfu * figures.peak_flops)
    assert 0.2 < mfu < 0.7


def test_figures_agree_with_the_rest_of_the_answer(answer: Answer) -> None:
    assert answer.peak_memory is not None
    assert answer.peak_memory.bytes == memory_of(answer).peak_bytes
    assert figures_of(answer).peak_dtype == "bf16"


@pytest.mark.parametrize("folder", [False, True])
def test_a_configuration_by_its_path(folder: bool, tmp_path: Path, answer: Answer) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    more = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
    path.write_text(json.dumps({"model_type": "llama", **sizes, **more}), encoding="utf-8")
    where = tmp_path if folder else str(path)
    read = simulate(model(where, PLAN), Machine("h100-dgx", prices="model"), explain=False)
    assert read.step_time_s == pytest.approx(answer.step_time_s)
    assert figures_of(read).name == "llama 8.0B"
    assert any("tie_word_embeddings is not given" in one.message for one in read.diagnostics)


def test_model_flops_are_about_six_per_parameter_and_token(answer: Answer) -> None:
    linear = 6 * (parameters(load_model("llama3-8b")) - 128256 * 4096) * 32 * 8192
    attention = 3 * 32 * 32 * 2 * 2 * 128 * 8192**2 / 2 * 32
    assert figures_of(answer).model_flops == pytest.approx(linear + attention, rel=1e-3)


def test_recomputation_is_in_hfu_only(answer: Answer) -> None:
    without = simulate(
        model("llama3-8b", replace(PLAN, recompute="none")), Machine("h100-dgx", prices="model"), explain=False
    )
    bare, recomputed = figures_of(without), figures_of(answer)
    assert bare.model_flops == recomputed.model_flops
    assert recomputed.hardware_flops > 1.25 * bare.hardware_flops
    assert answer.hfu is not None and answer.mfu is not None and answer.hfu > answer.mfu
    # What flash attention's backward computes again is the hardware's, not the model's.
    assert bare.hardware_flops == pytest.approx(bare.model_flops, rel=0.06)
    assert bare.hardware_flops > bare.model_flops


def test_utilisation_of_fp8_is_against_both_peaks(answer: Answer) -> None:
    assert figures_of(answer).bf16_peak_flops is None and answer.to_dict()["mfu_bf16"] is None
    plan = replace(PLAN, precision="fp8")
    fp8 = simulate(model("llama3-8b", plan), Machine("h100-dgx", prices="model"), explain=False)
    assert fp8.mfu is not None
    record = fp8.to_dict()
    assert record["bf16_peak_flops_per_s"] == figures_of(answer).peak_flops
    assert record["mfu_bf16"] / fp8.mfu == pytest.approx(figures_of(fp8).peak_flops / figures_of(answer).peak_flops)


def test_the_band_holds_the_step_and_memory_its_parts(answer: Answer) -> None:
    assert answer.step_time_band_s is not None
    low, high = answer.step_time_band_s
    assert low < answer.step_time_s < high
    assert len(memory_of(answer).stages) == 2
    for stage in memory_of(answer).stages:
        assert sum(stage.by_category.values()) == stage.peak_bytes
        assert stage.ranks == 8
    assert memory_of(answer).fits


def test_forward_backward_and_optimizer_are_the_step() -> None:
    one = simulate(
        model("tinyllama-1.1b", Plan(gpus=1, mbs=1, stack="torch-eager", seq_len=2048)),
        Machine("h200-dgx"),
        explain=False,
    )
    parts = one.parts
    assert 0 < parts.optimizer_s < parts.forward_s < parts.backward_s
    assert parts.forward_s + parts.backward_s + parts.optimizer_s == pytest.approx(one.step_time_s, rel=0.05)


def test_a_job_that_does_not_fit_names_one_that_does() -> None:
    plan = Plan(gpus=8, gbs=8, seq_len=8192)
    with pytest.raises(InfeasibleError, match=r"79\.1 GiB") as caught:
        simulate(model("llama3-70b", plan), Machine("h100-dgx"))
    assert caught.value.exit_code == 4
    assert caught.value.hint is not None
    anyway = simulate(model("llama3-70b", plan), Machine("h100-dgx"), even_if_oom=True, explain=False)
    assert not memory_of(anyway).fits


def test_the_plan_that_an_error_names_fits() -> None:
    plan = Plan(gpus=64, tp=2, pp=4, gbs=256, seq_len=8192)
    with pytest.raises(InfeasibleError) as caught:
        simulate(model("llama3-70b", plan), Machine("h100-dgx"))
    hint = caught.value.hint or ""
    words = hint[hint.index("--") :].partition(" (")[0].split()
    fields = {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    changed = replace(plan, **{name: int(one) if one.isdecimal() else one for name, one in fields.items()})
    assert memory_of(simulate(model("llama3-70b", changed), Machine("h100-dgx"), explain=False)).fits


def test_a_gpu_without_such_units() -> None:
    with pytest.raises(InputError, match="no fp8 units"):
        simulate(model("llama3-8b", replace(PLAN, precision="fp8")), Machine("a100-dgx"))
    assert peak_flops(gpu("b200"), "mxfp8") == 4500e12
    assert peak_flops(gpu("b200"), "nvfp4") == 9000e12


def test_prices_nobody_has() -> None:
    with pytest.raises(InputError, match="unknown-name"):
        simulate(model("llama3-8b", PLAN), Machine("h100-dgx", prices="wishful"))  # type: ignore[arg-type]


def test_the_datasheet_is_faster_than_any_measurement(answer: Answer) -> None:
    datasheet = simulate(model("llama3-8b", PLAN), Machine("h100-dgx", prices="roofline"), explain=False)
    assert datasheet.step_time_s < answer.step_time_s


def test_scenarios_reach_the_answer(answer: Answer) -> None:
    faster = Scenario({"compute": 2.0})
    quick = simulate(model("llama3-8b", PLAN), Machine("h100-dgx", prices="model"), faster, explain=False)
    assert quick.step_time_s < answer.step_time_s
    assert quick.unchanged_step_time_s == pytest.approx(answer.step_time_s)


def test_the_same_twice(answer: Answer) -> None:
    again = simulate(model("Llama-3-8B", PLAN), Machine("H100", prices="model"))
    assert again.step_time_s == answer.step_time_s
    assert again.step_time_band_s == answer.step_time_band_s


def test_a_what_if_of_another_cluster_takes_its_host() -> None:
    plan = Plan(gpus=1, gbs=1, seq_len=512, stack="megatron-core")
    h100, gb200 = Machine("h100-dgx", prices="model"), Machine("gb200-nvl72", prices="model")
    answer = simulate(model("llama3.2-1b", plan), h100, Scenario(what_if={"cluster": "gb200-nvl72"}), explain=False)
    assert answer.step_time_s == simulate(model("llama3.2-1b", plan), gb200, explain=False).step_time_s
    assert answer.unchanged_step_time_s == simulate(model("llama3.2-1b", plan), h100, explain=False).step_time_s


def test_grace_launches_pytorch_s_kernels_faster_than_those_of_transformer_engine() -> None:
    node = hardware.cluster("gb200-nvl72").node
    assert node.torch_launch_factor is not None
    pace = HostPace(node.launch_factor, "", node.torch_launch_factor)
    for name, factor in (("torch-eager", 1.25), ("fsdp-compile", 1.25), ("megatron-bridge", 2.75)):
        assert stack(name).on_host(pace).launch_s == pytest.approx(factor * stack(name).launch_s)


def test_a_slower_host_slows_a_step_that_launches_decide() -> None:
    """A node whose CPU takes twice as long for a launch; graphs of whole steps are launched once."""
    usual = hardware.cluster("h100-dgx")
    slow = replace(usual, node=replace(usual.node, launch_factor=2.0))

    def step_s(on: Cluster, graphs: CudaGraphs) -> float:
        plan = Plan(gpus=1, gbs=1, seq_len=512, stack="torch-eager", cuda_graphs=graphs)
        return simulate(model("llama3.2-1b", plan), Machine(on, prices="model"), explain=False).step_time_s

    assert step_s(slow, "none") == pytest.approx(2 * step_s(usual, "none"), rel=0.1)
    assert step_s(slow, "full") == pytest.approx(step_s(usual, "full"), rel=0.01)
