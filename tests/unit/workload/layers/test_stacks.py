"""Stacks by name."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.workload.stacks import STACKS, stack


def test_names_resolve_as_people_type_them() -> None:
    assert stack("Megatron_Core") is STACKS["megatron-core"]
    assert stack("LLM Foundry") is STACKS["llm-foundry"]


def test_an_unknown_stack_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean megatron-core") as raised:
        stack("megatron-cor", where="job.yaml:3")
    assert raised.value.where == "job.yaml:3"


@pytest.mark.parametrize("name", list(STACKS))
def test_every_stack_says_where_its_facts_are_from(name: str) -> None:
    assert STACKS[name].name == name
    assert len(STACKS[name].sources) >= 3


def test_checkpoints_stop_early_from_pytorch_2_1_on() -> None:
    assert [name for name in ("torch-eager", "fsdp", "llm-foundry", "llm-foundry@2023") if STACKS[name].early_stop] == [
        "torch-eager",
        "fsdp",
        "llm-foundry",
    ]
