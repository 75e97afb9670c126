"""The costs of units apart from their program: the same waits as `step.units.UnitWriter` writes."""

from __future__ import annotations

from random import Random

import pytest

from foretrace import Machine, Plan, load_model
from foretrace.cost.unit_costs import UnitPricer
from foretrace.program.columns import Collective, Phase
from foretrace.schedules import ActionKind
from foretrace.step.spec import Call, Compute, Item, Work
from foretrace.workload.settle import settle

US = 1e-6


def seconds(*items: Item) -> float:
    """Returns the seconds of a forward that has these items."""
    mesh = settle(load_model("llama3-8b"), Plan(gpus=8, tp=8)).mesh
    prices = UnitPricer(Machine("h100-dgx", overlap_cost=False), 8).on(mesh)
    return prices.unit_costs(Work("unit", items, (), ()), None).slowed_s[ActionKind.FORWARD]


def compute(microseconds: float) -> Compute:
    return Compute("product", Phase.FORWARD, seconds=microseconds * US)


def call(microseconds: float, concurrent: str | None = None, axis: str = "tp") -> Call:
    return Call("call", Phase.FORWARD, Collective.ALL_GATHER, axis, 8, concurrent, seconds=microseconds * US)  # type: ignore[arg-type]


def test_calls_of_one_axis_next_to_one_computation_run_in_order() -> None:
    both = [call(60, "next"), compute(30), call(50, "previous"), compute(10)]
    assert seconds(*both) == pytest.approx((60 + 50 + 10) * US)
    apart = [call(60, "next"), compute(30), call(50, "previous", axis="cp"), compute(10)]
    assert seconds(*apart) == pytest.approx((60 + 10) * US)


def test_a_phase_lasts_as_long_as_the_longer_of_its_call_and_its_computation() -> None:
    pass_ = [call(20, "phase"), compute(50), call(70, "phase"), compute(40)]
    assert seconds(*pass_) == pytest.approx((50 + 70) * US)


def test_a_unit_is_never_shorter_than_its_lane_or_the_calls_next_to_it() -> None:
    for seed in range(200):
        random = Random(seed)
        items: list[Item] = [compute(5)]
        for _ in range(8):
            us = random.randint(1, 90)
            way = random.choice((None, "next", "previous", "phase"))
            items.append(compute(us) if random.random() < 0.5 else call(us, way))
        items.append(compute(5))
        called = [item for item in items if isinstance(item, Call) and item.concurrent is not None]
        called_s = sum(item.seconds for item in called)
        lane_s = sum(item.seconds for item in items) - called_s
        assert max(lane_s, called_s) <= seconds(*items) * (1 + 1e-12) <= (lane_s + called_s) * (1 + 2e-12)
