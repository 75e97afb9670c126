"""Finds which of SimAI-Analytical's defects touch a workload and a command line, and what each does to the total.

docs/simai.md describes what mending each defect means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from foretrace.compat.simai.flags import SimaiFlags
from foretrace.compat.simai.load import Home, LoadedPass, is_unknown, meant_by
from foretrace.compat.simai.tables import RatioTables
from foretrace.compat.simai.totals import Report, RowFigures, SimaiCommunication, layers_of_microbatch, report
from foretrace.inputs.aicb.format import Workload


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect that touches this file or these flags.

    `effect_us` is SimAI's total with only this defect mended minus its total: None where that total is NaN or missing,
    and where the defect cannot be mended without a guess. `mended_total_us` is the former total, where there is one.
    """

    id: str
    title: str
    touches: str
    effect_us: float | None
    mended_total_us: float | None = None


TITLES: Final = {
    "B1": "pipeline transfers are divided by the overlap ratio instead of a bandwidth",
    "B2": "a header without vpp or ga divides the bubble by zero",
    "B3": "vpp is read as chunks per stage where AICB writes layers per stage",
    "B4": "below 1 MiB a fixed latency, from 1 MiB on none",
    "B5": "small messages are free in groups that the latency table lacks",
    "B6": "an empty cell of a ratio table counts as full bandwidth",
    "B7": "data parallelism inside one server pays for NICs",
    "B8": "a share of NICs is rounded down; no bandwidth becomes an unsigned time",
    "B9": "a size above 16 GiB ends the report",
    "B10": "rows are read by the declared count",
    "B11": "an unknown collective is free",
    "B12": "GiB are divided by GB/s",
    "B13": "an input-grad collective is classed by the forward one",
    "B14": "schedule, overlap and contention",
}


def explain(workload: Workload, flags: SimaiFlags, tables: RatioTables) -> list[Defect]:
    """The defects B1 to B13 that touch this workload under these flags, in that order.

    Nothing where SimAI crashes before it computes.
    """
    case = _Case(workload, flags, tables)
    if case.base.sums is None and case.full.sums is None:
        return []
    defects: list[Defect] = []
    for name, finder in _FINDERS.items():
        touches = finder(case, name)
        if touches is not None:
            defects.append(case.defect(name, touches))
    return defects


def remainder(defects: Iterable[Defect], simai_total_us: float | None, our_total_us: float) -> Defect:
    """B14: what is left of the way from SimAI's total to ours after all other effects; no number without a total."""
    touches = "one rank of one stage is summed: no schedule, no imbalance, no contention; overlap is a constant"
    if simai_total_us is None:
        return Defect("B14", TITLES["B14"], touches, None)
    others = math.fsum(defect.effect_us for defect in defects if defect.effect_us is not None and defect.id != "B14")
    return Defect("B14", TITLES["B14"], touches, our_total_us - simai_total_us - others)


class _Case:
    """One workload under one command line, and SimAI's reports on it, each made once."""

    def __init__(self, workload: Workload, flags: SimaiFlags, tables: RatioTables) -> None:
        self.workload = workload
        self.flags = flags
        self._tables = tables
        self._reports: dict[frozenset[str], Report] = {}

    @cached_property
    def base(self) -> Report:
        """SimAI's own report."""
        return self.mended()

    @cached_property
    def full(self) -> Report:
        """The report with all rows: SimAI's own, or where it throws at a large size, the one with B9 mended."""
        return self.base if self.base.sums is not None else self.mended("B9")

    def mended(self, *names: str) -> Report:
        key = frozenset(names)
        if key not in self._reports:
            self._reports[key] = report(self.workload, self.flags, self._tables, key)
        return self._reports[key]

    def fully_mended(self, name: str) -> Report:
        """The report with all rows and one defect mended."""
        return self.mended(name) if self.full is self.base else self.mended("B9", name)

    def defect(self, name: str, touches: str) -> Defect:
        before, after = _total_us(self.base), _total_us(self.mended(name))
        guessed = name == "B11" and not any(meant for _, _, meant in _unknown(self))
        effect = None if before is None or after is None or guessed else after - before
        return Defect(name, TITLES[name], touches, effect, None if guessed else after)

    def where(self, figures: RowFigures) -> str:
        return self.workload.at(figures.row.line)


def _total_us(done: Report) -> float | None:
    return done.sums.total_us if done.sums is not None and math.isfinite(done.sums.total_us) else None


