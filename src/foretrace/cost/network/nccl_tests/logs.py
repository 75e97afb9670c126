"""Parses logs that nccl-tests (or rccl-tests) prints, alone or under mpirun.

The columns between size and time, and the ratio of the two bandwidths, tell most collectives apart (nccl-tests,
PERFORMANCE.md); where the log or its name states the collective, that counts. Times are those of out-of-place calls.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_tests.names import KNOWN, Named, collective_called, parse_name
from foretrace.cost.network.nccl_tests.records import Measurement, measurement, positive, whole
from foretrace.program.columns import Collective

_TAG = re.compile(r"\[[0-9]+,[0-9]+\]<std(?:out|err)>:")
"""The tags of mpirun --tag-output: mostly before whole lines, but a tag may fall within a word."""

_LABEL = re.compile(r"^[0-9]+: ")
"""The label that srun --label puts before each line."""

_RANK = re.compile(r"^#\s+Rank\s+([0-9]+)\b.*?\bon\s+(\S+)\s+device\b")
_PROGRAM = re.compile(r"\b([a-z0-9_]+_perf)\b")
_ROW = re.compile(r"^[0-9]+(?:\s|$)")
_NEEDED: Final = ("size", "time", "algbw", "busbw")


@dataclass(slots=True)
class _Test:
    """One run of one test within a log."""

    columns: dict[str, int]
    width: int
    """Words that a row has at least."""
    program: str | None
    ranks: dict[int, str]
    """The host of each."""
    rows: list[tuple[int, list[str]]] = field(default_factory=list)


def is_log(text: str) -> bool:
    """Returns whether a text holds the head of a table of nccl-tests."""
    return "algbw" in text and "busbw" in text and re.search(r"#\s+size\s+count", text) is not None


def parse_log(text: str, name: str) -> list[Measurement]:
    """Every row of a log that messages call `name`."""
    named = parse_name(name)
    return [row for test in _tests(text, name) for row in _measurements(test, named, name)]


def _tests(text: str, name: str) -> list[_Test]:
    tests: list[_Test] = []
    program: str | None = None
    ranks: dict[int, str] = {}
    for number, raw in enumerate(_TAG.sub("", text).splitlines(), start=1):
        line = _LABEL.sub("", raw).strip()
        if match := _RANK.match(line):
            if int(match[1]) == 0:
                ranks = {}
            ranks[int(match[1])] = match[2]
        elif line.startswith("#") and line.lstrip("# ").startswith("size "):
            tests.append(_test(line, program, ranks, f"{name}:{number}"))
        elif tests and _ROW.match(line):
            words = line.split()
            if len(words) < tests[-1].width:
                message = f"the row has {len(words)} words, expected at least {tests[-1].width}"
                raise InputError("truncated-file", message, where=f"{name}:{number}", hint="the log looks cut short")
            tests[-1].rows.append((number, words))
        elif "Avg bus bandwidth" in line:
            program = None
        elif "concluded" not in line and (match := _PROGRAM.search(line)) and collective_called(match[1]) is not None:
            program = match[1]
    return tests


def _test(line: str, program: str | None, ranks: dict[int, str], where: str) -> _Test:
    words = line.lstrip("# ").split()
    columns: dict[str, int] = {}
    for index, word in enumerate(words):
        columns.setdefault(word, index)  # the first of each is out of place, the second in place
    if absent := [column for column in _NEEDED if column not in columns]:
        raise InputError("missing-field", f"the table has no column {', '.join(absent)}", where=where)
    return _Test(columns, columns["busbw"] + 1, program, ranks)


def _measurements(test: _Test, named: Named, name: str) -> list[Measurement]:
    if not test.rows:
        return []
    first = f"{name}:{test.rows[0][0]}"
    if test.ranks:
        gpus, nodes = max(test.ranks) + 1, len(set(test.ranks.values()))
    elif named.gpus is not None and named.nodes is not None:
        gpus, nodes = named.gpus, named.nodes
    else:
        hint = 'keep the lines "Rank … on HOST", or name the file like all_reduce_16gpu_2node.log'
        raise InputError(
            "missing-field", "the log does not say among how many GPUs this was measured", where=first, hint=hint
        )
    collective = _collective(test, named, gpus, first)
    rows = []
    for line, words in test.rows:
        where = f"{name}:{line}"
        size = whole(words[test.columns["size"]], "size", where)
        time_us = positive(words[test.columns["time"]], "time", where, zero=size == 0)
        rows.append(measurement(collective, (gpus, nodes), size, time_us, (name, line)))
    return rows


def _collective(test: _Test, named: Named, gpus: int, where: str) -> Collective:
    if test.program is not None and (collective := collective_called(test.program)) is not None:
        return collective
    if named.collective is not None:
        return named.collective
    candidates = _candidates(test, gpus)
    ratio = _bus_ratio(test, where)
    off = {collective: abs(math.log(ratio / factor)) if ratio > 0 else 0.0 for collective, factor in candidates.items()}
    best = [collective for collective, error in off.items() if error <= min(off.values()) + 1e-9]
    if len(best) > 1:
        hint = f"put the name of the test into the name of the file; known: {KNOWN}"
        raise InputError("missing-field", "the log does not say which collective this is", where=where, hint=hint)
    return best[0]


def _candidates(test: _Test, gpus: int) -> dict[Collective, float]:
    """Returns the collectives that the columns allow, with the bus bandwidth relative to the algorithm's (nccl-tests,
    PERFORMANCE.md)."""
    part = max(gpus - 1, 1) / gpus
    reduces = _value(test, "redop") not in (None, "none", "N/A")
    root = _value(test, "root")
    rooted = root is not None and root.isdigit()
    if reduces:
        whole_ring = {Collective.ALL_REDUCE: 2 * part, Collective.REDUCE_SCATTER: part}
        return {Collective.REDUCE: 1.0} if rooted else whole_ring
    if rooted:
        return {Collective.BROADCAST: 1.0, Collective.GATHER: part, Collective.SCATTER: part}
    return {Collective.TRANSFER: 1.0, Collective.ALL_GATHER: part, Collective.ALL_TO_ALL: part}


def _value(test: _Test, column: str) -> str | None:
    return test.rows[0][1][test.columns[column]] if column in test.columns else None


def _bus_ratio(test: _Test, where: str) -> float:
    """Bus over algorithm bandwidth, where both are printed with the most digits; 0 where none is above 0."""
    at, bus_at = test.columns["algbw"], test.columns["busbw"]
    algorithm, words = max((positive(words[at], "algbw", where, zero=True), words) for _, words in test.rows)
    bus = positive(words[bus_at], "busbw", where, zero=True)
    return bus / algorithm if algorithm > 0 else 0.0
