"""Fits what profiling costs the host (`foretrace.inputs.profiler_trace.profiling_cost`) and says how far it is off.

    python benchmarks/fit_profiling.py [--json]
    python benchmarks/fit_profiling.py --add FOLDER --session 5

reads `truth/profiling_cost.csv`, a row for each trace; `--add` first appends the rows of a folder that
`gpu/profiled.py` or `gpu/more_profiled.py` wrote. Fitted are traces of steps that wait for their host: a share of the
host's time by what was recorded, and how much of a host's pace is undone: the least sum of absolute errors of
logarithms, each workload of a session weighing the same. *Left out*: each session foretold by a fit on the others.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from foretrace.inputs.profiler_trace import profiling_cost as overhead
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.records import Floats
from foretrace.inputs.profiler_trace.rank.rank_step import read_step

TRUTH: Final = Path(__file__).parent / "truth" / "profiling_cost.csv"
HOST_BOUND: Final = 0.8
"""Of the unprofiled step, the device's work at most: above, it is not the host's pace that is measured."""
NEAR: Final = 0.08
SHARES: Final = np.arange(0.30, 0.701, 0.002)
EXPONENTS: Final = np.arange(0.0, 1.201, 0.02)
SHIPPED: Final = {
    "plain": overhead.PROFILED_SHARE,
    "shapes": overhead.SHAPES_SHARE,
    "stack": overhead.STACK_SHARE,
}


@dataclass(frozen=True, slots=True)
class Traced:
    """A trace and what its step takes unprofiled; means of a step."""

    session: int
    workload: str
    trace: str
    setting: str
    steps: int
    unprofiled_ms: float
    device_ms: float
    """Its kernels and the gaps that the device needs between them."""
    host_ms: float
    """Of the host, waits apart, as recorded."""
    long_ms: float
    """Of it, stretches with so few records that their bound is less than half: that is taken off, not a share."""
    long_records: float
    records: float
    launches: float
    launch_p10_us: float
    launch_p50_us: float

    @property
    def kind(self) -> str:
        """Settings that cost the same are one."""
        return self.setting if self.setting in SHIPPED else "shapes"

    @property
    def host_bound(self) -> bool:
        """The step waits for its host."""
        return self.device_ms < HOST_BOUND * self.unprofiled_ms


class Fit(NamedTuple):
    """What is fitted."""

    shares: dict[str, float]
    exponent: float
    usual_us: float


def read(path: Path = TRUTH) -> list[Traced]:
    """The rows of a CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        kinds = {field.name: {"int": int, "float": float}.get(str(field.type), str) for field in fields(Traced)}
        return [Traced(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def write(rows: Sequence[Traced], path: Path = TRUTH) -> None:
    """Rows as a CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Traced))
        writer.writerows(
            [f"{value:.6g}" if isinstance(value, float) else value for value in astuple(row)] for row in rows
        )


def traced(path: Path, session: int, workload: str, setting: str, unprofiled_ms: float) -> Traced:
    """The row of a trace."""
    trace = read_trace(path)
    rank = read_step(trace)
    host, counts, device = rank.host, rank.host.counts, rank.device
    records = (counts.ops + counts.calls + counts.annotations + counts.python).astype(np.float64).mean(axis=0)
    work_s = np.median(np.maximum(host.work_s - counts.overhead_s, 0.0), axis=0)
    # A call that waits is one record of its own, as in foretrace.inputs.profiler_trace.host_modes.
    every_s, every = np.append(work_s, host.own_s), np.append(records, np.ones_like(host.own_s))
    long = 0.5 * every_s > overhead.MAX_S * every
    launches_s = overhead.launches_s(trace)
    return Traced(
        session,
        workload,
        path.name.split(".")[1],
        setting,
        len(rank.steady.steps),
        unprofiled_ms,
        1e3 * float((device.busy_s + overhead.unprofiled_gap_s(device.gap_s)).sum()),
        1e3 * float(every_s.sum()),
        1e3 * float(every_s[long].sum()),
        float(every[long].sum()),
        float(every.sum()),
        len(launches_s) / max(len(rank.steps), 1),
        *(1e6 * float(launch_s) for launch_s in np.percentile(launches_s, (10, 50))),
    )


def folder_rows(folder: Path, session: int) -> list[Traced]:
    """Those of a folder with `measured.json`; steps that the profile changed otherwise are no measure of its cost."""
    rows = []
    workloads = json.loads((folder / "measured.json").read_text(encoding="utf-8"))["workloads"]
    for name, measured in workloads.items():
        if "case" not in measured:
            continue
        unprofiled_ms = round(median(measured["unprofiled"][0]["ms"] + measured["unprofiled"][1]["ms"]), 4)
        for tag, how in measured["profiled"].items():
            if how.get("style") != "synchronized":
                path = folder / f"{name}.{tag}.json.gz"
                rows.append(traced(path, session, name, how.get("setting", tag), unprofiled_ms))
    return rows


def _host_ms(row: Traced, shares: Floats) -> Floats:
    """Host times with shares taken off, at most so much for each record."""
    return np.asarray(row.host_ms - shares * (row.host_ms - row.long_ms) - 1e3 * overhead.MAX_S * row.long_records)


def _errors(row: Traced, shares: Floats, exponent: float, usual_us: float) -> Floats:
    """Logarithms of foretold over measured."""
    pace = overhead.pace(1e-6 * row.launch_p10_us, 1e-6 * usual_us, exponent)
    return np.asarray(np.log(_host_ms(row, shares) * pace / row.unprofiled_ms))


def weights(rows: Sequence[Traced]) -> Floats:
    """The same for each workload of a session."""
    count = Counter((row.session, row.workload) for row in rows)
    row_weights = np.array([1 / count[row.session, row.workload] for row in rows])
    return np.asarray(row_weights / row_weights.sum())


def fit(rows: Sequence[Traced], exponents: Floats = EXPONENTS) -> Fit:
    """Least absolute errors over a grid; the usual launch is the geometric mean."""
    weight = weights(rows)
    usual_us = float(np.exp(weight @ np.log([row.launch_p10_us for row in rows])))
    best: tuple[float, Fit] = (np.inf, Fit({}, 0.0, usual_us))
    for exponent in exponents.tolist():
        apart = np.abs([_errors(row, SHARES, exponent, usual_us) for row in rows]) * weight[:, None]
        of_kind = {kind: apart[[row.kind == kind for row in rows]].sum(axis=0) for kind in SHIPPED}
        total = float(sum(errors.min() for errors in of_kind.values()))
        if total < best[0]:
            shares = {kind: round(float(SHARES[errors.argmin()]), 4) for kind, errors in of_kind.items()}
            best = (total, Fit(shares, round(exponent, 4), round(usual_us * 1e6, 3) / 1e6))
    return best[1]


def foretold(rows: Sequence[Traced], how: Fit) -> Floats:
    """Errors as shares."""
    logs = [_errors(row, np.array([how.shares[row.kind]]), how.exponent, how.usual_us)[0] for row in rows]
    return np.asarray(np.exp(logs) - 1)


def left_out(rows: Sequence[Traced], exponents: Floats = EXPONENTS) -> Floats:
    """Errors of each session by the fit on the others."""
    errors = np.zeros(len(rows))
    for session in {row.session for row in rows}:
        mine = np.array([row.session == session for row in rows])
        others = fit([row for row, out in zip(rows, mine, strict=True) if not out], exponents)
        errors[mine] = foretold([row for row, out in zip(rows, mine, strict=True) if out], others)
    return errors


def quantile(values: Floats, weight: Floats, part: float) -> float:
    """The value below which a part of the weight lies."""
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), part)])


def summary(rows: Sequence[Traced], errors: Floats) -> dict[str, dict[str, float]]:
    """By session, by setting and of all: mean, mean and median absolute error, how many are near, number of traces."""
    weight = weights(rows)
    groups = {f"session {n}": [row.session == n for row in rows] for n in sorted({row.session for row in rows})}
    groups |= {kind: [row.kind == kind for row in rows] for kind in SHIPPED} | {"all": [True] * len(rows)}
    by_group = {}
    for name, at in groups.items():
        share, error = weight[at] / weight[at].sum(), errors[at]
        apart = np.abs(error)
        by_group[name] = {"mean": float(share @ error), "absolute": float(share @ apart)}
        by_group[name] |= {"median": quantile(apart, share, 0.5), "near": float(share @ (apart <= NEAR))}
        by_group[name]["traces"] = len(error)
    return by_group


def results(rows: Sequence[Traced]) -> dict[str, Any]:
    """Fits and errors of the rows bound by the host."""
    bound = [row for row in rows if row.host_bound]
    shipped = Fit(SHIPPED, overhead.PACE_EXPONENT, 1e6 * overhead.USUAL_LAUNCH_S["H200"])
    none = np.zeros(1)
    weight, out = weights(bound), left_out(bound)
    return {
        "traces": len(bound),
        "fit": fit(bound)._asdict(),
        "shipped": shipped._asdict(),
        "launch_spread": float(np.sqrt(weight @ np.log([row.launch_p10_us / shipped.usual_us for row in bound]) ** 2)),
        "nine_in_ten": quantile(np.abs(np.log1p(out)), weight, 0.9),
        "errors": {
            "as shipped": summary(bound, foretold(bound, shipped)),
            "left out": summary(bound, out),
            "left out, exponent kept": summary(bound, left_out(bound, none + overhead.PACE_EXPONENT)),
            "left out, as recorded": summary(bound, left_out(bound, none)),
            "left out, all undone": summary(bound, left_out(bound, none + 1)),
        },
    }


def show(figures: dict[str, Any]) -> None:
    """Fits, then a line for each group of traces."""
    for what in ("fit", "shipped"):
        shares = ", ".join(f"{kind} {share:.3f}" for kind, share in figures[what]["shares"].items())
        tail = f"exponent {figures[what]['exponent']:.2f} on a usual launch of {figures[what]['usual_us']:.2f} us"
        print(f"{what + ':':<9} shares {shares}; {tail}")
    print(f"launches differ by {figures['launch_spread']:.2f} (standard deviation of logarithms); ", end="")
    print(f"nine in ten left out are within {figures['nine_in_ten']:.2f} (logarithm)\n")
    print("mean error, mean and median absolute error, within 8 %; workloads of a session weigh the same")
    print(f"{'':<10} traces" + "".join(f"{k:>29}" for k in figures["errors"]))
    for name, first in next(iter(figures["errors"].values())).items():
        every = [groups[name] for groups in figures["errors"].values()]
        told = "".join(
            f"{group['mean']:>+9.1%}{group['absolute']:>7.1%}{group['median']:>7.1%}{group['near']:>6.0%}"
            for group in every
        )
        print(f"{name:<10}{first['traces']:>7}{told}")


def main() -> None:
    """Prints the fit, or all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--add", type=Path, metavar="FOLDER", help="first append what was measured into a folder")
    parser.add_argument("--session", type=int, help="the number of the session added")
    given = parser.parse_args()
    rows = read()
    if given.add is not None:
        if given.session is None:
            parser.error("--add needs --session")
        rows = [row for row in rows if row.session != given.session] + folder_rows(given.add, given.session)
        write(rows)
    figures = results(rows)
    if given.json:
        figures["rows"] = [asdict(row) for row in rows]
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


if __name__ == "__main__":
    main()
