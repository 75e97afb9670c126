"""Answers about hardware that does not exist: a changed figure acts, or the answer says why it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foretrace
from foretrace import Machine, Plan, Scenario
from foretrace.basics.errors import InfeasibleError, InputError
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective
from shared_files import shared

JOB = foretrace.model("llama3-8b", Plan(gpus=64, tp=2, gbs=128))
H100 = Machine("h100-dgx")


def step_s(scenario: Scenario | None = None, machine: Machine = H100) -> float:
    return foretrace.simulate(JOB, machine, scenario, explain=False, even_if_oom=True).step_time_s


def test_a_gpu_with_another_peak_is_another_gpu(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text("based_on: h100-dgx\nnode:\n  gpu: {bf16: 3000TFLOPS}\n")
    assert step_s(machine=Machine(path)) < 0.55 * step_s()
    path.write_text("based_on: h100-dgx\nnode:\n  gpu: {bf16: 989TFLOPS}\n")
    assert step_s(machine=Machine(path)) == pytest.approx(step_s(), rel=1e-3)


@pytest.mark.parametrize("what", ["nvlink", "hbm", "flops", "power", "gemm", "attention", "nic"])
def test_more_of_it_is_faster(what: str) -> None:
    answer = foretrace.simulate(JOB, H100, Scenario(what_if={what: 1.5}), explain=False)
    assert answer.unchanged_step_time_s == pytest.approx(step_s())
    assert answer.step_time_s < answer.unchanged_step_time_s


def test_another_gpu_or_cluster() -> None:
    assert step_s(Scenario(what_if={"cluster": "b200-dgx"})) == step_s(machine=Machine("b200-dgx"))
    assert step_s(Scenario(what_if={"gpu": "b200"})) == pytest.approx(step_s(machine=Machine("b200-dgx")), rel=0.05)


def test_a_changed_figure_of_the_memory_decides_what_fits() -> None:
    with pytest.raises(InfeasibleError):
        foretrace.simulate(JOB, H100, Scenario(what_if={"memory": "24GiB"}), explain=False)


def test_what_changes_nothing_is_reported() -> None:
    answer = foretrace.simulate(JOB, H100, Scenario(what_if={"pcie": 2.0, "hbm": 2.0}), explain=False)
    assert [note.where for note in answer.diagnostics if note.code == "what-if-without-effect"] == ["--what-if pcie"]


def test_what_limits_the_kernels_is_named_and_is_the_true_limit() -> None:
    fast = Scenario(what_if={"flops": 8.0})
    answer = foretrace.simulate(JOB, H100, fast)
    limits = answer.kernel_limits_s
    assert limits is not None
    assert next(iter(limits)) == "hbm"
    usual = foretrace.simulate(JOB, H100).kernel_limits_s
    assert usual is not None and next(iter(usual)) == "flops"
    assert step_s(Scenario(what_if={**fast.what_if, "hbm": 2.0})) < 0.95 * answer.step_time_s


def test_measured_collectives_follow_a_changed_network() -> None:
    folder = shared("data", "collectives", "a100_2x8")
    assert read_measurements(folder).rows
    machine = Machine(cluster("a100-dgx-80g"), collectives=folder)
    layout = machine.network_of(16).layouts(np.arange(16)[None])[0][0]
    before, after = (
        found.network_of(16).price(Collective.ALL_REDUCE, layout, np.array([1e6, 1e8, 1e9])).duration_s
        for found in (machine, machine.changed({"nic": 0.25}))
    )
    assert (after >= before).all() and after[-1] > 1.5 * before[-1]


def test_measured_collectives_follow_a_network_whose_gpus_are_replaced() -> None:
    machine = Machine(cluster("a100-dgx-80g"), collectives=shared("data", "collectives", "a100_2x8"))
    layout = machine.network_of(16).layouts(np.arange(16)[None])[0][0]
    before, after = (
        found.network_of(16).price(Collective.ALL_REDUCE, layout, np.array([1e9])).duration_s[0]
        for found in (machine.changed({"gpu": "h100-sxm"}), machine.changed({"gpu": "h100-sxm", "nic": 0.25}))
    )
    assert after > 1.5 * before
    other = machine.changed({"cluster": "gb200-nvl72"})
    assert other.collectives_note(other.needed_cluster()).level == "warning"


def test_what_helps_only_together_is_not_called_idle() -> None:
    job = foretrace.model("mixtral-8x7b", Plan(gpus=64, ep=64 // 8, tp=1, gbs=64, seq_len=4096))
    both = Scenario(what_if={"nic": 4.0, "pcie": 4.0})
    answer = foretrace.simulate(job, H100, both, explain=False, even_if_oom=True)
    assert "what-if-without-effect" not in [note.code for note in answer.diagnostics]


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"gemm": "fast"}, "bad-value"), ({"nic": True}, "bad-value"), ({"nik": 2.0}, "unknown-name")],
)
def test_a_machine_refuses_changes_that_it_does_not_know(changes: dict[str, float | str], code: str) -> None:
    with pytest.raises(InputError) as error:
        H100.changed(changes)
    assert error.value.code == code


def codes(answer: foretrace.Answer) -> list[str]:
    return [note.code for note in answer.diagnostics]


def test_figures_far_from_the_preset_are_extrapolated_and_their_band_is_wide(tmp_path: Path) -> None:
    """The band follows from what products lost from an H100 to a B200, and is judged from an A100 to an H100."""
    path = tmp_path / "like_h100.yaml"
    path.write_text(
        "based_on: a100-dgx-80g\nnode:\n  nic: 400Gbps\n  gpu: {bf16: 989TFLOPS, memory_bandwidth: 3.35TB/s,"
        " power_w: 700W, link_bandwidth: 450GB/s, pcie_bandwidth: 64GB/s, compute_units: 132, memory: 80GiB}\n"
    )
    answer, real = (foretrace.simulate(JOB, Machine(name), explain="band") for name in (path, "h100-dgx"))
    assert "extrapolated" in codes(answer) and "extrapolated" not in codes(real)
    assert answer.step_time_band_s is not None and real.step_time_band_s is not None
    low, high = answer.step_time_band_s
    assert low < real.step_time_s < high
    assert high / answer.step_time_s > real.step_time_band_s[1] / real.step_time_s


def test_a_limit_that_moves_is_named() -> None:
    job = foretrace.model("llama3-8b", Plan(gpus=64, tp=2, gbs=64))
    moved = foretrace.simulate(job, H100, Scenario(what_if={"nic": 4.0}), explain="band")
    assert "limit-moved" in codes(moved)
    both = foretrace.simulate(job, H100, Scenario(what_if={"nic": 1.1}), explain="band")
    assert "limit-moved" not in codes(both)


def test_kernels_faster_than_the_peak_are_reported() -> None:
    fast = Scenario(what_if={"gemm": 1000.0, "attention": 1000.0})
    assert "beats-peak" in codes(foretrace.simulate(JOB, H100, fast, explain=False))
    assert "beats-peak" not in codes(foretrace.simulate(JOB, H100, explain=False))


def test_power_that_a_gpu_cannot_run_on_is_refused() -> None:
    with pytest.raises(InputError) as error:
        H100.changed({"power": "50W"})
    assert error.value.code == "out-of-range"


def test_gpus_without_a_switch_keep_their_links() -> None:
    amd = H100.changed({"gpu": "mi300x"}).needed_cluster()
    assert not amd.node.switched
    assert step_s(Scenario(what_if={"gpu": "mi300x"})) == pytest.approx(step_s(machine=Machine("mi300x")), rel=0.05)
