"""Loads a workload as SimAI does: which rows it reads, how it classifies collectives, and what floats do to numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final, Literal

from foretrace.compat.simai.machine import f32_of_tick, tick, wrapped
from foretrace.inputs.aicb.format import Pass, Workload, WorkloadRow

Kind = Literal["NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"]
Group = Literal["TP", "EP", "DP", "DP_EP", "NONE"]
Home = Literal["TP", "DP"]
"""The group of a collective without suffix: TP in the forward and input-grad passes, DP in the weight-grad pass."""

_KINDS: Final[tuple[Kind, ...]] = ("ALLREDUCE", "ALLTOALL", "ALLGATHER", "REDUCESCATTER")
"""In the order in which SimAI tries them as prefixes, so that ALLREDUCEALLTOALL is an ALLREDUCE of no group."""
_SMALLEST_FORWARD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class LoadedPass:
    """One pass of a row: nanoseconds of computation, and a collective of `size_bytes` over a group."""

    compute_ns: int
    kind: Kind
    group: Group
    size_bytes: int
    written: str


@dataclass(frozen=True, slots=True)
class SimaiWork:
    """The three passes of a row. Rows that say the same share one."""

    forward: LoadedPass
    input_grad: LoadedPass
    weight_grad: LoadedPass


@dataclass(frozen=True, slots=True)
class LoadedRow:
    """A row in SimAI's memory; `line` is where it stands in the file, 0 for one that stands nowhere."""

    name: str
    work: SimaiWork
    line: int


def load_rows(workload: Workload, mended: Set[str] = frozenset()) -> tuple[LoadedRow, ...]:
    """The rows that SimAI reads; with B10 mended all rows of the file, whole, whatever it declares."""
    raises = workload.header.policy == "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
    rows: Iterable[WorkloadRow] = workload.rows
    if "B10" not in mended:
        rows = _rows_read(workload.rows, workload.declared_rows)
    works: dict[tuple[Pass, Pass, Pass], SimaiWork] = {}
    loaded: list[LoadedRow] = []
    for row in rows:
        key = row.forward, row.input_grad, row.weight_grad
        work = works.get(key)
        if work is None:
            work = works[key] = _load_work(*key, raises, mended)
        loaded.append(LoadedRow(row.name, work, row.line))
    return tuple(loaded)


def classify(written: str, home: Home) -> tuple[Kind, Group]:
    """Returns kind and group of a collective as written; NONE for an unknown name or an unknown suffix."""
    for kind in _KINDS:
        if written.startswith(kind):
            groups: dict[str, Group] = {"": home, "_EP": "EP", "_DP_EP": "DP_EP"}
            return kind, groups.get(written.removeprefix(kind), "NONE")
    return "NONE", "NONE"


def is_unknown(written: str, home: Home) -> bool:
    """Whether SimAI drops the collective without a word."""
    return written != "NONE" and classify(written, home)[1] == "NONE"


def meant_by(written: str, home: Home) -> str | None:
    """The known name that an unknown one must have been, or None where that is a guess."""
    base, mark, rest = written.upper().partition("_")
    suffix = {f"_{home}": "", "": "", "_EP": "_EP", "_DP_EP": "_DP_EP"}.get(mark + rest)
    near = difflib.get_close_matches(base, _KINDS, n=2, cutoff=0.75)
    return near[0] + suffix if suffix is not None and len(near) == 1 else None


def _rows_read(rows: Sequence[WorkloadRow], declared: int) -> Iterator[WorkloadRow]:
    """As many rows as the file declares, as SimAI reads them: fewer than there are, or more."""
    whole = next((i for i, row in enumerate(rows) if _has_fraction(row)), len(rows))
    read = min(declared, whole)
    yield from rows[:read]
    if declared > read:
        stream = _Stream(rows[whole:], rows[read - 1] if read else _NOTHING)
        for _ in range(declared - read):
            yield stream.row()


