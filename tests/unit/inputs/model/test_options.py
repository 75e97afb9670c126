"""Options of a model's plan, from the texts of a command line."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import UsageError
from foretrace.inputs.model.options import plan_fields


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
