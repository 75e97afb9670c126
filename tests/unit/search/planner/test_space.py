"""A space lists exactly the plans that break no rule, each once, in the same order however it is divided."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.machine import Machine
from foretrace.models.presets import model as preset
from foretrace.search.planner.asked_axes import space_of
from foretrace.search.planner.default_axes import MAX_MBS, MAX_MICROBATCH_TOKENS, MIN_CONTEXT
from foretrace.search.planner.space import Enumeration, Space, SpaceAxis
from foretrace.workload.plan import Plan
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.settle import settle

MACHINE = Machine("h100-dgx")


def space(name: str, plan: Plan, **asked: str) -> Space:
    assert MACHINE.cluster is not None
    return space_of(preset(name), plan, MACHINE.cluster, asked)


def combinations(searched: Space) -> Iterator[Plan]:
    """Yields all plans of a space one by one."""

    def further(number: int, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if number == len(searched.axes):
            yield values
            return
        axis = searched.axes[number]
        for point in axis.points(values).tolist():
            yield from further(number + 1, {**values, **dict(zip(axis.fields, axis.choices[point], strict=True))})

    return (replace(searched.base, **values) for values in further(0, {}))


def plans(enumeration: Enumeration) -> list[Plan]:
    return [enumeration.table.plan(row) for row in range(len(enumeration.table))]


ALONE = {"recompute": "none", "mbs": "1", "offload": "none"}
SMALL: list[tuple[str, Plan, dict[str, str], bool]] = [
    (
        "llama3-8b",
        Plan(8, gbs=24),
        {**ALONE, "mbs": "1,3", "recompute": "none,full:2", "zero": "0..3", "shard": "none,2", "cp": "1", "vpp": "1"},
        True,
    ),
    (
        "mixtral-8x7b",
        Plan(8, gbs=16),
        {
            **ALONE,
            "recompute": "moe",
            "tp": "1,2",
            "pp": "1,4",
            "ep": "1,2",
            "cp": "1",
            "dispatcher": "alltoall,deepep",
        },
        True,
    ),
    ("llama3-8b", Plan(4, gbs=16, stack="fsdp"), {**ALONE, "schedule": "all", "vpp": "1..4"}, False),
    (
        "llama3-8b",
        Plan(4, gbs=16, sequence_parallel=True),
        {**ALONE, "rank_order": "all", "account_for": "all", "cp": "1", "vpp": "1,2"},
        True,
    ),
    (
        "llama3-8b",
        Plan(2, gbs=8),
        {**ALONE, "grad_overlap": "all", "param_overlap": "all", "cp": "1", "vpp": "1"},
        True,
    ),
]


@pytest.mark.parametrize(("name", "plan", "asked", "has_equal"), SMALL)
def test_plans_and_counts_are_those_of_all_combinations_one_by_one(
    name: str, plan: Plan, asked: dict[str, str], has_equal: bool
) -> None:
    searched = space(name, plan, **asked)
    result = searched.enumerate()
    sizes = PlanSizes.of(searched.model, plan)
    first = Counter[str | None]()
    launchable = []
    for candidate in combinations(searched):
        broken = (rule.name for rule in searched.constraints if not rule.holds(sizes.with_plan(candidate)))
        reason = next(broken, None)
        first[reason] += 1
        if reason is None:
            launchable.append(candidate)
    assert result.searched == first.total() == searched.searched
    assert result.launchable == len(launchable) == first.pop(None)
    assert result.rejected == first
    order = {candidate: number for number, candidate in enumerate(launchable)}
    numbers = [order[kept] for kept in plans(result)]
    assert numbers == sorted(set(numbers))
    assert 0 < result.distinct <= result.launchable
    assert (result.distinct < result.launchable) == has_equal


@pytest.mark.parametrize(("name", "plan", "asked"), [case[:3] for case in SMALL])
def test_the_order_does_not_depend_on_how_a_space_is_divided(name: str, plan: Plan, asked: dict[str, str]) -> None:
    searched = space(name, plan, **asked)
    whole = searched.enumerate()
    for max_cells in (1, 7, 100):
        parts = searched.enumerate(max_cells=max_cells)
        assert (parts.searched, parts.rejected) == (whole.searched, whole.rejected)
        assert all((parts.table.codes[name] == codes).all() for name, codes in whole.table.codes.items())


def test_progress_ends_with_all_combinations() -> None:
    seen: list[tuple[int, int]] = []
    result = space("llama3-8b", Plan(16, gbs=32)).enumerate(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (result.searched, result.searched)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("name", "plan", "least", "most"),
    [
        ("llama3-70b", Plan(512, gbs=1024), 10_000, 1_000_000),
        ("llama3-8b", Plan(64, gbs=256, stack="fsdp"), 1_000, 1_000_000),
        ("gpt3-175b", Plan(1024, gbs=1536, stack="megatron-2021"), 100, 1_000_000),
        ("mpt-7b", Plan(64, gbs=512, stack="llm-foundry"), 3, 1_000),
        ("mixtral-8x7b", Plan(32, gbs=64, mbs=2), 10_000, 1_000_000),
    ],
)
def test_default_spaces_are_of_a_size_that_can_be_searched_and_all_plans_run(
    name: str, plan: Plan, least: int, most: int
) -> None:
    searched = space(name, plan)
    result = searched.enumerate()
    assert least <= result.distinct <= most
    assert not searched.hypothetical
    for row in np.linspace(0, result.distinct - 1, 25).astype(int).tolist():
        chosen = result.table.plan(row)
        setting = settle(searched.model, chosen)
        assert setting.plan.pp == 1 or setting.chunks_per_stage == chosen.vpp
        assert "field-ignored" not in {each.code for each in setting.diagnostics}


def test_megatron_has_neither_zero_bubble_nor_dualpipe() -> None:
    assert not space("llama3-8b", Plan(32, gbs=64), schedule="1f1b,interleaved").hypothetical
    wider = space("llama3-8b", Plan(32, gbs=64), **ALONE, schedule="all", tp="1", cp="1")
    assert set(wider.hypothetical["schedule"]) == {
        *("gpipe", "looped-bfs", "zb-h1", "zb-v", "interleaved-zb", "dualpipe", "dualpipe-v")
    }
    listed = plans(wider.enumerate())
    assert {plan.schedule for plan in listed} > {"1f1b", "zb-h1", "zb-v", "dualpipe", None}


@pytest.mark.parametrize("plan", [Plan(64, gbs=64), Plan(64, gbs=64, schedule="zb-v")])
def test_chunks_are_those_that_the_schedules_need(plan: Plan) -> None:
    asked = {} if plan.schedule else {"schedule": "zb-v"}
    table = space("llama3-70b", plan, **ALONE, **asked, pp="16", tp="1").enumerate().table
    assert set(table.column("vpp").tolist()) == {2}, "though stages have five layers"


def test_a_space_that_is_too_large_is_refused_before_it_is_listed() -> None:
    asked = dict.fromkeys(
        ("tp", "pp", "cp", "ep", "etp", "mbs", "vpp", "schedule", "dispatcher", "offload_layers"), "all"
    )
    with pytest.raises(InputError) as caught:
        space("deepseek-v3", Plan(2048, gbs=4096), **asked).enumerate()
    assert caught.value.code == "too-large"


def test_a_value_of_the_base_plan_pins_its_axis() -> None:
    table = space("llama3-70b", Plan(64, tp=4, pp=2, recompute="full", gbs=128)).enumerate().table
    assert set(table.column("tp").tolist()) == {4}
    assert table.base.recompute == "full"
    assert len(set(table.column("cp").tolist())) > 1


def test_microbatches_and_precision_stay_unless_asked_for() -> None:
    table = space("llama3-8b", Plan(8, gbs=64)).enumerate().table
    assert table.values_of("gbs") == (64,) and table.values_of("precision") == ("bf16",)
    table = space("llama3-8b", Plan(8), gbs="32,64", precision="bf16,fp8", seq="4k").enumerate().table
    assert table.values_of("gbs") == (32, 64) and table.values_of("precision") == ("bf16", "fp8")
    assert table.values_of("seq_len") == (4096,)


@pytest.mark.parametrize(
    ("asked", "field", "values"),
    [
        ({"tp": "8"}, "tp", (8,)),
        ({"--tp": "4,1,2,4"}, "tp", (1, 2, 4)),
        ({"pp": "1..16"}, "pp", (1, 2, 4, 8, 16)),
        ({"pp": "3..7"}, "pp", (4,)),
        ({"tp": "all"}, "tp", (1, 2, 4, 8, 16, 32, 64)),
        ({"cp": "none"}, "cp", (1,)),
        ({"mbs": "1..8"}, "mbs", (1, 2, 3, 4, 6, 8)),
        ({"shard": "none,8"}, "shard", (None, 8)),
        ({"sp": "on"}, "sequence_parallel", (True,)),
        ({"grad-overlap": "all"}, "grad_overlap", (False, True)),
        ({"schedule": "interleaved,1F1B"}, "schedule", (None, "1f1b", "interleaved-1f1b")),
        ({"cp-comm": "a2a,p2p"}, "cp_comm", ("p2p", "a2a")),
        ({"account-for": "none,embedding+loss"}, "account_for", (None, ("embedding", "loss"))),
        ({"offload_modules": "none,core_attn+attn_proj"}, "offload_modules", ((), ("core_attn", "attn_proj"))),
        ({"layout": "none;Et*16|t*16L"}, "layout", (None, "Et*16|t*16L")),
        ({"offload": "none"}, "offload_optimizer", (False,)),
    ],
)
def test_values_are_read_as_they_are_written(asked: dict[str, str], field: str, values: tuple[Any, ...]) -> None:
    axis = next(axis for axis in space("llama3-8b", Plan(64, gbs=96), **asked).axes if axis.fields == (field,))
    assert tuple(choice[0] for choice in axis.choices) == values


def test_recompute_is_read_as_parts_or_layers() -> None:
    axis = next(
        axis
        for axis in space("llama3-8b", Plan(64), recompute="none,mlp+layernorm,full:4,full").axes
        if axis.name == "recompute"
    )
    assert axis.choices == (
        ("none", None, None),
        ("selective", ("layernorm", "mlp"), None),
        ("full", None, 4),
        ("full", None, None),
    )


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"tpp": "8"}, "unknown-name"),
        ({"tp": ""}, "bad-value"),
        ({"tp": "eight"}, "bad-value"),
        ({"tp": "0"}, "out-of-range"),
        ({"tp": "128"}, "out-of-range"),
        ({"pp": "5..7"}, "out-of-range"),
        ({"zero": "4"}, "out-of-range"),
        ({"schedule": "zigzag"}, "unknown-name"),
        ({"schedule": "none"}, "bad-value"),
        ({"cp_comm": "ring"}, "unknown-name"),
        ({"rank_order": "tp-xx"}, "unknown-name"),
        ({"tp_overlap": "maybe"}, "bad-value"),
        ({"recompute": "half"}, "unknown-name"),
        ({"offload": "all"}, "bad-value"),
        ({"layout": "Ex|L"}, "bad-value"),
    ],
)
def test_what_cannot_be_asked_for_is_an_error_with_a_hint(asked: dict[str, str], code: str) -> None:
    with pytest.raises(InputError) as caught:
        space("llama3-8b", Plan(64, gbs=96), **asked)
    assert caught.value.code == code
    assert code != "unknown-name" or caught.value.hint


@pytest.mark.parametrize(
    ("plan", "asked", "rule"),
    [
        (Plan(64, gbs=96), {"tp": "64"}, "heads divided by tp"),
        (Plan(64, gbs=7), {"tp": "1", "pp": "1", "cp": "1"}, "batch divided by dp"),
        (Plan(64, gbs=96), {"ep": "8"}, "ep without experts"),
        (Plan(64, gbs=96), {"pp": "1", "vpp": "2"}, "chunks of the schedule"),
    ],
)
def test_a_contradiction_names_the_rule_that_leaves_no_plan(plan: Plan, asked: dict[str, str], rule: str) -> None:
    with pytest.raises(InputError) as caught:
        space("llama3-8b", plan, **asked).enumerate()
    assert (caught.value.code, caught.value.exit_code) == ("no-plans", 3)
    assert rule in caught.value.message


def test_rules_that_leave_no_plan_together_are_counted() -> None:
    with pytest.raises(InputError) as caught:
        space("llama3-8b", Plan(64, gbs=12), tp="1", cp="1", pp="2,32", mbs="1", vpp="2").enumerate()
    assert caught.value.code == "no-plans"


def test_calculons_space_has_its_plans() -> None:
    path = Path(__file__).parents[4] / "benchmarks" / "planner_spaces.py"
    spaces: dict[str, Any] = runpy.run_path(str(path))
    result = spaces["calculon_space"]()[1].enumerate()
    assert result.searched == 16_392, "distinct for Foretrace, of Calculon's 238,568 executions"
    assert result.launchable == result.distinct == 9_378, "of which interleaving takes whole groups of microbatches"
    assert result.table.column("tp").max() == 32, "beyond a node"


def test_an_axis_of_several_fields_varies_them_together() -> None:
    axis = SpaceAxis("pair", ("tp", "pp"), ((1, 2), (2, 1)))
    result = Space(preset("llama3-8b"), Plan(2, gbs=4), (axis,)).enumerate()
    assert [(plan.tp, plan.pp) for plan in plans(result)] == [(1, 2), (2, 1)]


def test_plans_of_a_product_are_all_considered() -> None:
    axes = tuple(SpaceAxis.of(name, values) for name, values in (("tp", (1, 2, 3)), ("pp", (1, 2)), ("mbs", (1, 2))))
    searched = Space(preset("llama3-8b"), Plan(6, gbs=12), axes)
    assert searched.enumerate().searched == len(list(product(*(axis.choices for axis in axes))))


def test_the_page_of_stacks_has_the_limits_of_the_default_axes() -> None:
    page = " ".join((Path(__file__).parents[4] / "docs" / "stacks.md").read_text(encoding="utf-8").split())
    assert f"as long as a rank keeps {MIN_CONTEXT:,} tokens" in page
    assert f"up to {MAX_MICROBATCH_TOKENS:,} tokens and {MAX_MBS} sequences" in page
