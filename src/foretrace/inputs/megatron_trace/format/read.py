"""Reads the trace of one rank. Errors name the line that cannot be read; diagnostics report what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import AnyFile, read_whole
from foretrace.basics.limits import check_lines
from foretrace.inputs.megatron_trace.format.lines import EXAMPLE, KEYS, SUB_KEYS, parse_line
from foretrace.inputs.megatron_trace.format.records import RankTrace, TraceOp
from foretrace.inputs.megatron_trace.format.sniff import BYTE_ORDER_MARK, begins_like_trace

MAX_BYTES: Final = 64 << 20
MAX_LINES: Final = 500_000
MAX_LINE_BYTES: Final = 4 << 20
"""A rank of 2 layers writes 50 kB for 8 microbatches: 20 layers for 256 microbatches are 16 MB an iteration. The
longest line is a backward with all communication of its layers, 230 bytes each."""

_BLANKS = " \t\r"


def read_trace(path: AnyFile) -> RankTrace:
    """The trace in a file; diagnostics say what is odd about it."""
    return parse_trace(read_whole(path, "rank trace", EXAMPLE, MAX_BYTES), str(path))


def parse_trace(data: bytes, name: str = "trace") -> RankTrace:
    """The trace in the bytes of a file, which messages call `name`."""
    lines = _text_lines(data, name)
    last = lines[-1][1]
    if begins_like_trace(last) and not last.endswith(")"):
        raise InputError(
            "truncated-file",
            "the file is cut short here: its last line does not end",
            where=f"{name}:{lines[-1][0]}",
            hint="take this line out, or record the rank once more",
        )
    ops = tuple([parse_line(text, f"{name}:{line}", line) for line, text in lines])
    ops, repeated = _once(ops, lines)
    first = ops[0]
    for op in ops:
        if op.rank != first.rank:
            message = f"this line is of rank {op.rank}, line {first.line} of rank {first.rank}"
            raise InputError(
                "conflicting-values", message, where=f"{name}:{op.line}", hint="a file holds the ops of one rank"
            )
    return RankTrace(
        name, first.rank, ops, (*_key_notes(ops, name), *_iteration_notes(ops, name), *_repeated_notes(repeated, name))
    )


def _once(ops: tuple[TraceOp, ...], lines: Sequence[tuple[int, str]]) -> tuple[tuple[TraceOp, ...], Sequence[TraceOp]]:
    """Returns ops without those whose line is there twice, and these: no two ops of a rank end at the same time."""
    if len({text for _, text in lines}) == len(lines):
        return ops, ()
    seen: set[str] = set()
    repeated: list[TraceOp] = []
    for op, (_, text) in zip(ops, lines, strict=True):
        if text in seen and op.timestamp_ms is not None:
            repeated.append(op)
        seen.add(text)
    again = {op.line for op in repeated}
    return tuple(op for op in ops if op.line not in again), repeated


def _repeated_notes(repeated: Sequence[TraceOp], name: str) -> list[Diagnostic]:
    if not repeated:
        return []
    count = "1 line is" if len(repeated) == 1 else f"{len(repeated):,} lines are"
    message = f"{count} there twice, the first is that of {repeated[0].op}: counted once"
    return [Diagnostic("warning", "rows-skipped", message, f"{name}:{repeated[0].line}")]


def _text_lines(data: bytes, name: str) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers; at least one."""
    check_lines(data, MAX_LINES, MAX_LINE_BYTES, name)
    try:
        text = data.removeprefix(BYTE_ORDER_MARK).decode()
        at, what = text.find("\0"), "is zero"
    except UnicodeDecodeError as error:
        text, at, what = "", error.start, "is not UTF-8"
    if at >= 0:
        line = data.count(b"\n", 0, at) + 1
        raise InputError(
            "not-text", f"this is not a text file: byte {at:,} {what}", where=f"{name}:{line}", hint=EXAMPLE
        )
    numbered = enumerate(text.split("\n"), 1)
    lines = [(number, stripped) for number, line in numbered if (stripped := line.strip(_BLANKS))]
    if not lines:
        message = "the file holds nothing but blanks" if text else "the file is empty"
        raise InputError("empty-file", message, where=f"{name}:1", hint=EXAMPLE)
    return lines


def _key_notes(ops: Sequence[TraceOp], name: str) -> list[Diagnostic]:
    """One note on all keys that no known tracer writes."""
    odd: dict[str, int] = {}
    for op in ops:
        if not op.text.keys() <= KEYS:
            strange = [key for key in op.text if key not in KEYS and not key.startswith("completion_")]
            odd |= {key: op.line for key in strange if key not in odd}
        for sub in op.subs:
            if not sub.text.keys() <= SUB_KEYS:
                odd |= {key: op.line for key in sub.text if key not in SUB_KEYS and key not in odd}
    if not odd:
        return []
    message = f"unknown fields are kept, but mean nothing here: {', '.join(odd)}"
    return [Diagnostic("note", "unknown-field", message, f"{name}:{min(odd.values())}")]


def _iteration_notes(ops: Sequence[TraceOp], name: str) -> list[Diagnostic]:
    """Whether batch ids repeat, and so the file holds several iterations."""
    seen = Counter((op.op, op.batch) for op in ops if op.batch is not None)
    if not seen:
        return []
    (op, batch), times = max(seen.items(), key=lambda item: item[1])
    if times == 1:
        return []
    return [
        Diagnostic(
            "note", "several-iterations", f"{op} {batch} appears {times} times: the file holds {times} iterations", name
        )
    ]
