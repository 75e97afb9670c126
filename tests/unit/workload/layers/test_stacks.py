"""Stacks by name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from foretrace import Machine, Plan
from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.models.presets import model as preset
from foretrace.simulation.simulate_input import on_host
from foretrace.workload.settle import settle
from foretrace.workload.stack import HostPace, Stack
from foretrace.workload.stacks import STACKS, VERSIONS, nearest_version, stack

EVERY: list[Stack] = [known for versions in VERSIONS.values() for known in versions]


def test_names_resolve_as_people_type_them() -> None:
    assert stack("Megatron_Core") is STACKS["megatron-core"]
    assert stack("LLM Foundry") is STACKS["llm-foundry"]


def test_an_unknown_stack_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean megatron-core") as raised:
        stack("megatron-cor", where="job.yaml:3")
    assert raised.value.where == "job.yaml:3"


@pytest.mark.parametrize("known", [*EVERY, *STACKS.values()], ids=lambda known: known.label)
@pytest.mark.parametrize("topic", ["attention", "loss", "norm", "launch"])
def test_no_source_of_another_version_is_left(known: Stack, topic: str) -> None:
    assert sum(source.startswith(f"{topic}:") for source in known.sources) <= 1


@pytest.mark.parametrize("name", list(STACKS))
def test_every_stack_says_where_its_facts_are_from(name: str) -> None:
    assert STACKS[name].name == name
    assert len(STACKS[name].sources) >= 3


def test_checkpoints_stop_early_from_pytorch_2_1_on() -> None:
    assert all(stack(name).early_stop for name in ("torch-eager", "fsdp", "llm-foundry@2024"))
    assert not stack("llm-foundry@2023").early_stop


@pytest.mark.parametrize("known", EVERY, ids=lambda known: known.label)
def test_a_version_is_part_of_the_name(known: Stack) -> None:
    assert stack(known.label) == known
    assert stack(f" {known.name.upper().replace('-', '_')}@v{known.version} ") == known
    assert nearest_version(known.label) is None


def test_versions_are_in_order_and_one_of_them_is_taken_without_being_asked_for() -> None:
    for name, versions in VERSIONS.items():
        numbers = [tuple(int(part) for part in re.split("[.-]", known.version)) for known in versions]
        assert numbers == sorted(set(numbers))
        assert {known.name for known in versions} == {name}
        assert STACKS[name] in versions
        assert nearest_version(name) is None
    assert all(not known.version for name, known in STACKS.items() if name not in VERSIONS)


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("megatron-bridge@26.04", "26.04"),
        ("megatron-bridge@26.04.01", "26.04"),
        ("megatron-bridge@v26.05", "26.04"),
        ("megatron-bridge@25.09", "25.11"),
        ("megatron-bridge@99.1", "26.08"),
        ("megatron-core@0.9", "0.14"),
        ("megatron-core@0.15.2", "0.15"),
        ("megatron-core@1.0", "0.16"),
        ("megatron-core@0.16.1", "0.16"),
        ("fsdp@2025-03", "2024-10"),
        ("fsdp-compile@2026-01", "2025-10"),
    ],
)
def test_the_newest_known_version_before_the_one_asked_for_is_taken(asked: str, taken: str) -> None:
    found = stack(asked)
    assert found.version == taken
    expected = asked.partition("@")[2]
    assert nearest_version(asked) == (None if expected.startswith(taken) else expected), "patches are their version"


def test_a_pace_replaces_another_and_may_differ_for_pytorch() -> None:
    slow, slower = HostPace(2.0, "slow", torch_factor=1.5), HostPace(3.0, "slower")
    for name, factor in (("megatron-core", 2.0), ("torch-eager", 1.5)):
        usual = stack(name)
        assert usual.on_host(slow).launch_s == pytest.approx(factor * usual.launch_s)
        assert usual.on_host(slow).on_host(slower).launch_s == pytest.approx(3 * usual.launch_s)


def test_a_node_may_be_slow_for_pytorch_alone() -> None:
    usual = presets.cluster("h100-dgx")
    slow = replace(usual, node=replace(usual.node, torch_launch_factor=3.0))

    def launch_s(name: str, cluster: Cluster) -> float:
        plain = settle(preset("llama3-8b"), Plan(gpus=8, stack=name))
        return on_host(plain, Machine(cluster)).stack.launch_s

    assert launch_s("torch-eager", slow) == pytest.approx(3 * launch_s("torch-eager", usual))
    assert launch_s("megatron-core", slow) == launch_s("megatron-core", usual)


def test_a_release_without_patches_is_the_version() -> None:
    assert nearest_version("MEGATRON_CORE@V0.15") is None
    assert stack("megatron-core@0.16.0").version == "0.16" and nearest_version("megatron-core@0.16.0") is None
    assert stack("megatron-core@0.15.0").version == "0.15" and nearest_version("megatron-core@0.15.0") is None


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("nonsense@26.04", "unknown-name"),
        ("torch-compile@1", "bad-value"),
        ("megatron-core@16", "bad-value"),
        ("megatron-bridge@2606", "bad-value"),
        ("torch-eager@2.9", "bad-value"),
        ("megatron-core@", "bad-value"),
        ("megatron-core@new", "bad-value"),
        ("megatron-core@0.14rc1", "bad-value"),
        ("megatron-core@0.14@0.15", "bad-value"),
        ("megatron-core@-1", "bad-value"),
        ("megatron-core@" + "9" * 5000, "bad-value"),
    ],
)
def test_versions_that_cannot_be_meant(asked: str, code: str) -> None:
    with pytest.raises(InputError) as raised:
        stack(asked, where="job.yaml:3")
    assert (raised.value.code, raised.value.where) == (code, "job.yaml:3")
    assert raised.value.hint


def test_what_versions_differ_in() -> None:
    old, middle, new = VERSIONS["megatron-core"]
    assert [known.attention for known in (old, middle, new)] == ["cudnn_2025", "cudnn", "cudnn"]
    assert [known.swizzles_scales for known in (old, middle, new)] == ["operands", "operands", "weights"]
    assert [known.copies_kv_heads for known in (old, middle, new)] == [False, False, True]
    assert all(known.runs_cudnn and known.runs_transformer_engine for known in (old, middle, new))
    assert not stack("fsdp").runs_cudnn and not stack("torch-eager").runs_transformer_engine
    bridge = VERSIONS["megatron-bridge"]
    assert [known.fuses_experts for known in bridge] == [False, False, False, True, True]
    assert [known.swizzles_scales for known in bridge] == ["operands", *["weights"] * 4]
    assert {(known.gradient_dtype, known.hybridep_sms) for known in bridge} == {("bf16", 32)}
    assert [known.norm for known in VERSIONS["fsdp"]] == ["eager", "fused"]
    assert stack("fsdp-compile@2025-10").loss == "compiled" != stack("fsdp-compile").loss
