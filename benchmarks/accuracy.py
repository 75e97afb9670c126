"""How near predictions come to measured training steps.

    python benchmarks/accuracy.py [--markdown] [--update]

Predicts the steps of `benchmarks/truth` and, where `$FORETRACE_SHARED` or `../shared` has it, the development table of
published runs: with NVIDIA's tables (the extra `[silicon]`), without, and by the fitted model alone. `--markdown`
prints the tables of docs/accuracy.md. `--update` records the errors of `benchmarks/truth`, to which
`tests/accuracy/test_truth.py` holds later predictions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from foretrace.analysis.validate.results import Group, RowResult, Validation, by_family, errors_by_quantity, group_of
from foretrace.analysis.validate.rows import job_of
from foretrace.analysis.validate.validate import validate
from foretrace.cost.compute.silicon import installed
from foretrace.formats.training_runs import TrainingRuns, read_training_runs
from foretrace.models.flops import model_flops

TRUTH = Path(__file__).parent / "truth"
ERRORS = TRUTH / "errors.json"
HELD = ("korthikanti.csv", "h200_steps.jsonl", "h200_more_steps.jsonl")
SHARED = Path(os.environ.get("FORETRACE_SHARED") or Path(__file__).parents[2] / "shared")
TABLE = SHARED / "data" / "runs" / "training_steps_dev.csv"

WITH, WITHOUT, MODEL = "with silicon", "without silicon", "model"
"""Where prices come from: NVIDIA's tables too, all but these, or the fitted model alone."""

MOST_S = 90.0
"""So long may the development table take on two cores."""

QUANTITIES = ("forward", "backward", "optimizer", "step", "memory")

Cells = list[str]


def predicted(path: Path, source: str) -> Validation:
    """The rows of a file, predicted from one of the sources."""
    if source == MODEL:
        return validate(read_training_runs(path), prices="model")
    return validate(read_training_runs(path), silicon=source == WITH)


