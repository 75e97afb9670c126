"""Turns the lines of a rank trace into records and back.

Fields are read by key and never by position: versions differ in which fields they write and in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, NoReturn, TypeVar

from foretrace.basics.errors import InputError, quoted
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.inputs.megatron_trace.format import values
from foretrace.inputs.megatron_trace.format.fields import join_fields, split_fields, split_strings
from foretrace.inputs.megatron_trace.format.records import SubOp, TraceOp
from foretrace.inputs.megatron_trace.format.sniff import begins_like_trace

SUBS: Final = "sub_operations"

EXAMPLE: Final = (
    "a line reads rank:0:forward_step(stage_id=0,batch_id=0,mg_state=warmup,duration=148.51,…,sub_operations=[…])"
)

V1_KEYS: Final = (
    "stage_id",
    "batch_id",
    "mg_state",
    "duration",
    "description",
    "group_kind",
    "input__shape",
    "input__dtype",
    "timestamp",
)
"""What tracers of 2024 and 2025 write, in their order, before the sub-operations."""

BUCKET_KEYS: Final = frozenset(
    (
        "comm_uid",
        "iter",
        "comm_func",
        "buffer_id",
        "bucket_id",
        "bucket_offset",
        "bucket_numel",
        "bucket_numel_unpadded",
        "param_count",
        "trigger_cmd_uid",
        "trigger_op",
        "trigger_batch_id",
        "trigger_timestamp_ms",
        "launch_timestamp_ms",
        "launch_source",
        "timing_domain",
        "metadata_only",
        "status",
        "wait_cmd_uid",
        "wait_start_timestamp_ms",
        "wait_end_timestamp_ms",
        "logical_stream_role",
        "grad_dtype",
        "data_parallel_world_size",
    )
)
"""What ddp_grad_comm lines of 2026 say of a gradient bucket, beside `completion_…` fields."""

KEYS: Final = frozenset((*V1_KEYS, "stage", "cmd_uid", "op_semantics", "finalize_base_duration_ms", *BUCKET_KEYS))
"""Every key of a line that some version of the tracer is known to write; `stage` is an old name of `mg_state`."""

SUB_KEYS: Final = frozenset(
    (
        "trace_src_func",
        "duration",
        "timestamp",
        "input__shape",
        "input__dtype",
        "func_name",
        "overlap_op_name",
        "group",
        "comm_func",
    )
)
"""Every key of a sub-operation that some version of the tracer is known to write."""

BUCKET_OP: Final = "ddp_grad_comm"

_LINE = re.compile(r"rank:([0-9]+):([A-Za-z_][A-Za-z0-9_]*)\((.*)\)")
_PLAN = re.compile(r"stage:[0-9]+:[A-Za-z_]\w*\(")
_DEEPSPEED = re.compile(r"stage:[^:]*_step_id:")
_OLD = re.compile(r"(?:rank:)?[0-9]+:[A-Za-z_]+:[A-Za-z_]\w*:[0-9]+\s*$")
_DTYPES = frozenset(f"torch.{name}" for name in values.DTYPE_BYTES)
_BLANKS = " \t\r\n"
_USUAL_SUB = re.compile(
    r"trace_src_func=([A-Za-z0-9_]+),duration=([0-9]{1,9}\.[0-9]{1,9}),timestamp=([0-9]{1,14}\.[0-9]{1,9})"
    r",input__shape=(\[[0-9, ]*\]),input__dtype=([a-z0-9_.]+)(?:,func_name=([A-Za-z0-9_]+))?,group=([a-z_]+)"
    r",comm_func=([a-z_]+)"
)

Value = TypeVar("Value")


def parse_line(text: str, where: str = "trace", line: int = 0) -> TraceOp:
    """The op that a line says; `where` names the line in errors, `line` is its number."""
    match = _LINE.fullmatch(text.strip(_BLANKS))
    if match is None:
        _refuse(text.strip(_BLANKS), where)
    rank, op, body = match.groups()
    try:
        number = whole_number(rank)
    except NumberError as error:
        raise InputError(error.code, f"rank {quoted(rank)} {error}", where=where, hint=EXAMPLE) from None
    try:
        fields, strings, subs_at = _parts(body)
    except ValueError as error:
        raise InputError("bad-syntax", f"{op}: {error}", where=where, hint=EXAMPLE) from None
    subs = tuple([_sub(string, op, index, where) for index, string in enumerate(strings)])
    return op_of(number, op, fields, subs, where, subs_at=subs_at, line=line)


def line_text(op: TraceOp) -> str:
    """The line of an op, without its end."""
    fields = list(op.text.items())
    if op.subs_at is not None:
        subs = f"[{', '.join([repr(sub_text(sub)) for sub in op.subs])}]"
        fields.insert(op.subs_at if op.subs_at >= 0 else len(fields), (SUBS, subs))
    return f"rank:{op.rank}:{op.op}({join_fields(fields)})"


def sub_text(sub: SubOp) -> str:
    """The string of a sub-operation."""
    return join_fields(list(sub.text.items()))


def op_of(
    rank: int,
    op: str,
    text: Mapping[str, str],
    subs: tuple[SubOp, ...],
    where: str,
    *,
    subs_at: int | None = -1,
    line: int = 0,
) -> TraceOp:
    """The record of fields as written."""
    read = _Reader(text, op, where)
    if "duration" not in text:
        read.fail("missing-field", "duration is missing")
    duration_ms = read.get("duration", values.duration)
    timestamp_ms = read.get("timestamp", values.milliseconds) or None
    if duration_ms is None and timestamp_ms is not None:
        read.fail("conflicting-values", "duration is None, although the op has a timestamp")
    state, shape, dtype = read.word("mg_state"), read.get("input__shape", values.shape), "input__dtype"
    if state is None and "mg_state" not in text:
        state = read.word("stage")
    if op == BUCKET_OP and "input__shape" not in text:
        # A bucket says its tensor in words of its own.
        numel = read.get("bucket_numel", whole_number)
        shape, dtype = None if numel is None else (numel,), "grad_dtype"
    return TraceOp(
        rank,
        op,
        text,
        read.get("stage_id", partial(whole_number, most=MAX_GPUS)),
        read.get("batch_id", whole_number),
        state,
        duration_ms,
        timestamp_ms,
        read.word("description"),
        read.word("group_kind"),
        shape,
        read.get(dtype, values.dtype),
        subs,
        subs_at,
        line,
    )


def sub_of(text: Mapping[str, str], of: str, where: str) -> SubOp:
    """The record of a sub-operation's fields as written; `of` names it in errors."""
    read = _Reader(text, of, where)
    source = read.word("trace_src_func") or ""
    duration_ms, timestamp_ms = read.get("duration", values.duration), read.get("timestamp", values.milliseconds)
    if duration_ms is None or timestamp_ms is None:
        read.fail("missing-field", f"{'duration' if duration_ms is None else 'timestamp'} is missing")
    return SubOp(
        text,
        source,
        read.word("func_name"),
        read.word("group"),
        read.get("comm_func", values.comm),
        duration_ms,
        timestamp_ms,
        read.get("input__shape", values.shape),
        read.get("input__dtype", values.dtype),
        # From launch to wait, beside the weight gradients' GEMM.
        source.endswith("_async"),
    )


