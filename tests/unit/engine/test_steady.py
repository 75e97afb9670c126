"""When steps have settled, and at which period."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.engine.steady import MAX_STEPS, until_settled


def test_a_uniform_growth_is_the_period() -> None:
    period, steps, notes = until_settled(lambda carried: carried + 2.5, np.array([0.0, 1.0]))
    assert (float(period), steps, notes) == (2.5, 2, ())


def test_a_cycle_of_two_steps_is_found() -> None:
    """Two ends that swap places every step and grow by 3 and 5 in turn: 8 every two steps."""
    period, _, (note,) = until_settled(lambda c: np.array([c[1] + 3.0, c[0] + 5.0]), np.array([0.0, 0.0]))
    assert (float(period), note.level) == (4.0, "note")
    assert note.code == "steps-cycle" and "cycle of 2" in note.message


def test_parts_that_drift_apart_go_at_the_pace_of_the_slowest() -> None:
    period, _, (note,) = until_settled(lambda c: c + np.array([2.0, 7.0]), np.zeros(2))
    assert float(period) == 7.0 and note.code == "steps-drift"


def test_what_does_not_settle_is_averaged_and_said() -> None:
    random = np.random.default_rng(0)
    period, steps, (note,) = until_settled(lambda c: c + random.uniform(1, 3, 2), np.zeros(2))
    assert steps == MAX_STEPS and (note.level, note.code) == ("warning", "steps-not-settled")
    assert 1.0 < float(period) < 3.0


def test_a_slow_second_lane_sets_the_period() -> None:
    """Computation of 2 s a step, a copy of 3 s that depends on it: 3 s a step, and the lag is said."""
    build = ProgramBuilder(Mesh())
    role = build.role("only", [0])
    role.compute("copy", 3.0, lane="copies", after=role.compute("work", 2.0))
    answer = simulate(build.program())
    assert answer.step_time_s == pytest.approx(3.0)
    assert answer.diagnostics[0].code == "steps-drift"
