"""What a search for plans can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.search.planner.request import PlanRequest
from foretrace.workload.plan import Plan

GIVEN = Plan(gpus=64, gbs=128)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"objective": "speed"}, "unknown-name"),
        ({"largest": "tp"}, "unknown-name"),
        ({"gap": 1.0}, "out-of-range"),
        ({"gap": -0.1}, "out-of-range"),
        ({"gap": float("nan")}, "out-of-range"),
        ({"time_s": 0.0}, "out-of-range"),
        ({"workers": 0}, "out-of-range"),
        ({"top": 0}, "out-of-range"),
        ({"price_per_gpu_hour": -1.0}, "out-of-range"),
        ({"axes": {"tensor": "8"}}, "unknown-field"),
        ({"axes": {"gpus": "8,16"}}, "unknown-field"),
        ({"gpu_counts": (128, 64)}, "bad-value"),
        ({"gpu_counts": (0, 64)}, "bad-value"),
        ({"axes": {"tp": ""}}, "bad-value"),
        ({"axes": {"tp": 8}}, "bad-value"),
        ({"tokens": 10**12}, "conflicting-values"),
        ({"deadline_s": 10.0}, "conflicting-values"),
        ({"tokens": 10**12, "deadline_s": 10.0, "objective": "pareto"}, "conflicting-values"),
        ({"tokens": 10**12, "deadline_s": 10.0, "largest": "seq"}, "conflicting-values"),
        ({"largest": "gbs"}, "conflicting-values"),
        ({"largest": "seq", "plan": Plan(gpus=64, gbs=128, seq_len=4096)}, "conflicting-values"),
        ({"plan": Plan(gpus=64)}, "missing-field"),
        ({"plan": Plan(gpus=0, gbs=1)}, "bad-value"),
    ],
)
def test_a_request_that_cannot_be_meant(values: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as refused:
        PlanRequest(**{"plan": GIVEN, **values})
    assert refused.value.code == code and refused.value.exit_code == 3


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"axes": {"tp": "4,8", "pp": "1..16", "offload_optimizer": "off"}},
        {"gap": 0.005, "time_s": 10.0, "workers": 8, "top": 3, "objective": "cost", "price_per_gpu_hour": 2.5},
        {"tokens": 10**12, "deadline_s": 10.0, "gpu_counts": (64, 128), "objective": "cost"},
        {"largest": "seq"},
        {"largest": "gbs", "plan": Plan(gpus=64)},
        {"largest": "gbs", "axes": {"gbs": "64..4096"}},
        {"plan": Plan(gpus=64), "axes": {"gbs": "64,128"}},
    ],
)
def test_a_request_that_can_be_meant(values: dict[str, Any]) -> None:
    assert PlanRequest(**{"plan": GIVEN, **values}).plan.gpus == 64
