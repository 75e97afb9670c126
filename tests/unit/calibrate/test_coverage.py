"""Calibrations held against jobs, fitted to whole steps, and what they do to predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace import Machine, Plan, model, simulate
from foretrace.basics.errors import InputError
from foretrace.calibrate.calibrate import make_calibration
from foretrace.calibrate.coverage import covered_calls, covered_families, job_coverage
from foretrace.cost.calibration import Calibration, FamilyFit, HostFit, read_calibration, write_calibration
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.kernel_profile import KernelProfile
from foretrace.cost.mix import mix_of
from foretrace.hardware import presets
from foretrace.program.expand import expand
from foretrace.simulation.simulate_input import on_machine
from foretrace.step import build_step
from foretrace.validate.calibrated import validate_calibrated
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import read_training_runs
from foretrace.workload.settle import settle
from foretrace.workload.stacks import TORCH_EAGER
from foretrace.workload.step_spec import step_spec
from recorded_steps import trace_file
from shared_files import ROOT, shared

PLAN = Plan(gpus=1, mbs=1, gbs=1, seq_len=1024, stack="torch-eager")
ROW = {"layers": 2, "hidden": 4096, "ffn": 11264, "heads": 32, "kv": 32, "vocab": 1024, "seq": 4096, "style": "llama"}


def measured_all(factor: float, path: str = "my.yaml") -> Calibration:
    """A calibration that measured every kernel of a job at so many times the model's price."""
    program = build_step(step_spec(settle(presets_model(), PLAN)))
    kernels = tuple(mix_of(expand(program)).calls)
    seconds = factor * kernel_pricer(presets.gpu("h200-sxm"), prices="model").price(kernels).duration_s
    unknown = np.zeros(len(kernels))
    return Calibration(path, "h200-sxm", kernels=KernelProfile({}, kernels, seconds, seconds, unknown, unknown))


def presets_model():  # type: ignore[no-untyped-def]
    from foretrace import load_model

    return load_model("llama3-8b")


class TestPredictions:
    def test_a_calibration_is_the_best_source(self) -> None:
        answer = simulate(
            model("llama3-8b", PLAN),
            Machine("h200-dgx", calibration=measured_all(2.0)),
            explain=False,
            even_if_oom=True,
        )
        usual = simulate(model("llama3-8b", PLAN), Machine("h200-dgx", prices="model"), explain=False, even_if_oom=True)
        assert answer.step_time_s > 1.7 * usual.step_time_s
        sources = {one.source: one.share for one in answer.provenance}
        (name,) = (one for one in sources if one.startswith("calibration my.yaml ("))
        assert sources[name] > 0.5

    def test_the_host_launches_as_fast_as_it_did(self) -> None:
        slow = Calibration("my.yaml", "h200-sxm", host=HostFit(10 * TORCH_EAGER.launch_s, 1000))
        job = model("llama3-8b", PLAN)
        setting = on_machine(job, Machine("h200-dgx", calibration=slow)).setting()
        assert setting is not None and setting.stack.launch_s == pytest.approx(10 * TORCH_EAGER.launch_s)
        answer = simulate(job, Machine("h200-dgx", calibration=slow), explain=False, even_if_oom=True)
        named = {one.source for one in answer.provenance}
        assert "host launches, calibration my.yaml" in named

    def test_kernels_of_another_stack_are_noted(self) -> None:
        fits = tuple(FamilyFit(name, 1, 1.0, 1.0, 1.0, 0.1) for name in ("gemm bf16 tn", "stream silu_strided"))
        eager = replace(measured_all(1.0), families=fits)

        def notes(stack: str, calibration: Calibration) -> list[str]:
            plan = replace(PLAN, stack=stack)
            answer = simulate(
                model("llama3-8b", plan), Machine("h200-dgx", calibration=calibration), explain=False, even_if_oom=True
            )
            return [one.message for one in answer.diagnostics if "kernels of eager PyTorch" in one.message]

        assert "--stack torch-eager" in notes("megatron-core", eager)[0]
        assert not notes("torch-eager", eager)
        assert not notes("megatron-core", replace(eager, families=fits[:1]))

    def test_another_gpu_is_an_error(self) -> None:
        with pytest.raises(InputError, match="of h200-sxm, the job runs on h100-sxm"):
            simulate(model("llama3-8b", PLAN), Machine("h100-dgx", calibration=measured_all(2.0)))

    def test_without_a_cluster_it_says_nothing(self) -> None:
        program = build_step(step_spec(settle(presets_model(), PLAN)))
        with pytest.raises(InputError, match="a calibration prices the GPUs of a cluster"):
            simulate(program, Machine(calibration=measured_all(2.0)))


