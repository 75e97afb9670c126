"""The commands of benchmarks/known_runs.yaml parse, name what exists, and are those of docs/known-runs.md."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from console_blocks import Command, option_problem, parse_problem
from foretrace import load_model
from foretrace import open as open_job
from foretrace.hardware import presets as hardware
from foretrace.models import presets as models
from foretrace.models.parameters import parameters
from shared_files import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from known_runs import PAGE, UNITS, KnownRun, Outcome, in_unit, known_runs

RUNS = known_runs()
each = pytest.mark.parametrize("run", RUNS, ids=[run.run for run in RUNS])


def typed(run: KnownRun) -> str:
    return shlex.join(["foretrace", *run.words])


@each
def test_the_command_parses(run: KnownRun) -> None:
    text = typed(run)
    # Commands with these are not parsed.
    assert "[" not in text and "…" not in text
    command = Command("known_runs.yaml", 1, text)
    assert option_problem(command) is None
    assert parse_problem(command) is None


@each
def test_the_model_and_the_cluster_exist(run: KnownRun) -> None:
    model = run.words[1]
    if model.endswith(".yaml"):
        assert (ROOT / model).is_file()
        assert "--cluster" not in run.words
    else:
        assert model in models.names()
        cluster = run.words[run.words.index("--cluster") + 1]
        assert cluster in hardware.names("cluster") or (ROOT / cluster).is_file()


@each
def test_the_model_has_as_many_parameters_as_its_name_says(run: KnownRun) -> None:
    size = re.search(r"\b([0-9.]+)([BT])\b", run.run)
    if size is None:
        return
    stated = float(size[1]) * (1e12 if size[2] == "T" else 1e9)
    name = run.words[1]
    model = open_job(ROOT / name).model if name.endswith(".yaml") else load_model(name)
    assert parameters(model) == pytest.approx(stated, rel=0.08)


@each
def test_the_figure_has_a_unit_and_a_source(run: KnownRun) -> None:
    assert run.published > 0
    assert run.unit in UNITS
    assert run.source
    # Only a run whose plan is published in full may leave this out.
    assert run.assumed or run.row


@each
def test_the_page_has_the_command(run: KnownRun) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"`{typed(run)}`" in page or f"`{typed(run)} --even-if-oom`" in page
    assert f"| {run.run} | " in page


def test_names_are_unique() -> None:
    assert len({run.run for run in RUNS}) == len(RUNS)


ANSWER = {"world_size": 64, "plan": {"gbs": 64, "seq_len": 2048, "padded_vocab": 51200}, "model_flops": 6.4e15}


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        ("s", 10.0),
        ("TFLOP/s", 10.0),
        # 64 GPUs x 10 s are 0.178 GPU hours for 131,072 tokens.
        ("GPU h per T", 1_356_336.8),
        # 96 x 131,072 x 96 x 12,288² x (1 + 2,048 / 73,728 + 51,200 / 18,874,368) is 1.8796e17.
        ("TFLOP/s + again", 293.69),
    ],
)
def test_units(unit: str, value: float) -> None:
    run = KnownRun("a", "gpt3-175b", 1.0, unit, "by hand")  # type: ignore[arg-type]
    assert in_unit(run, ANSWER, 10.0) == pytest.approx(value, rel=1e-4)


def test_the_error_is_that_of_the_step_time() -> None:
    slow = KnownRun("a", "gpt3-175b", 400.0, "TFLOP/s", "by hand")
    outcome = Outcome(slow, "", 320.0, (300.0, 410.0), True, 1.0)
    assert outcome.error == pytest.approx(0.25)
    assert outcome.inside
    fast = KnownRun("b", "gpt3-175b", 10.0, "s", "by hand")
    outcome = Outcome(fast, "", 8.0, (7.0, 9.0), True, 1.0)
    assert outcome.error == pytest.approx(-0.2)
    assert not outcome.inside
