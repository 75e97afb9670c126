"""How near predictions come to measured training steps.

    python benchmarks/accuracy.py [--markdown] [--update]

Predicts the steps of `benchmarks/truth` and, where `$FORETRACE_SHARED` or `../shared` has it, the development table of
published runs: with NVIDIA's tables (the extra `[silicon]`), without, and by the fitted model alone. `--update` records
the errors of `benchmarks/truth`, to which `tests/accuracy/test_truth.py` holds later predictions, and, where everything
was there to predict, writes the tables of docs/accuracy.md, which `--markdown` prints.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from foretrace import Machine, PriceSources
from foretrace.cost.silicon import installed
from foretrace.models.flops import model_flops
from foretrace.validate.results import ResultGroup, RowResult, Validation, by_family, errors_by_quantity, group_of
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import TrainingRuns, read_training_runs
from foretrace.validate.validate import validate

TRUTH = Path(__file__).parent / "truth"
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- written by benchmarks/accuracy.py --update -->\n", "<!-- until here -->\n"
ERRORS = TRUTH / "errors.json"
HELD = ("korthikanti.csv", "h200_steps.jsonl", "h200_more_steps.jsonl", "h200_memory.jsonl")
SHARED = Path(os.environ.get("FORETRACE_SHARED") or Path(__file__).parents[2] / "shared")
TABLE = SHARED / "data" / "runs" / "training_steps_dev.csv"

WITH, WITHOUT, MODEL = "with silicon", "without silicon", "model"
"""Where prices come from: NVIDIA's tables too, all but these, or the fitted model alone."""

MAX_S = 90.0
"""So long may the development table take on two cores."""

BOUNDS = {
    "korthikanti": 0.04,
    "simumax-b200: Llama 70B": 0.05,
    "llm-foundry": 0.06,
    "torchtitan": 0.07,
    "megatron-bridge": 0.10,
    "rows with experts": 0.10,
}
"""What the mean error of grade A is meant to stay within, by family or part of one."""
MEAN_BOUND, PART_BOUND = 0.07, 0.05
"""The same of the mean over families, and of each part of the steps on one H200."""
MEMORY_BOUND, MEMORY_BOUNDS = 0.08, {"simumax-b200": 0.033}
ALLOCATED_BOUND = 0.015
"""The same of memory; `ALLOCATED_BOUND` is that of what steps on one H200 allocate."""
COVERAGE_BOUNDS = (0.80, 0.95)
WIDTH_BOUND = 2.0
"""Half of the band, as a multiple of the mean error."""

AIMS_HEAD = ["of grade A", "at most", "found", "missed by"]
MEMORY = ("memory", "reserved", "used")
QUANTITIES = ("forward", "backward", "optimizer", "step", *MEMORY)

