"""Reads every profiler table of a file, whatever a log has around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import AnyFile, head_bytes, read_whole
from foretrace.basics.limits import check_limit, check_lines
from foretrace.basics.numbers import NumberError, number_error
from foretrace.inputs.profiler_table.format.headings import looks_like_headings, read_headings, split_headings
from foretrace.inputs.profiler_table.format.layout import TableLines, find_tables, read_dashes
from foretrace.inputs.profiler_table.format.plausible import row_notes, total_notes
from foretrace.inputs.profiler_table.format.records import Column, Field, ProfilerTable, TableRow
from foretrace.inputs.profiler_table.format.values import (
    MISSING,
    read_count,
    read_flops,
    read_memory,
    read_share,
    read_time,
)

MAX_BYTES: Final = 64 << 20
MAX_LINES: Final = 1_000_000
MAX_LINE_BYTES: Final = 1 << 16
"""A table of 200 rows has 40 kB; with input shapes and stacks it has thousands of rows of 1 kB. Logs around it are of
any length, and names of kernels of up to 10 kB."""
MAX_ROWS: Final = 50_000
MAX_TABLES: Final = 1000

_HINT: Final = "write one with print(prof.key_averages().table(row_limit=-1))"
_TOP_LEVEL: Final = "This report only display top-level ops statistics"
_TOTAL: Final = re.compile(r"(?:Self )?(\w+) time total: *(\S+)")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEAD_BYTES: Final = 1 << 20
_MAX_TITLE: Final = 30
"""Lines above a table among which its title is looked for."""

_SHARES: Final = (Field.SELF_CPU_SHARE, Field.CPU_TOTAL_SHARE, Field.SELF_DEVICE_SHARE, Field.DEVICE_TOTAL_SHARE)
SELF: Final = (Field.SELF_CPU, Field.SELF_CPU_SHARE, Field.SELF_DEVICE, Field.SELF_DEVICE_SHARE)
_MEMORY: Final = (Field.CPU_MEMORY, Field.SELF_CPU_MEMORY, Field.DEVICE_MEMORY, Field.SELF_DEVICE_MEMORY)
_TEXTS: Final = (Field.NAME, Field.OVERLOAD, Field.SHAPES, Field.STACK)


def read_tables(path: AnyFile) -> tuple[ProfilerTable, ...]:
    """Every table of a file, in order; at least one."""
    data = read_whole(path, "profiler table", _HINT, MAX_BYTES)
    check_lines(data, MAX_LINES, MAX_LINE_BYTES, str(path))
    return parse_tables(_decode(data, str(path)), str(path))


def parse_tables(text: str, path: str) -> tuple[ProfilerTable, ...]:
    """The tables of a text; `path` is what errors call it."""
    plain, colours = _COLOURS.subn("", text)
    lines = [line.removesuffix("\r") for line in plain.split("\n")]
    if not plain.strip():
        raise InputError("empty-file", "the file is empty", where=path, hint=_HINT)
    places = find_tables(lines)
    if not places:
        raise _no_table(lines, path)
    check_limit(len(places), MAX_TABLES, "tables", path)
    check_limit(sum(place.end - place.first for place in places), MAX_ROWS, "lines of tables", path)
    notes = (Diagnostic("note", "odd-layout", "codes of a terminal's colours are left out", path),) if colours else ()
    tables = tuple(_read(lines, place, path, notes) for place in places)
    if not any(table.rows for table in tables):
        raise InputError("empty-file", "the table has no rows", where=f"{path}:{tables[0].line}", hint=_HINT)
    return tables


def looks_like_table(path: AnyFile) -> bool:
    """Returns whether a file is a profiler table, whole or not, by its beginning; an `InputFile` stays open."""
    try:
        lines = _decode(head_bytes(path, _HEAD_BYTES), "").split("\n")
        return any(looks_like_headings(line) for line in lines if "Self" in line or "CPU" in line)
    except (ValueError, InputError):
        return False


def _decode(data: bytes, path: str) -> str:
    """Text of UTF-8 or, as a Windows shell redirects it, UTF-16; what is neither is shown as U+FFFD."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        raise InputError("not-text", "this is no text", where=path, hint=_HINT)
    return data.decode("utf-8-sig", errors="replace")


