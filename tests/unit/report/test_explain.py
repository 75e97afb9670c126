"""An explanation as a screen and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO

import pytest

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.readings.explain import Explanation, explain
from foretrace.report.explain import explanation_json, print_explanation


def two_stages(slow: float = 1.0, microbatches: int = 3) -> Explanation:
    """Two stages of two tensor-parallel ranks: 10 ms a microbatch and stage, rank 3 so many times as slow; then they
    reduce in 1 ms, and hand over in 1 ms."""
    build = ProgramBuilder(Mesh(tp=2, pp=2), title="a job", repeats=False)
    pair, group = build.pair("pp", 0, 1), build.communicator("tp")
    for rank in range(4):
        role = build.role(f"rank {rank}", [rank])
        seconds = 10e-3 * (slow if rank == 3 else 1.0)
        for number in range(microbatches):
            facts = {"microbatch": number, "phase": "forward", "lane": "compute"}
            if rank >= 2:
                role.transfer("receive", pair, 1e-3, bytes=1 << 20, **facts)
            role.compute("layer", seconds, **facts)
            role.collective("all_reduce", group, 1e-3, bytes=1 << 20, **facts)
            if rank < 2:
                role.transfer("send", pair, 1e-3, to=1, bytes=1 << 20, **facts)
    return explain(simulate(build.program()))


def screen(explanation: Explanation) -> list[str]:
    stream = StringIO()
    print_explanation(explanation, stream)
    return stream.getvalue().splitlines()


def row(lines: list[str], start: str) -> str:
    return next(line.strip() for line in lines if line.strip().startswith(start))


def test_the_answer_comes_first_and_all_fits_a_screen() -> None:
    lines = screen(two_stages(slow=1.5))
    assert len(lines) < 45
    # 12 ms until the second stage has the first microbatch, 16 ms for it, 17 ms with the hand-over for each other.
    assert lines[1].startswith("  Step   62.0 ms  predicted, not recorded     4 ranks · tp 2 · pp 2 · 3 microbatches")
    assert lines[2] == "  Job    a job"
    assert lines[3].startswith("  Parts  compute 33.8 ms")
    assert lines[6] == "  causes (means over ranks; they may overlap)"
    assert lines[7].startswith("  1. ")


def test_tables_say_who_waits_for_whom() -> None:
    lines = screen(two_stages(slow=1.5))
    # Rank 3 comes 5 ms after rank 2 in each of three microbatches: 15 ms on one of four ranks.
    assert re.sub(" +", " ", row(lines, "tp all_reduce")) == (
        "tp all_reduce 12 1.00 MiB 3.00 ms 3.75 ms 1.00 ms 1.00 ms 5.00 ms 1.05 GB/s"
    )
    assert row(lines, "longest tp wait") == (
        "longest tp wait: rank 2, stage 1, microbatch 0 waited 5.00 ms for rank 3, busy with layer of microbatch 0"
    )
    # Of two peers neither is the norm, so that only what others lost tells.
    assert row(lines, "rank 3, stage 1").endswith("  holds others up")
    assert "equal stages: 25.0 %" in row(lines, "compute of a microbatch")
    assert row(lines, "stage 1 (slowest)").split()[3:5] == ["12.5", "ms"]


def test_a_recorded_run_says_how_well_it_is_run_again() -> None:
    explanation = two_stages()
    recorded = replace(explanation, answer=replace(explanation.answer, executor="recorded"), replay_step_s=40e-3)
    lines = screen(recorded)
    assert "  recorded  " in lines[1]
    error = 40e-3 / explanation.answer.step_time_s - 1
    assert f"run again from its ops 40.0 ms, \N{MINUS SIGN}{abs(error) * 100:.1f} %" in lines[2]


def test_json_holds_everything() -> None:
    explanation = two_stages(slow=1.5)
    result = json.loads(json.dumps(explanation_json(explanation), allow_nan=False))
    assert result["schema"] == "foretrace.explanation/1"
    assert sum(result["breakdown_s"].values()) == pytest.approx(result["step_time_s"])
    assert {one["axis"] for one in result["calls"]} == {"tp", "pp"}
    assert [one["rank"] for one in result["ranks"]] == [0, 1, 2, 3]
    assert result["stragglers"] == [3]
    assert result["pipeline"]["slowest_stage"] == 1 and len(result["pipeline"]["stages"]) == 2
    assert result["experts"] is None
    assert [(one["stage"], one["of_ops"]) for one in result["variation"]] == [(0, 0.0), (1, 0.0)]
    path = result["critical_path"]
    assert sum(one["seconds"] for one in path["by_rank_s"]) == pytest.approx(path["length_s"])
    assert result["worst_calls"][0]["waited_for"]["rank"] in range(4)


def test_a_job_of_which_little_can_be_said() -> None:
    build = ProgramBuilder(repeats=False)
    build.role("only", [0]).compute("nothing", 0.0)
    explanation = explain(simulate(build.program()))
    lines = screen(explanation)
    assert lines[1].split() == ["Step", "0", "s", "predicted,", "not", "recorded", "1", "rank", "·", "tp", "1"]
    assert "nothing in this job takes time" in lines[2]
    assert "communication" not in "".join(lines) and "pipeline" not in "".join(lines)
    assert json.dumps(explanation_json(explanation), allow_nan=False)
