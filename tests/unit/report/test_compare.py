"""A comparison as a screen, as JSON and as a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from foretrace import Answer, Mesh, ProgramBuilder, simulate
from foretrace.program.program import Source
from foretrace.readings.compare import Comparison, compare
from foretrace.report.compare import WORST, comparison_json, print_comparison, write_comparison_perfetto


def run(reduce_s: float, ranks: int = 2, slow: float = 1.0, memory: bool = False) -> Answer:
    """Every rank computes for 700 ms, reduces over dp and updates for 10 ms; the last rank is slower."""
    build = ProgramBuilder(Mesh(dp=ranks), title="a job", repeats=False)
    for rank in range(ranks):
        role = build.role(f"rank {rank}", [rank])
        if memory:
            role.resident(weights=1 << 30)
        seconds = 0.7 * (slow if rank == ranks - 1 else 1.0 - 1e-3 * rank)
        done = role.compute("forward_step", seconds, phase="forward", microbatch=0, source=Source("table", 0.9, 1.1))
        reduced = role.collective("all_reduce", build.communicator("dp"), reduce_s, after=done)
        role.compute("optimizer_step", 0.01, phase="optimizer", after=reduced)
    return simulate(build.program())


def recorded(answer: Answer) -> Answer:
    """The same step as if it had been measured."""
    return replace(answer, timeline=replace(answer.timeline, steps_run=0))


def screen(comparison: Comparison) -> list[str]:
    stream = StringIO()
    print_comparison(comparison, stream)
    return stream.getvalue().splitlines()


def test_the_error_comes_first_then_the_band_and_the_time_up_to_the_optimizer() -> None:
    lines = [line.strip() for line in screen(compare(run(0.032), recorded(run(0.019)))) if line]
    assert lines[0].startswith("Step   predicted 742 ms, measured 729 ms: +1.8 %")
    assert lines[1] == "its band, 672 ms to 812 ms, contains the measured"
    assert lines[2] == "up to the optimizer predicted 732 ms, measured 719 ms: +1.8 %"
    assert lines[3:5] == ["predicted: a job", "measured: a job"]


def test_tables_say_where_the_error_comes_from() -> None:
    lines = screen(compare(run(0.032), recorded(run(0.019))))
    head = next(number for number, line in enumerate(lines) if "where the error comes from" in line)
    assert lines[head + 1].split() == ["dp", "exposed", "32.0", "ms", "19.0", "ms", "+13.0", "ms", "+1.8", "%"]
    step = next(line for line in lines[head:] if line.startswith("  step"))
    assert step.split() == ["step", "742", "ms", "729", "ms", "+13.0", "ms", "+1.8", "%"]
    text = "\n".join(lines)
    assert "dp all_reduce" in text and "groups furthest off" in text and "dp 0 1" in text
    assert "ranks furthest off" not in text, "compute and waits of all ranks are as predicted"


def test_only_the_worst_ranks_are_shown_and_the_others_counted() -> None:
    lines = screen(compare(run(0.032, ranks=8), recorded(run(0.032, ranks=8, slow=1.1))))
    head = next(number for number, line in enumerate(lines) if "ranks furthest off" in line)
    assert "rank 7" in lines[head + 1], "it computes 70 ms longer; the others wait a little less than that"
    assert lines[head + 1 + WORST].strip() == f"{8 - WORST} more in --json"
    assert max(map(len, lines)) <= 120


def test_runs_that_agree_have_no_worst() -> None:
    text = "\n".join(screen(compare(run(0.032), recorded(run(0.032)))))
    assert "measured 742 ms: 0.0 %" in text and "furthest off" not in text


def test_a_prediction_without_a_band_contains_nothing() -> None:
    build = ProgramBuilder(repeats=False)
    build.role("only", [0]).compute("work", 1.0)
    one = simulate(build.program())
    comparison = compare(one, recorded(one))
    assert comparison.band_contains_base is None
    assert comparison_json(comparison)["band_contains_measured"] is None


def test_json_has_all_of_it() -> None:
    comparison = compare(run(0.032, ranks=8), recorded(run(0.019, ranks=8, slow=1.1)))
    result = json.loads(json.dumps(comparison_json(comparison), allow_nan=False))
    assert result["schema"] == "foretrace.comparison/1"
    assert result["predicted"]["step_time_s"] == pytest.approx(0.742)
    assert result["measured"]["mesh"] == "dp=8"
    assert result["error"] == pytest.approx((0.742 - 0.799) / 0.799)
    assert result["step"]["difference_s"] == pytest.approx(0.742 - 0.799)
    assert result["band_contains_measured"] is True
    assert sum(part["difference_s"] for part in result["breakdown"]) == pytest.approx(0.742 - 0.799)
    assert sum(part["share_of_step"] for part in result["breakdown"]) == pytest.approx(result["error"])
    assert sorted(rank for row in result["ranks"] for rank in row["ranks"]) == list(range(8))
    assert [row["groups"] for row in result["groups"]] == [[list(range(8))]]
    assert [(row["stage"], row["pass"]) for row in result["stages"]] == [(0, "forward")]
    assert {row["kind"] for row in result["kinds"]} == {"forward compute", "dp all_reduce", "optimizer"}
    assert result["until_optimizer"]["measured_s"] == pytest.approx(0.789)
    assert result["diagnostics"] == []


def test_nothing_is_ever_nan() -> None:
    build = ProgramBuilder(repeats=False)
    build.role("only", [0]).compute("nothing", 0.0)
    empty = simulate(build.program())
    result = json.loads(json.dumps(comparison_json(compare(run(0.032), recorded(empty))), allow_nan=False))
    assert result["error"] is None and result["until_optimizer"] is None and result["step"]["share_of_step"] is None
    for first, second in ((empty, empty), (empty, run(0.032)), (run(0.032), empty)):
        text = "\n".join([*screen(compare(first, second)), *screen(compare(first, recorded(second)))])
        json.dumps(comparison_json(compare(first, second)), allow_nan=False)
        assert "nan" not in text and "inf" not in text


def test_both_timelines_are_in_one_trace(tmp_path: Path) -> None:
    comparison = compare(run(0.032, memory=True), recorded(run(0.019)))
    summary = write_comparison_perfetto(comparison, tmp_path / "both.pftrace", ranks=[1])
    trace = proto.Trace()
    trace.ParseFromString((tmp_path / "both.pftrace").read_bytes())
    tracks = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    names = [track.process.process_name for track in tracks if track.HasField("process")]
    assert names == ["predicted · rank 1 (rank 1)", "measured · rank 1 (rank 1)"]
    assert sum(track.HasField("counter") for track in tracks) == 2, "memory of the run that says something of it"
    assert (summary.ranks, summary.slices) == ((1,), 6)


class TestTwoPredictions:
    """B reduces for 19 ms instead of 32, and is compared with A."""

    @pytest.fixture
    def lines(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("COLUMNS", "80")
        return screen(compare(run(0.019), run(0.032)))

    def test_the_step_of_both_and_the_change_come_first(self, lines: list[str]) -> None:
        assert lines[1].split() == ["Step", "A", "742", "ms,", "B", "729", "ms:", "−13.0", "ms,", "−1.8", "%"]
        assert "measured" not in "\n".join(lines) and "predicted" not in "\n".join(lines)

    def test_parts_and_ops_sum_to_the_step(self, lines: list[str]) -> None:
        rows = [line.split() for line in lines]
        assert ["dp", "exposed", "32.0", "ms", "19.0", "ms", "−13.0", "ms", "−1.8", "%"] in rows
        assert ["dp", "exposed", "all_reduce", "32.0", "ms", "19.0", "ms", "−13.0", "ms"] in rows
        assert sum(row[:1] == ["step"] for row in rows) == 3
        assert max(map(len, lines)) <= 80

    def test_json(self) -> None:
        result = json.loads(json.dumps(comparison_json(compare(run(0.019), run(0.032))), allow_nan=False))
        assert result["schema"] == "foretrace.difference/1"
        assert (result["a"]["step_time_s"], result["b"]["step_time_s"]) == pytest.approx((0.742, 0.729))
        assert result["step"]["difference_s"] == pytest.approx(-0.013) and result["change"] == pytest.approx(
            -0.013 / 0.742
        )
        for rows in (result["breakdown"], result["causes"]):
            assert sum(row["difference_s"] for row in rows) == pytest.approx(-0.013)
        assert {key: result["causes"][0][key] for key in ("part", "kind", "name")} == {
            "part": "dp exposed",
            "kind": "dp all_reduce",
            "name": "all_reduce",
        }
        assert result["differences"] == [] and "measured" not in result and "error" not in result
