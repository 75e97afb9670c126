"""Fits how wide the bands of models' steps have to be, by what an answer depends on.

    python benchmarks/fit_bands.py [--bands FILE]

Predicts the development table of published runs (`$FORETRACE_SHARED` or `../shared`) and fits `WIDTHS` of
simulation/model_error.py: the half widths, as logarithms, whose squares add up to how far whole steps were off, with
those of prices. A group of n runs of one model on one GPU has a total weight of the
root of n. Prints the widths, and how many measurements lie in bands
whose widths were fitted without their model and GPU. `--bands` keeps the predictions in a file, and reads them from it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from math import hypot, log
from pathlib import Path

import numpy as np

import foretrace as ft
from accuracy import TABLE
from foretrace.inputs.model.input import ModelInput
from foretrace.simulation.model_error import WARNING, WIDTHS
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import TrainingRun, read_training_runs

COVERED = 0.93
"""The share of measurements that bands hold where the widths are fitted, so that 90 % hold for models left out."""
SIGMAS = 1.645
"""Half of a central 90 % interval, in standard deviations."""
MIN_WIDTH = 0.05
"""The least width of a reason: reruns of one published configuration differ by 3.6 %."""
MIN_HOST = 0.26
"""The least width of the host: the 22 runs are of few models, and bands fitted without one of them (0.14) held 59 % of
their runs. A judgement."""
MIN_VERSION = 0.09
"""The least width of a version that is not known: the same configuration in two containers differs by 9 % at most in
nine of ten cases (64 pairs of published runs)."""
LEAST = {"host": MIN_HOST, "version of the software": MIN_VERSION}
GRID = np.concatenate([[0.0], np.geomspace(0.02, 1.5, 24)])
"""Widths that are tried, before all are widened by one factor."""
MIN_RUNS = 5
"""Reasons of fewer runs are not widened: what these runs show is all that is known."""
ROUNDS = 6
"""How many times the width of each reason is chosen again, given the others."""


@dataclass(frozen=True)
class Row:
    """A run: its model and GPU, the logarithm of measured over predicted, what the band depends on."""

    id: str
    group: str
    grade: str
    error: float
    simulated: tuple[float, float]
    """How far prices, and what was tried, reach down and up, as logarithms."""
    reasons: dict[str, float]
    """What the band depends on, with the share of each width that counts."""


def row_of(run: TrainingRun) -> Row | None:
    """Predicts a run; None where that cannot be done or has no band."""
    try:
        job = job_of(run.config)
        answer = ft.simulate(ModelInput(job.model, job.plan), ft.Machine(job.cluster), explain="band", even_if_oom=True)
    except ft.ForetraceError:
        return None
    if run.measurement.step_s is None or not answer.band_parts:
        return None
    parts = {part.name: part for part in answer.band_parts if part.name in WIDTHS}
    own = [part for part in answer.band_parts if part.name not in (*WIDTHS, WARNING)]
    return Row(
        run.config.id,
        f"{run.config.model.split(' (')[0].lower()} on {job.cluster.gpu.name}",
        run.config.grade,
        log(run.measurement.step_s / answer.step_time_s),
        (hypot(*(log(part.low) for part in own)), hypot(*(log(part.high) for part in own))),
        {name: log(part.high) / WIDTHS[name] for name, part in parts.items()},
    )


def widths_of(row: Row, widths: dict[str, float]) -> tuple[float, float]:
    """Returns how far the band of a row goes down and up, as logarithms."""
    model = hypot(*(share * widths[name] for name, share in row.reasons.items()))
    return hypot(row.simulated[0], model), hypot(row.simulated[1], model)


def fit(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the widths that make the errors most likely, as normal ones, widened until bands hold enough of them."""
    weights = _weights(rows)
    widths = dict.fromkeys(WIDTHS, 0.1)
    for _ in range(ROUNDS):
        for name in widths:
            if any(name in row.reasons for row in rows):
                candidates = [(_loss(rows, weights, {**widths, name: float(value)}), float(value)) for value in GRID]
                widths[name] = min(candidates)[1]
    counts = Counter(name for row in rows for name in row.reasons)
    few = [name for name in widths if counts[name] < MIN_RUNS]
    scale = 1.0
    while scale < 3 and _covered(rows, weights, _scaled(widths, scale, few)) < COVERED:
        scale += 0.02
    return {name: max(width, LEAST.get(name, MIN_WIDTH)) for name, width in _scaled(widths, scale, few).items()}