class TestCoverage:
    def test_families_and_their_sizes(self, tmp_path: Path) -> None:
        found, _ = make_calibration([trace_file(tmp_path)], tmp_path / "my.yaml")
        (one,) = covered_families(found)
        assert (one.name, one.kernels) == ("gemm bf16 tn", 2)
        assert one.ranges == {"m": (4096, 8192), "n": (4096, 4096), "k": (1024, 1024)}
        assert covered_calls(found) == ()

    def test_a_job_whose_kernels_were_all_measured(self) -> None:
        program = build_step(step_spec(settle(presets_model(), PLAN)))
        found = job_coverage(measured_all(1.0), program, "model")
        assert found.share("measured") == pytest.approx(1.0)
        assert found.kernels[0].share == max(one.share for one in found.kernels)

    def test_a_job_of_which_little_is_known(self, tmp_path: Path) -> None:
        made, _ = make_calibration([trace_file(tmp_path)], tmp_path / "my.yaml")
        found = job_coverage(made, build_step(step_spec(settle(presets_model(), PLAN))), "model")
        hows = {one.how for one in found.kernels}
        assert hows >= {"interpolated", "corrected", "not covered"}
        assert found.share("not covered") > 0.05
        assert sum(found.share(how) for how in hows) == pytest.approx(1.0)