_NOTHING: Final = WorkloadRow("", 0, Pass(0, "", 0), Pass(0, "", 0), Pass(0, "", 0), 0)


def _has_fraction(row: WorkloadRow) -> bool:
    """Whether a number of the row is not written as a whole one."""
    parts = (row.forward, row.input_grad, row.weight_grad)
    numbers = [number for part in parts for number in (part.compute_ns, part.size_bytes)]
    return float in map(type, (*numbers, row.update_ns))


class _Stream:
    """The C++ stream that SimAI reads rows from, without ever asking whether it failed.

    Of a number with a fraction it takes the whole part and finds the rest where it expects the next word or number. A
    word where a number should be is 0 and ends all reading; from then on, and past the end of the file, names are empty
    and numbers keep what the row before left in the same variables.
    """

    def __init__(self, rows: Sequence[WorkloadRow], before: WorkloadRow) -> None:
        self._pieces = _pieces(rows)
        self._before = before
        self._failed = False

    def row(self) -> WorkloadRow:
        name = self._word()
        dependency = self._number(self._before.dependency)
        forward = self._pass(self._before.forward)
        input_grad = self._pass(self._before.input_grad)
        weight_grad = self._pass(self._before.weight_grad)
        update_ns = self._number(self._before.update_ns)
        self._before = WorkloadRow(name, dependency, forward, input_grad, weight_grad, update_ns)
        return self._before

    def _pass(self, before: Pass) -> Pass:
        compute_ns = self._number(before.compute_ns)
        collective = self._word()
        return Pass(compute_ns, collective, self._number(before.size_bytes))

    def _word(self) -> str:
        piece = None if self._failed else next(self._pieces, None)
        self._failed = piece is None
        return "" if piece is None else str(piece)

    def _number(self, before: float) -> int:
        if self._failed:
            return int(before)
        piece = next(self._pieces, None)
        self._failed = not isinstance(piece, int)
        return piece if isinstance(piece, int) else 0


def _pieces(rows: Sequence[WorkloadRow]) -> Iterator[str | int]:
    """Yields what a stream reads from the rows: words, whole numbers, and the fractions left of other numbers."""
    for row in rows:
        yield row.name
        yield row.dependency
        for part in (row.forward, row.input_grad, row.weight_grad):
            yield from _split(part.compute_ns)
            yield part.collective
            yield from _split(part.size_bytes)
        yield from _split(row.update_ns)


def _split(number: float) -> Iterator[str | int]:
    yield int(number)
    if isinstance(number, float):
        yield "." + f"{number}".partition(".")[2]


def _load_work(forward: Pass, input_grad: Pass, weight_grad: Pass, raises: bool, mended: Set[str]) -> SimaiWork:
    first = _load_pass(forward, "TP", mended)
    return SimaiWork(
        _raised(first) if raises else first,
        _load_pass(input_grad, "TP", mended),
        _load_pass(weight_grad, "DP", mended),
    )


def _load_pass(part: Pass, home: Home, mended: Set[str]) -> LoadedPass:
    name = part.collective
    if "B11" in mended and is_unknown(name, home):
        name = meant_by(name, home) or name
    kind, group = classify(name, home)
    return LoadedPass(_scaled(part.compute_ns), kind, group, _scaled(part.size_bytes), part.collective)


def _scaled(number: float) -> int:
    """A number of the file as it is after SimAI has multiplied it with its `float` scale of 1."""
    return tick(f32_of_tick(wrapped(int(number))))


def _raised(forward: LoadedPass) -> LoadedPass:
    """A forward pass with its size raised to 4096 bytes; the pass loop of HYBRID_TRANSFORMER_FWD_IN_BCKWD does that."""
    if not 0 < forward.size_bytes < _SMALLEST_FORWARD_BYTES:
        return forward
    return LoadedPass(forward.compute_ns, forward.kind, forward.group, _SMALLEST_FORWARD_BYTES, forward.written)
