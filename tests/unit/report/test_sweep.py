"""The screen and the JSON of a sweep."""

from __future__ import annotations

import io
import json

import pytest

from foretrace.report.sweep import print_sweep, sweep_json
from foretrace.search.sweep import Outcome, Sweep, parse_axis

PARTS = {"compute": 6.0, "bubble": 1.5, "dp exposed": 0.4, "pp exposed": 0.1}


def outcome(value: int, efficiency: float, *, error: str | None = None) -> Outcome:
    if error is not None:
        return Outcome(value, f"{value:,}", error=error)
    return Outcome(value, f"{value:,}", 1024, 8.0, (7.9, 8.4), 120.5 * efficiency, efficiency, PARTS)


@pytest.fixture
def swept() -> Sweep:
    points = (
        outcome(512, 1.0),
        outcome(1024, 1.25),
        outcome(2048, 0, error="job.txt:1: too many"),
        outcome(4096, 0.75),
    )
    return Sweep(parse_axis("gpus=512:4096:x2"), points, title="job.txt · 1f1b")


def screen(swept: Sweep) -> str:
    stream = io.StringIO()
    print_sweep(swept, stream)
    return stream.getvalue()


class TestScreen:
    def test_a_row_for_every_value(self, swept: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        lines = screen(swept).splitlines()
        assert "job.txt · 1f1b" in lines[1]
        head, first, best, failed, last = lines[3:8]
        assert head.split()[:2] == ["gpus", "step"]
        assert first.split()[:3] == ["512", "8.00", "s"] and "± 5.0 %" in first and "100.0 %" in first
        assert best.endswith("best") and "125.0 %" in best
        assert failed.strip() == "2,048  job.txt:1: too many"
        assert "75.0 %" in last and not last.endswith("best")
        assert "compute" in head and "bubble" in head and "pp exposed" not in head  # the largest parts

    def test_how_many_gpus_each_value_takes(self, swept: Sweep) -> None:
        head, row = screen(Sweep(parse_axis("dp=4,8"), swept.outcomes[:1])).splitlines()[1:3]
        assert head.split()[:2] == ["dp", "GPUs"] and row.split()[:2] == ["512", "1,024"]

    def test_a_pipe_gets_no_curve_and_no_colour(self, swept: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        assert not set("█▁▂▃▄▅▆▇\x1b") & set(screen(swept))

    def test_a_terminal_gets_a_curve(self, swept: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("COLUMNS", "100")
        text = screen(swept)
        assert "█" in text and "125.0 %" in text
        rows = [line for line in text.splitlines() if "█" in line]
        assert len(rows) == 8
        assert rows[0].count("█") < rows[-1].count("█")

    def test_an_interrupted_sweep_says_so(self, swept: Sweep) -> None:
        part = Sweep(swept.axis, swept.outcomes[:2], interrupted=True)
        assert "interrupted: 2 of 4 values are finished" in screen(part)

    def test_nothing_finished(self, swept: Sweep) -> None:
        assert "0 of 4" in screen(Sweep(swept.axis, (), interrupted=True))


def test_json(swept: Sweep) -> None:
    result = json.loads(json.dumps(sweep_json(swept), allow_nan=False))
    assert (result["schema"], result["over"], result["best"]) == ("foretrace.sweep/1", "gpus", 1024)
    assert result["interrupted"] is False and result["title"] == "job.txt · 1f1b"
    first, _, failed, _ = result["points"]
    assert first == {
        "value": 512,
        "world_size": 1024,
        "step_time_s": 8.0,
        "step_time_band_s": [7.9, 8.4],
        "tokens_per_s_per_gpu": 120.5,
        "efficiency": 1.0,
        "breakdown_s": PARTS,
        "error": None,
    }
    assert failed["error"] == "job.txt:1: too many" and failed["step_time_s"] is None