def main() -> None:
    """Predicts every table that is there, from every source, and prints what it finds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--markdown", action="store_true", help="tables as docs/accuracy.md has them")
    parser.add_argument("--update", action="store_true", help="record the errors of benchmarks/truth")
    options = parser.parse_args()
    show = markdown if options.markdown else aligned
    sources = [source for source in (WITH, WITHOUT, MODEL) if source != WITH or installed()]
    recorded = held(sources, show)
    if TABLE.exists():
        development(sources, show)
    else:
        print(f"\n{TABLE.name}: not there; nothing to compare with")
    if options.update:
        before = dict(json.loads(ERRORS.read_text(encoding="utf-8"))) if ERRORS.exists() else {}
        kept = {source: errors for source, errors in before.items() if source in (WITH, WITHOUT)}
        ERRORS.write_text(json.dumps(kept | recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"\n{ERRORS.name}: recorded {', '.join(recorded)}")


def held(sources: Sequence[str], show: Callable[[Cells, list[Cells]], None]) -> dict[str, dict[str, dict[str, float]]]:
    """Prints the errors of the files of `benchmarks/truth`; returns those that are recorded, by source, file and
    quantity."""
    found = {source: {name: predicted(TRUTH / name, source) for name in HELD} for source in sources}
    lines = []
    for source, tables in found.items():
        for name, table in tables.items():
            errors = errors_by_quantity(table.rows)
            lines.append([name, source, str(len(table.rows)), *(percent(errors.get(one)) for one in QUANTITIES)])
    print(f"\nMean absolute errors of {TRUTH.name}/\n")
    show(["file", "prices", "rows", *QUANTITIES], lines)
    lines = []
    for name in HELD[1:]:
        for row in found[sources[0]][name].rows:
            errors_of = {"step": row.step, **row.parts} | ({} if row.memory is None else {"memory": row.memory})
            lines.append([row.id, *(signed(errors_of[one].error) for one in QUANTITIES)])
    print(f"\nSteps on one H200, {sources[0]}\n")
    show(["row", *QUANTITIES], lines)
    return {
        source: {
            name: {quantity: round(error, 5) for quantity, error in errors_by_quantity(table.rows).items()}
            for name, table in found[source].items()
        }
        for source in sources
        if source != MODEL
    }


def development(sources: Sequence[str], show: Callable[[Cells, list[Cells]], None]) -> None:
    """Prints the errors of the development table by family."""
    runs = read_training_runs(TABLE)
    guessed = null_model(runs)
    found, taken = dict[str, Validation](), dict[str, float]()
    for source in sources:
        started = time.perf_counter()
        found[source] = predicted(TABLE, source)
        taken[source] = time.perf_counter() - started
    for grade in found[sources[0]].grades:
        print(f"\nGrade {grade} of {TABLE.name}, prices {sources[0]}\n")
        head = ["family", "rows", "mean error", "bias", "worst", "in band", "band", "memory (rows)", "null model"]
        show(head, graded(found[sources[0]], grade, runs, guessed))
    print("\nMean error by where prices come from\n")
    show(["grade, family", *sources], by_source(found, runs))
    for source, seconds in taken.items():
        said = f"{len(found[source].rows)} rows in {seconds:.0f} s on {os.cpu_count()} cores"
        print(f"\n{TABLE.name}, {source}: {said} (at most {MOST_S:.0f} s on two idle ones)")


def graded(found: Validation, grade: str, runs: TrainingRuns, guessed: dict[str, float]) -> list[Cells]:
    """A line per family and named part of one, all rows, and the mean over families."""
    rows = found.graded(grade)
    lines = [line(group, guessed, members) for group, members in parts_of(rows, runs)]
    lines.append(line(group_of("all rows", rows), guessed, rows))
    means = found.mean_of_families(grade)
    nulls = fmean(null_error([row for row in rows if row.family == one.name], guessed) for one in by_family(rows))
    return [*lines, ["mean of families", "", percent(means), "", "", "", "", "", percent(nulls)]]


def parts_of(rows: Sequence[RowResult], runs: TrainingRuns) -> list[tuple[Group, list[RowResult]]]:
    """Families with their rows, and the parts that have bounds of their own: 70B models of SimuMax, mixtures of
    experts."""
    configs = {run.config.id: run.config for run in runs.runs}
    named = {group.name: [row for row in rows if row.family == group.name] for group in by_family(rows)}
    for family, members in list(named.items()):
        if family.startswith("simumax"):
            named[f"{family}: Llama 70B"] = [
                row for row in members if re.search("llama.*70b", configs[row.id].model.lower())
            ]
    named["rows with experts"] = [row for row in rows if configs[row.id].experts]
    return [(group_of(name, members), members) for name, members in named.items() if members]


def line(group: Group, guessed: dict[str, float], rows: Sequence[RowResult]) -> Cells:
    """The cells of a group."""
    memory = "" if group.memory_mape is None else f"{percent(group.memory_mape)} ({group.memory_rows})"
    width = "" if group.half_width is None else f"± {percent(group.half_width)}"
    errors = [percent(group.mape), signed(group.bias), signed(group.worst)]
    return [
        group.name,
        str(group.rows),
        *errors,
        percent(group.coverage),
        width,
        memory,
        percent(null_error(rows, guessed)),
    ]


def by_source(found: dict[str, Validation], runs: TrainingRuns) -> list[Cells]:
    """The mean errors of families, a column per source of prices."""
    lines = []
    first = next(iter(found.values()))
    for grade in first.grades:
        columns = [{group.name: group.mape for group, _ in parts_of(one.graded(grade), runs)} for one in found.values()]
        names = list(columns[0])
        lines += [[f"{grade}, {name}", *(percent(column.get(name)) for column in columns)] for name in names]
        means = [percent(one.mean_of_families(grade)) for one in found.values()]
        lines.append([f"{grade}, mean of families", *means])
    return lines


def null_model(runs: TrainingRuns) -> dict[str, float]:
    """What a row would take at the median rate of its family, GPU and dtype, in seconds by the row's id: a guess that
    knows no parallelism, but has seen the measurements."""
    rates, work = dict[tuple[str, str, str], list[float]](), dict[str, tuple[tuple[str, str, str], float]]()
    for run in runs.runs:
        config = run.config
        if not config.gbs or not config.seq_len:
            continue
        flops = config.gbs * model_flops(job_of(config).model, config.seq_len) / config.gpus
        key = (config.family, config.gpu, config.dtype)
        work[config.id] = key, flops
        rates.setdefault(key, []).append(flops / run.measurement.step_s)
    return {name: flops / median(rates[key]) for name, (key, flops) in work.items()}


def null_error(rows: Iterable[RowResult], guessed: dict[str, float]) -> float:
    """The mean absolute error of the null model."""
    return fmean(abs(guessed[row.id] / row.step.measured - 1) for row in rows if row.id in guessed)


def percent(share: float | None) -> str:
    """A share in percent; nothing where there is none."""
    return "" if share is None else f"{100 * share:.1f} %"


def signed(share: float) -> str:
    """The same with its sign."""
    return f"{100 * share:+.1f} %".replace("-", "−")


def markdown(head: Cells, lines: list[Cells]) -> None:
    """Prints a table of Markdown."""
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for cells in lines:
        print(f"| {' | '.join(cells)} |")


def aligned(head: Cells, lines: list[Cells]) -> None:
    """Prints a table whose columns are aligned, the first to the left."""
    widths = [max(len(cells[i]) for cells in [head, *lines]) for i in range(len(head))]
    for cells in [head, *lines]:
        rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
        print(f"  {cells[0]:<{widths[0]}}  {'  '.join(rest)}".rstrip())


if __name__ == "__main__":
    main()