def _pp_transfers(case: _Case, _: str) -> str | None:
    header = case.workload.header
    paid = case.full.sums is not None and case.full.sums.pp_us > 0
    if not header.pp_comm_bytes or (header.pp == 1 and not paid):
        return None
    given = f"-pp_o {case.flags.pp_overlap:g}" if case.flags.pp_overlap_given else "-pp_o is 1 unless given"
    return f"{case.workload.at_header}: pp_comm {int(header.pp_comm_bytes):,} bytes between {header.pp} stages; {given}"


def _division_by_zero(case: _Case, _: str) -> str | None:
    header = case.workload.header
    zero = [key for key, value in (("vpp", header.vpp), ("ga", header.ga)) if not value]
    return f"{case.workload.at_header}: no {' and no '.join(zero)}" if zero else None


def _chunks(case: _Case, _: str) -> str | None:
    header = case.workload.header
    layers = layers_of_microbatch(case.workload)
    if header.pp == 1 or header.vpp is None or header.vpp < 2 or header.vpp != layers:
        return None
    return f"{case.workload.at_header}: vpp {header.vpp} is the number of layers of a microbatch"


def _changed_times(case: _Case, name: str) -> str | None:
    """Which collectives would take another time with the defect mended."""
    changed = [
        (figures, passed, before)
        for figures, mended in zip(case.full.rows, case.fully_mended(name).rows, strict=False)
        for (passed, before), (_, after) in zip(_parts(figures), _parts(mended), strict=True)
        if before.time_ns != after.time_ns
    ]
    if not changed:
        return None
    figures, passed, part = changed[0]
    count = "1 collective" if len(changed) == 1 else f"{len(changed):,} collectives, the first"
    return f"{count} {passed.written} of {part.size_bytes:,} bytes over {part.ranks} at {case.where(figures)}"


def _thrown(case: _Case, _: str) -> str | None:
    return case.base.failure


def _rows_read(case: _Case, _: str) -> str | None:
    rows, declared = case.workload.rows, case.workload.declared_rows
    count = case.workload.at_count
    if declared < len(rows):
        first = f"{rows[declared].name} at {case.workload.at(rows[declared].line)}"
        return f"{count}: {declared:,} rows declared of {len(rows):,}; all from {first} on are lost"
    if declared > len(rows):
        return f"{count}: {declared:,} rows declared of {len(rows):,}; each one too many repeats numbers of the last"
    # A row that the stream broke on stands nowhere in the file.
    broken = next(
        (row for figures, row in zip(case.full.rows, rows, strict=False) if figures.row.line != row.line), None
    )
    if broken is None:
        return None
    return f"{case.workload.at(broken.line)}: a number with a fraction ends SimAI's reading"


def _unknown(case: _Case) -> list[tuple[RowFigures, LoadedPass, str | None]]:
    """Collectives that SimAI drops, each name once, and what they must have been."""
    seen: dict[tuple[str, Home], tuple[RowFigures, LoadedPass, str | None]] = {}
    for row in case.full.rows:
        work = row.row.work
        passes: tuple[tuple[LoadedPass, Home], ...] = (
            (work.forward, "TP"),
            (work.input_grad, "TP"),
            (work.weight_grad, "DP"),
        )
        for passed, home in passes:
            name = passed.written
            if name and (name, home) not in seen and is_unknown(name, home):
                seen[name, home] = row, passed, meant_by(name, home)
    return list(seen.values())


def _unknown_collectives(case: _Case, _: str) -> str | None:
    names = (
        f'"{passed.written}" at {case.where(figures)} ({"must be " + meant if meant else "not known"})'
        for figures, passed, meant in _unknown(case)
    )
    return ", ".join(names) or None


def _classes(case: _Case, _: str) -> str | None:
    for row in case.full.rows:
        work = row.row.work
        if row.work.input_grad.time_ns and (work.forward.group == "EP") != (work.input_grad.group == "EP"):
            forward, backward = work.forward.written, work.input_grad.written
            return f"{case.where(row)}: input grad {backward} is counted with forward {forward}"
    return None


def _parts(figures: RowFigures) -> Iterator[tuple[LoadedPass, SimaiCommunication]]:
    yield figures.row.work.forward, figures.work.forward
    yield figures.row.work.weight_grad, figures.work.weight_grad
    yield figures.row.work.input_grad, figures.work.input_grad


_FINDERS: Final[dict[str, Callable[[_Case, str], str | None]]] = {
    "B1": _pp_transfers,
    "B2": _division_by_zero,
    "B3": _chunks,
    "B4": _changed_times,
    "B5": _changed_times,
    "B6": _changed_times,
    "B7": _changed_times,
    "B8": _changed_times,
    "B9": _thrown,
    "B10": _rows_read,
    "B11": _unknown_collectives,
    "B12": _changed_times,
    "B13": _classes,
}
