"""Recorded steps scaled to another batch against steps recorded with that batch: `python benchmarks/batches.py`.

The truth is `truth/h200_batches.tsv`: what the kernels of steps on one H200 took, by shape, with the pauses after them.
`--record NAME SAMPLES TRACE` adds the kernels of a trace to it (of `gpu/profiled.py`, shapes recorded).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from foretrace import Mesh, ProgramBuilder
from foretrace.inputs.registry import open_input
from foretrace.inputs.torch_ops.recorded_gpu import recorded_source
from foretrace.program.columns import Kind, Phase, label
from foretrace.program.program import Program
from foretrace.simulation.rebatch import rebuilt

TRUTH = Path(__file__).parent / "truth" / "h200_batches.tsv"
GPU = "NVIDIA H200"
FIELDS = ("case", "samples", "phase", "count", "microseconds", "kernel")


@dataclass(frozen=True, slots=True)
class Compared:
    """A step scaled from one number of samples to another: device time of the step in seconds, scaled by kernel, in
    proportion to samples (the optimizer apart), and as recorded."""

    case: str
    samples: int
    to: int
    scaled_s: float
    linear_s: float
    recorded_s: float


def compared(path: Path = TRUTH) -> list[Compared]:
    """Every case scaled from each of its batches to each other."""
    steps: dict[str, dict[int, Program]] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    for case, samples in dict.fromkeys((row["case"], int(row["samples"])) for row in rows):
        own = [row for row in rows if (row["case"], int(row["samples"])) == (case, samples)]
        steps[case][samples] = _step(own)
    return [
        Compared(
            case,
            samples,
            to,
            _device_s(rebuilt(program, batch=to / samples)),
            _linear_s(program, to / samples),
            _device_s(by_samples[to]),
        )
        for case, by_samples in steps.items()
        for samples, program in by_samples.items()
        for to in by_samples
        if to != samples
    ]


def record(name: str, samples: int, trace: Path) -> list[dict[str, str]]:
    """The kernels of a trace's step: how often each shape runs, and the mean of what it takes."""
    program = open_input([trace]).with_options(host="none").program()
    columns = program.templates.columns
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in (columns["kind"] == Kind.COMPUTE).nonzero()[0].tolist():
        number = int(columns["kernel"][row])
        text = program.strings[number] if number >= 0 else program.strings[int(columns["name"][row])]
        times[label(Phase(int(columns["phase"][row]))), text].append(float(columns["duration_s"][row]))
    return [
        dict(
            zip(
                FIELDS,
                (name, str(samples), phase, str(len(its)), f"{1e6 * sum(its) / len(its):.3f}", text),
                strict=True,
            )
        )
        for (phase, text), its in times.items()
    ]


def _step(rows: list[dict[str, str]]) -> Program:
    """The kernels one after the other."""
    build = ProgramBuilder(Mesh(dp=1))
    role = build.role("rank 0", range(1))
    for row in rows:
        shaped = "=" in row["kernel"]
        for _ in range(int(row["count"])):
            role.compute(
                row["kernel"],
                1e-6 * float(row["microseconds"]),
                kernel=row["kernel"] if shaped else None,
                phase=row["phase"],
                source=recorded_source(GPU),
            )
    return build.program()


def _device_s(program: Program) -> float:
    return float(program.templates.columns["duration_s"].sum())


def _linear_s(program: Program, factor: float) -> float:
    columns = program.templates.columns
    stays = columns["phase"] == Phase.OPTIMIZER
    duration = columns["duration_s"]
    return float(duration[stays].sum() + factor * duration[~stays].sum())


def main() -> None:
    """Prints the comparison, or records a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs=3, metavar=("NAME", "SAMPLES", "TRACE"))
    chosen = parser.parse_args()
    if chosen.record:
        name, samples, trace = chosen.record
        new = not TRUTH.exists()
        with TRUTH.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, FIELDS, delimiter="\t", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(record(name, int(samples), Path(trace)))
        return
    print(f"  {'':<24}{'samples':>10}{'recorded':>12}{'scaled':>12}{'error':>9}{'linear':>9}")
    for comparison in compared():
        errors = [
            f"{100 * (time / comparison.recorded_s - 1):+.1f} %" for time in (comparison.scaled_s, comparison.linear_s)
        ]
        steps = f"{comparison.samples} to {comparison.to}"
        times = "".join(f"{1e3 * time:>9.2f} ms" for time in (comparison.recorded_s, comparison.scaled_s))
        print(f"  {comparison.case:<24}{steps:>10}{times}{errors[0]:>9}{errors[1]:>9}")


if __name__ == "__main__":
    main()
