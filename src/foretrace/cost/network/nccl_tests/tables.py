"""Parses tables of measured collectives as CSV.

There are two kinds: rows that name their collective, GPUs and nodes (collective, gpus, nodes, bytes, time_us, and
busbw_GBps where there is no time), and files whose name says these (`allreduce_16gpu_2node_….csv`: size_bytes,
time_us, …). Files of the second kind that time a send and the receive of an answer cover both directions; half of it is
one way. Bandwidths of the second kind are not used: their unit differs from file to file.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.network.nccl_tests.names import KNOWN, Named, collective_called, parse_name
from foretrace.cost.network.nccl_tests.records import US, Measurement, measurement, positive, whole
from foretrace.program.columns import Collective

_SIZE: Final = ("size_bytes", "bytes", "size")
_TIME: Final = ("time_us",)
_UNUSED: Final = frozenset(
    {"size_str", "count_elements", "count", "type", "redop", "root", "algbw_gbps", "errors", "source", "hardware"}
    | {"nccl_algo", "notes"}
)
_BUS_PASSES: Final = {Collective.ALL_REDUCE: 2.0, Collective.ALL_GATHER: 1.0, Collective.REDUCE_SCATTER: 1.0}
"""Bus over algorithm bandwidth, in parts of (n − 1)/n (nccl-tests, PERFORMANCE.md)."""


@dataclass(slots=True)
class _Seen:
    """Oddities of the rows of a file."""

    unknown: Counter[str] = field(default_factory=Counter)
    without: int = 0
    hardware: set[str] = field(default_factory=set)


def is_table(text: str) -> bool:
    """Returns whether a text begins with the head of such a table."""
    head = _columns(text.partition("\n")[0])
    return _first(head, _SIZE) is not None and (_first(head, _TIME) is not None or "busbw_gbps" in head)


def parse_table(text: str, name: str) -> tuple[list[Measurement], list[Diagnostic]]:
    """Every row of a table that messages call `name`, and what is odd about it."""
    reader = csv.reader(text.splitlines())
    columns = _columns(next(reader, []))
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
        if len(words) < len(columns):
            raise InputError("bad-syntax", f"the row has {len(words)} fields, expected {len(columns)}", where=where)
        fields = {column: words[index].strip() for column, index in columns.items()}
        row = _named_row if not names_itself else _row
        if (measured := row(fields, named, seen, (name, reader.line_num))) is not None:
            rows.append(measured)
    return rows, _notes(columns, named, names_itself, seen, name)


def _row(fields: Mapping[str, str], named: Named, seen: _Seen, place: tuple[str, int]) -> Measurement | None:
    """A row that names its collective; None where it lacks a size or a time, or is no collective that is known."""
    where = f"{place[0]}:{place[1]}"
    collective = collective_called(fields["collective"])
    if collective is None:
        seen.unknown[fields["collective"]] += 1
        return None
    size = fields[next(column for column in _SIZE if column in fields)]
    if not size or not (fields.get("time_us") or (fields.get("busbw_gbps") and collective in _BUS_PASSES)):
        seen.without += 1
        return None
    gpus = whole(fields["gpus"], "gpus", where) if "gpus" in fields else named.gpus
    nodes = whole(fields["nodes"], "nodes", where) if fields.get("nodes") else named.nodes or 1
    if gpus is None:
        raise InputError(
            "missing-field", "neither the row nor the name of the file says how many GPUs", where=where, hint=_form()
        )
    seen.hardware.add(fields.get("hardware", ""))
    size_bytes = whole(size, "bytes", where)
    if fields.get("time_us"):
        time_us = positive(fields["time_us"], "time_us", where)
    else:
        passes = _BUS_PASSES[collective] * (gpus - 1) / gpus
        time_us = size_bytes * passes / (positive(fields["busbw_gbps"], "busbw_GBps", where) * 1e9) / US
    return measurement(collective, (gpus, nodes), size_bytes, time_us, place)


def _named_row(fields: Mapping[str, str], named: Named, _: _Seen, place: tuple[str, int]) -> Measurement:
    """A row of a file whose name says what it is."""
    assert named.collective is not None and named.gpus is not None and named.nodes is not None
    where = f"{place[0]}:{place[1]}"
    size = whole(fields[next(column for column in _SIZE if column in fields)], "size_bytes", where)
    time_us = positive(fields.get("time_us", ""), "time_us", where)
    ways = 2.0 if named.collective is Collective.TRANSFER else 1.0
    return measurement(named.collective, (named.gpus, named.nodes), size, time_us / ways, place)


def _notes(columns: Mapping[str, int], named: Named, names_itself: bool, seen: _Seen, name: str) -> list[Diagnostic]:
    notes = []
    used = {*_SIZE, *_TIME, "collective", "gpus", "nodes", "busbw_gbps"}
    if unknown := [column for column in columns if column and column not in used | _UNUSED]:
        notes.append(
            Diagnostic(
                "note", "unknown-field", f"columns that are not known are not used: {', '.join(unknown)}", f"{name}:1"
            )
        )
    if not names_itself and named.collective is Collective.TRANSFER:
        notes.append(
            Diagnostic("note", "odd-input", "times of send and receive cover both directions; half is one way", name)
        )
    if seen.unknown:
        words = ", ".join(sorted(seen.unknown)[:8])
        count = sum(seen.unknown.values())
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


def _columns(head: str | list[str]) -> dict[str, int]:
    """The place of each column, by its name in lower case; of equal names the first."""
    names = head.lstrip("\ufeff").split(",") if isinstance(head, str) else head
    columns: dict[str, int] = {}
    for index, column in enumerate(names):
        columns.setdefault(column.strip().lstrip("\ufeff").lower(), index)
    return columns


def _first(columns: Mapping[str, int], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _form() -> str:
    return (
        "expected columns collective,gpus,nodes,bytes,time_us, or a file such as allreduce_16gpu_2node.csv with "
        f"size_bytes,time_us; collectives: {KNOWN}"
    )
