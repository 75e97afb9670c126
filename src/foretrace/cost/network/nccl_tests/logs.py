"""Parses logs that nccl-tests (or rccl-tests) prints, alone or under mpirun.

The columns between size and time, and the ratio of the two bandwidths, tell most collectives apart (nccl-tests,
PERFORMANCE.md); where the log or its name states the collective, that counts. Times are those of out-of-place calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, shown
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.numbers import real_field, whole_field
from foretrace.cost.network.nccl_tests.consistency import Bandwidths, Consistency, ratio_of
from foretrace.cost.network.nccl_tests.names import KNOWN, Named, collective_called, parse_name
from foretrace.cost.network.nccl_tests.records import MAX_BYTES, Measurement, bus_ratio, measurement, read_time_us
from foretrace.hardware.device_names import chip_of
from foretrace.program.columns import Collective

_TAG = re.compile(r"\[[0-9]+,[0-9]+\]<std(?:out|err)>:")
"""The tags of mpirun --tag-output: mostly before whole lines, but a tag may fall within a word."""

_LABEL = re.compile(r"^[0-9]+: ")
"""The label that srun --label puts before each line."""

_PROGRAM = re.compile(r"\b([a-z0-9_]{1,40}_perf)\b")
_ROW = re.compile(r"^[0-9][0-9,]*(?:\s|$)")
_FAILED: Final = re.compile(r"# Out of bounds values : [0-9]+ FAILED")
_PER_PROCESS = re.compile(r"\bnThread ([0-9]{1,4}) nGpus ([0-9]{1,4})\b")
_WRONG: Final = ("#wrong", "error")
_MAX_LINE: Final = 4096
"""Characters of a line; those of nccl-tests have at most 200, and a command line may stand in a log too."""
_NEEDED: Final = ("size", "time", "algbw", "busbw")


@dataclass(slots=True)
class _Test:
    """One run of one test within a log."""

    columns: dict[str, int]
    width: int
    """Words that a row has at least."""
    program: str | None
    ranks: dict[int, tuple[str, str]]
    """The host and the GPU of each."""
    per_process: int
    """GPUs of a process, which divide the ranks; 1 where the log does not say."""
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    unread: int = 0
    """Lines among the rows with as many words that are not rows."""


def is_log(text: str) -> bool:
    """Returns whether a text holds the head of a table of nccl-tests."""
    return "algbw" in text and "busbw" in text and re.search(r"#\s+size\s+count", text) is not None


def parse_log(text: str, name: str) -> tuple[list[Measurement], list[Diagnostic]]:
    """Returns every row of a log that messages call `name`, and what is odd about it."""
    named, checked = parse_name(name), Consistency()
    tests = _tests(text, name)
    rows = [row for test in tests for row in _measurements(test, named, name, checked)]
    notes = checked.notes(name)
    if unread := sum(test.unread for test in tests):
        notes.append(Diagnostic("note", "rows-skipped", f"{unread:,} lines among the rows are not rows", name))
    if failed := next((number for number, line in enumerate(text.splitlines(), 1) if _FAILED.search(line)), 0):
        problem = "the log says that results were wrong: the measured machine is at fault; rows are used all the same"
        notes.append(Diagnostic("warning", "uncertain", problem, f"{name}:{failed}"))
    return rows, notes


def _tests(text: str, name: str) -> list[_Test]:
    tests: list[_Test] = []
    program: str | None = None
    ranks: dict[int, tuple[str, str]] = {}
    per_process, over = 1, True
    for number, raw in enumerate(_TAG.sub("", text).splitlines(), start=1):
        line = _LABEL.sub("", raw).strip()
        if not line or len(line) > _MAX_LINE:
            continue
        if line.startswith("#"):
            if (rank := _rank(line, f"{name}:{number}")) is not None:
                if rank[0] == 0:
                    ranks = {}
                ranks[rank[0]] = rank[1]
            elif line.lstrip("# ").startswith("size "):
                tests.append(_test(line, program, ranks, per_process, f"{name}:{number}"))
                over = False
                continue
            elif match := _PER_PROCESS.search(line):
                per_process = int(match[1]) * int(match[2])
        elif tests and _ROW.match(line):
            words = line.split()
            if len(words) < tests[-1].width:
                message = f"the row has {len(words)} words, expected at least {tests[-1].width}"
                raise InputError("truncated-file", message, where=f"{name}:{number}", hint="the log looks cut short")
            tests[-1].rows.append((number, words))
            continue
        elif not over and len(line.split()) >= tests[-1].width:
            tests[-1].unread += 1
        if "Avg bus bandwidth" in line:
            program, over = None, True
        elif "_perf" in line and "concluded" not in line and (match := _PROGRAM.search(line)):
            program = match[1] if collective_called(match[1]) is not None else program
    return tests


def _rank(line: str, where: str) -> tuple[int, tuple[str, str]] | None:
    """Returns a rank, its host and its GPU: `# Rank 0 Group 0 Pid 99 on HOST device 0 [0x00] NVIDIA H100`."""
    words = line.split()
    if words[:2] != ["#", "Rank"] or len(words) < 3 or not words[2][:1].isdigit():
        return None
    if "on" not in words or (at := words.index("on")) + 2 >= len(words) or words[at + 2] != "device":
        return None
    rank = whole_field("rank", words[2], where, most=MAX_GPUS)
    return rank, (words[at + 1], " ".join(words[at + 5 :]))


def _test(line: str, program: str | None, ranks: dict[int, tuple[str, str]], per_process: int, where: str) -> _Test:
    words = line.lstrip("# ").split()
    columns: dict[str, int] = {}
    for index, word in enumerate(words):
        columns.setdefault(word, index)  # the first of each is out of place, the second in place
    if absent := [column for column in _NEEDED if column not in columns]:
        raise InputError("missing-field", f"the table has no column {', '.join(absent)}", where=where)
    return _Test(columns, max(columns[column] for column in _NEEDED) + 1, program, ranks, per_process)


def _measurements(test: _Test, named: Named, name: str, checked: Consistency) -> list[Measurement]:
    if not test.rows:
        return []
    first = f"{name}:{test.rows[0][0]}"
    gpu = ""
    if test.ranks:
        gpus, nodes = max(test.ranks) + 1, len({host for host, _ in test.ranks.values()})
        _check_ranks(test, gpus, first)
        gpu = _device(test, first)
    elif named.gpus is not None and named.nodes is not None:
        gpus, nodes = named.gpus, named.nodes
    else:
        hint = 'keep the lines "Rank … on HOST", or name the file like all_reduce_16gpu_2node.log'
        raise InputError(
            "missing-field", "the log does not say among how many GPUs this was measured", where=first, hint=hint
        )
    collective = _collective(test, named, gpus, first)
    wrong = next((test.columns[column] for column in _WRONG if column in test.columns), None)
    rows = []
    for line, words in test.rows:
        where = f"{name}:{line}"
        size = whole_field("size", words[test.columns["size"]], where, most=MAX_BYTES)
        time_us = read_time_us("time", words[test.columns["time"]], where, size)
        algorithm, bus = (real_field(column, words[test.columns[column]], where) for column in ("algbw", "busbw"))
        error = "" if wrong is None or wrong >= len(words) else words[wrong]
        if checked.holds(collective, gpus, size, Bandwidths(time_us, algorithm, bus, error, where)):
            rows.append(measurement(collective, (gpus, nodes), size, time_us, (name, line, gpu)))
    return rows


def _check_ranks(test: _Test, gpus: int, where: str) -> None:
    """Raises an error where lines of ranks are missing."""
    hint = "the log looks cut short or edited: each rank has a line"
    if len(test.ranks) != gpus:
        problem = f"the log lists {len(test.ranks):,} ranks, the highest is {gpus - 1:,}"
        raise InputError("conflicting-values", problem, where=where, hint=hint)
    if gpus % max(test.per_process, 1):
        problem = f"the log lists {gpus:,} ranks, but each process has {test.per_process:,} GPUs"
        raise InputError("conflicting-values", problem, where=where, hint=hint)


def _device(test: _Test, where: str) -> str:
    """Returns the GPU of all ranks; raises an error where they have different ones."""
    devices = list(dict.fromkeys(device for _, device in test.ranks.values()))
    if len({chip_of(device) for device in devices} - {None}) > 1:
        listed = " and of ".join(shown(device) for device in devices[:2])
        raise InputError("other-gpu", f"ranks are of {listed}", where=where, hint="measure one kind of GPU at a time")
    return next((device for device in devices if chip_of(device)), devices[0])


def _collective(test: _Test, named: Named, gpus: int, where: str) -> Collective:
    if test.program is not None and (collective := collective_called(test.program)) is not None:
        return collective
    if named.collective is not None:
        return named.collective
    ratio = ratio_of(
        (
            real_field("algbw", words[test.columns["algbw"]], where),
            real_field("busbw", words[test.columns["busbw"]], where),
        )
        for _, words in test.rows
    )
    off = {
        collective: abs(ratio - bus_ratio(collective, gpus)) if ratio > 0 else 0.0 for collective in _candidates(test)
    }
    best = [collective for collective, error in off.items() if error <= min(off.values()) + 1e-9]
    if len(best) > 1:
        hint = f"put the name of the test into the name of the file; known: {KNOWN}"
        raise InputError("missing-field", "the log does not say which collective this is", where=where, hint=hint)
    return best[0]


def _candidates(test: _Test) -> tuple[Collective, ...]:
    """Returns the collectives that the columns allow."""
    reduces = _value(test, "redop") not in (None, "none", "N/A")
    root = _value(test, "root")
    rooted = root is not None and root.isdigit()
    if reduces:
        return (Collective.REDUCE,) if rooted else (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    if rooted:
        return (Collective.BROADCAST, Collective.GATHER, Collective.SCATTER)
    return (Collective.TRANSFER, Collective.ALL_GATHER, Collective.ALL_TO_ALL)


def _value(test: _Test, column: str) -> str | None:
    return test.rows[0][1][test.columns[column]] if column in test.columns else None
