"""How a plan's overlap becomes the concurrency of collectives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from foretrace.models.presets import model
from foretrace.program.dispatch import COPIES
from foretrace.step.spec import Call, Item
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import chunks_of, largest_tensors, step_spec, works_of, workspace_bytes
from hand_written_work import setting_of, works


def calls(plan: Plan, *, experts: int = 0) -> dict[str, tuple[str | None, str | None]]:
    """Concurrency and way of every collective of a layer by name."""
    (chunk,) = chunks_of(setting_of(1, plan, experts=experts), works(1, experts=bool(experts)))
    (unit,) = chunk.units
    items = (*unit.work.forward, *unit.work.backward)
    return {item.name: (item.concurrent, item.way) for item in items if isinstance(item, Call)}


def test_without_overlap_only_what_the_stack_hides_is_concurrent() -> None:
    assert calls(Plan(gpus=2, tp=2)) == {
        "gather": (None, None),
        "scatter": (None, None),
        "scatter gradient": ("next", None),
    }


def test_tp_overlap_pairs_a_gather_with_the_product_after_it_and_a_scatter_with_the_one_before() -> None:
    found = calls(Plan(gpus=2, tp=2, tp_overlap=True))
    assert found == {"gather": ("next", COPIES), "scatter": ("previous", COPIES), "scatter gradient": ("next", None)}


def test_moe_overlap_runs_all_to_alls_in_phases() -> None:
    found = calls(Plan(gpus=2, ep=2, moe_overlap=True), experts=2)
    assert {way for name, way in found.items() if "dispatch" in name or "combine" in name} == {("phase", None)}


def test_moe_overlap_puts_the_combine_of_a_forward_next_to_attention() -> None:
    """Dispatches run next to experts; counts, which the dispatch needs, run next to nothing."""
    setting = settle(model("mixtral-8x7b"), Plan(gpus=8, ep=8, gbs=8, moe_overlap=True, recompute="none"))
    work = chunks_of(setting, works_of(setting))[0].units[1].work
    assert [item.name for item in work.forward][:2] == ["combine all-to-all", "attention norm"]
    phases = [_names(items, "phase") for items in (work.forward, work.backward)]
    assert phases == [
        ["combine all-to-all", "dispatch all-to-all", "dispatch probabilities"],
        ["combine backward all-to-all", "dispatch backward all-to-all", "dispatch backward probabilities"],
    ]
    names = [item.name for item in work.backward]
    follower = {name: names[names.index(name) + 1] for name in phases[1]}
    assert follower["combine backward all-to-all"] == "experts down input gradient"
    assert "dispatch counts" in _names(work.forward, None)


def _names(items: Iterable[Item], concurrent: str | None) -> list[str]:
    return [item.name for item in items if isinstance(item, Call) and item.concurrent == concurrent]


def test_collectives_of_groups_of_one_are_left_out() -> None:
    assert calls(Plan(gpus=1)) == {}


@pytest.mark.parametrize(
    ("schedule", "stages"), [("1f1b", [0, 3]), ("interleaved-1f1b", [0, 3]), ("zb-v", []), ("dualpipe", [0, 3])]
)
def test_a_tied_embedding_is_reduced_between_the_stages_that_have_its_ends(schedule: str, stages: list[int]) -> None:
    """Under ZB-V the first stage has both ends of the model, and adds their gradients itself."""
    plan = Plan(gpus=4, pp=4, gbs=8, vpp=2 if schedule == "interleaved-1f1b" else 1, schedule=schedule)
    spec = step_spec(setting_of(8, plan, tied=True), works(8, ends=True))
    axes = {role.stage: [one.item.axis for one in role.end if isinstance(one.item, Call)] for role in spec.roles}
    assert [stage for stage, listed in axes.items() if "embd" in listed] == stages


@pytest.mark.parametrize(("schedule", "tables"), [("1f1b", 2), ("zb-v", 1), ("dualpipe-v", 1), ("dualpipe", 2)])
def test_a_tied_table_is_held_once_by_a_stage_that_has_both_ends(schedule: str, tables: int) -> None:
    """DualPipe holds the model twice, and both ends on each of two stages."""
    gpt2 = model("gpt2")
    setting = settle(gpt2, Plan(gpus=2, pp=2, gbs=8, schedule=schedule))
    held = sum(chunk.parameters for role in step_spec(setting).roles for (chunk,) in role.chunks)
    table, copies = setting.vocab * gpt2.hidden, 2 if schedule == "dualpipe" else 1
    untied = settle(replace(gpt2, tied=False), setting.plan)
    whole = sum(chunk.parameters for role in step_spec(untied).roles for (chunk,) in role.chunks)
    assert whole - held == (2 * copies - tables) * table


def test_gathers_follow_the_order_of_the_forwards() -> None:
    """DualPipe: the second half of the stages begins with its second chunk."""
    spec = step_spec(setting_of(8, Plan(gpus=8, pp=4, gbs=16, schedule="dualpipe")), works(8))
    order = [[one.before[0] for one in role.end if one.before is not None] for role in spec.roles]
    assert order == [sorted(each, reverse=stage >= 2) for stage, each in enumerate(order)] and order[3][0] == 1


def test_layers_to_offload_are_the_first_of_a_stage_over_all_its_chunks() -> None:
    plan = Plan(gpus=2, pp=2, vpp=2, gbs=4, offload_layers=3)
    chunks = chunks_of(setting_of(8, plan), works(8))
    offloaded = [sum(unit.offloaded for unit in chunk.units) for chunk in chunks]
    assert offloaded == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("name", "fields", "streams"),
    [
        ("llama3-8b", {"zero": 3}, 2),
        ("llama3-8b", {}, 2 + 1),
        ("llama3-8b", {"tp": 2, "tp_overlap": True}, 2 + 3),
        ("mixtral-8x7b", {}, 2 + 1 + 4),
    ],
)
def test_every_stream_of_products_has_a_workspace(name: str, fields: dict[str, Any], streams: int) -> None:
    setting = settle(model(name), Plan(gpus=8, gbs=8, **fields))
    assert workspace_bytes(setting) == streams * 32 * 2**20


def test_the_largest_tensor_of_a_stage_is_that_of_its_chunks() -> None:
    setting = settle(model("llama3-8b"), Plan(gpus=4, pp=4, gbs=8))
    largest = largest_tensors(setting)
    assert list(largest) == [f"stage {stage}" for stage in range(4)]
    up_out = 8192 * 2 * 14336 * 2
    assert largest["stage 1"] == largest["stage 2"] == up_out
    assert largest["stage 3"] == 8192 * 128256 * 2, "the logits"
