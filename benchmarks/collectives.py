"""The network model against measured collectives: the scoreboard of its accuracy.

    python benchmarks/collectives.py [--groups] [--write] [--folds]

A row for each data set: median error from 1 MiB up and below it, on the group sizes that its constants were fitted on
and on those that were not looked at; then NCCL's own reckoning, and latency and bandwidth alone (time = launch + hops
× latency + bytes / rate) fitted on the same rows. `--groups` prints every group, `--write` records the errors of the
model in benchmarks/truth/collective_errors.json, to which a test holds it; `--folds` fits and judges NVIDIA's tables in
other ways instead (collective_folds.py). Where the measurements are and which of them count is said in
collective_data.py, what is fitted on which groups in fit_collectives.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collective_data import Measured, published, silicon
from collective_folds import print_folds
from fit_collectives import FITS, MIB, fit_of, searched
from foretrace.cost.network.nccl.bound import passes
from foretrace.cost.network.nccl.channels import graphs_of
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.cost.network.nccl.tuning import bandwidth_gb, latency_us, reckoned_s, ways
from foretrace.program.columns import Collective
from foretrace.program.program import Floats

RECORD = Path(__file__).parent / "truth" / "collective_errors.json"
PAIRWISE = (Collective.ALL_TO_ALL,)
Errors = tuple[Floats, Floats]
"""From 1 MiB up, and below."""


def main() -> None:
    """Prints the scoreboard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", action="store_true", help="Print every group.")
    parser.add_argument("--write", action="store_true", help="Record the errors.")
    parser.add_argument("--folds", action="store_true", help="Fit and judge NVIDIA's tables in other ways.")
    asked = parser.parse_args()
    if asked.folds:
        print_folds()
        return
    rows = [*silicon(), *published()]
    print(f"  {'data set':<24} {'groups':<22} {'rows':>5}  {'model':>14}  {'NCCL reckons':>14}  {'latency + rate':>14}")
    print(f"  {'':<24} {'':<22} {'':>5}" + f"  {'≥ 1 MiB   below':>14}" * 3)
    for dataset in dict.fromkeys(row.dataset for row in rows):
        _print(dataset, [row for row in rows if row.dataset == dataset], asked.groups)
    for word, kinds in (("NVIDIA's tables", silicon()), ("all-reduce of others", published())):
        large, small = judged(kinds)
        columns = f"{_percent(large)} {_percent(small)}"
        print(f"  {word:<24} {'all judged':<22} {len(large) + len(small):>5}  {columns}")
    if asked.write:
        text = json.dumps(record(rows), indent=1, sort_keys=True)
        RECORD.write_text(text + "\n", encoding="utf-8")


def record(rows: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Median errors of the model by data set, of what was fitted and of what was not."""
    medians = {}
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = [row for row in rows if row.dataset == dataset]
        machine = fit_of(dataset, tuple(own))
        of_dataset: dict[str, float] = {}
        for word, part in _parts(dataset, own):
            large, small = errors([row.modelled_s(machine) for row in part], part)
            of_dataset |= {f"{word} large": _median(large)} if len(large) else {}
            of_dataset |= {f"{word} small": _median(small)} if len(small) else {}
        medians[dataset] = of_dataset
    return medians


def _parts(dataset: str, rows: Sequence[Measured]) -> list[tuple[str, list[Measured]]]:
    """The rows whose group sizes were fitted, and the others."""
    sizes = FITS[dataset].gpus if dataset in FITS else ()
    parts = [
        (word, [row for row in rows if (row.gpus in sizes) == on]) for word, on in (("fitted", True), ("judged", False))
    ]
    return [(word, part) for word, part in parts if part]


def judged(rows: Sequence[Measured]) -> Errors:
    """Errors of all data sets, of groups that were not fitted."""
    large, small = [], []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = [row for row in rows if row.dataset == dataset]
        machine = fit_of(dataset, tuple(own))
        for what, part in _parts(dataset, own):
            if what == "judged":
                of_part = errors([row.modelled_s(machine) for row in part], part)
                large.append(of_part[0])
                small.append(of_part[1])
    return np.concatenate(large), np.concatenate(small)


def _print(dataset: str, rows: Sequence[Measured], groups: bool) -> None:
    machine = fit_of(dataset, tuple(rows))
    fitted = [row for word, part in _parts(dataset, rows) for row in part if word == "fitted"] or rows
    plain = _plain(fitted)
    for word, part in _parts(dataset, rows):
        sizes = ", ".join(str(size) for size in sorted({row.gpus for row in part}))
        _line(dataset, f"{word}: {sizes}", part, machine, plain)
        if groups:
            for row in part:
                _line("", f"{row.collective.name.lower()} {row.gpus}/{row.nodes}", [row], machine, plain)


def _line(name: str, what: str, rows: Sequence[Measured], machine: NcclMachine, plain: Sequence[float]) -> None:
    count = sum(len(row.size_bytes) for row in rows)
    model = errors([row.modelled_s(machine) for row in rows], rows)
    alone = errors([_plain_s(plain, row) for row in rows], rows)
    reckoned = [row for row in rows if row.collective not in PAIRWISE]
    nccl = errors([_reckoned_s(row) for row in reckoned], reckoned)
    columns = "  ".join(f"{_percent(large)} {_percent(small)}" for large, small in (model, nccl, alone))
    print(f"  {name:<24} {what:<22} {count:>5}  {columns}")


def errors(modelled: Sequence[Floats], rows: Sequence[Measured]) -> Errors:
    """Relative errors without sign, from 1 MiB up and below."""
    parts = []
    for large in (True, False):
        chosen = [(row.size_bytes >= MIB) == large for row in rows]
        of_rows = [abs(row_s / row.time_s - 1)[here] for row_s, row, here in zip(modelled, rows, chosen, strict=True)]
        parts.append(np.concatenate(of_rows) if of_rows else np.empty(0))
    return parts[0], parts[1]


def _reckoned_s(row: Measured) -> Floats:
    """What NCCL reckons its own choice takes."""
    _, layout = row.network(machine_of(row.cluster.gpu))
    group = NcclGroup(row.cluster, layout, machine_of(row.cluster.gpu), graphs_of(row.cluster.node, layout))
    times = [
        reckoned_s(
            group,
            row.collective,
            way,
            row.size_bytes,
            (latency_us(group, row.collective, way) * 1e-6, bandwidth_gb(group, row.collective, way) * 1e9),
        )
        for way in ways(group, row.collective)
    ]
    return np.asarray(np.min(times, axis=0))


def _plain_s(values: Sequence[float], row: Measured) -> Floats:
    """Launch, latency of a hop, and bytes over a rate."""
    launch, hop, rate = values
    hops = (2 if row.collective is Collective.ALL_REDUCE else 1) * (row.gpus - 1)
    return np.asarray(launch + hops * hop + passes(row.collective, row.gpus) * row.size_bytes / rate)


def _plain(rows: Sequence[Measured]) -> list[float]:
    def loss(values: Sequence[float]) -> float:
        return float(np.mean([np.mean(np.abs(np.log(_plain_s(values, row) / row.time_s))) for row in rows]))

    return searched(loss, [1e-5, 2e-6, 1e11])


def _median(values: Floats) -> float:
    return round(float(np.median(values)), 4)


def _percent(values: Floats) -> str:
    return f"{np.median(values):6.1%}" if len(values) else f"{'-':>6}"


if __name__ == "__main__":
    main()
