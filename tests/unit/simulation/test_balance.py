"""Divisions of layers over which stages take equally long, by what a simulated step took."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace import Machine, Plan
from foretrace.models.presets import model as preset
from foretrace.readings.answer.answer import Answer
from foretrace.readings.lanes import stage_notes, unit_loads
from foretrace.simulation.balance import balance_stages
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle

H100 = Machine("h100-dgx")


def simulated(**fields: Any) -> tuple[Setting, Answer]:
    plan = Plan(**{"gpus": 4, "pp": 4, "gbs": 16, "seq_len": 1024, **fields})
    job = foretrace.model("llama3-8b", plan)
    return settle(preset("llama3-8b"), plan), foretrace.simulate(job, H100, explain=False, even_if_oom=True)


def test_loads_are_what_the_compute_lanes_of_a_stage_do() -> None:
    setting, answer = simulated()
    loads = unit_loads(answer.timeline)
    assert {(stage, chunk, layer) for stage, chunk, layer in loads if layer >= 0} == {
        (stage, 0, layer) for stage in range(4) for layer in range(8)
    }
    assert (0, 0, -1) in loads and (3, 0, -1) in loads, "embedding and head"
    layers = [seconds for (_, _, layer), seconds in loads.items() if layer >= 0]
    assert np.ptp(layers) < 0.05 * np.mean(layers)
    parts = answer.breakdown.mean_s
    assert sum(loads.values()) / 4 == pytest.approx(parts["compute"] + parts.get("tp exposed", 0.0), rel=0.01)
    assert len(setting.chunks) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stage_layers": (14, 6, 6, 6)},
        {"vpp": 2},
        {"vpp": 2, "stage_layers": (4, 4, 4, 4, 7, 3, 3, 3)},
        {"schedule": "zb-v", "stage_layers": (7, 3, 3, 3, 4, 4, 4, 4)},
        {"schedule": "dualpipe", "stage_layers": (14, 6, 6, 6)},
    ],
)
def test_a_better_division_shortens_the_step(fields: dict[str, Any]) -> None:
    setting, before = simulated(**fields)
    balance = balance_stages(setting, before.timeline)
    assert balance is not None and sum(balance.layout.counts) == 32
    _, after = simulated(**{**fields, "stage_layers": None, "layout": str(balance.layout)})
    assert after.step_time_s < 0.99 * before.step_time_s


def test_a_full_stage_takes_no_layer() -> None:
    setting, before = simulated(stage_layers=(14, 6, 6, 6))
    balance = balance_stages(setting, before.timeline, full=1)
    assert balance is not None
    assert balance.slowest == 0 and balance.layout.counts[1] == 6


def test_equal_stages_have_no_slow_one() -> None:
    _, even = simulated(layout="Et*8|t*9|t*9|t*6L")
    assert stage_notes(even.timeline) == ()
    _, odd = simulated(stage_layers=(14, 6, 6, 6))
    (note,) = stage_notes(odd.timeline)
    assert note.code == "slow-stage"
    assert stage_notes(simulated(gpus=1, pp=1)[1].timeline) == ()
