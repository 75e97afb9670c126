"""Writes workload files: what was read and not changed as it was, to the byte; all else as AICB sets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from foretrace.basics.errors import InputError, quoted, shown
from foretrace.basics.outputs import write_whole
from foretrace.inputs.aicb.format.header import KEYS, LISTS, parse_header
from foretrace.inputs.aicb.format.read import line_end
from foretrace.inputs.aicb.format.records import CUSTOMIZED, FileLayout, Header, Pass, Workload, WorkloadRow
from foretrace.inputs.aicb.format.rows import RowReader


def workload_text(workload: Workload) -> str:
    """The text of the file; reading it gives the same records."""
    layout = workload.layout
    if not workload.rows:
        raise InputError("empty-file", "a workload without rows cannot be written", where=workload.path)
    same_head = workload.header == layout.header and workload.declared_rows == layout.declared_rows
    if same_head and workload.rows is layout.rows:
        return layout.data.decode()
    return b"".join(_parts(workload)).decode()


def write_workload(workload: Workload, path: str | Path) -> None:
    """Writes the file in one go: whoever opens `path` sees the old content or all of the new one."""
    write_whole(Path(path), [workload_text(workload).encode()], "workload")


def _parts(workload: Workload) -> Iterator[bytes]:
    """Header, count and rows, each with its line end and the blank lines behind it."""
    source = _Source(workload.layout)
    reader = RowReader(workload.path, workload.header.policy)
    policies = workload.header.policy == CUSTOMIZED
    yield source.header(workload)
    yield source.count(workload)
    last = len(workload.rows) - 1
    for index, row in enumerate(workload.rows):
        if (row.policy is not None) != policies:
            raise InputError(
                "conflicting-values",
                f"the row has {'no' if policies else 'a'} policy",
                where=_place(workload, index),
                hint=f"rows of {CUSTOMIZED} have one, rows of other workloads have none",
            )
        text = source.row(row)
        if text is None:
            text = _row_text(row, reader, _place(workload, index)) + source.newline
        yield text if index == last or text.endswith(source.end) else text + source.newline


def _place(workload: Workload, index: int) -> str:
    """A row that may not be in any file, for messages."""
    return f"{workload.path}, row {index} ({shown(workload.rows[index].name)})"


class _Source:
    """The lines of the file that was read, by the records that they hold."""

    def __init__(self, layout: FileLayout) -> None:
        self.layout = layout
        self.end = line_end(layout.data)
        self.lines = layout.data.split(self.end)
        self.newline = b"\r\n" if self.end == b"\n" and self.lines[layout.count_line - 1].endswith(b"\r") else self.end
        self.index = {row.line: index for index, row in enumerate(layout.rows)}

    def header(self, workload: Workload) -> bytes:
        if workload.header == self.layout.header:
            return self._between(1, self.layout.count_line)
        return header_text(workload.header, workload.path).encode() + self.newline

    def count(self, workload: Workload) -> bytes:
        if workload.declared_rows == self.layout.declared_rows:
            return self._between(self.layout.count_line, self.layout.rows[0].line)
        if workload.declared_rows < 0:
            raise InputError("out-of-range", f"{workload.declared_rows} rows cannot be declared", where=workload.path)
        return str(workload.declared_rows).encode() + self.newline

    def row(self, row: WorkloadRow) -> bytes | None:
        """The text of a row that is still what was read from its line."""
        index = self.index.get(row.line)
        if index is None:
            return None
        rows = self.layout.rows
        if rows[index] is not row and rows[index] != row:
            return None
        return self._between(row.line, rows[index + 1].line if index + 1 < len(rows) else None)

    def _between(self, first: int, stop: int | None) -> bytes:
        """Lines from number `first` to before `stop`, or to the end, with what ends them."""
        if stop is None:
            return self.end.join(self.lines[first - 1 :])
        return self.end.join(self.lines[first - 1 : stop - 1]) + self.end


def header_text(header: Header, where: str = "header") -> str:
    """The first line, without its end, keys in AICB's order."""
    words = [header.policy, *(value for key, value in header.extra if not key)]
    for key, name in KEYS.items():
        value = getattr(header, name)
        if value is not None:
            numbers = (len(value), *value) if key in LISTS else (value,)
            words.append(f"{key}: {' '.join(map(str, numbers))}")
    words += [f"{key}: {value}" if value else f"{key}:" for key, value in header.extra if key]
    text = " ".join(words)
    back, _ = parse_header(_encoded(text, where), where)
    for field in fields(Header):
        if getattr(back, field.name) != getattr(header, field.name):
            message = f"{field.name} {quoted(str(getattr(header, field.name)))} would not read back from a header"
            raise InputError("bad-value", message, where=where)
    return text


def _row_text(row: WorkloadRow, reader: RowReader, where: str) -> bytes:
    """A row, without its line end; one that would not read back from it is refused."""
    passes = (row.forward, row.input_grad, row.weight_grad)
    words = [
        row.name,
        str(row.dependency),
        *(word for pass_ in passes for word in _pass_words(pass_)),
        str(row.update_ns),
    ]
    if row.policy is not None:
        words.append(row.policy)
    text = _encoded("\t".join(words), where)
    if len(text.split()) != len(words):
        hint = f"this row has {', '.join(map(quoted, words))}"
        raise InputError("bad-value", "names and collectives must be single words", where=where, hint=hint)
    try:
        back = reader.read([text], 1)
    except InputError as error:
        raise InputError(error.code, error.message, where=where, hint=error.hint) from None
    if back != (row,):
        raise InputError("bad-value", "this row would not read back the same", where=where)
    return text


def _pass_words(row_pass: Pass) -> tuple[str, str, str]:
    return str(row_pass.compute_ns), row_pass.collective, str(row_pass.size_bytes)


def _encoded(text: str, where: str) -> bytes:
    if "\n" in text or "\0" in text:
        raise InputError("bad-value", "a line cannot hold a line feed or a zero byte", where=where)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError("bad-value", "the text has characters that UTF-8 does not have", where=where) from None
