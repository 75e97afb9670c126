"""Public training runs, one command each: what is predicted and what was published.

    python benchmarks/known_runs.py [--only WORD] [--update]

Runs the commands of `benchmarks/known_runs.yaml` as they are typed, from the root of the repository, and compares each
prediction with the published figure in the unit of the publication. `--only` takes the runs that have a word in their
name. `--update` writes the lines of docs/known-runs.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any, Literal, get_args

import yaml

from accuracy import TABLE, WITH, WITHOUT, Table, percent, signed, write_between
from foretrace.cost.silicon import installed
from foretrace.models import presets

ROOT = Path(__file__).parents[1]
RUNS = Path(__file__).with_suffix(".yaml")
PAGE = ROOT / "docs" / "known-runs.md"
BEGIN = "<!-- written by benchmarks/known_runs.py --update -->\n"
OUT_OF_MEMORY = 4
"""The exit code of a plan that does not fit."""

Unit = Literal["s", "TFLOP/s", "TFLOP/s + again", "GPU h per T"]
UNITS: tuple[Unit, ...] = get_args(Unit)
HEAD = ["run", "published", "predicted", "error", "90 % band", "in the band", "fits", "CPU time"]


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A published run: the options that predict it, and its figure. known_runs.yaml explains the fields."""

    run: str
    options: str
    published: float
    unit: Unit
    source: str
    assumed: str = ""
    row: str | None = None
    balanced: bool = False

    @property
    def words(self) -> list[str]:
        """The words that follow `foretrace`."""
        return ["predict", *shlex.split(self.options), *(["--routing", "1x"] if self.balanced else [])]

    @property
    def model(self) -> tuple[int, int]:
        """Layers and hidden size."""
        name = self.words[1]
        if name.endswith(".yaml"):
            described = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["model"]
            return described["layers"], described["hidden"]
        model = presets.model(name)
        return len(model.layers), model.hidden


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a command, in the unit of the publication."""

    run: KnownRun
    command: str
    predicted: float
    band: tuple[float, float]
    fits: bool
    cpu_s: float

    @property
    def error(self) -> float:
        """The signed error of the step time: above 0 where the prediction is too slow."""
        ratio = self.predicted / self.run.published
        return (1 / ratio if "TFLOP/s" in self.run.unit else ratio) - 1

    @property
    def inside(self) -> bool:
        """Whether the published figure lies in the band."""
        low, high = sorted(self.band)
        return low <= self.run.published <= high

    @property
    def cells(self) -> list[str]:
        """The line of the table."""
        low, high = (figure(value, self.run.unit) for value in sorted(self.band))
        values = [with_unit(self.run.published, self.run.unit), with_unit(self.predicted, self.run.unit)]
        verdicts = ["yes" if self.inside else "no", "yes" if self.fits else "no"]
        return [self.run.run, *values, signed(self.error), f"{low} to {high}", *verdicts, f"{self.cpu_s:.1f} s"]

    @property
    def text(self) -> str:
        """The command, its source and what is assumed, as an item of a list."""
        assumed = f" Assumed: {self.run.assumed}." if self.run.assumed else ""
        about = fill(f"Source: {self.run.source}.{assumed}", 100, initial_indent="  ", subsequent_indent="  ")
        return f"- **{self.run.run}**: `{self.command}`\n{about}\n"


def main() -> None:
    """Runs the commands and prints what they predict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="only runs with this in their name")
    parser.add_argument("--update", action="store_true", help="write docs/known-runs.md")
    options = parser.parse_args()
    runs = [run for run in known_runs() if options.only.lower() in run.run.lower()]
    if not runs:
        parser.error(f"no run has {options.only} in its name")
    check_rows(runs)
    outcomes = [outcome_of(run) for run in runs]
    table = Table(f"Known runs, {WITH if installed() else WITHOUT}", HEAD, [outcome.cells for outcome in outcomes])
    print(table.text())
    print(summary(outcomes))
    if options.update and not options.only:
        text = "\n".join([table.markdown(), summary(outcomes), "", *(outcome.text for outcome in outcomes)])
        write_between(PAGE, BEGIN, f"\n{text}\n")


