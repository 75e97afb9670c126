"""Whether predictions order the plans of one model on one machine as measurements do, and what following them costs.

    python benchmarks/plan_order.py [--markdown] [--update]

Predicts the plans of `benchmarks/truth/h200_plans.jsonl` and the development table of published runs, where
`$FORETRACE_SHARED` or `../shared` has it; without that, the runs of `benchmarks/truth/korthikanti.csv`, which are part
of it. `--update` writes the tables of docs/accuracy.md that `--markdown` prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy import TABLE, TRUTH, WITH, WITHOUT, Cells, Table, percent, signed, write_page
from foretrace import Machine, PriceSources
from foretrace.cost.silicon import installed
from foretrace.validate.plan_order import (
    MIN_DIFFERENCE,
    PLAN_ERRORS,
    Freedom,
    PlanGroup,
    PlanOrder,
    order_by,
    order_of,
    plan_groups,
    row_groups,
)
from foretrace.validate.results import RowResult
from foretrace.validate.training_runs import RunConfig, read_training_runs
from foretrace.validate.validate import validate

BEGIN = "<!-- written by benchmarks/plan_order.py --update -->\n"
OURS = TRUTH / "h200_plans.jsonl"
PUBLISHED = TABLE if TABLE.exists() else TRUTH / "korthikanti.csv"

RIGHT_BOUND = 0.90
"""The least share of pairs whose order is meant to be predicted."""

SCOPES: dict[str, tuple[Freedom, ...]] = {
    "one global batch": (),
    "any global batch": ("batch",),
    "and compiled or not": ("batch", "compilation"),
    "and any precision": ("batch", "compilation", "precision"),
    "and any release": ("batch", "compilation", "precision", "release"),
}
"""What plans of a group may differ in besides their fields, from the strictest on."""
STRICT, USUAL, WIDEST = "one global batch", "any global batch", "and any release"

ROWS, APART = "rows of one model and GPU", "without pairs of releases"
"""All rows of one model and kind of GPU, and the same without pairs that differ only in the release of the software."""

Groups = dict[str, tuple[PlanGroup, ...]]
HEAD = ["groups", "plans", "pairs", "in order", "tau", "regret", "largest regret", "spread"]


def main() -> None:
    """Predicts the runs that are there and prints how well their plans are ordered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--markdown", action="store_true", help="print tables as docs/accuracy.md has them")
    parser.add_argument("--update", action="store_true", help="write the tables of docs/accuracy.md")
    options = parser.parse_args()
    runs, our_runs = Predicted.of(PUBLISHED), Predicted.of(OURS)
    published, ours = runs.scoped_groups(), our_runs.scoped_groups()
    source = WITH if installed() else WITHOUT
    scopes = [*by_scope(published, ours), *rows_by_grade(runs)]
    wrong = wrong_pairs(published[WIDEST], runs.row_groups("A", releases=False), ours[USUAL])
    tables = [
        Table(f"Order of plans, {source}", ["plans of one model on one machine", *HEAD], scopes),
        Table(f"Order of plans by source and kind, {source}", ["plans", *HEAD], by_kind(published, ours)),
        Table(f"Order of rows by source and kind, {source}", [ROWS, *HEAD], rows_by_kind(runs)),
        Table("Pairs out of order", ["faster", "slower", "measured", "predicted"], wrong),
    ]
    print("\n".join(table.markdown() if options.markdown else table.text() for table in tables))
    for line in aims(published, runs):
        print(line)
    if options.update and TABLE.exists() and installed():
        write_page(tables, BEGIN)


@dataclass(frozen=True, slots=True)
class Predicted:
    """The runs of a file with their predictions."""

    configs: list[RunConfig]
    rows: tuple[RowResult, ...]

    @classmethod
    def of(cls, path: Path) -> Predicted:
        """Predicts the runs of a file."""
        runs = read_training_runs(path)
        machine = Machine(prices=PriceSources(silicon=installed()))
        return cls([run.config for run in runs.runs], validate(runs, machine, bands=False).rows)

    @property
    def grades(self) -> list[str]:
        """The best grade, and all of them together: `A`, `AB`."""
        grades = sorted({row.grade for row in self.rows})
        return ["".join(grades[:count]) for count in sorted({1, len(grades)})]

    def scoped_groups(self) -> Groups:
        """Returns the groups of plans by scope."""
        return {name: plan_groups(self.configs, self.rows, free) for name, free in SCOPES.items()}

    def row_groups(self, grades: str, family: str | None = None, *, releases: bool = True) -> tuple[PlanGroup, ...]:
        """Returns the groups of rows of some grades, and of one family or all of them."""
        rows = [row for row in self.rows if row.grade in grades and family in (None, row.family)]
        return row_groups(self.configs, rows, releases=releases)

    def families(self, grades: str) -> list[str]:
        """Returns the families with rows of some grades, sorted."""
        return sorted({row.family for row in self.rows if row.grade in grades})