def _no_table(lines: Sequence[str], path: str) -> InputError:
    for number, line in enumerate(lines, start=1):
        if looks_like_headings(line):
            return InputError(
                "bad-syntax",
                "there is no line of dashes below the headings, which says where the columns are",
                where=f"{path}:{number}",
                hint="give all of what table() wrote, its lines of dashes too",
            )
    dashes = next((number for number, line in enumerate(lines, start=1) if read_dashes(line)), None)
    where = path if dashes is None else f"{path}:{dashes}"
    return InputError(
        "wrong-format", "there is no profiler table: no headings such as Name and Self CPU", where=where, hint=_HINT
    )


def _read(lines: Sequence[str], place: TableLines, path: str, before: Sequence[Diagnostic] = ()) -> ProfilerTable:
    where = f"{path}:{place.headings + 1}"
    headings = split_headings(lines[place.headings][place.spans.offset :])
    if len(headings) != len(place.spans.widths):
        raise InputError(
            "bad-syntax",
            f"{len(headings)} headings above {len(place.spans.widths)} columns of dashes",
            where=where,
            hint="give both lines as table() wrote them",
        )
    columns, device, unknown = read_headings(headings, where)
    notes = [
        *before,
        *(
            Diagnostic("warning", "unknown-field", f'column "{heading}" is not known and not read', where)
            for heading in unknown
        ),
    ]
    reader = _RowReader(columns, path, notes)
    for number in range(place.first, place.end):
        if not place.spans.fits(lines[number]):
            raise InputError(
                "bad-syntax",
                "what stands before the table has another width here, so that its columns cannot be told",
                where=f"{path}:{number + 1}",
                hint="take the logger's prefix off every line",
            )
        reader.add(place.spans.cells(lines[number]), number + 1)
    if not place.closed:
        notes.append(
            Diagnostic(
                "warning",
                "truncated-file",
                "no line of dashes ends the table: rows may be missing",
                f"{path}:{place.end}",
            )
        )
    totals = _totals(lines, place, path)
    self_cpu_s, self_device_s = totals.get("CPU"), next((s for word, s in totals.items() if word != "CPU"), None)
    rows = reader.rows()
    notes += [*row_notes(rows, path), *total_notes(rows, self_cpu_s, self_device_s, where)]
    title, top_level = _title(lines, place)
    return ProfilerTable(
        path=path,
        line=place.headings + 1,
        columns=tuple(column for column in columns if column is not None),
        rows=rows,
        device=device,
        title=title,
        top_level_only=top_level,
        self_cpu_total_s=self_cpu_s,
        self_device_total_s=self_device_s,
        diagnostics=tuple(notes),
    )