class TestWholeSteps:
    def steps_file(self, folder: Path, *step_ms: float) -> Path:
        rows = [ROW | {"name": "a", "mbs": 2**n, "step_ms": one} for n, one in enumerate(step_ms)]
        path = folder / "steps.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    def test_several_steps_set_a_factor_and_say_so(self, tmp_path: Path) -> None:
        calibration, notes = make_calibration(
            [trace_file(tmp_path), self.steps_file(tmp_path, 30.0, 60.0)], tmp_path / "my.yaml"
        )
        fit = calibration.steps
        assert fit is not None and fit.rows == 2 and fit.factor > 1
        assert fit.error < fit.before
        assert any("whole steps call for" in note.message for note in notes)
        again = read_calibration(tmp_path / "my.yaml").steps
        assert again is not None and again.factor == pytest.approx(fit.factor, rel=1e-4)

    def test_one_step_sets_none_unless_asked(self, tmp_path: Path) -> None:
        inputs = [trace_file(tmp_path), self.steps_file(tmp_path, 30.0)]
        calibration, notes = make_calibration(inputs, tmp_path / "my.yaml")
        assert calibration.steps is None
        assert any("--step-factor asks for it" in note.message for note in notes)
        asked, _ = make_calibration(inputs, tmp_path / "my.yaml", step_factor=True)
        assert asked.steps is not None and asked.steps.error == pytest.approx(0.0, abs=0.01)
        job = job_of(read_training_runs(inputs[1]).runs[0].config)
        answer = simulate(
            model(job.model, job.plan), Machine(job.cluster, calibration=asked), explain=False, even_if_oom=True
        )
        assert answer.step_time_s == pytest.approx(30e-3, rel=0.02), "what it was fitted to"

    def test_a_step_whose_pace_the_host_sets_says_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "steps.jsonl"
        path.write_text(
            json.dumps(ROW | {"name": "tiny", "hidden": 256, "ffn": 512, "seq": 64, "mbs": 1, "step_ms": 9.0})
        )
        with pytest.raises(InputError) as raised:
            make_calibration([trace_file(tmp_path), path], tmp_path / "my.yaml")
        assert raised.value.code == "nothing-to-do"
        assert raised.value.hint is not None and "computation sets the pace of" in raised.value.hint

    def test_none_where_it_is_not_wanted(self, tmp_path: Path) -> None:
        inputs = [trace_file(tmp_path), self.steps_file(tmp_path, 30.0, 60.0)]
        assert make_calibration(inputs, tmp_path / "my.yaml", step_factor=False)[0].steps is None

    def test_a_factor_without_steps(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as caught:
            make_calibration([trace_file(tmp_path)], tmp_path / "my.yaml", step_factor=True)
        assert caught.value.code == "missing-argument"

    def test_steps_that_cannot_be_predicted(self, tmp_path: Path) -> None:
        (tmp_path / "bad.jsonl").write_text(json.dumps({"name": "a", "step_ms": 3.0}))
        with pytest.raises(InputError) as caught:
            make_calibration([trace_file(tmp_path), tmp_path / "bad.jsonl"], tmp_path / "my.yaml")
        assert caught.value.code == "nothing-to-do"


class TestBeforeAndAfter:
    def test_rows_that_it_was_fitted_to_are_not_counted(self, tmp_path: Path) -> None:
        steps = TestWholeSteps().steps_file(tmp_path, 30.0, 60.0)
        make_calibration([trace_file(tmp_path), steps], tmp_path / "my.yaml")
        machine = Machine(prices="model", calibration=tmp_path / "my.yaml")
        with pytest.raises(InputError) as caught:
            validate_calibrated(read_training_runs(steps), machine)
        assert caught.value.code == "nothing-to-do"
        other = tmp_path / "others.jsonl"
        other.write_text(steps.read_text())
        found = validate_calibrated(read_training_runs(other), machine)
        assert len(found.counted) == 2

    def test_a_trace_improves_the_other_steps_of_its_gpu(self, tmp_path: Path) -> None:
        """The H200 steps, each predicted by the model alone and with the trace of one of them."""
        trace = shared("data", "h200", "tinyllama_mbs4.json.gz")
        make_calibration([trace], tmp_path / "my.yaml")
        machine = Machine(prices="model", calibration=tmp_path / "my.yaml")
        for file in ("h200_steps.jsonl", "h200_more_steps.jsonl"):
            runs = read_training_runs(ROOT / "benchmarks" / "truth" / file)
            found = validate_calibrated(runs, machine, workers=1)
            own = [row.after.id for row in found.rows if row.own]
            assert own == (["tinyllama-1.1b#1"] if file == "h200_steps.jsonl" else [])
            for name, (before, after) in found.mean_errors().items():
                assert after < before, (file, name)

    def test_predictions_see_no_measurement(self, tmp_path: Path) -> None:
        make_calibration([trace_file(tmp_path)], tmp_path / "my.yaml")
        machine = Machine(prices="model", calibration=tmp_path / "my.yaml")
        runs = read_training_runs(ROOT / "benchmarks" / "truth" / "h200_steps.jsonl")
        some = replace(runs, runs=runs.runs[6:8])
        slower = tuple(replace(one, measurement=replace(one.measurement, step_s=9.0)) for one in some.runs)
        one, other = (validate_calibrated(each, machine, workers=1) for each in (some, replace(some, runs=slower)))
        predicted = [[row.after.step.predicted for row in each.rows] for each in (one, other)]
        assert predicted[0] == predicted[1]


def test_what_is_written_prices_as_what_was_made(tmp_path: Path) -> None:
    fit = measured_all(1.5, str(tmp_path / "my.yaml"))
    write_calibration(fit)
    answers = [
        simulate(
            model("llama3-8b", PLAN), Machine("h200-dgx", calibration=one), explain=False, even_if_oom=True
        ).step_time_s
        for one in (fit, tmp_path / "my.yaml")
    ]
    assert answers[0] == pytest.approx(answers[1], rel=1e-4)
