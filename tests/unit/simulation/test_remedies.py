"""Changes that would help: each is the option that makes it, and what the job takes with it."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

import foretrace
from foretrace import Machine, Plan, Scenario
from foretrace.inputs.base import Input
from foretrace.readings.answer.answer import Answer
from foretrace.readings.scenario_texts import read_what_ifs

H100 = Machine("h100-dgx")


def tried(plan: Plan, model: str = "llama3-8b", scenario: Scenario | None = None) -> tuple[Input, Answer]:
    job = foretrace.model(model, plan)
    return job, foretrace.simulate(job, H100, scenario, explain="band", even_if_oom=True, try_changes=True)


def with_option(job: Input, option: str) -> float:
    """Returns the step of a job with an option as a command line has it."""
    words = shlex.split(option)
    if words[0] == "--what-if":
        return foretrace.simulate(job, H100, Scenario(what_if=read_what_ifs([words[1]])), explain=False).step_time_s
    texts = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(*[iter(words)] * 2, strict=True)}
    return foretrace.simulate(job.read_options(texts), H100, explain=False).step_time_s


def test_changes_are_made_on_the_host_of_a_what_if() -> None:
    job = foretrace.model("llama3-8b", Plan(gpus=16, tp=2, pp=4, gbs=32, stack="megatron-core"))
    moved = Scenario(what_if={"cluster": "h100-dgx"})
    answer = foretrace.simulate(job, Machine("gb200-nvl72"), moved, even_if_oom=True, try_changes=True)
    assert answer.remedies
    assert {remedy.before_s for remedy in answer.remedies} == {answer.step_time_s}


def test_nothing_new_is_offered_that_the_launcher_refuses() -> None:
    """Megatron overlaps experts only between chunks, and has no zero-bubble schedule."""
    plan = Plan(gpus=32, pp=4, ep=8, gbs=64, moe_overlap=True, routing=1.0)
    _, answer = tried(plan, "qwen3-30b-a3b")
    assert answer.remedies
    assert not any("--schedule" in remedy.option for remedy in answer.remedies)


def test_every_option_gives_the_step_that_is_promised() -> None:
    job, answer = tried(Plan(gpus=32, tp=4, pp=4, gbs=32), "llama3.2-1b")
    assert answer.remedies is not None
    options = [remedy.option for remedy in answer.remedies]
    assert {"--vpp 2", "--overlap tp", "--precision fp8", "--what-if nvlink=2x"} <= set(options)
    for remedy in answer.remedies:
        assert remedy.before_s == answer.step_time_s
        assert with_option(job, remedy.option) == pytest.approx(remedy.after_s, rel=1e-12)
    changes = [remedy.change for remedy in answer.remedies]
    assert changes == sorted(changes)


def test_only_parts_that_take_time_are_aimed_at() -> None:
    _, answer = tried(Plan(gpus=8, gbs=8, seq_len=1024, recompute="full"))
    assert answer.remedies is not None
    options = " ".join(remedy.option for remedy in answer.remedies)
    assert "--recompute none" in options
    assert "--vpp" not in options and "--overlap tp" not in options and "--dispatcher" not in options


def test_fewer_recomputed_modules_are_tried() -> None:
    job, answer = tried(Plan(gpus=8, gbs=8, seq_len=1024, recompute_modules=("core_attn", "mlp")))
    assert answer.remedies is not None
    options = [remedy.option for remedy in answer.remedies if "--recompute" in remedy.option]
    assert {"--recompute none --recompute-modules none", "--recompute-modules core_attn"} <= set(options)
    for remedy in answer.remedies:
        if remedy.option in options:
            assert with_option(job, remedy.option) == pytest.approx(remedy.after_s, rel=1e-12)


def test_what_does_not_fit_is_not_proposed() -> None:
    _, answer = tried(Plan(gpus=8, gbs=64, mbs=8, recompute="full"))
    assert answer.remedies is not None and answer.memory is not None
    assert "--recompute none" not in [remedy.option for remedy in answer.remedies]


def test_another_layout_moves_layers_off_the_slowest_stage() -> None:
    job, answer = tried(Plan(gpus=8, pp=8, gbs=32), "llama3-8b")
    assert answer.remedies is not None
    (remedy,) = [remedy for remedy in answer.remedies if remedy.option.startswith("--layout")]
    assert remedy.change < -0.05 and remedy.why.startswith("stage 7")
    assert with_option(job, remedy.option) == pytest.approx(remedy.after_s, rel=1e-12)
    (note,) = [note for note in answer.diagnostics if note.code == "slow-stage"]
    assert note.message.startswith("stage 7")
    # The plan itself is as it was: nothing was changed without being asked.
    assert answer.model is not None and answer.model.plan["layout"] == "Et*4|(t*4|)*6t*4L"


def test_another_layout_takes_the_place_of_a_given_division() -> None:
    _, answer = tried(Plan(gpus=8, pp=8, gbs=32, stage_layers=(4,) * 8), "llama3-8b")
    assert answer.remedies is not None
    assert any(remedy.option.endswith("instead of --stage-layers") for remedy in answer.remedies)


def test_a_balanced_pipeline_gets_no_other_layout() -> None:
    _, answer = tried(Plan(gpus=8, pp=8, gbs=32, layout="Et*4|(t*4|)*5t*5|t*3L"), "llama3-8b")
    assert answer.remedies is not None
    gained = [remedy for remedy in answer.remedies if remedy.option.startswith("--layout") and remedy.change < -0.01]
    assert not gained


def test_a_scenario_holds_on_both_sides() -> None:
    _, answer = tried(Plan(gpus=16, tp=8, gbs=16), scenario=Scenario(what_if={"nvlink": 0.5}))
    assert answer.remedies
    assert all(remedy.before_s == answer.step_time_s for remedy in answer.remedies)
    assert "--what-if nvlink=2x" not in [remedy.option for remedy in answer.remedies]


def test_changes_are_tried_on_the_machine_of_the_scenario() -> None:
    plan = Plan(gpus=8, gbs=8, mbs=1)  # does not fit 79.1 GiB
    _, answer = tried(plan, scenario=Scenario(what_if={"memory": "400GiB"}))
    assert answer.remedies
    _, answer = tried(plan, scenario=Scenario(what_if={"gpu": "b200"}))
    assert answer.remedies
    assert "--precision mxfp8" in [remedy.option for remedy in answer.remedies]


def test_nothing_is_tried_unless_asked() -> None:
    job = foretrace.model("llama3-8b", Plan(gpus=8, gbs=8))
    assert foretrace.simulate(job, H100, explain=False, even_if_oom=True).remedies is None


def test_balanced_experts_are_tried_where_routing_is_uneven() -> None:
    plan = Plan(gpus=8, ep=8, mbs=2, gbs=16, cuda_graphs="full")
    job, answer = tried(plan, "deepseek-v2-lite")
    balanced = next(remedy for remedy in answer.remedies or () if remedy.option == "--routing 1x")
    assert balanced.after_s < balanced.before_s
    assert balanced.memory_bytes is not None
    assert balanced.memory_bytes < 0
    assert with_option(job, balanced.option) == balanced.after_s
    for even in (replace(plan, routing=1.0), replace(plan, ep=1)):
        assert "--routing 1x" not in {remedy.option for remedy in tried(even, "deepseek-v2-lite")[1].remedies or ()}
