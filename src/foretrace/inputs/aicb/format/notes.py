"""Reports what is odd about a file: every oddity once, with the line it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from foretrace.basics.errors import Diagnostic, did_you_mean, quoted, shown
from foretrace.inputs.aicb.format.header import KEYS, LISTS
from foretrace.inputs.aicb.format.records import POLICIES, Header, WorkloadRow
from foretrace.inputs.aicb.format.rows import COMBINED, KNOWN, Oddity, Sighting

ROW_NOTES: Final[Mapping[str, tuple[Literal["note", "warning"], str, str]]] = {
    "unknown": (
        "warning",
        "unknown-collective",
        "collective {word} is not known{near} SimAI gives it no time; "
        "known: NONE ALLREDUCE ALLGATHER REDUCESCATTER ALLTOALL, with suffix _EP or _DP_EP",
    ),
    "case": (
        "note",
        "simai-reads-differently",
        "collective {word} is not in upper case; it is kept as written, and SimAI gives it no time",
    ),
    "combined": ("warning", "simai-reads-differently", f"{COMBINED} has no group and no time in SimAI"),
    "stray": ("note", "odd-input", "NONE has a size; nothing is sent"),
    "empty": ("note", "odd-input", "a collective has 0 bytes; nothing is sent"),
    "numbered": (
        "note",
        "simai-reads-differently",
        "{name} is a numbered name; SimAI knows only the exact name embedding_layer",
    ),
    "update": ("note", "odd-input", "the update time is not 100 ns, which AICB always writes"),
    "dependency": ("note", "odd-input", "the dependency is not -1, which AICB always writes; SimAI does not use it"),
    "rounded": ("note", "simai-reads-differently", "a time or size above 2^24 is no float32 number; SimAI rounds it"),
    "policy": ("warning", "unknown-name", "policy {word} of a row is not known{near}"),
}
"""Level, code and text for each kind of oddity of rows."""

_NAMED = 8
"""How many words of one kind, or rows of one list, are named one by one."""

_POSITIVE = ("ep", "pp", "vpp", "ga", "all_gpus")
_MORE = {
    "unknown": "more collectives are not known",
    "case": "more collectives are not in upper case",
    "policy": "more policies of rows are not known",
}
_INT32 = 2**31


def header_notes(header: Header, rows: int, where: str) -> list[Diagnostic]:
    """Reports what the header leaves out, and values that SimAI cannot take; `rows` is the number of rows."""
    notes = _missing(header, where)
    for key in _POSITIVE:
        if getattr(header, key) == 0:
            notes.append(Diagnostic("warning", "out-of-range", f"{key}: 0 cannot be meant; simulated as 1", where))
    if header.pp_comm_bytes is not None and header.pp_comm_bytes >= _INT32:
        notes.append(
            Diagnostic(
                "warning",
                "simai-reads-differently",
                f"pp_comm: {header.pp_comm_bytes} is 2^31 or more; SimAI reads 32 bits, and stops",
                where,
            )
        )
    for key in LISTS:
        indices: tuple[int, ...] = getattr(header, key) or ()
        if indices:
            notes.append(
                Diagnostic(
                    "warning",
                    "simai-reads-differently",
                    f"{key}: is not empty; SimAI's parser reads the first row number again for each",
                    where,
                )
            )
        if indices and max(indices) >= rows:
            message = f"{key}: {max(indices)} is no row; rows are numbered from 0 to {rows - 1}"
            notes.append(Diagnostic("warning", "out-of-range", message, where))
    return notes


def is_missing_key(note: Diagnostic) -> bool:
    """Whether a note says that the header leaves a key out, which whoever gives it a value says better."""
    return note.code == "header-key-missing"


def _missing(header: Header, where: str) -> list[Diagnostic]:
    absent = [key for key, name in KEYS.items() if key != "mode" and getattr(header, name) is None]
    if len(absent) == len(KEYS) - 1:
        return [Diagnostic("note", "header-key-missing", "the header has no key that is known, only the policy", where)]
    effects = {"vpp": "SimAI divides by zero and prints NaN"}
    usual = "SimAI leaves it 0 or unset"
    return [
        Diagnostic("note", "header-key-missing", f"the header has no {key}; {effects.get(key, usual)}", where)
        for key in absent
    ]


def count_notes(declared: int, rows: Sequence[WorkloadRow], where: str) -> list[Diagnostic]:
    """A number of rows in line 2 that is not the number of rows there are."""
    if declared == len(rows):
        return []
    count = f"{_rows(declared)} declared, {len(rows):,} in the file"
    if declared > len(rows):
        return [Diagnostic("warning", "row-count-mismatch", f"{count}; the file looks cut short", where)]
    dropped = rows[declared:]
    names = ", ".join(f"{shown(row.name)} in line {row.line}" for row in dropped[:_NAMED])
    more = ", …" if len(dropped) > _NAMED else ""
    return [
        Diagnostic(
            "warning",
            "row-count-mismatch",
            f"{count}; SimAI would drop the last {len(dropped):,} ({names}{more})",
            where,
        )
    ]


def row_notes(seen: Mapping[Oddity, Sighting], path: str) -> list[Diagnostic]:
    """One diagnostic for each oddity, in the order of the lines in which they first appear."""
    notes, named = [], dict.fromkeys(ROW_NOTES, 0)
    for (kind, word), sighting in seen.items():
        if kind not in ROW_NOTES:
            continue
        named[kind] += 1
        if named[kind] <= _NAMED:
            notes.append(_row_note(kind, word, sighting, path))
    for kind, count in named.items():
        if count > _NAMED:
            level, code, _ = ROW_NOTES[kind]
            notes.append(Diagnostic(level, code, f"{count - _NAMED:,} {_MORE[kind]}", path))
    return notes


def _row_note(kind: str, word: str, sighting: Sighting, path: str) -> Diagnostic:
    level, code, text = ROW_NOTES[kind]
    near = ""
    if "{near}" in text:
        near = did_you_mean(word, POLICIES if kind == "policy" else KNOWN) or (";" if kind == "unknown" else "")
    message = text.format(word=quoted(word), name=shown(sighting.name), near=near)
    many = f" ({sighting.count:,} rows, the first in line {sighting.line})" if sighting.count > 1 else ""
    return Diagnostic(level, code, f"{message}{many}", f"{path}:{sighting.line}")


def text_notes(data: bytes, trailing: Sighting | None, blank: Sighting | None, path: str) -> list[Diagnostic]:
    """Reports what is odd about the text itself: its first bytes, line ends, blank lines and its last line."""
    notes = []
    if data.startswith(b"\xef\xbb\xbf"):
        message = "the file begins with a byte order mark, which SimAI takes as part of the policy"
        notes.append(Diagnostic("warning", "odd-layout", message, f"{path}:1"))
    if b"\n" not in data:
        message = "lines end in CR, as on old Macs; SimAI takes the whole file as its first line"
        notes.append(Diagnostic("warning", "odd-layout", message, f"{path}:1"))
    elif b"\r\n" in data:
        notes.append(Diagnostic("note", "odd-layout", "lines end in CR LF, as on Windows", f"{path}:1"))
    if blank is not None:
        lines = "1 blank line is" if blank.count == 1 else f"{blank.count:,} blank lines are"
        notes.append(
            Diagnostic("note", "odd-layout", f"{lines} skipped, the first is line {blank.line}", f"{path}:{blank.line}")
        )
    edges = []
    if trailing is not None:
        lines = "1 line ends" if trailing.count == 1 else f"{trailing.count:,} lines end"
        edges.append(f"{lines} in blanks, the first is line {trailing.line}")
    if not data.endswith((b"\n", b"\r")):
        edges.append("the last line does not end in a newline")
    elif data[-4:].count(data[-1:]) > 1:
        edges.append("blank lines are at the end")
    if edges:
        where = f"{path}:{trailing.line}" if trailing else path
        notes.append(Diagnostic("note", "odd-layout", "; ".join(edges), where))
    return notes


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
