"""What a model with a plan is."""

from __future__ import annotations

import pytest

from foretrace.inputs.inventory import Inventory
from foretrace.inputs.model.inventory import model_inventory
from foretrace.models.flops import model_flops
from foretrace.models.parameters import active_parameters, parameters
from foretrace.models.presets import model
from foretrace.step import build_step
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec

LLAMA = settle(model("llama3-8b"), Plan(gpus=32, tp=2, pp=4, gbs=64, mbs=2))
DEEPSEEK = settle(model("deepseek-v3"), Plan(gpus=256, pp=8, vpp=2, ep=16, gbs=512))


def fact(inventory: Inventory, label: str) -> str:
    """The text of a line of the screen."""
    return dict(inventory.facts)[label]


def test_figures_of_the_model() -> None:
    answer = model_inventory(LLAMA, None, "llama").to_dict()
    assert (answer["schema"], answer["kind"], answer["title"]) == ("foretrace.inventory/1", "model", "llama")
    figures = answer["model"]
    assert figures["name"] == "llama3-8b"
    assert figures["parameters"] == figures["active_parameters"] == parameters(LLAMA.model)
    assert sum(figures["parameters_by_part"].values()) == figures["parameters"]
    assert (figures["layers"], figures["expert_layers"], figures["experts"]) == (32, 0, 0)
    per_sequence = model_flops(LLAMA.model, LLAMA.seq_len)
    assert figures["training_flops_per_token"] == pytest.approx(per_sequence / LLAMA.seq_len)
    assert figures["training_flops_per_step"] == pytest.approx(per_sequence * 64)


def test_the_settled_plan() -> None:
    answer = model_inventory(LLAMA, None, "llama").to_dict()
    assert (answer["world_size"], answer["mesh"]) == (32, "tp=2,dp=4,pp=4")
    assert answer["tokens_per_step"] == 64 * LLAMA.seq_len
    plan = answer["plan"]
    assert (plan["microbatches"], plan["schedule"], plan["dp"], plan["zero"]) == (8, "1f1b", 4, 1)
    assert plan["stack"] == LLAMA.stack.label
    assert [one["code"] for one in answer["diagnostics"]] == [one.code for one in LLAMA.diagnostics]


def test_work_is_that_of_the_plans_sequence_length() -> None:
    longer = settle(model("llama3-8b"), Plan(gpus=32, tp=2, pp=4, gbs=64, seq_len=2 * LLAMA.seq_len))
    short, long = (model_inventory(one, None, "job").to_dict()["model"] for one in (LLAMA, longer))
    assert long["training_flops_per_token"] > short["training_flops_per_token"]


def test_experts() -> None:
    inventory = model_inventory(DEEPSEEK, None, "deepseek")
    figures = inventory.to_dict()["model"]
    assert (figures["experts"], figures["experts_per_token"], figures["expert_layers"]) == (256, 8, 58)
    assert figures["active_parameters"] == active_parameters(DEEPSEEK.model) < figures["parameters"]
    assert fact(inventory, "experts") == "256 in 58 layers, 8 of them for a token"
    assert "for a token" in fact(inventory, "parameters")


def test_the_screen() -> None:
    inventory = model_inventory(LLAMA, None, "llama")
    assert fact(inventory, "job") == "32 GPUs · tp 2 · dp 4 · pp 4"
    assert fact(inventory, "schedule") == "1f1b · 8 microbatches of 2 sequences per rank"
    assert fact(inventory, "stages") == "4 · 8 layers per stage"
    assert "GFLOP a token" in fact(inventory, "training")
    assert "experts" not in dict(inventory.facts)
    (parts,) = inventory.tables
    assert parts.rows[-1] == ("all", f"{parameters(LLAMA.model):,}", "100.0 %")


def test_the_screen_of_an_interleaved_schedule() -> None:
    inventory = model_inventory(DEEPSEEK, None, "deepseek")
    stages = "8 · 1 to 4 layers per model chunk · 2 model chunks per stage · Et*4|(t*4|)*14tmL"
    assert fact(inventory, "stages") == stages
    (parts,) = inventory.tables
    assert "mtp" not in {row[0] for row in parts.rows} and "multi-token prediction" in parts.note


def test_with_a_program_its_ops_are_counted_too() -> None:
    program = build_step(step_spec(LLAMA))
    inventory = model_inventory(LLAMA, program, "llama")
    answer = inventory.to_dict()
    assert answer["title"] == "llama" and "file_bytes" not in answer
    assert [one["name"] for one in answer["roles"]] == list(program.roles)
    assert answer["ops"] > 0 and {"model", "plan"} <= set(answer)
    _, roles, traffic = inventory.tables
    assert len(roles.rows) == 4 and {row[0] for row in traffic.rows} == {"tp", "dp", "pp"}
    assert len(set(inventory.diagnostics)) == len(inventory.diagnostics)
    assert "unpriced-op" not in {one.code for one in inventory.diagnostics}
