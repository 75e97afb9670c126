"""Event loops return now and then, end in any case, and their results do not depend on where they returned."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.engine import bounded, jit
from foretrace.engine.network.flows import fair_rates, run_flows
from foretrace.engine.network.messages import Messages, independent
from foretrace.hardware.fabric.fabric import Routes

LOOPS = [False, pytest.param(True, marks=pytest.mark.skipif(not jit.installed(), reason="numba is not installed"))]


def random_messages(count: int, links: int) -> Messages:
    rng = np.random.default_rng(7)
    start = np.arange(0, 2 * count + 1, 2)
    routes = Routes(start, rng.integers(0, links, 2 * count), np.ones(2 * count))
    return independent(rng.uniform(1e3, 1e6, count), routes, np.zeros(count))


@pytest.mark.parametrize("compiled", LOOPS)
def test_where_a_loop_returns_changes_nothing(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, capacity = random_messages(40, 9), np.linspace(1e9, 2e9, 9)
    with jit.using(compiled):
        whole = run_flows(capacity, messages)
        monkeypatch.setattr(bounded, "_PART", 1)
        parts = run_flows(capacity, messages)
    assert parts.end_s.tolist() == whole.end_s.tolist()
    assert parts.link_busy_s.tolist() == whole.link_busy_s.tolist()
    assert parts.events == whole.events


@pytest.mark.parametrize("compiled", LOOPS)
@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-200, 1e-9])
def test_links_that_are_too_slow_are_an_error(rate: float, compiled: bool) -> None:
    messages = random_messages(40, 9)
    with jit.using(compiled):
        with pytest.raises(InputError) as caught:
            run_flows(np.full(9, rate), messages)
        fair_rates(np.full(9, rate), messages)  # ends
    assert caught.value.code == "out-of-range"


def test_a_run_has_a_limit_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_PART", 1)
    monkeypatch.setattr(bounded, "MAX_RUN_S", -1.0)
    with pytest.raises(InputError) as caught:
        run_flows(np.full(9, 1e9), random_messages(40, 9))
    assert caught.value.code == "gave-up"
