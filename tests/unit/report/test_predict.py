"""The screens and the JSON of predictions and of memory."""

from __future__ import annotations

import io

import pytest

from foretrace import Answer, Machine, Plan, model, simulate
from foretrace.report.memory import memory_json, print_memory
from foretrace.report.terminal import print_answer
from shared_files import ROOT


@pytest.fixture(scope="module")
def answer() -> Answer:
    plan = Plan(gpus=32, tp=2, pp=4, gbs=32, recompute="selective")
    return simulate(model("llama3-8b", plan), Machine("h100-dgx", prices="model"), explain=False)


def test_the_json_page_names_every_key(answer: Answer) -> None:
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    memory = memory_json(answer)
    for key in (*answer.to_dict(), *memory, *memory["stages"][0], *memory["worst"], "fits", "outside_bytes"):
        assert f"`{key}`" in page, key


def test_the_screen_says_what_of_what(answer: Answer) -> None:
    stream = io.StringIO()
    print_answer(answer, stream)
    text = stream.getvalue()
    assert answer.model is not None and answer.mfu is not None and answer.hfu is not None
    flops_per_s = answer.model.flops_per_s_per_gpu(answer.step_time_s)
    assert f"{flops_per_s / 1e12:.0f} TFLOP/s per GPU: MFU {100 * answer.mfu:.1f} % of " in text
    assert f" of 989 TFLOP/s (bf16), HFU {100 * answer.hfu:.1f} %" in text
    assert "GiB of 79.1 GiB (rank 0, stage 0)" in text


def test_stages_that_hold_the_same_share_a_row(answer: Answer) -> None:
    stream = io.StringIO()
    print_memory(answer, stream)
    rows = [line for line in stream.getvalue().splitlines() if line.strip().startswith("stage ")]
    named = sum(2 if " … " in row else 1 for row in rows)
    assert answer.memory is not None
    assert 1 <= len(rows) <= named <= len(answer.memory.stages)
    assert rows[0].strip().startswith("stage 0")


def test_a_terminal_gets_memory_over_the_step(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    print_memory(answer, stream)
    (line,) = [line for line in stream.getvalue().splitlines() if "█" in line]
    assert sum(line.count(sign) for sign in "▁▂▃▄▅▆▇█") == 80
