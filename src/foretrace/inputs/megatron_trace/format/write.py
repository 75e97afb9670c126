"""Writes rank traces: records from values, lines as the tracer sets them, files as it names them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict, Unpack

from foretrace.basics.errors import Diagnostic, InputError, UsageError, quoted
from foretrace.basics.file_registry import active_registry
from foretrace.basics.outputs import claim_output, make_folder, write_whole
from foretrace.inputs.megatron_trace.format.lines import V1_KEYS, line_text, op_of, parse_line, sub_of
from foretrace.inputs.megatron_trace.format.names import trace_name
from foretrace.inputs.megatron_trace.format.records import Facts, RankTrace, SubOp, TraceOp
from foretrace.inputs.megatron_trace.format.sniff import looks_like_trace

STAMP: Final = "20000101000000"
"""The time in names of files that were not recorded at any: the same traces give the same files."""

_DECIMALS = 6
"""A nanosecond, in milliseconds."""

_UNTRACED = ("input__shape", "input__dtype", "timestamp")
"""What an op that was not traced does not have."""


@dataclass(frozen=True, slots=True)
class Written:
    """The files that traces were written to, by rank, and notes on what was there before."""

    paths: tuple[Path, ...]
    diagnostics: tuple[Diagnostic, ...]


def make_sub(
    source: str,
    *,
    duration_ms: float,
    timestamp_ms: float,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    name: str | None = None,
    group: str | None = None,
    comm: str | None = None,
) -> SubOp:
    """A sub-operation that ended at `timestamp_ms`; a source that ends in `_async` overlaps computation."""
    where = f"sub-operation {quoted(source)}"
    text = {"trace_src_func": source}
    text |= {"duration": _time(duration_ms, where), "timestamp": _time(timestamp_ms, where)}
    if shape is not None or dtype is not None:
        text |= {"input__shape": _shape(shape), "input__dtype": str(dtype)}
    for key, word in (("func_name", name), ("group", group), ("comm_func", comm)):
        if word is not None:
            text[key] = word
    return sub_of(text, "sub-operation", where)


class OpFields(TypedDict, total=False):
    """The fields of an op's line, all of which may be missing."""

    stage: int | None
    batch: int | None
    state: str | None
    duration_ms: float | None
    timestamp_ms: float | None
    description: str | None
    group: str | None
    shape: Sequence[int] | None
    dtype: str | None


def make_op(rank: int, op: str, subs: Sequence[SubOp] = (), *, line: int = 0, **given: Unpack[OpFields]) -> TraceOp:
    """Makes an op that ended at `timestamp_ms`, with the fields of 2025 in their order.

    One without a duration has the form of an op that was not traced. What would not read back the same is refused.
    """
    where = f"rank {rank}, op {quoted(op)}"
    duration_ms, timestamp_ms, shape = given.get("duration_ms"), given.get("timestamp_ms"), given.get("shape")
    words = (
        str(given.get("stage")),
        str(given.get("batch")),
        str(given.get("state")),
        "None" if duration_ms is None else _time(duration_ms, where),
        str(given.get("description")),
        str(given.get("group")),
        _shape(shape),
        str(given.get("dtype")),
        "0" if timestamp_ms is None else _time(timestamp_ms, where),
    )
    text = dict(zip(V1_KEYS, words, strict=True))
    traced = duration_ms is not None
    if not traced:
        if subs or timestamp_ms is not None or shape is not None or given.get("dtype") is not None:
            raise InputError(
                "conflicting-values", "an op without a duration has no timestamp, tensor or sub-operations", where=where
            )
        text = {key: word for key, word in text.items() if key not in _UNTRACED}
    made = op_of(rank, op, text, tuple(subs), where, subs_at=-1 if traced else None, line=line)
    check_op(made, where)
    return made


def check_op(op: TraceOp, where: str) -> None:
    """Refuses an op whose line would not read back the same."""
    text = line_text(op)
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text if not letter.isascii()):
        raise InputError("bad-value", "the text has characters that no text file has", where=where)
    try:
        same = parse_line(text, where) == op
    except InputError as error:
        raise InputError(error.code, error.message, where=where, hint=error.hint) from None
    if not same:
        hint = "words must not look like further fields or hold line feeds"
        raise InputError("bad-value", "this op would not read back the same from a line", where=where, hint=hint)


def trace_text(trace: RankTrace) -> str:
    """The text of the file; reading it gives the same records."""
    return "".join([f"{line_text(op)}\n" for op in trace.ops])


def write_runs(
    traces: Sequence[RankTrace], folder: str | Path, facts: Facts | None = None, *, stamp: str = STAMP
) -> Written:
    """Writes the traces of one run into a folder, each file in one go, and makes the folder if need be.

    Files of the same names are replaced; notes say so, and name traces of other runs in the folder.
    """
    target, named = Path(folder), dict[str, RankTrace]()
    for trace in traces:
        name = trace_name(facts or Facts(), trace.rank, stamp)
        if name in named:
            raise InputError("duplicate-name", f"there are two traces of rank {trace.rank}", where=str(folder))
        if not trace.ops:
            raise InputError("empty-file", f"the trace of rank {trace.rank} has no ops", where=str(folder))
        named[name] = trace
    there = {name for name in make_folder(target) if name.endswith(".txt")}
    _check_apart(target, named)
    for name, trace in named.items():
        write_whole(target / name, [trace_text(trace).encode()], "rank trace")
    return Written(tuple(target / name for name in named), tuple(_notes(there, set(named), str(folder))))


def _check_apart(folder: Path, names: Iterable[str]) -> None:
    """Raises UsageError where traces would lie among those that were read, or be written over another output."""
    registry = active_registry()
    if registry is None:
        return
    if any(looks_like_trace(path) for path in registry.inputs_of(folder)):
        problem = "holds rank traces that are read"
        raise UsageError("output-overwrites-input", f"{folder} {problem}", hint="name another folder")
    for name in names:
        claim_output(folder / name, "rank trace")


def _notes(there: set[str], written: set[str], folder: str) -> list[Diagnostic]:
    notes = []
    if replaced := there & written:
        notes.append(
            Diagnostic("note", "folder-in-use", f"{len(replaced):,} files of the same names were replaced", folder)
        )
    if others := there - written:
        message = f"the folder holds {len(others):,} other text files, which may be read together with these"
        notes.append(Diagnostic("warning", "folder-in-use", message, folder))
    return notes


def _time(milliseconds: float, where: str) -> str:
    """A time as Python prints it, to the nanosecond."""
    if not math.isfinite(milliseconds):
        raise InputError(
            "bad-value", f"a time is {milliseconds}", where=where, hint="expected a finite number of milliseconds"
        )
    return repr(round(float(milliseconds), _DECIMALS))


def _shape(shape: Sequence[int] | None) -> str:
    return "None" if shape is None else str(list(shape))
