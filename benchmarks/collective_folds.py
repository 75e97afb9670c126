"""Whether the network model's constants hold where they were not found: NVIDIA's tables, fitted and judged otherwise.

Printed by `python benchmarks/collectives.py --folds` (minutes). Three questions, for each of the four GPUs whose
constants are fitted: other group sizes (fitted on two of 2, 4 and 8 GPUs, judged on the third); other data (the rows of
one-byte elements, which nothing was fitted on, by the constants as shipped); another GPU (the constants that all
machines share searched again without it, starting half as large again, then its own four fitted on 2 and 8 GPUs and
judged on 4).
"""

from __future__ import annotations

from collections.abc import Sequence

from collective_data import SILICON, Measured, published, silicon
from fit_collectives import CONSTANTS, START, fitted, median_errors, search_shared, set_shared, shared_values
from foretrace.cost.network.nccl.machine import machine_of

GROUPS = ((2, 8), (2, 4), (4, 8))
"""Group sizes that are fitted; the third is judged."""


def print_folds() -> None:
    """A line for each fold: median errors from 1 MiB up and below, by GPU."""
    rows = {gpu: [row for row in silicon() if row.dataset == f"silicon {gpu}"] for gpu in SILICON}
    print(f"  {'':<40}" + "".join(f"{gpu:>16}" for gpu in SILICON))
    for sizes in GROUPS:
        judged = next(size for size in (2, 4, 8) if size not in sizes)
        words = f"fitted on {sizes[0]} and {sizes[1]}, judged on {judged}"
        _line(words, [_fitted_and_judged(own, sizes) for own in rows.values()])
    bytes_ = {gpu: [row for row in silicon("int8") if row.dataset == f"silicon {gpu}"] for gpu in SILICON}
    shipped = [median_errors(own, machine_of(own[0].cluster.gpu)) for own in bytes_.values()]
    _line("one-byte elements, as shipped", shipped)
    _line("shared constants without this GPU", [_without(gpu, own) for gpu, own in rows.items()])


def _fitted_and_judged(rows: Sequence[Measured], sizes: Sequence[int]) -> tuple[float, float]:
    machine = fitted([row for row in rows if row.gpus in sizes], START, CONSTANTS)
    return median_errors([row for row in rows if row.gpus not in sizes], machine)


def _without(left_out: str, rows: Sequence[Measured]) -> tuple[float, float]:
    """The errors of a GPU's groups of 4 where it had no part in what machines share."""
    kept = shared_values()
    try:
        others = [gpu for gpu in SILICON if gpu != left_out]
        search_shared([*silicon(), *published()], gpus=others, guess=[1.5 * value for value in kept])
        return _fitted_and_judged(rows, (2, 8))
    finally:
        set_shared(kept)


def _line(words: str, errors: Sequence[tuple[float, float]]) -> None:
    print(f"  {words:<40}" + "".join(f"{large:>9.1%}{small:>7.1%}" for large, small in errors), flush=True)
