"""Parses tables of measured collectives as CSV.

There are two kinds: rows that name their collective, GPUs and nodes (collective, gpus, nodes, bytes, time_us, and
busbw_GBps where there is no time), and files whose name says these (`allreduce_16gpu_2node_….csv`: size_bytes,
time_us, …). Files of the second kind that time a send and the receive of an answer cover both directions; half of it is
one way. Bandwidths of the second kind are not used: their unit differs from file to file.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, listed, quoted
from foretrace.basics.limits import MAX_GPUS, check_limit
from foretrace.basics.numbers import real_field, whole_field
from foretrace.cost.network.nccl_tests.consistency import Bandwidths, Consistency
from foretrace.cost.network.nccl_tests.names import KNOWN, Named, collective_called, parse_name
from foretrace.cost.network.nccl_tests.records import (
    MAX_BYTES,
    US,
    Measurement,
    bus_ratio,
    measurement,
    read_time_us,
)
from foretrace.program.columns import Collective

_SIZE: Final = ("size_bytes", "bytes", "size")
_TIME: Final = ("time_us",)
_GPU: Final = ("hardware", "gpu", "gpu_name", "gpu_type", "gpu_model", "device", "device_name")
_UNUSED: Final = frozenset(
    {"size_str", "count_elements", "count", "type", "redop", "root", "source", "nccl_algo", "notes"}
)
_TIMED_BY_BUS: Final = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""Collectives whose time follows from their bus bandwidth, where a table has no time."""

_MIN_GBPS: Final = 1e-6
_MAX_COLUMNS: Final = 1000
_MAX_CELL: Final = 1 << 16


@dataclass(slots=True)
class _Seen:
    """Oddities of the rows of a file."""

    unknown: Counter[str] = field(default_factory=Counter)
    without: int = 0
    hardware: set[str] = field(default_factory=set)
    checked: Consistency = field(default_factory=Consistency)


def is_table(text: str) -> bool:
    """Returns whether a text begins with the head of such a table."""
    head = _columns(text[:_MAX_CELL].partition("\n")[0].lstrip("\ufeff").split(",")[:_MAX_COLUMNS])
    return _first(head, _SIZE) is not None and (_first(head, _TIME) is not None or "busbw_gbps" in head)


def parse_table(text: str, name: str) -> tuple[list[Measurement], list[Diagnostic]]:
    """Every row of a table that messages call `name`, and what is odd about it."""
    try:
        return _parse_rows(text, name)
    except csv.Error as error:
        raise InputError("bad-syntax", f"this is not CSV: {error}", where=name, hint=_form()) from None


def _parse_rows(text: str, name: str) -> tuple[list[Measurement], list[Diagnostic]]:
    reader = csv.reader(text.lstrip("\ufeff").splitlines())
    head = next(reader, [])
    check_limit(len(head), _MAX_COLUMNS, "columns", f"{name}:1")
    columns = _columns(head)
    _check_repeats(head, columns, name)
    size, time = _first(columns, _SIZE), _first(columns, _TIME)
    if size is None or (time is None and "busbw_gbps" not in columns):
        raise InputError(
            "missing-field", "the table has no columns of bytes and time_us", where=f"{name}:1", hint=_form()
        )
    named, seen = parse_name(name), _Seen()
    names_itself = "collective" in columns
    if not names_itself and (named.collective is None or named.gpus is None):
        raise InputError(
            "missing-field",
            "neither the table nor its name says which collective this is",
            where=f"{name}:1",
            hint=_form(),
        )
    rows = []
    for words in reader:
        if not words:
            continue
        where = f"{name}:{reader.line_num}"
        if len(words) < len(head) or any(word.strip() for word in words[len(head) :]):
            quotes = "a number with commas between thousands has to be in quotes"
            problem = f"the row has {len(words)} fields, expected {len(head)}"
            raise InputError("bad-syntax", problem, where=where, hint=quotes if len(words) > len(head) else None)
        fields = {column: words[index].strip() for column, index in columns.items()}
        row = _named_row if not names_itself else _row
        if (measured := row(fields, named, seen, (name, reader.line_num))) is not None:
            rows.append(measured)
    return rows, [*_notes(columns, named, names_itself, seen, name), *seen.checked.notes(name)]


