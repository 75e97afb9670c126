"""The price of overlap against measurements: kernels of an H200 under a copy, and A100 kernels of others.

Constants are fitted on every second kernel (by the order of their names) and judged on the rest, which have other
shapes; `--fit` fits them again. `python benchmarks/overlap.py [--shared DIR]`: the folder with `data/overlap_slowdown`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.cost.overlap import FITTED, Constants, ResourceUse, slowdowns
from foretrace.hardware.presets import cluster
from foretrace.program.kernels import Kernel, parse_kernels

Floats = NDArray[np.float64]

MEASURED = Path(__file__).parent / "gpu" / "overlap_h200.csv"
HELD = (8, 16, 24, 32, 64)
A100_CHANNELS = 24
"""SMs that a collective held in the measurements of others, which do not say: as NCCL does on DGX A100."""
NCCL_BYTES_PER_S = 3 * 2.3e11
"""What it took of the memory's rate: thrice the bus bandwidth of a DGX A100."""


@dataclass(frozen=True)
class Rows:
    """Kernels, and how many times as long each took under each load: [kernels, loads]."""

    kernels: list[Kernel]
    alone_s: Floats
    uses: list[ResourceUse]
    paces: list[str]
    slower: Floats

    def part(self, which: slice) -> Rows:
        """Some of the kernels."""
        return replace(self, kernels=self.kernels[which], alone_s=self.alone_s[which], slower=self.slower[which])

    def predicted(self, constants: Constants = FITTED) -> Floats:
        """The same by the model."""
        return slowdowns(self.kernels, self.alone_s, self.uses, cluster("h200-dgx").gpu, constants)


def read(path: Path = MEASURED) -> Rows:
    """Blocks that held whole SMs; those that left room are told apart in `docs/overlap.md`."""
    with path.open(newline="") as file:
        first, *rows = csv.DictReader(file)
    loads = [name.removeprefix("under_s ") for name in first if name.startswith("under_s ") and "room" not in name]
    loads = [name for name in loads if int(name.partition("x")[0]) in HELD]
    # A copy reads and writes each byte.
    rates = [2 * float(first.get(f"copy_bytes_per_s {name}") or 0.0) for name in loads]
    rows.sort(key=lambda row: row["kernel"])
    alone = np.array([float(row["alone_s"]) for row in rows])
    under = np.array([[float(row[f"under_s {name}"]) for name in loads] for row in rows])
    return Rows(
        [kernel for row in rows for _, kernel in parse_kernels(row["kernel"])],
        alone,
        [ResourceUse(int(name.partition("x")[0]), rate) for name, rate in zip(loads, rates, strict=True)],
        [name.partition("x")[2] for name in loads],
        under / alone[:, None],
    )


def fit(rows: Rows) -> Constants:
    """The constants of least mean error, by one of them at a time in ever smaller steps."""
    best, least, step = FITTED, error(rows.predicted(FITTED), rows.slower), 0.2
    while step > 0.004:
        for tried in list(_neighbours(best, step)):
            tried_error = error(rows.predicted(tried), rows.slower)
            if tried_error < least - 1e-6:
                best, least = tried, tried_error
                break
        else:
            step /= 2
    return best


def _neighbours(constants: Constants, step: float) -> Iterator[Constants]:
    for field in fields(constants):
        for factor in (1 + step, 1 / (1 + step)):
            tried = replace(constants, **{field.name: getattr(constants, field.name) * factor})
            if tried.memory_share <= 1 and tried.spare >= 1 and tried.spare_compute >= 1:
                yield tried


def error(predicted: Floats, measured: Floats) -> float:
    """The mean of relative errors."""
    return float(np.abs(predicted / measured - 1).mean())


def best_constant(rows: Rows) -> float:
    """The one factor for everything that errs least on these very rows."""
    return min(np.arange(1.0, 2.5, 0.005), key=lambda factor: error(np.full(rows.slower.shape, factor), rows.slower))


def report(title: str, rows: Rows, constants: Constants) -> None:
    """Prints how far the model and the best constant are off."""
    print(f"{title}: {len(rows.kernels)} kernels under {len(rows.uses)} loads")
    factor = best_constant(rows)
    predicted = rows.predicted(constants)
    _say("model", predicted, rows)
    _say(f"x {factor:.3f}", np.full(rows.slower.shape, factor), rows, "  (the best constant on these rows)")
    off = np.abs(predicted / rows.slower - 1)
    kinds = [type(kernel).__name__ for kernel in rows.kernels]
    for kind in sorted(set(kinds)):
        mine = [at for at, kernel_kind in enumerate(kinds) if kernel_kind == kind]
        by_held = [
            f"{held}: {off[np.ix_(mine, [i for i, use in enumerate(rows.uses) if use.sms == held])].mean():.1%}"
            for held in HELD
        ]
        print(f"    {kind:12} {len(mine):3}  mean error by SMs held  {'  '.join(by_held)}")


def _say(title: str, predicted: Floats, rows: Rows, remark: str = "") -> None:
    off, alone = np.abs(predicted / rows.slower - 1), rows.alone_s[:, None]
    whole = float((predicted * alone).sum() / (rows.slower * alone).sum() - 1)
    print(
        f"  {title:8}  mean {off.mean():6.1%}  median {np.median(off):6.1%}  90 % within {np.quantile(off, 0.9):6.1%}"
        f"  total time {whole:+.1%}{remark}"
    )


def report_others(path: Path) -> None:
    """Kernels of GPT-2 and others on A100s, known by their throughputs, not their shapes: SMs and memory alone."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["overlap_ratio"]) > 0]
    alone, under, part, dram = (
        np.array([float(row[name]) for row in rows])
        for name in ("ground_truth", "duration", "overlap_ratio", "DRAM throughput")
    )
    gpu = cluster("a100-dgx").gpu
    fewer = gpu.compute_units / (gpu.compute_units - A100_CHANNELS)
    share = dram / 100
    sharp = FITTED.sharpness
    nccl_share = NCCL_BYTES_PER_S / gpu.memory_bytes_per_s

    def longer(sms: float, memory: Floats) -> Floats:
        return np.asarray(((sms / FITTED.spare_compute) ** sharp + memory**sharp) ** (1 / sharp))

    slower = np.maximum(longer(fewer, share + nccl_share * (share > 0)) / longer(1.0, share), 1.0)
    predicted = alone / (1 - part * (1 - 1 / slower))
    mean = under.sum() / alone.sum()
    print(f"A100 kernels under DDP's all-reduce (others): {len(rows)} overlapped, in all {mean:.3f} times as long")
    for title, total_s in (("model", predicted), ("alone", alone), (f"x {mean:.3f}", mean * alone)):
        off = np.abs(total_s / under - 1)
        print(
            f"  {title:8}  median {np.median(off):6.1%}  within 10 % {np.mean(off <= 0.1):6.1%}"
            f"  total time {total_s.sum() / under.sum() - 1:+.1%}"
        )


def main() -> None:
    """Prints all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants again, and use those")
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    given = parser.parse_args()
    rows = read()
    constants = fit(rows.part(slice(0, None, 2))) if given.fit else FITTED
    if given.fit:
        print(constants)
    report("fitted on", rows.part(slice(0, None, 2)), constants)
    report("judged on", rows.part(slice(1, None, 2)), constants)
    others = given.shared / "data" / "overlap_slowdown" / "merged_features.csv"
    if others.is_file():
        report_others(others)


if __name__ == "__main__":
    main()
