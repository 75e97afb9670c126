"""Steps scaled to another batch, held to steps recorded with it."""

from __future__ import annotations

import sys

from shared_files import ROOT

sys.path.append(str(ROOT / "benchmarks"))


def test_scaled_steps_come_near_recorded_ones() -> None:
    from batches import compared

    found = compared()
    assert len(found) == 4
    for one in found:
        error, linear = (abs(time / one.recorded_s - 1) for time in (one.scaled_s, one.linear_s))
        assert error < 0.08, one
        assert error < linear, one