class _Reader:
    """Reads values off fields; errors name the key."""

    __slots__ = ("of", "text", "where")

    def __init__(self, text: Mapping[str, str], of: str, where: str) -> None:
        self.text, self.of, self.where = text, of, where

    def word(self, key: str) -> str | None:
        word = self.text.get(key)
        return None if word == "None" else word

    def get(self, key: str, read: Callable[[str], Value]) -> Value | None:
        word = self.text.get(key)
        if word is None or word == "None":
            return None
        try:
            return read(word)
        except ValueError as error:
            code = error.code if isinstance(error, NumberError) else "bad-value"
            self.fail(code, f"{key} {quoted(word)} {error}")

    def fail(self, code: str, message: str) -> NoReturn:
        raise InputError(code, f"{self.of}: {message}", where=self.where, hint=EXAMPLE) from None


def _sub(string: str, op: str, number: int, where: str) -> SubOp:
    match = _USUAL_SUB.fullmatch(string)
    usual = match and _usual_sub(match)
    if usual:
        return usual
    of = f"sub-operation {number + 1} of {op}"
    try:
        fields = split_fields(string)
    except ValueError as error:
        raise InputError("bad-syntax", f"{of}: {error}", where=where, hint=EXAMPLE) from None
    return sub_of(fields, of, where)


def _usual_sub(match: re.Match[str]) -> SubOp | None:
    """Returns what `sub_of` does, four times faster, where the usual fields are in the usual order; None where not."""
    source, duration, timestamp, shape, dtype, name, group, comm = match.groups()
    sizes, known_comm = _known_shape(shape), values.COMMS.get(comm)
    if sizes is None or known_comm is None or dtype not in _DTYPES or "None" in (source, name):
        return None
    text = {"trace_src_func": source, "duration": duration, "timestamp": timestamp}
    text["input__shape"], text["input__dtype"] = shape, dtype
    if name is not None:
        text["func_name"] = name
    text["group"], text["comm_func"] = group, comm
    overlaps = source.endswith("_async")
    return SubOp(text, source, name, group, known_comm, float(duration), float(timestamp), sizes, dtype, overlaps)


@lru_cache(maxsize=4096)
def _known_shape(word: str) -> tuple[int, ...] | None:
    try:
        return values.shape(word)
    except ValueError:
        return None


def _parts(body: str) -> tuple[dict[str, str], list[str], int | None]:
    """The fields of a line, the strings of its sub-operations, and how many fields stand before these."""
    before, separator, after = f",{body}".partition(f",{SUBS}=")
    if not separator:
        return split_fields(body), [], None
    strings, end = split_strings(after, 0)
    if end == len(after) and before:
        return split_fields(before[1:]), strings, -1
    if end < len(after) and after[end] != ",":
        raise ValueError(f"{SUBS} is followed by something that is no field")
    number = len(split_fields(before[1:])) if before else 0
    rest = f"{before}{after[end:]}"[1:]
    fields = split_fields(rest) if rest else {}
    if SUBS in fields:
        raise ValueError(f"{SUBS} is given twice")
    return fields, strings, number


def _refuse(text: str, where: str) -> NoReturn:
    if _DEEPSPEED.match(text):
        code, message, hint = (
            "wrong-format",
            "this is a DeepSpeed schedule, which is not read",
            "give rank traces of Megatron",
        )
    elif _PLAN.match(text):
        code, message, hint = (
            "wrong-format",
            "this is a stage plan: it says in which order a stage runs ops, not when",
            EXAMPLE,
        )
    elif _OLD.match(text):
        code, message, hint = "wrong-format", "this is the old form rank:state:op:batch, which has no times", EXAMPLE
    elif begins_like_trace(text):
        code, message, hint = "truncated-file", "the line is cut short: its last ) is missing", EXAMPLE
    else:
        code, message, hint = "bad-syntax", f"this is not a line of a rank trace: {quoted(text)}", EXAMPLE
    raise InputError(code, message, where=where, hint=hint)