def by_scope(published: Groups, ours: Groups) -> list[Cells]:
    """Returns a line per scope of the published runs, and two of our own, which have one precision and release."""
    lines = [cells(f"published, {name}", order_of(groups)) for name, groups in published.items()]
    return [*lines, *(cells(f"one H200, {name}", order_of(ours[name])) for name in (STRICT, USUAL))]


def by_kind(published: Groups, ours: Groups) -> list[Cells]:
    """Returns a line per source, and of models with and without experts."""
    lines = []
    for name in (STRICT, USUAL, WIDEST):
        families = order_by(published[name], lambda group: group.family)
        kinds = order_by(published[name], lambda group: kind_of(group))
        lines += [cells(f"{name}: {key}", order) for key, order in {**families, **kinds}.items()]
    models = order_by(ours[STRICT], lambda group: group.model)
    return [*lines, *(cells(f"one H200, {STRICT}: {key}", order) for key, order in models.items())]


def rows_by_grade(runs: Predicted) -> list[Cells]:
    """Returns two lines per set of grades: all rows of one model and GPU, and without pairs of releases."""
    return [
        cells(f"{ROWS}, {row_scope(grades, releases)}", order_of(runs.row_groups(grades, releases=releases)))
        for grades in runs.grades
        for releases in (True, False)
    ]


def rows_by_kind(runs: Predicted) -> list[Cells]:
    """Returns the lines of `rows_by_grade` by source, where both rows of a pair are of it, and by kind of model."""
    lines = []
    for grades in runs.grades:
        for releases in (True, False):
            orders = {
                family: order_of(runs.row_groups(grades, family, releases=releases)) for family in runs.families(grades)
            }
            orders |= order_by(runs.row_groups(grades, releases=releases), kind_of)
            lines += [cells(f"{row_scope(grades, releases)}: {key}", order) for key, order in orders.items()]
    return lines


def row_scope(grades: str, releases: bool) -> str:
    """Returns what a set of grades is called, and whether pairs of releases count."""
    name = f"{'grade' if len(grades) == 1 else 'grades'} {' and '.join(grades)}"
    return name if releases else f"{name}, {APART}"


def kind_of(group: PlanGroup) -> str:
    """Returns `experts` or `dense`."""
    return "experts" if group.has_experts else "dense"


def cells(name: str, order: PlanOrder) -> Cells:
    """Returns the line of an order."""
    tau = "" if order.tau is None else f"{order.tau:.2f}"
    counts = [str(count) for count in (order.groups, order.plans, order.pairs)]
    regrets = [percent(order.mean_regret), percent(order.max_regret)]
    return [name, *counts, percent(order.right_share), tau, *regrets, percent(order.spread)]


def wrong_pairs(*groups: Sequence[PlanGroup]) -> list[Cells]:
    """Returns the pairs out of order, each once."""
    wrong = {(pair.faster.ids, pair.slower.ids): pair for members in groups for pair in order_of(members).wrong}
    return [
        [", ".join(pair.faster.ids), ", ".join(pair.slower.ids), *map(signed, differences)]
        for pair in wrong.values()
        for differences in [(pair.difference, pair.predicted_difference)]
    ]


def aims(published: Groups, runs: Predicted) -> list[str]:
    """Returns what is aimed at next to what is measured, and the errors that a search assumes."""
    lines = []
    orders = {name: order_of(published[name]) for name in (STRICT, USUAL)}
    orders |= {f"{ROWS}, {row_scope(grades, True)}": order_of(runs.row_groups(grades)) for grades in runs.grades}
    for name, order in orders.items():
        share = order.right_share
        verdict = "" if share is not None and share >= RIGHT_BOUND else ": missed"
        lines.append(
            f"{name}: {percent(share)} of the pairs that differ by {percent(MIN_DIFFERENCE)} or more are in order, at "
            f"least {percent(RIGHT_BOUND)} is aimed at{verdict}"
        )
    for kind, order in order_by(published[WIDEST], kind_of).items():
        lines.append(f"{kind}: spread {percent(order.spread)}; a search assumes {percent(PLAN_ERRORS[kind])}")
    return lines


if __name__ == "__main__":
    main()
