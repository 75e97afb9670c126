"""The screens and the JSON of predictions and of memory."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest

from foretrace import Answer, Machine, Plan, model, simulate
from foretrace.basics.units import format_bytes
from foretrace.readings.memory import peak_place
from foretrace.report.memory import memory_json, memory_plot, print_memory
from foretrace.report.terminal import print_answer
from shared_files import ROOT


@pytest.fixture(scope="module")
def answer() -> Answer:
    plan = Plan(gpus=32, tp=2, pp=4, gbs=32, recompute="selective")
    return simulate(model("llama3-8b", plan), Machine("h100-dgx", prices="model"), explain=False)


def test_the_json_page_names_every_key(answer: Answer) -> None:
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    memory = memory_json(answer)
    nested = (*memory["stages"][0], *memory["outside"][0], *memory["worst"], *memory["worst"]["peak"])
    for key in (*answer.to_dict(), *memory, *nested):
        assert f"`{key}`" in page, key


def test_the_screen_says_what_of_what(answer: Answer) -> None:
    stream = io.StringIO()
    print_answer(answer, stream)
    text = stream.getvalue()
    assert answer.model is not None and answer.mfu is not None and answer.hfu is not None
    flops_per_s = answer.model.flops_per_s_per_gpu(answer.step_time_s)
    assert f"{flops_per_s / 1e12:.0f} TFLOP/s per GPU: MFU {100 * answer.mfu:.1f} % of " in text
    assert f" of 989 TFLOP/s (bf16), HFU {100 * answer.hfu:.1f} %" in text
    memory = answer.memory
    assert memory is not None
    assert f"{format_bytes(memory.needed_bytes)} of {format_bytes(memory.capacity_bytes)} (stage 0)" in text


def test_stages_that_hold_the_same_share_a_row(answer: Answer) -> None:
    stream = io.StringIO()
    print_memory(answer, stream)
    rows = [line for line in stream.getvalue().splitlines() if line.strip().startswith("stage ")]
    named = sum(2 if " … " in row else 1 for row in rows)
    assert answer.memory is not None
    assert 1 <= len(rows) <= named <= len(answer.memory.stages)
    assert rows[0].strip().startswith("stage 0")


def test_memory_over_the_step_is_drawn_by_kind(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    print_memory(answer, stream)
    assert all(len(line) <= 100 for line in stream.getvalue().splitlines())
    rows = [line for line in stream.getvalue().splitlines() if set(line.split("  ")[-1].strip()) in ({"A"}, {"W"})]
    assert any(row.count("W") == 80 for row in rows)  # weights are held throughout
    assert any(0 < row.count("A") < 80 for row in rows)


def test_notes_on_time_are_not_shown_next_to_memory(answer: Answer) -> None:
    codes = {note["code"] for note in memory_json(answer)["diagnostics"]}
    assert "assumed" in codes
    assert "slowest-gpu" in {note.code for note in answer.diagnostics}
    assert not codes & {"slowest-gpu", "price-source", "overlap-cost", "training-frequency"}


def test_the_plot_is_a_picture_with_both_limits(answer: Answer) -> None:
    svg = memory_plot(answer)
    root = ElementTree.fromstring(svg)
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    memory = answer.memory
    assert memory is not None
    limits = (format_bytes(memory.capacity_bytes), format_bytes(memory.capacity_bytes - memory.outside_bytes))
    for part in (*limits, "activations", "GiB", "time"):
        assert any(part in text for text in words), part
    areas = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    memory = answer.memory
    assert memory is not None and memory.worst is not None
    assert len(areas) == len(memory.worst.track.by_category())


def test_the_peak_is_placed_in_the_schedule(answer: Answer) -> None:
    memory = answer.memory
    assert memory is not None
    for stage in memory.stages:
        place = peak_place(answer.timeline, stage.track)
        assert place is not None
        moment = int(np.searchsorted(stage.track.time_s, place.time_s, side="left"))
        assert int(stage.track.total_bytes[moment:].max()) == stage.peak_bytes
        assert 0 <= place.time_s <= answer.step_time_s
        assert place.microbatch in range(8)
        assert place.phase in ("forward", "backward", "recompute", "backward_input")
