"""How a plan's overlap becomes the concurrency of collectives."""

from __future__ import annotations

import pytest

from foretrace.program.dispatch import COPIES
from foretrace.step.spec import Call
from foretrace.workload.plan import Plan
from foretrace.workload.step_spec import chunks_of, step_spec
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


def test_moe_overlap_frees_all_to_alls_from_what_follows() -> None:
    found = calls(Plan(gpus=2, ep=2, moe_overlap=True), experts=2)
    assert {way for name, way in found.items() if "dispatch" in name or "combine" in name} == {("action", None)}


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