class _RowReader:
    """Collects the rows of a table: a line with a name begins one, lines with nothing but a source location go on."""

    def __init__(self, columns: Sequence[Column | None], path: str, notes: list[Diagnostic]) -> None:
        self.columns, self.path, self.notes = columns, path, notes
        self._at = {column.field: number for number, column in enumerate(columns) if column is not None}
        self._cells: list[tuple[int, list[str], list[str]]] = []
        """Line, cells, and the further lines of its stack."""

    def add(self, cells: list[str], line: int) -> None:
        """One line of the table."""
        if cells[self._at[Field.NAME]]:
            self._cells.append((line, cells, []))
            return
        rest = [cell for cell in cells if cell]
        if not rest and Field.STACK in self._at:
            return
        if len(rest) == 1 and Field.STACK in self._at and self._cells:
            self._cells[-1][2].append(rest[0])
            return
        what = "an empty line is among the rows" if not rest else "a row has no name"
        raise InputError(
            "bad-syntax", what, where=f"{self.path}:{line}", hint="a table's rows follow each other without a gap"
        )

    def rows(self) -> tuple[TableRow, ...]:
        """The rows; where stacks and FLOPs are under each other's heading, the right way round."""
        self._unswap()
        bare: list[int] = []
        rows = tuple(self._row(line, cells, more, bare) for line, cells, more in self._cells)
        if bare:
            text = f"{len(bare)} time{'s' if len(bare) > 1 else ''} without a unit: read as microseconds"
            self.notes.append(Diagnostic("warning", "assumed", text, f"{self.path}:{bare[0]}"))
        return rows

    def _unswap(self) -> None:
        """PyTorch (to 2.13 at least) heads its last columns Source Location, FLOPs and writes them as FLOPs, Source."""
        flops = self._at.get(Field.FLOPS, self._at.get(Field.FLOPS_RATE))
        stack = self._at.get(Field.STACK)
        if flops is None or stack is None or not self._cells:
            return

        def all_numbers(column: int) -> bool:
            return all(_is_flops(cells[column]) for _, cells, _ in self._cells)

        if not all_numbers(flops) and all_numbers(stack):
            for _, cells, _ in self._cells:
                cells[flops], cells[stack] = cells[stack], cells[flops]
            text = "source locations stand under the heading of FLOPs, and FLOPs under theirs: read as they are meant"
            self.notes.append(Diagnostic("note", "repaired-input", text, f"{self.path}:{self._cells[0][0]}"))

    def _row(self, line: int, cells: list[str], more: list[str], bare: list[int]) -> TableRow:
        values: dict[str, Any] = {"line": line}
        for column, cell in zip(self.columns, cells, strict=True):
            if column is None:
                continue
            try:
                values[column.field] = self._value(column, cell, line, values, bare)
            except NumberError as error:
                raise self._not_read(column, cell, cells, line, error) from None
        name = values["name"]
        source = values.pop("stack", "")
        stack = (*((source,) if source else ()), *more)
        return TableRow(**values, cut=name.endswith("..."), stack=stack)

    def _value(self, column: Column, cell: str, line: int, values: dict[str, Any], bare: list[int]) -> Any:
        field = column.field
        if field in _TEXTS:
            return cell
        if field in _SHARES:
            share, is_bare = read_share(cell, signed=field in SELF)
            if field is Field.CPU_TOTAL_SHARE:
                values["asynchronous"] = is_bare
            return share
        if field in _MEMORY:
            return read_memory(cell)
        if field in (Field.CALLS, Field.NODE):
            return read_count(cell, least=-1 if field is Field.NODE else 0)
        if field in (Field.FLOPS, Field.FLOPS_RATE):
            return read_flops(cell, column.scale)
        seconds, with_unit = read_time(cell, signed=field in SELF)
        if not with_unit:
            bare.append(line)
        return seconds

    def _not_read(self, column: Column, cell: str, cells: list[str], line: int, error: NumberError) -> InputError:
        """Returns what is wrong with a cell: it is not a number, or the line ends before it."""
        where = f"{self.path}:{line}"
        number = self._at[column.field]
        if not any(cells[number:]) or (number + 1 < len(cells) and not any(cells[number + 1 :])):
            return InputError(
                "truncated-file",
                f'the line is cut off: it ends in column "{column.heading}"',
                where=where,
                hint="get the whole table",
            )
        return number_error(error, f'column "{column.heading}":', cell, where, hint=_HINT)


def _is_flops(cell: str) -> bool:
    if cell in MISSING[:-1]:
        return True
    try:
        read_flops(cell, 1.0)
    except NumberError:
        return False
    return True


def _totals(lines: Sequence[str], place: TableLines, path: str) -> dict[str, float | None]:
    """Returns the sums below a table, of Self CPU and of Self CUDA, XPU and so on, in seconds."""
    totals: dict[str, float | None] = {}
    for number, line in enumerate(lines[place.end + 1 : place.end + 4], place.end + 2):
        match = _TOTAL.match(line[place.spans.offset :].strip())
        if match is None:
            break
        try:
            totals[match[1]] = read_time(match[2])[0]
        except NumberError as error:
            where = f"{path}:{number}"
            raise number_error(error, f"{match[1]} time total", match[2], where, hint=_HINT) from None
    return totals


def _title(lines: Sequence[str], place: TableLines) -> tuple[str, bool]:
    """Returns the text above a table, up to a line of equals signs, and whether the table has top-level ops only."""
    above: list[str] = []
    title: list[str] = []
    for number in range(place.top - 1, max(place.top - 1 - _MAX_TITLE, -1), -1):
        line = lines[number][place.spans.offset :].strip()
        if line and not line.strip("="):
            title, above = [*above, *title], []
        else:
            above = [line, *above]
    top_level = _TOP_LEVEL in title
    return "\n".join(line for line in title if line != _TOP_LEVEL), top_level
