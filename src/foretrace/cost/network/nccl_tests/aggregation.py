"""Makes tables of rows: monotone within each file, the median of files that repeat each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements, MeasurementTable
from foretrace.program.columns import Collective

ODD: Final = 1.25
"""A time that exceeds that of a larger message by this factor is a fault of the measurement, and warned of; less is
noise."""

Key = tuple[Collective, int, int]
Run = dict[int, float]
"""Seconds by size."""


def measurements_of(
    rows: Iterable[Measurement], diagnostics: Sequence[Diagnostic] = (), name: str = "measurements"
) -> Measurements:
    """The tables of these rows; what had to be put right is added to the diagnostics."""
    kept = tuple(rows)
    notes = list(diagnostics)
    runs: dict[Key, dict[str, Run]] = defaultdict(dict)
    files: dict[str, list[Measurement]] = defaultdict(list)
    fallen: list[_Fallen] = []
    for row in kept:
        files[row.file].append(row)
    for file, its in files.items():
        usable = [row for row in its if row.gpus > 1 and row.size_bytes > 0]
        if len(usable) < len(its):
            message = f"{len(its) - len(usable):,} rows of one GPU or of 0 bytes are not used"
            notes.append(Diagnostic("note", "rows-skipped", message, file))
        odd = _runs_of_file(file, usable, runs)
        fallen += [odd] if odd else []
    notes = [*_once(notes), *_fallen_notes(fallen)]
    tables = tuple(_table(key, by_file) for key, by_file in sorted(runs.items()))
    return Measurements(kept, tables, _spread(kept), tuple(notes), name)


@dataclass(frozen=True, slots=True)
class _Fallen:
    """Times of a file that are longer than those of larger messages: how many of how many, and the worst."""

    lowered: int
    rows: int
    worst: float
    size_bytes: int
    where: str


def _runs_of_file(file: str, rows: Sequence[Measurement], runs: dict[Key, dict[str, Run]]) -> _Fallen | None:
    """Adds what one file says about each kind of call, made monotone; returns what had to be put right."""
    times: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    lines: dict[tuple[Key, int], int] = {}
    for row in rows:
        key = (row.collective, row.gpus, row.nodes)
        times[key][row.size_bytes].append(row.time_s)
        lines.setdefault((key, row.size_bytes), row.line)
    lowered, worst, worst_line, worst_size = 0, 1.0, 0, 0
    for key, by_size in times.items():
        sizes = sorted(by_size)
        measured = np.array([_middle(by_size[size]) for size in sizes])
        rising = falling_removed(measured)
        runs[key][file] = dict(zip(sizes, rising.tolist(), strict=True))
        factor = measured / rising
        lowered += int((factor > 1).sum())
        most = int(factor.argmax())
        if factor[most] > worst:
            worst, worst_size, worst_line = float(factor[most]), sizes[most], lines[key, sizes[most]]
    return _Fallen(lowered, len(rows), worst, worst_size, f"{file}:{worst_line}") if lowered else None


def _fallen_notes(fallen: Sequence[_Fallen]) -> list[Diagnostic]:
    """Returns one note about all times that were repaired, whatever the number of files."""
    if not fallen:
        return []
    worst = max(fallen, key=lambda file: file.worst)
    lowered, rows = sum(file.lowered for file in fallen), sum(file.rows for file in fallen)
    files = f" in {len(fallen)} files" if len(fallen) > 1 else ""
    message = (
        f"{lowered:,} of {rows:,} times{files} are longer than those of larger messages, at most "
        f"{_times(worst.worst)} as long ({worst.size_bytes:,} bytes): the shorter is taken"
    )
    return [Diagnostic("warning" if worst.worst > ODD else "note", "repaired-input", message, worst.where)]


def _once(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The same message of several files, once."""
    first: dict[tuple[str, str, str], Diagnostic] = {}
    for diagnostic in diagnostics:
        first.setdefault((diagnostic.level, diagnostic.code, diagnostic.message), diagnostic)
    return list(first.values())


def _times(factor: float) -> str:
    return f"{factor:.3f} times" if factor < 1.1 else f"{factor:.3g} times"


def falling_removed(time_s: Floats) -> Floats:
    """Times by rising size, none longer than those of larger sizes: the running minimum from the large end."""
    return np.asarray(np.minimum.accumulate(time_s[::-1])[::-1])


def _table(key: Key, by_file: Mapping[str, Run]) -> MeasurementTable:
    sizes = sorted(set().union(*by_file.values()))
    if len(by_file) == 1:
        (run,) = by_file.values()
        times = np.array([run[size] for size in sizes])
    else:
        medians = [_middle([run[size] for run in by_file.values() if size in run]) for size in sizes]
        times = falling_removed(np.array(medians))
    return MeasurementTable(*key, np.array(sizes, dtype=np.float64), times, tuple(by_file))


def _spread(rows: Iterable[Measurement]) -> tuple[float, float]:
    """Between which factors of their median nine in ten of repeated times lie."""
    repeats: dict[tuple[Key, int], list[float]] = defaultdict(list)
    for row in rows:
        repeats[(row.collective, row.gpus, row.nodes), row.size_bytes].append(row.time_s)
    factors = [time / _middle(times) for times in repeats.values() if len(times) > 1 for time in times]
    if not factors:
        return (1.0, 1.0)
    factors.sort()
    last = len(factors) - 1
    return (factors[math.floor(0.05 * last)], factors[math.ceil(0.95 * last)])


def _middle(values: Sequence[float]) -> float:
    """The median; of few values, faster than numpy's."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