Cells = list[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print: what it shows, its head and its lines."""

    title: str
    head: Cells
    lines: list[Cells]

    def markdown(self) -> str:
        """The table as Markdown, columns but the first to the right."""
        rows = [self.head, ["---", *["--:"] * (len(self.head) - 1)], *self.lines]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(cells)} |" for cells in rows), ""])

    def text(self) -> str:
        """The table with its columns aligned, the first to the left."""
        rows = [self.head, *self.lines]
        first, *widths = (max(len(cells[i]) for cells in rows) for i in range(len(self.head)))
        lines = []
        for cells in rows:
            rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths, strict=True))
            lines.append(f"  {cells[0]:<{first}}  {'  '.join(rest)}".rstrip())
        return "\n".join([self.title, "", *lines, ""])


def predicted(path: Path, source: str) -> Validation:
    """The rows of a file, predicted from one of the sources."""
    if source == MODEL:
        return validate(read_training_runs(path), Machine(prices="model"))
    return validate(read_training_runs(path), Machine(prices=PriceSources(silicon=source == WITH)))


def main() -> None:
    """Predicts every table that is there, from every source, and prints what it finds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--markdown", action="store_true", help="print tables as docs/accuracy.md has them")
    parser.add_argument("--update", action="store_true", help="record the errors, and the tables of docs/accuracy.md")
    options = parser.parse_args()
    sources = [source for source in (WITH, WITHOUT, MODEL) if source != WITH or installed()]
    validations = {source: {name: predicted(TRUTH / name, source) for name in HELD} for source in sources}
    errors = {source: _errors(validations[source]) for source in sources}
    tables = [by_quantity(errors), by_row(validations[sources[0]], sources[0])]
    if TABLE.exists():
        tables = [*development(sources, errors[sources[0]]), *tables]
    else:
        print(f"{TABLE.name}: not there; nothing to compare with\n")
    print("\n".join(table.markdown() if options.markdown else table.text() for table in tables))
    if options.update:
        record({source: errors[source] for source in sources if source != MODEL})
    if options.update and TABLE.exists() and installed():
        write_page(tables)


def record(errors: dict[str, dict[str, dict[str, float]]]) -> None:
    """Records errors by source, file and quantity; those of a source that is not here stay."""
    before = json.loads(ERRORS.read_text(encoding="utf-8")) if ERRORS.exists() else {}
    rounded = {
        source: {name: {quantity: round(error, 5) for quantity, error in of.items()} for name, of in files.items()}
        for source, files in errors.items()
    }
    ERRORS.write_text(json.dumps(before | rounded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{ERRORS.name}: recorded {', '.join(errors)}")


def write_page(tables: Sequence[Table], begin: str = BEGIN) -> None:
    """Puts the tables where docs/accuracy.md has them: after the line `begin`."""
    written = "\n".join(table.markdown() for table in tables)
    write_between(PAGE, begin, f"\n{written}\n")


def write_between(path: Path, begin: str, text: str) -> None:
    """Puts a text into a page, between the line `begin` and the next line that ends what a script writes."""
    page = path.read_text(encoding="utf-8")
    before = page.index(begin) + len(begin)
    after = page.index(END, before)
    path.write_text(f"{page[:before]}{text}{page[after:]}", encoding="utf-8")
    print(f"{path.name}: written")


def _errors(validations: dict[str, Validation]) -> dict[str, dict[str, float]]:
    return {name: errors_by_quantity(validation.rows) for name, validation in validations.items()}


def by_quantity(errors: dict[str, dict[str, dict[str, float]]]) -> Table:
    """The mean errors of the files of `benchmarks/truth`."""
    lines = [
        [f"{name}, {source}", *(percent(of.get(quantity)) for quantity in QUANTITIES)]
        for source, files in errors.items()
        for name, of in files.items()
    ]
    return Table("benchmarks/truth: mean error of each quantity", ["file, prices", *QUANTITIES], lines)


def by_row(validations: dict[str, Validation], source: str) -> Table:
    """The signed errors of every step on one H200."""
    lines = []
    for name in HELD[1:]:
        for row in validations[name].rows:
            compared = {"step": row.step, **row.parts, "memory": row.memory, **row.more_memory}
            errors = (compared.get(quantity) for quantity in QUANTITIES)
            cells = (signed(None if error is None else error.error) for error in errors)
            lines.append([f"{Path(name).stem}: {row.id}", *cells])
    return Table(f"Steps on one H200, {source}", ["row", *QUANTITIES], lines)


def development(sources: Sequence[str], recorded: dict[str, dict[str, float]]) -> list[Table]:
    """The errors of the development table by family, and what they and those of `benchmarks/truth` are meant to be."""
    runs = read_training_runs(TABLE)
    guessed = null_model(runs)
    validations = dict[str, Validation]()
    for source in sources:
        started = time.perf_counter()
        validations[source] = predicted(TABLE, source)
        took = (
            f"{len(validations[source].rows)} rows in {time.perf_counter() - started:.0f} s on {os.cpu_count()} cores"
        )
        print(f"{TABLE.name}, {source}: {took} (at most {MAX_S:.0f} s on two idle ones)\n", flush=True)
    head = ["family", "rows", "mean error", "bias", "worst", "in band", "band", "memory (rows)", "null model"]
    best = validations[sources[0]]
    return [
        *(
            Table(f"Published runs of grade {grade}, {sources[0]}", head, graded(best, grade, runs, guessed))
            for grade in best.grades
        ),
        Table("Mean error by where prices come from", ["grade, family", *sources], by_source(validations, runs)),
        Table(f"What is aimed at, {sources[0]}", AIMS_HEAD, aims(best, runs, recorded)),
    ]


def graded(validation: Validation, grade: str, runs: TrainingRuns, guessed: dict[str, float]) -> list[Cells]:
    """A line per family and named part of one, all rows, and the mean over families."""
    rows = validation.graded(grade)
    lines = [line(group, guessed, members) for group, members in parts_of(rows, runs)]
    lines.append(line(group_of("all rows", rows), guessed, rows))
    means = validation.mean_of_families(grade)
    nulls = fmean(null_error([row for row in rows if row.family == group.name], guessed) for group in by_family(rows))
    return [*lines, ["mean of families", "", percent(means), "", "", "", "", "", percent(nulls)]]


def parts_of(rows: Sequence[RowResult], runs: TrainingRuns) -> list[tuple[ResultGroup, list[RowResult]]]:
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


def line(group: ResultGroup, guessed: dict[str, float], rows: Sequence[RowResult]) -> Cells:
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


def by_source(validations: dict[str, Validation], runs: TrainingRuns) -> list[Cells]:
    """The mean errors of families, a column per source of prices."""
    lines = []
    first = next(iter(validations.values()))
    for grade in first.grades:
        columns = [
            {group.name: group.mape for group, _ in parts_of(validation.graded(grade), runs)}
            for validation in validations.values()
        ]
        names = list(columns[0])
        lines += [[f"{grade}, {name}", *(percent(column.get(name)) for column in columns)] for name in names]
        means = [percent(validation.mean_of_families(grade)) for validation in validations.values()]
        lines.append([f"{grade}, mean of families", *means])
    return lines


def aims(validation: Validation, runs: TrainingRuns, recorded: dict[str, dict[str, float]]) -> list[Cells]:
    """What is aimed at beside what is found."""
    rows = validation.graded("A")
    groups = {group.name: group for group, _ in parts_of(rows, runs)}
    whole, mean = group_of("all", rows), validation.mean_of_families("A")
    lines = [aim(f"{name}, step", bound, groups[name].mape) for name, bound in BOUNDS.items() if name in groups]
    lines.append(aim("mean of families, step", MEAN_BOUND, mean))
    for name, group in groups.items():
        if group.memory_mape is not None and ":" not in name:
            lines.append(aim(f"{name}, memory", MEMORY_BOUNDS.get(name, MEMORY_BOUND), group.memory_mape))
    for name in HELD[1:]:
        # The usual gap between allocated and reserved memory is from these files: only what is allocated is a check.
        bounds = {quantity: PART_BOUND for quantity in QUANTITIES if quantity not in MEMORY}
        bounds["memory"] = ALLOCATED_BOUND
        errors = {quantity: recorded[name].get(quantity) for quantity in bounds}
        lines += [
            aim(f"{name}, {quantity}", bounds[quantity], error)
            for quantity, error in errors.items()
            if error is not None
        ]
    low, high = COVERAGE_BOUNDS
    if whole.coverage is not None and whole.half_width is not None:
        off = max(low - whole.coverage, whole.coverage - high, 0.0)
        between = f"{percent(low)} to {percent(high)}"
        lines.append(["rows in their band", between, percent(whole.coverage), percent(off) if off else ""])
        lines.append(aim("half of the band", WIDTH_BOUND * whole.mape, whole.half_width))
    return lines


def aim(name: str, bound: float, error: float | None) -> Cells:
    """A bound, and by how much it is missed."""
    missed = "" if error is None or error <= bound else f"{100 * (error - bound):.1f} points"
    return [name, percent(bound), percent(error), missed]


def null_model(runs: TrainingRuns) -> dict[str, float]:
    """The error of each row, by its id, if all of one family, GPU and dtype ran at their median TFLOP/s: as published,
    else by the model's FLOPs. This guess knows no parallelism, but has seen the measurements."""
    with TABLE.open(encoding="utf-8") as stream:
        published = {row["id"]: float(row["tflops_per_gpu"] or 0) for row in csv.DictReader(stream)}
    rates = dict[tuple[str, str, str], dict[str, float]]()
    for run in runs.runs:
        config = run.config
        flops = (config.gbs or 0) * model_flops(job_of(config).model, config.seq_len or 0) / config.gpus
        group_rates = rates.setdefault((config.family, config.gpu, config.dtype), {})
        assert run.measurement.step_s is not None
        group_rates[config.id] = published[config.id] or flops / run.measurement.step_s
    return {
        name: rate / median(group_rates.values()) - 1
        for group_rates in rates.values()
        for name, rate in group_rates.items()
    }


def null_error(rows: Iterable[RowResult], guessed: dict[str, float]) -> float:
    """The mean absolute error of the null model."""
    return fmean(abs(guessed[row.id]) for row in rows)


def percent(share: float | None) -> str:
    """A share in percent; nothing where there is none."""
    return "" if share is None else f"{100 * share:.1f} %"


def signed(share: float | None) -> str:
    """The same with its sign."""
    return "" if share is None else f"{100 * share:+.1f} %".replace("-", "−")


if __name__ == "__main__":
    main()
