"""Options of a model's plan, from the texts of a command line."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.basics.errors import UsageError
from foretrace.inputs.model.options import options_between, plan_fields, plan_options
from foretrace.workload.plan import Plan


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_parts_that_a_file_names_are_not_meant_where_none_or_whole_layers_are(recompute: str) -> None:
    assert plan_fields({"recompute": recompute}) == {"recompute": recompute, "recompute_modules": None}


def test_selective_keeps_the_parts_of_a_file() -> None:
    assert plan_fields({"recompute": "selective"}) == {"recompute": "selective"}
    assert plan_fields({"recompute_modules": "mlp,moe_act"}) == {"recompute_modules": ("mlp", "moe_act")}


@pytest.mark.parametrize(("recompute", "modules"), [("none", "mlp"), ("selective", "none")])
def test_nothing_and_parts_are_not_asked_for_together(recompute: str, modules: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_fields({"recompute": recompute, "recompute_modules": modules})
    assert caught.value.code == "conflicting-options"


def test_the_options_of_a_plan_are_those_that_differ_from_its_base() -> None:
    file_plan = Plan(gpus=64, tp=4, gbs=128, offload_optimizer=True)
    assert plan_options(Plan(gpus=64, gbs=128), file_plan) == "--tp 1"
    assert plan_options(Plan(gpus=64, tp=4, gbs=256, pp=2), file_plan) == "--gbs 256 --pp 2"
    assert plan_options(Plan(gpus=8)) == "--gpus 8"


def test_a_layout_is_quoted_for_a_shell() -> None:
    assert plan_options(Plan(gpus=8, layout="Et*4|tL")) == "--gpus 8 --layout 'Et*4|tL'"


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ({}, {"tp": 2, "sequence_parallel": False}, "--tp 2 --no-sp"),
        ({"recompute": "full", "recompute_layers": 4}, {"recompute": "full"}, "without --recompute-layers"),
        ({"offload_optimizer": True}, {"mbs": 2}, "--mbs 2 without --offload-optimizer"),
        ({"tp_overlap": True}, {}, "without --overlap"),
        ({"tp_overlap": True}, {"moe_overlap": True}, "--overlap moe"),
        (
            {"grad_overlap": True, "param_overlap": True},
            {"grad_overlap": False, "param_overlap": False},
            "--overlap none",
        ),
        ({}, {}, ""),
    ],
)
def test_the_change_from_one_plan_to_another(before: dict[str, Any], after: dict[str, Any], options: str) -> None:
    assert options_between(Plan(gpus=8, **before), Plan(gpus=8, **after)) == options
