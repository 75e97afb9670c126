"""The rows of a workload file: columns of a line to records, and what is odd about them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from foretrace.basics.errors import InputError, quoted
from foretrace.basics.numbers import MAX_WHOLE, NumberError, any_number, whole_number
from foretrace.inputs.aicb.format.records import (
    COLLECTIVES,
    CUSTOMIZED,
    POLICIES,
    SUFFIXES,
    Pass,
    WorkloadRow,
    base_name,
)

COLUMNS: Final = (
    "name",
    "dependency",
    "forward time",
    "forward collective",
    "forward size",
    "input-grad time",
    "input-grad collective",
    "input-grad size",
    "weight-grad time",
    "weight-grad collective",
    "weight-grad size",
    "update time",
    "policy",
)
"""What the columns are; only HYBRID_CUSTOMIZED files have the last."""

KNOWN: Final = frozenset(
    (
        "NONE",
        *(f"{collective}{suffix}" for collective in COLLECTIVES if collective != "NONE" for suffix in ("", *SUFFIXES)),
    )
)
"""Every collective with every suffix it may have."""

COMBINED: Final = "ALLREDUCEALLTOALL"

Oddity = tuple[str, str]
"""What is odd about a row: its kind, and the word it is about or nothing."""

_Tail = tuple[int, Pass, Pass, Pass, int | float, str | None, tuple[Oddity, ...]]
_Collective = tuple[str, bool | None, tuple[Oddity, ...]]
"""As written, whether it sends anything (None where it is not known), and what is odd about the word."""

# Files repeat a few lines many times; beyond this many different ones, remembering them costs more than it saves.
_REMEMBERED = 1 << 16
_FLOAT = struct.Struct("f")
_EXACT = 1 << 24
_BLANKS = b" \t\v\f\r"
_USUAL_UPDATE_NS = 100


@dataclass(slots=True)
class Sighting:
    """In how many rows an oddity was seen, and the first of them."""

    count: int
    line: int
    name: str


class RowReader:
    """Reads rows of one file and counts what is odd about them, in `seen`."""

    def __init__(self, path: str, policy: str) -> None:
        self.path = path
        self.columns = len(COLUMNS) if policy == CUSTOMIZED else len(COLUMNS) - 1
        self.seen: dict[Oddity, Sighting] = {}
        self._last = 0
        self._tails: dict[bytes, _Tail] = {}
        self._collectives: dict[bytes, _Collective] = {}
        self._passes: dict[tuple[bytes, bytes, bytes], tuple[Pass, tuple[Oddity, ...]]] = {}

    def read(self, lines: Sequence[bytes], first: int) -> tuple[WorkloadRow, ...]:
        """The rows in lines numbered from `first`; the last line is where a file that is cut short ends."""
        self._last = first + len(lines) - 1
        rows, tails = [], self._tails
        for at, line in enumerate(lines, first):
            halves = line.split(None, 1)
            if len(halves) < 2:
                if halves:
                    self._wrong_columns(halves, at)
                self.see(("blank", ""), at, "")
                continue
            head, rest = halves
            tail = tails.get(rest) or self._new_tail(head, rest, at)
            dependency, forward, input_grad, weight_grad, update_ns, policy, oddities = tail
            name = head.decode()
            rows.append(WorkloadRow(name, dependency, forward, input_grad, weight_grad, update_ns, policy, at))
            if oddities:
                for oddity in oddities:
                    self.see(oddity, at, name)
            if name[-1] in "0123456789" and base_name(name) != name:
                self.see(("numbered", ""), at, name)
        return tuple(rows)

    def see(self, oddity: Oddity, line: int, name: str) -> None:
        """Counts one row."""
        sighting = self.seen.get(oddity)
        if sighting is None:
            self.seen[oddity] = Sighting(1, line, name)
        else:
            sighting.count += 1

    def _new_tail(self, head: bytes, rest: bytes, line: int) -> _Tail:
        words = [head, *rest.split()]
        if len(words) != self.columns:
            self._wrong_columns(words, line)
        dependency = -1 if words[1] == b"-1" else self._dependency(words, line)
        forward, first = self._pass(words, 2, line)
        input_grad, second = self._pass(words, 5, line)
        weight_grad, third = self._pass(words, 8, line)
        update_ns = self._number(words, 11, line)
        policy = words[12].decode() if self.columns > 12 else None
        oddities = (*first, *second, *third)
        if dependency != -1:
            oddities += (("dependency", ""),)
        if update_ns != _USUAL_UPDATE_NS:
            oddities += (("update", ""),)
        if policy is not None and policy not in POLICIES:
            oddities += (("policy", policy),)
        if rest.removesuffix(b"\r")[-1] in _BLANKS:
            oddities += (("trailing", ""),)
        if len(oddities) > 1:
            oddities = tuple(dict.fromkeys(oddities))
        tail = (dependency, forward, input_grad, weight_grad, update_ns, policy, oddities)
        if len(self._tails) < _REMEMBERED:
            self._tails[rest] = tail
        return tail

    def _pass(self, words: list[bytes], column: int, line: int) -> tuple[Pass, tuple[Oddity, ...]]:
        key = (words[column], words[column + 1], words[column + 2])
        known = self._passes.get(key)
        if known is not None:
            return known
        time_ns = self._number(words, column, line)
        size_bytes = self._number(words, column + 2, line)
        collective, sends, oddities = self._collectives.get(key[1]) or self._new_collective(key[1])
        if sends is not None and sends != (size_bytes > 0):
            oddities += (("empty", "") if sends else ("stray", ""),)
        if (time_ns > _EXACT and _rounded(time_ns)) or (size_bytes > _EXACT and _rounded(size_bytes)):
            oddities += (("rounded", ""),)
        result = Pass(time_ns, collective, size_bytes), oddities
        if len(self._passes) < _REMEMBERED:
            self._passes[key] = result
        return result

    def _new_collective(self, word: bytes) -> _Collective:
        text = word.decode()
        upper = text.upper()
        oddities: tuple[Oddity, ...] = ()
        if upper not in KNOWN:
            oddities += (("unknown", text),)
        elif upper != text:
            oddities += (("case", text),)
        if upper in KNOWN and upper.startswith(COMBINED):
            oddities += (("combined", ""),)
        result = (text, upper != "NONE" if upper in KNOWN else None, oddities)
        if len(self._collectives) < _REMEMBERED:
            self._collectives[word] = result
        return result

    def _number(self, words: list[bytes], column: int, line: int) -> int | float:
        word = words[column]
        if word.isdigit() and len(word) < 19:
            return int(word)
        try:
            return any_number(word)
        except NumberError as error:
            self._wrong_field(words, column, line, error)

    def _dependency(self, words: list[bytes], line: int) -> int:
        try:
            return whole_number(words[1], least=-MAX_WHOLE)
        except NumberError as error:
            self._wrong_field(words, 1, line, error)

    def _wrong_field(self, words: list[bytes], column: int, line: int, error: NumberError) -> NoReturn:
        what = COLUMNS[column]
        unit = "a number of bytes" if what.endswith("size") else "a number of nanoseconds"
        expected = "-1, as in every file AICB writes" if column == 1 else f"{unit}, 0 or more"
        raise InputError(
            error.code,
            f"column {column + 1}, {what}: {quoted(words[column])} {error}",
            where=f"{self.path}:{line}",
            hint=f"expected {expected}",
        ) from None

    def _wrong_columns(self, words: list[bytes], line: int) -> NoReturn:
        columns = "1 column" if len(words) == 1 else f"{len(words):,} columns"
        short = line == self._last and len(words) < self.columns
        only = f"; only {CUSTOMIZED} files have a 13th" if len(words) == 13 else ""
        extra = " and the row's policy" if self.columns > 12 else ""
        code, message = (
            ("truncated-file", f"the file is cut short here: its last row has {columns} of {self.columns}")
            if short
            else ("bad-syntax", f"this row has {columns} instead of {self.columns}{only}")
        )
        raise InputError(
            code,
            message,
            where=f"{self.path}:{line}",
            hint="a row is name, dependency, then time, collective and size of forward, input grad and weight grad, "
            f"then update time{extra}",
        )


def _rounded(value: int | float) -> bool:
    """Whether float32 changes a number."""
    single: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return single != value