def _scaled(widths: dict[str, float], scale: float, kept: Sequence[str]) -> dict[str, float]:
    return {name: width if name in kept else scale * width for name, width in widths.items()}


def _weights(rows: Sequence[Row]) -> list[float]:
    """Returns weights by which a group of n runs counts as the root of n."""
    counts = Counter(row.group for row in rows)
    return [counts[row.group] ** -0.5 for row in rows]


def _loss(rows: Sequence[Row], weights: Sequence[float], widths: dict[str, float]) -> float:
    loss = 0.0
    for row, weight in zip(rows, weights, strict=True):
        sigma = max(widths_of(row, widths)[row.error > 0] / SIGMAS, 1e-3)
        # A Student's t of 4 degrees of freedom: single runs far off do not set the width.
        loss += weight * (log(sigma) + 2.5 * log(1 + (row.error / sigma) ** 2 / 4))
    return loss


def _inside(row: Row, widths: dict[str, float]) -> bool:
    return abs(row.error) <= widths_of(row, widths)[row.error > 0]


def _covered(rows: Sequence[Row], weights: Sequence[float], widths: dict[str, float]) -> float:
    held = sum(weight for row, weight in zip(rows, weights, strict=True) if _inside(row, widths))
    return held / sum(weights)


def main() -> None:
    """Fits the widths and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bands", type=Path, help="keep predictions in this file, or read them from it")
    options = parser.parse_args()
    if not TABLE.exists():
        print(f"{TABLE.name}: not there; nothing to fit")
        return
    if options.bands and options.bands.exists():
        rows = [Row(**row) for row in json.loads(options.bands.read_text(encoding="utf-8"))]
    else:
        runs = [run for run in read_training_runs(TABLE).runs if run.config.grade in ("A", "B")]
        with ProcessPoolExecutor(2) as pool:
            rows = [row for row in pool.map(row_of, runs, chunksize=4) if row is not None]
        print(f"{len(runs) - len(rows)} of {len(runs)} runs could not be predicted, or have no time or band")
        if options.bands:
            options.bands.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    widths = fit(rows)
    for name, width in widths.items():
        count = sum(name in row.reasons for row in rows)
        print(f"    {name!r}: {width:.2f},  # {count} runs, {WIDTHS[name]:.2f} now")
    show_left_out(rows, "model and GPU", lambda row: row.group, detail=True)
    show_left_out(rows, "model", lambda row: row.group.partition(" on ")[0])
    show_left_out(rows, "GPU", lambda row: row.group.partition(" on ")[2])


def show_left_out(rows: Sequence[Row], what: str, group_of: Callable[[Row], str], *, detail: bool = False) -> None:
    """Prints how many runs lie in bands whose widths were fitted without all runs of their group."""
    held: dict[str, list[bool]] = {}
    for group in sorted(set(map(group_of, rows))):
        widths = fit([row for row in rows if group_of(row) != group])
        members = [row for row in rows if group_of(row) == group]
        inside = [_inside(row, widths) for row in members]
        for row, is_inside in zip(members, inside, strict=True):
            kind = "mixtures" if "experts" in row.reasons else "dense"
            for name in ("all", kind, *((f"grade {row.grade}", *row.reasons) if detail else ())):
                held.setdefault(name, []).append(is_inside)
        if detail:
            print(f"{group:48} {sum(inside):3} of {len(inside):3}")
    for name, cases in held.items():
        print(f"left out by {what}, {name:36} {100 * sum(cases) / len(cases):5.1f} % of {len(cases)}")


if __name__ == "__main__":
    main()
