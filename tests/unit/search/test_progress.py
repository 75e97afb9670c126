"""The line that says how far a search has come."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foretrace.search.progress import SearchedPlans, SearchProgress


def test_the_line_has_count_rate_best_and_time_left() -> None:
    now = [100.0]
    work = SimpleNamespace(text="plan m")
    progress = SearchProgress(work, lambda: now[0])
    progress.begin("simulating", 40)
    assert work.text == "plan m: simulating"
    progress.reach(0)
    assert work.text.endswith("0 of 40")  # neither a rate nor a time left before the first
    now[0] += 5
    progress.reach(10, "tp 4", "9.41 s")
    for words in ("simulating", "tp 4", "10 of 40", "2/s", "9.41 s", "15 s left"):
        assert words in work.text


def test_the_plans_are_offered_to_who_watches_and_are_not_made_otherwise() -> None:
    offered: list[object] = []
    work = SimpleNamespace(text="plan m")
    found = SearchedPlans(2, 1, (), ())
    SearchProgress(work, watch=lambda plans: offered.append(plans())).show(lambda: found)
    assert offered == [found] and work.text == "plan m"
    SearchProgress(work).show(lambda: pytest.fail("nobody asked"))


def test_each_part_has_its_own_rate() -> None:
    now = [0.0]
    work = SimpleNamespace(text="plan m")
    progress = SearchProgress(work, lambda: now[0])
    progress.begin("pricing", 0)
    now[0] = 50
    progress.reach(100)
    assert "2/s" in work.text and "left" not in work.text
    progress.begin("simulating", 2)
    now[0] = 51
    progress.reach(1)
    assert "1/s" in work.text
