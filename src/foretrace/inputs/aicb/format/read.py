"""Reads workload files of every version. Errors name the line that cannot be read; diagnostics report what is odd."""

from __future__ import annotations

from typing import Final, NoReturn

from foretrace.basics.errors import InputError, quoted
from foretrace.basics.files import AnyFile, read_whole
from foretrace.basics.limits import check_lines
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.inputs.aicb.format.header import EXAMPLE, parse_header
from foretrace.inputs.aicb.format.notes import count_notes, header_notes, row_notes, text_notes
from foretrace.inputs.aicb.format.records import FileLayout, Workload
from foretrace.inputs.aicb.format.rows import RowReader

MAX_BYTES: Final = 64 << 20
MAX_LINES: Final = 1_000_000
MAX_LINE_BYTES: Final = 1 << 20
"""AICB unrolls microbatches: 40 layers of 3 rows of 90 bytes are 114 kB for 8 microbatches, so that 126 layers for
1,024 of them are 45 MB. The longest line is a header that lists the numbers of all rows."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FOREIGN: Final = (
    (b"\x93FORETRACE", "this is a Foretrace program, not a workload file"),
    (b"\x1f\x8b", "the file is gzipped: unpack it first"),
    (b"PK\x03\x04", "this is a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "the file is packed by zstd: unpack it first"),
    (b"\xfd7zXZ", "the file is packed by xz: unpack it first"),
    (b"\xff\xfe", "the file is UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "the file is UTF-16 text: save it as UTF-8"),
    (b"{", "this looks like JSON, not a workload file"),
    (b"[", "this looks like JSON, not a workload file"),
    (b"train_iter:", "these are AIOB's measured times, from which AICB makes a workload file"),
    (b"comm_type,", "this is AICB's CSV log; its workload file for SimAI ends in .txt"),
)
"""How files begin that people give instead of a workload."""


def read_workload(path: AnyFile) -> Workload:
    """Reads the workload in a file; diagnostics say what is odd about it."""
    return parse_workload(read_whole(path, "workload file", EXAMPLE, MAX_BYTES), str(path))


def parse_workload(data: bytes, name: str = "workload") -> Workload:
    """The workload in the bytes of a file, which messages call `name`."""
    lines = _lines(data, name)
    places = (at for at, line in enumerate(lines) if line and not line.isspace())
    first = next(places)
    header, diagnostics = parse_header(lines[first], f"{name}:{first + 1}")
    second = next(places, None)
    if second is None:
        raise InputError(
            "truncated-file",
            "the number of rows is missing; the file ends here",
            where=f"{name}:{first + 1}",
            hint=EXAMPLE,
        )
    declared_rows = _row_count(lines[second], f"{name}:{second + 1}")
    reader = RowReader(name, header.policy)
    for at in (*range(first), *range(first + 1, second)):
        reader.see(("blank", ""), at + 1, "")
    for at in (first, second):
        if lines[at].removesuffix(b"\r")[-1:].isspace():
            reader.see(("trailing", ""), at + 1, "")
    rows = reader.read(lines[second + 1 :], second + 2)
    if not rows:
        message = f"{declared_rows:,} rows are declared, but none follow; the file ends here"
        raise InputError("truncated-file", message, where=f"{name}:{second + 1}", hint=EXAMPLE)
    diagnostics += header_notes(header, len(rows), f"{name}:{first + 1}")
    diagnostics += count_notes(declared_rows, rows, f"{name}:{second + 1}")
    diagnostics += row_notes(reader.seen, name)
    diagnostics += text_notes(data, reader.seen.get(("trailing", "")), reader.seen.get(("blank", "")), name)
    layout = FileLayout(data, header, declared_rows, second + 1, rows)
    return Workload(header, declared_rows, rows, name, layout, tuple(diagnostics), first + 1, second + 1)


def line_end(data: bytes) -> bytes:
    """Returns the end of lines; a carriage return before a line feed is a blank like others."""
    return b"\r" if b"\n" not in data and b"\r" in data else b"\n"


def _lines(data: bytes, name: str) -> list[bytes]:
    """The lines without what ends them and without blank ones at the end; at least one is not blank."""
    text = data.removeprefix(_BYTE_ORDER_MARK)
    if not text.strip():
        message = "the file holds nothing but blanks" if text else "the file is empty"
        raise InputError("empty-file", message, where=f"{name}:1", hint=EXAMPLE)
    if b"\0" in text or not _is_text(text):
        _refuse_binary(text, name)
    check_lines(data, MAX_LINES, MAX_LINE_BYTES, name)
    lines = text.split(line_end(data))
    while not lines[-1] or lines[-1].isspace():
        lines.pop()
    start = text[:4096].lstrip()
    for begin, what in _FOREIGN:
        if start.startswith(begin):
            raise InputError("wrong-format", what, where=f"{name}:1", hint=EXAMPLE)
    return lines


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse_binary(data: bytes, name: str) -> NoReturn:
    for begin, what in _FOREIGN:
        if data.startswith(begin):
            raise InputError("wrong-format", what, where=f"{name}:1", hint=EXAMPLE)
    at = data.find(b"\0")
    what = "is zero" if at >= 0 else "is not UTF-8"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if at < 0 or error.start < at:
            at, what = error.start, "is not UTF-8"
    line = data.count(b"\n", 0, at) + 1
    raise InputError("not-text", f"this is not a text file: byte {at} {what}", where=f"{name}:{line}", hint=EXAMPLE)


def _row_count(line: bytes, where: str) -> int:
    words = line.split()
    if len(words) > 1:
        message = f"the number of rows is missing; {len(words):,} words are in its place"
        raise InputError(
            "missing-field", message, where=where, hint="expected one whole number between the header and the rows"
        )
    try:
        return whole_number(words[0])
    except NumberError as error:
        message = f"the number of rows, {quoted(words[0])}, {error}"
        raise InputError(error.code, message, where=where, hint="expected one whole number, 1 or more") from None