def _row(fields: Mapping[str, str], named: Named, seen: _Seen, place: tuple[str, int]) -> Measurement | None:
    """A row that names its collective; None where it lacks a size or a time, or is no collective that is known."""
    where = f"{place[0]}:{place[1]}"
    collective = collective_called(fields["collective"])
    if collective is None:
        seen.unknown[fields["collective"]] += 1
        return None
    size = fields[next(column for column in _SIZE if column in fields)]
    if not size or not (fields.get("time_us") or (fields.get("busbw_gbps") and collective in _TIMED_BY_BUS)):
        seen.without += 1
        return None
    gpus = whole_field("gpus", fields["gpus"], where, least=1, most=MAX_GPUS) if "gpus" in fields else named.gpus
    nodes = (
        whole_field("nodes", fields["nodes"], where, least=1, most=MAX_GPUS)
        if fields.get("nodes")
        else named.nodes or 1
    )
    if gpus is None:
        raise InputError(
            "missing-field", "neither the row nor the name of the file says how many GPUs", where=where, hint=_form()
        )
    gpu = _gpu(fields)
    seen.hardware.add(gpu)
    size_bytes = whole_field("bytes", size, where, most=MAX_BYTES)
    if fields.get("time_us"):
        time_us = read_time_us("time_us", fields["time_us"], where, size_bytes)
        if not seen.checked.holds(collective, gpus, size_bytes, _bandwidths(fields, time_us, where)):
            return None
    else:
        bytes_per_s = real_field("busbw_GBps", fields["busbw_gbps"], where, least=_MIN_GBPS) * 1e9
        time_us = size_bytes * bus_ratio(collective, gpus) / bytes_per_s / US
    return measurement(collective, (gpus, nodes), size_bytes, time_us, (*place, gpu))


def _named_row(fields: Mapping[str, str], named: Named, seen: _Seen, place: tuple[str, int]) -> Measurement | None:
    """Returns a row of a file whose name states what it is; None where its result was wrong."""
    assert named.collective is not None and named.gpus is not None and named.nodes is not None
    where, gpu = f"{place[0]}:{place[1]}", _gpu(fields)
    word = fields[next(column for column in _SIZE if column in fields)]
    size = whole_field("size_bytes", word, where, most=MAX_BYTES)
    time_us = read_time_us("time_us", fields.get("time_us", ""), where, size)
    ways = 2.0 if named.collective is Collective.TRANSFER else 1.0
    if not seen.checked.holds(named.collective, named.gpus, size, _bandwidths(fields, time_us, where)):
        return None
    return measurement(named.collective, (named.gpus, named.nodes), size, time_us / ways, (*place, gpu))


def _gpu(fields: Mapping[str, str]) -> str:
    """Returns the GPU that a row names; a number is that of a device and names none."""
    return next((word for name in _GPU if (word := fields.get(name, "")) and not word.isdigit()), "")


def _bandwidths(fields: Mapping[str, str], time_us: float, where: str) -> Bandwidths:
    """Returns what a row states next to its size. The unit of bandwidths differs between tables: GB/s or Gb/s."""
    algorithm, bus = (
        real_field(name, fields[name], where) if fields.get(name) else 0.0 for name in ("algbw_gbps", "busbw_gbps")
    )
    return Bandwidths(time_us, algorithm, bus, fields.get("errors", ""), where, any_unit=True)


def _notes(columns: Mapping[str, int], named: Named, names_itself: bool, seen: _Seen, name: str) -> list[Diagnostic]:
    notes = []
    used = {*_SIZE, *_TIME, "collective", "gpus", "nodes", *_GPU, "errors", "algbw_gbps", "busbw_gbps"}
    if unknown := [column for column in columns if column and column not in used | _UNUSED]:
        notes.append(
            Diagnostic(
                "note", "unknown-field", f"columns that are not known are not used: {listed(unknown)}", f"{name}:1"
            )
        )
    if not names_itself and named.collective is Collective.TRANSFER:
        notes.append(
            Diagnostic("note", "odd-input", "times of send and receive cover both directions; half is one way", name)
        )
    if seen.unknown:
        count, words = sum(seen.unknown.values()), listed(sorted(seen.unknown))
        notes.append(
            Diagnostic("note", "rows-skipped", f"{count:,} rows of other collectives are not used: {words}", name)
        )
    if seen.without:
        notes.append(
            Diagnostic("note", "rows-skipped", f"{seen.without:,} rows without a size or a time are not used", name)
        )
    if len(seen.hardware) > 1:
        message = f"the table mixes {len(seen.hardware)} kinds of hardware; equal sizes are taken as repeats"
        notes.append(Diagnostic("warning", "uncertain", message, name))
    return notes


def _check_repeats(head: Iterable[str], columns: Mapping[str, int], name: str) -> None:
    counts = Counter(column.strip().lower() for column in head)
    for column in columns:
        if column and counts[column] > 1:
            problem = f"the column {quoted(column)} is there twice"
            raise InputError("duplicate-name", problem, where=f"{name}:1")


def _columns(head: Iterable[str]) -> dict[str, int]:
    """The place of each column, by its name in lower case; of equal names the first."""
    columns: dict[str, int] = {}
    for index, column in enumerate(head):
        columns.setdefault(column.strip().lower(), index)
    return columns


def _first(columns: Mapping[str, int], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _form() -> str:
    return (
        "expected columns collective,gpus,nodes,bytes,time_us, or a file such as allreduce_16gpu_2node.csv with "
        f"size_bytes,time_us; collectives: {KNOWN}"
    )
