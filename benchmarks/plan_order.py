"""Whether predictions order the plans of one model on one machine as measurements do, and what following them costs.

    python benchmarks/plan_order.py [--markdown] [--update]

Predicts the plans of `benchmarks/truth/h200_plans.jsonl` and the development table of published runs, where
`$FORETRACE_SHARED` or `../shared` has it; without that, the runs of `benchmarks/truth/korthikanti.csv`, which are part
of it. `--update` writes the tables of docs/accuracy.md that `--markdown` prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
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
)
from foretrace.validate.training_runs import read_training_runs
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

Groups = dict[str, tuple[PlanGroup, ...]]
HEAD = ["groups", "plans", "pairs", "in order", "tau", "regret", "largest regret", "spread"]


def main() -> None:
    """Predicts the runs that are there and prints how well their plans are ordered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--markdown", action="store_true", help="print tables as docs/accuracy.md has them")
    parser.add_argument("--update", action="store_true", help="write the tables of docs/accuracy.md")
    options = parser.parse_args()
    published, ours = scoped_groups(PUBLISHED), scoped_groups(OURS)
    source = WITH if installed() else WITHOUT
    tables = [
        Table(f"Order of plans, {source}", ["plans of one model on one machine", *HEAD], by_scope(published, ours)),
        Table(f"Order of plans by source and kind, {source}", ["plans", *HEAD], by_kind(published, ours)),
        Table("Pairs out of order", ["faster", "slower", "measured", "predicted"], wrong_pairs(published, ours)),
    ]
    print("\n".join(table.markdown() if options.markdown else table.text() for table in tables))
    for line in aims(published):
        print(line)
    if options.update and TABLE.exists() and installed():
        write_page(tables, BEGIN)


def scoped_groups(path: Path) -> Groups:
    """Returns the groups of a file's plans by scope."""
    runs = read_training_runs(path)
    machine = Machine(prices=PriceSources(silicon=installed()))
    rows = validate(runs, machine, bands=False).rows
    configs = [run.config for run in runs.runs]
    return {name: plan_groups(configs, rows, free) for name, free in SCOPES.items()}


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


def kind_of(group: PlanGroup) -> str:
    """Returns `experts` or `dense`."""
    return "experts" if group.has_experts else "dense"


def cells(name: str, order: PlanOrder) -> Cells:
    """Returns the line of an order."""
    tau = "" if order.tau is None else f"{order.tau:.2f}"
    counts = [str(count) for count in (order.groups, order.plans, order.pairs)]
    regrets = [percent(order.mean_regret), percent(order.max_regret)]
    return [name, *counts, percent(order.right_share), tau, *regrets, percent(order.spread)]


def wrong_pairs(published: Groups, ours: Groups) -> list[Cells]:
    """Returns the pairs out of order: of published runs in the widest scope, of ours in the usual one."""
    wrong = [*order_of(published[WIDEST]).wrong, *order_of(ours[USUAL]).wrong]
    return [
        [", ".join(pair.faster.ids), ", ".join(pair.slower.ids), *map(signed, differences)]
        for pair in wrong
        for differences in [(pair.difference, pair.predicted_difference)]
    ]


def aims(published: Mapping[str, Sequence[PlanGroup]]) -> list[str]:
    """Returns what is aimed at next to what is measured, and the errors that a search assumes."""
    lines = []
    for name in (STRICT, USUAL):
        share = order_of(published[name]).right_share
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
