"""The screen and the JSON of a sweep."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from foretrace.basics.errors import Diagnostic
from foretrace.report.sweep import print_sweep, sweep_csv, sweep_json, sweep_svg
from foretrace.search.axes import points_of, read_axes
from foretrace.search.scaling import Scaling
from foretrace.search.sweep import Outcome, Sweep, SweepError

PARTS = {"compute": 6.0, "bubble": 1.5, "dp exposed": 0.4, "pp exposed": 0.1}


AXES = read_axes(["gpus=512:4096:x2"])
SCALING = Scaling("strong", 512, Diagnostic("note", "scaling", "gbs stays"))
TOO_MANY = SweepError("bad-plan", "job.txt:1: too many heads for every rank of this plan, by far more than fit")


def outcome(number: int, efficiency: float, *, error: SweepError | None = None) -> Outcome:
    point = points_of(AXES)[number]
    if error is not None:
        return Outcome(point, error=error)
    rate = 120.5 * efficiency
    return Outcome(point, 512 << number, 8.0, (7.9, 8.4), rate, 0.4, 3 << 30, None, efficiency, PARTS)


@pytest.fixture
def swept() -> Sweep:
    points = (outcome(0, 1.0), outcome(1, 1.25), outcome(2, 0, error=TOO_MANY), outcome(3, 0.75))
    return Sweep(AXES, points, title="job.txt · 1f1b", scaling=SCALING)


def screen(swept: Sweep) -> str:
    stream = io.StringIO()
    print_sweep(swept, stream)
    return stream.getvalue()


class TestScreen:
    def test_a_row_for_every_value(self, swept: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        monkeypatch.setenv("COLUMNS", "80")
        lines = screen(swept).splitlines()
        assert "job.txt · 1f1b" in lines[1]
        head, first, best, failed, last = lines[3:8]
        assert head.split()[:5] == ["gpus", "step", "tokens/s/GPU", "MFU", "memory"]
        assert first.split()[:3] == ["512", "8.00", "s"] and "± 5.0 %" in first and "100.0 %" in first
        assert "40.0 %" in first and "3.00 GiB" in first
        assert best.endswith("best") and "125.0 %" in best
        assert failed.split()[:3] == ["2,048", "job.txt:1:", "too"] and failed.endswith("…")
        assert "75.0 %" in last and not last.endswith("best")
        assert max(map(len, lines)) <= 80

    def test_parts_of_the_step_where_there_is_room(self, swept: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "120")
        head = screen(swept).splitlines()[3]
        assert "compute" in head and "bubble" in head and "pp exposed" not in head  # the largest parts

    def test_how_many_gpus_each_value_takes(self, swept: Sweep) -> None:
        rows = screen(replace(swept, scaling=None)).splitlines()[3:5]
        assert rows[0].split()[:2] == ["gpus", "GPUs"] and rows[1].split()[:2] == ["512", "512"]
        one_size = replace(swept, scaling=None, outcomes=swept.outcomes[:1])
        assert "512 GPUs" in screen(one_size).splitlines()[1]

    def test_what_does_not_fit(self, swept: Sweep) -> None:
        error = SweepError("out-of-memory", "needs 82 GiB of 80 GiB")
        refused = replace(swept, outcomes=(outcome(0, 0, error=error),))
        (point,) = sweep_json(refused)["points"]
        assert point["error"]["code"] == "out-of-memory" and point["step_time_s"] is None
        assert error.message in screen(refused) and "nan" not in screen(refused)

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
        part = Sweep(swept.axes, swept.outcomes[:2], interrupted=True)
        assert "interrupted: 2 of 4 values are finished" in screen(part)

    def test_nothing_finished(self, swept: Sweep) -> None:
        assert "0 of 4" in screen(Sweep(swept.axes, (), interrupted=True))


def test_json(swept: Sweep) -> None:
    result = json.loads(json.dumps(sweep_json(swept), allow_nan=False))
    assert (result["schema"], result["over"], result["best"]) == ("foretrace.sweep/2", ["gpus"], {"gpus": 1024})
    assert result["interrupted"] is False and result["title"] == "job.txt · 1f1b" and result["scale"] == "strong"
    first, _, failed, _ = result["points"]
    assert first == {
        "values": {"gpus": 512},
        "world_size": 512,
        "step_time_s": 8.0,
        "step_time_band_s": [7.9, 8.4],
        "tokens_per_s_per_gpu": 120.5,
        "mfu": 0.4,
        "peak_memory_bytes": 3 << 30,
        "needed_memory_bytes": None,
        "efficiency": 1.0,
        "breakdown_s": PARTS,
        "error": None,
    }
    assert failed["error"]["code"] == "bad-plan" and failed["step_time_s"] is None


def test_csv(swept: Sweep) -> None:
    head, *rows = csv.reader(io.StringIO(sweep_csv(swept)))
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["gpus"] for row in table] == ["512", "1024", "2048", "4096"]
    assert float(table[0]["step_time_s"]) == 8.0 and table[0]["error"] == ""
    assert table[2]["step_time_s"] == "" and table[2]["error"] == "bad-plan"


def test_the_picture_has_a_dot_for_every_point_that_ran(swept: Sweep) -> None:
    assert sweep_svg(swept).count("<circle") >= 3
    named = Sweep(read_axes(["cluster=a,b"]), ())
    points = [replace(outcome(0, 1.0), point=point) for point in points_of(named.axes)]
    picture = sweep_svg(replace(named, outcomes=tuple(points)))
    assert ">a<" in picture and ">b<" in picture
