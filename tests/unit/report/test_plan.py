"""The screen and the JSON of a search for plans."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from foretrace.report.plan import plan_json, print_plans
from foretrace.report.plan_words import plan_notes
from foretrace.search.planner.request import PlanRequest
from foretrace.search.planner.result import PlanSearch
from foretrace.workload.plan import Plan
from plan_searches import BASE, BEST, REQUEST, SCRIPT, SECOND, search
from shared_files import ROOT

COMMAND = "foretrace predict llama3-70b --gpus 256 --gbs 1024 --tp 4 --pp 4 --cluster h100-dgx"


def screen(result: PlanSearch, request: PlanRequest = REQUEST, **options: bool) -> str:
    stream = io.StringIO()
    print_plans(replace(result, request=request), COMMAND, stream, **options)
    return stream.getvalue()


def line(text: str, label: str) -> str:
    (row,) = (row for row in text.splitlines() if row.split()[:1] == [label])
    return row


class TestScreen:
    def test_the_answer_comes_first(self) -> None:
        first = next(row for row in screen(search()).splitlines() if row)
        for words in ("Best", "tp 4 · pp 4 · vpp 5 · dp 16 · mbs 1", "9.41 s", "3,482", "71.2 GiB", "7.80 GiB"):
            assert words in first

    def test_no_claim_without_a_prediction(self) -> None:
        for result in (search(), _stopped(), search(objective="pareto"), search(objective="memory")):
            text = screen(result)
            assert not re.search(r"optimal|optimum|proven|certified", text, re.IGNORECASE)
            assert "predicted" in line(text, "Proof")

    def test_a_complete_search(self) -> None:
        proof = line(screen(search()), "Proof")
        for words in ("Complete", "5,432", "launchable", "9.41 s", "14 simulated"):
            assert words in proof

    def test_a_bound_is_never_rounded_up(self) -> None:
        result = search(search=replace(search().search, lower_bound_s=9.3799, gap=0.005, stopped_by="gap"))
        proof = line(screen(result), "Proof")
        assert "9.37 s" in proof and "9.38 s" not in proof and "0.5 %" in proof

    def test_a_bound_that_differs_in_the_tenth_digit_is_the_best(self) -> None:
        result = search(search=replace(search().search, lower_bound_s=9.41 * (1 - 4e-9)))
        assert "less than the best" not in line(screen(result), "Proof")

    def test_a_search_that_stopped_says_what_is_left(self) -> None:
        proof = line(screen(_stopped()), "Proof")
        for words in ("--time", "212", "9.10 s", "3.3 %", "14 simulated"):
            assert words in proof
        assert "Complete" not in proof

    def test_hypothetical_plans_are_not_called_launchable(self) -> None:
        proof = line(screen(search(search=replace(search().search, space="hypothetical"))), "Proof")
        assert "launchable" not in proof and "no software" in proof

    def test_the_errors_of_predictions(self) -> None:
        text = screen(search())
        robust = line(text, "Robust")
        for words in ("± 8 %", "2 plans", "measure these 2"):
            assert words in robust
        assert "83 %" in text and "11 %" in text
        alone = screen(search(indistinguishable=(BEST,), measure_first=(BEST,)))
        assert "measure" not in line(alone, "Robust")
        assert "Robust" not in screen(search(spread=None))

    def test_what_was_rejected_and_what_would_have_saved_it(self) -> None:
        text = screen(search())
        for words in ("13,171", "12,439", "5.00 GiB", "--recompute full", "8.90 s"):
            assert words in text

    def test_why_the_best_wins(self) -> None:
        text = screen(search())
        assert "tp exposed −340 ms · bubble +210 ms" in text
        assert "idle" not in text  # a nanosecond is no reason

    def test_evidence_and_common_words(self) -> None:
        text = screen(search())
        rows = [row for row in text.splitlines() if row.endswith(("simulated", "estimated"))]
        assert [row.split()[-1] for row in rows] == ["simulated", "simulated", "estimated", "estimated"]
        assert "ZeRO-1" not in "".join(rows) and "all of them: ZeRO-1" in text

    def test_a_plan_that_may_not_fit_is_marked(self) -> None:
        tight = replace(SECOND, headroom_bytes=-(1 << 30))
        (note,) = plan_notes((BEST, tight), ())
        assert "−1.0" in screen(search(plans=(BEST, tight))) and note in screen(search(plans=(BEST, tight)))
        assert note not in screen(search())

    def test_launch_options_are_short_and_the_script_is_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        short, full = screen(search()), screen(search(), with_launch=True)
        assert "tensor-model-parallel-size 4 · sequence-parallel · recompute-modules mlp,moe" in short
        assert "torchrun" not in short and "--launch megatron-lm" in short
        assert full.endswith(f"\n{SCRIPT}\n")  # not folded: it is for pasting

    def test_the_next_command_is_whole(self) -> None:
        assert line(screen(search()), "next").endswith(COMMAND)

    def test_nothing_fits(self) -> None:
        text = screen(
            search(best=None, feasible=0, plans=(), front=(), indistinguishable=(), measure_first=(), why=None)
        )
        assert "next" not in text and "13,171" in text and "--recompute full" in text

    def test_what_varies_is_named(self) -> None:
        other = replace(SECOND, plan=replace(SECOND.plan, gpus=512, precision="fp8"))
        text = screen(search(plans=(BEST, other), front=()))
        assert "GPUs 512 · fp8" in text and "GPUs 256 · bf16" in text

    def test_goals(self) -> None:
        cost = PlanRequest(BASE, objective="cost", price_per_gpu_hour=3.6)
        assert "0.287" in line(screen(search(objective="cost"), cost), "Goal")  # 3.6 / 3600 × 1e6 / 3,482
        deadline = PlanRequest(BASE, gpu_counts=(128, 256, 512), tokens=10**12, deadline_s=20 * 86400.0)
        assert "13.0 days" in line(screen(search(), deadline), "Goal")
        largest = PlanRequest(Plan(gpus=256, gbs=1024), largest="seq")
        assert "8,192" in line(screen(search(), largest), "Goal")

    @pytest.mark.parametrize("columns", [60, 72, 80, 100, 140])
    def test_lines_fit(self, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        text = screen(search())
        assert max(map(len, text.splitlines())) <= columns
        assert "…" not in text  # nothing of a plan is cut
        for ranked in search().plans:
            assert f"mbs {ranked.plan.mbs}" in text
        assert "\x1b" not in text and text == screen(search())


def _stopped() -> PlanSearch:
    proof = replace(search().search, complete=False, lower_bound_s=9.1, gap=0.033, undecided=212, stopped_by="time")
    return search(search=proof)


class TestJson:
    def test_every_key_is_documented(self) -> None:
        page = (
            (ROOT / "docs/json.md").read_text(encoding="utf-8").partition("`foretrace.plan/1`")[2].partition("\n## ")[0]
        )
        whole = plan_json(replace(search(), request=REQUEST))
        names = {name for name in _names(whole) if name not in Plan.__slots__} - {"schema", "out-of-memory"}
        names -= {*search().rejected, *search().launch, *search().launch_options}
        names -= {*search().why.parts_s}  # type: ignore[union-attr]
        assert sorted(name for name in names if f"`{name}`" not in page) == []

    def test_values(self) -> None:
        whole = plan_json(replace(search(), request=REQUEST))
        assert whole["schema"] == "foretrace.plan/1"
        assert (whole["searched"], whole["distinct"], whole["feasible"]) == (238_568, 18_603, 5_432)
        best = whole["best"]
        assert best == whole["plans"][0]
        assert best["step_time_s"] == 9.41 and best["peak_memory_bytes"] == BEST.peak_memory_bytes
        assert best["plan"]["tp"] == 4 and best["plan"]["dp"] == 16 and best["plan"]["microbatches"] == 64
        assert whole["rejected"] == {"out-of-memory": 13_171, "heads divided by tp": 12_439}
        assert whole["search"]["complete"] is True and whole["search"]["simulations"] == 14
        assert len(whole["indistinguishable"]) == 3 and len(whole["measure_first"]) == 2
        assert whole["why"]["runner_up"]["step_time_s"] == 9.52 and whole["why"]["parts_s"]["bubble"] == 0.21
        assert whole["request"]["axes"] == {"tp": "4,8"}

    def test_two_runs_are_the_same_bytes(self) -> None:
        """Neither the time that a search took nor the number of its workers is part of the result."""
        slow = search(seconds={"bounds": 99.0})
        workers = replace(REQUEST, workers=8)
        assert json.dumps(plan_json(replace(slow, request=workers))) == json.dumps(
            plan_json(replace(search(), request=REQUEST))
        )

    def test_cost_and_training(self) -> None:
        request = PlanRequest(BASE, tokens=10**12, deadline_s=1e6, price_per_gpu_hour=3.6)
        best = plan_json(replace(search(), request=request))["best"]
        assert best["cost_per_million_tokens"] == pytest.approx(1000 / BEST.tokens_per_s_per_gpu)
        assert best["training_s"] == pytest.approx(1e12 / 256 / BEST.tokens_per_s_per_gpu)

    def test_nothing_fits(self) -> None:
        whole = plan_json(replace(search(best=None, plans=(), why=None), request=REQUEST))
        assert whole["best"] is None and whole["plans"] == [] and whole["why"] is None


def _names(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {name for part in value.values() for name in _names(part)}
    return {name for part in value for name in _names(part)} if isinstance(value, list) else set()
