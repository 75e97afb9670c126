"""How well a step is foretold from its profiler trace alone: as recorded, without the profiler, as a CUDA graph.

    python benchmarks/profiled.py [--json] [--update]

Reads the traces and measured times in `truth/profiles`, which are among those that `fit_profiling.py` fits on (steps
left out of the fit: there), and, where they are, the two of `data/h200` of `$FORETRACE_SHARED` or of `../shared`, on
which nothing is fitted. `--update` writes `truth/profiles/errors.json`, which `tests/accuracy/test_profiled.py`
compares with.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import foretrace
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.rank.rank_step import read_step

HERE: Final = Path(__file__).parent
PROFILES: Final = HERE / "truth" / "profiles"
SHARED: Final = {
    "tinyllama_mbs4.json.gz": (134.043, None),
    "tinyllama_mbs1_s512.json.gz": (41.329, 16.388),
}
"""Of `data/h200`: milliseconds without the profiler and as a graph (README.md there)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A trace and what its step was measured to take, in milliseconds."""

    name: str
    path: Path
    unprofiled_ms: float
    graph_ms: float | None
    noise: float
    """Half of the range between the batches of unprofiled steps, as a share: how well the truth repeats."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured and what was foretold from the trace, in milliseconds."""

    name: str
    recorded_ms: float
    replay_ms: float
    unprofiled_ms: float
    unprofiled_predicted_ms: float
    noise: float
    graph_ms: float | None
    graph_predicted_ms: float | None

    @property
    def errors(self) -> dict[str, float]:
        """Signed, as shares."""
        errors = {
            "replay": self.replay_ms / self.recorded_ms - 1,
            "unprofiled": self.unprofiled_predicted_ms / self.unprofiled_ms - 1,
        }
        if self.graph_ms is not None and self.graph_predicted_ms is not None:
            errors["graph"] = self.graph_predicted_ms / self.graph_ms - 1
        return errors


def cases(shared: bool = True) -> Iterator[Case]:
    """Every trace with truth that is here."""
    truth = json.loads((PROFILES / "profiled_steps.json").read_text(encoding="utf-8"))
    for name, session in truth["traces"].items():
        measured = truth["sessions"][session]["workloads"][name.split(".")[0]]
        noise = _noise(measured["unprofiled"])
        path = PROFILES / f"{name}.json.gz"
        yield Case(name, path, measured["unprofiled_ms"], measured.get("graph_ms"), noise)
    folder = Path(os.environ.get("FORETRACE_SHARED", HERE.parents[1] / "shared")) / "data" / "h200"
    for file, (unprofiled, graph) in SHARED.items():
        if shared and (folder / file).exists():
            yield Case(f"{file.split('.')[0]} (shared)", folder / file, unprofiled, graph, 0.0)


def _noise(batches: Sequence[dict[str, Any]]) -> float:
    medians = [batch["median_ms"] for batch in batches]
    return (max(medians) - min(medians)) / 2 / median(medians)


def row(case: Case) -> Row:
    """A case, foretold in each way."""

    def step_ms(**how: Any) -> float:
        job = foretrace.open(case.path, **how)
        return float(foretrace.simulate(job, explain=False).step_time_s) * 1e3

    return Row(
        name=case.name,
        recorded_ms=read_step(read_trace(case.path)).recorded_s * 1e3,
        replay_ms=step_ms(),
        unprofiled_ms=case.unprofiled_ms,
        unprofiled_predicted_ms=step_ms(host="unprofiled"),
        noise=case.noise,
        graph_ms=case.graph_ms,
        graph_predicted_ms=None if case.graph_ms is None else step_ms(host="graphs"),
    )


def print_rows(rows: Sequence[Row]) -> None:
    """A line for each trace: measured, foretold, error; then the mean absolute errors."""
    print("steps from their traces alone (ms; ±: how far the measured batches of steps are apart)")
    print(f"{'':<30} {'recorded':>9} {'replay':>15} {'unprofiled':>17} {'foretold':>16} {'graph':>8} {'foretold':>16}")
    for row in rows:
        errors = row.errors
        line = f"{row.name:<30} {row.recorded_ms:>9.2f} {_told(row.replay_ms, errors['replay'])}"
        line += (
            f" {row.unprofiled_ms:>9.2f} ± {row.noise:>4.1%} {_told(row.unprofiled_predicted_ms, errors['unprofiled'])}"
        )
        if row.graph_ms is not None and row.graph_predicted_ms is not None:
            line += f" {row.graph_ms:>8.2f} {_told(row.graph_predicted_ms, errors['graph'])}"
        print(line)
    means = mean_errors(rows)
    print("mean absolute error: " + ", ".join(f"{what} {error:.1%}" for what, error in means.items()))


def _told(value_ms: float, error: float) -> str:
    return f"{value_ms:>8.2f} {error:>+7.1%}"


def mean_errors(rows: Sequence[Row]) -> dict[str, float]:
    """Mean absolute errors by what was foretold."""
    errors_of: dict[str, list[float]] = {}
    for row in rows:
        for what, error in row.errors.items():
            errors_of.setdefault(what, []).append(abs(error))
    return {what: sum(errors) / len(errors) for what, errors in errors_of.items()}


def main() -> None:
    """Prints the table, or all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--update", action="store_true", help="record the errors of the traces in truth/profiles")
    given = parser.parse_args()
    rows = [row(case) for case in cases(shared=not given.update)]
    if given.update:
        errors = {row.name: {what: round(error, 4) for what, error in row.errors.items()} for row in rows}
        (PROFILES / "errors.json").write_text(json.dumps(errors, indent=1) + "\n", encoding="utf-8")
    if given.json:
        every = [asdict(row) | {"errors": row.errors} for row in rows]
        print(json.dumps({"rows": every, "mean_absolute_error": mean_errors(rows)}, indent=1))
    else:
        print_rows(rows)


if __name__ == "__main__":
    main()