def known_runs() -> tuple[KnownRun, ...]:
    """Returns the runs of known_runs.yaml."""
    return tuple(KnownRun(**entry) for entry in yaml.safe_load(RUNS.read_text(encoding="utf-8")))


def check_rows(runs: Sequence[KnownRun]) -> None:
    """Raises an error if a step time is not that of its row in the development table, where that is at hand."""
    if not TABLE.exists():
        return
    with TABLE.open(encoding="utf-8") as stream:
        rows = {row["id"]: row for row in csv.DictReader(stream)}
    for run in runs:
        if run.row is not None and run.unit == "s":
            row = rows[run.row]
            measured = float(row["step_time_s"] or row["step_time_derived_s"])
            assert run.published == measured, f"{run.run}: {run.row} has {measured} s"


def outcome_of(run: KnownRun) -> Outcome:
    """Runs the command of a run; a plan that does not fit is predicted all the same."""
    words = run.words
    answer, cpu_s, fits = answer_of(words)
    if not fits:
        words = [*words, "--even-if-oom"]
        answer, cpu_s, _ = answer_of(words)
    predicted, *band = (in_unit(run, answer, time) for time in (answer["step_time_s"], *answer["step_time_band_s"]))
    return Outcome(run, shlex.join(["foretrace", *words]), predicted, (band[0], band[1]), fits, cpu_s)


def answer_of(words: Sequence[str]) -> tuple[dict[str, Any], float, bool]:
    """Returns what a command answers, its CPU time, and whether its plan fits."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "foretrace", *words, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, OUT_OF_MEMORY), f"{shlex.join(words)}: {done.stdout}{done.stderr}"
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), cpu_s, done.returncode == 0


def in_unit(run: KnownRun, answer: dict[str, Any], step_s: float) -> float:
    """Returns a step time in the unit of the publication."""
    gpus, plan = answer["world_size"], answer["plan"]
    tokens = plan["gbs"] * plan["seq_len"]
    if run.unit == "s":
        return step_s
    if run.unit == "GPU h per T":
        return step_s * gpus / 3600 / tokens * 1e12
    flops = answer["model_flops"]
    if run.unit == "TFLOP/s + again":
        # arXiv:2104.04473, equation 3: forward, backward and forward again, attention in full.
        layers, hidden = run.model
        extra = plan["seq_len"] / (6 * hidden) + plan["padded_vocab"] / (16 * layers * hidden)
        flops = 96 * tokens * layers * hidden**2 * (1 + extra)
    return float(flops / step_s / gpus / 1e12)


def figure(value: float, unit: Unit) -> str:
    """Returns a number with as many digits as publications of the unit have."""
    if unit == "s":
        return f"{value:.2f}"
    return f"{value / 1000:,.0f}k" if unit == "GPU h per T" else f"{value:,.0f}"


def with_unit(value: float, unit: Unit) -> str:
    """Returns a number with its unit."""
    marks = {"TFLOP/s + again": "TFLOP/s *", "GPU h per T": "GPU hours"}
    return f"{figure(value, unit)} {marks.get(unit, unit)}"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns the mean error of the step and how many figures are in the band, by whether the run is in the table."""
    lines = []
    for name, members in (
        ("all runs", outcomes),
        ("rows of the development table", [outcome for outcome in outcomes if outcome.run.row is not None]),
        ("the others", [outcome for outcome in outcomes if outcome.run.row is None]),
    ):
        if members:
            error = fmean(abs(outcome.error) for outcome in members)
            inside = sum(outcome.inside for outcome in members)
            lines.append(f"- {name}: mean error {percent(error)}, {inside} of {len(members)} in the band")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
