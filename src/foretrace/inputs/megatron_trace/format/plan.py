"""Stage plans: in which order a pipeline stage runs its ops, a file per stage and a line per op.

stage:0:forward_step(batch_id=0, mg_state=warmup, duration=None, description=None, group_kind=None, …)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import read_whole, write_whole
from foretrace.inputs.megatron_trace.format.fields import COMMA_AND_BLANK, split_fields
from foretrace.inputs.megatron_trace.format.lines import KEYS, op_of
from foretrace.inputs.megatron_trace.format.read import text_lines
from foretrace.inputs.megatron_trace.format.sniff import begins_like_trace
from foretrace.inputs.megatron_trace.format.values import quoted, whole

EXAMPLE: Final = "a line reads stage:0:forward_step(batch_id=0, mg_state=warmup, duration=None, …)"

_LINE = re.compile(r"stage:([0-9]+):([A-Za-z_][A-Za-z0-9_]*)\((.*)\)")
_CUT = re.compile(r"stage:[0-9]+:[A-Za-z_][A-Za-z0-9_]*\(")
_DEEPSPEED = re.compile(r"stage:[^:]*_step_id:")
_OLD = re.compile(r"(?:rank:)?[0-9]+:[A-Za-z_]+:[A-Za-z_]\w*:[0-9]+\s*$")


@dataclass(frozen=True, slots=True)
class PlanOp:
    """One line: an op of a stage. `text` is every field as written, in its order; the rest is read off it.

    The duration, in milliseconds, is None where the plan leaves it open.
    """

    stage: int
    op: str
    text: Mapping[str, str]
    batch: int | None
    state: str | None
    duration_ms: float | None
    description: str | None
    group: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The file of one stage: its ops in order."""

    path: str
    stage: int
    ops: tuple[PlanOp, ...]
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)


def read_plan(path: str | Path) -> StagePlan:
    """The plan in a file; diagnostics say what is odd about it."""
    name = str(path)
    lines = text_lines(read_whole(path, "stage plan", EXAMPLE), name, EXAMPLE)
    ops = tuple(parse_plan_line(text, f"{name}:{line}", line) for line, text in lines)
    for op in ops:
        if op.stage != ops[0].stage:
            message = f"this line is of stage {op.stage}, line {ops[0].line} of stage {ops[0].stage}"
            raise InputError(
                "conflicting-values", message, where=f"{name}:{op.line}", hint="a file holds the ops of one stage"
            )
    odd = dict.fromkeys(key for op in ops for key in op.text if key not in KEYS)
    message = f"unknown fields are kept, but mean nothing here: {', '.join(odd)}"
    return StagePlan(name, ops[0].stage, ops, (Diagnostic("note", "unknown-field", message, name),) if odd else ())


def parse_plan_line(text: str, where: str = "plan", line: int = 0) -> PlanOp:
    """The op that a line says; `where` names the line in errors, `line` is its number."""
    match = _LINE.fullmatch(text.strip())
    if match is None or _DEEPSPEED.match(text.strip()):
        _refuse(text.strip(), where)
    number, name, body = match.groups()
    try:
        stage = whole(number)
    except ValueError as error:
        raise InputError("bad-value", f"stage {quoted(number)} {error}", where=where, hint=EXAMPLE) from None
    try:
        fields = split_fields(body, COMMA_AND_BLANK)
    except ValueError as error:
        raise InputError("bad-syntax", f"{name}: {error}", where=where, hint=EXAMPLE) from None
    try:
        op = op_of(0, name, {"duration": "None", **fields}, (), where)
    except InputError as error:
        raise InputError(error.code, error.message, where=where, hint=EXAMPLE) from None
    facts = (op.batch, op.state, op.duration_ms, op.description, op.group, op.shape, op.dtype)
    return PlanOp(stage, name, fields, *facts, line)


def plan_text(plan: StagePlan) -> str:
    """The text of the file; reading it gives the same records."""
    return "".join(f"{plan_line_text(op)}\n" for op in plan.ops)


def plan_line_text(op: PlanOp) -> str:
    """The line of an op, without its end."""
    return f"stage:{op.stage}:{op.op}({', '.join(f'{key}={value}' for key, value in op.text.items())})"


def write_plan(plan: StagePlan, path: str | Path) -> None:
    """Writes the file in one go: whoever opens `path` sees the old content or all of the new one."""
    write_whole(Path(path), [plan_text(plan).encode()], "stage plan")


def make_plan(stage: int, ops: Sequence[tuple[str, Mapping[str, object]]], path: str = "plan") -> StagePlan:
    """A plan of ops and their fields as values, which are written as Python prints them."""
    lines = [
        f"stage:{stage}:{op}({', '.join(f'{key}={value}' for key, value in fields.items())})" for op, fields in ops
    ]
    return StagePlan(path, stage, tuple(parse_plan_line(text, path, line) for line, text in enumerate(lines, 1)))


def _refuse(text: str, where: str) -> NoReturn:
    if _DEEPSPEED.match(text):
        code, message, hint = "wrong-format", "this is a DeepSpeed schedule, which is not read", EXAMPLE
    elif _OLD.match(text):
        code, message, hint = "wrong-format", "this is the old form rank:state:op:batch, which is not read", EXAMPLE
    elif begins_like_trace(text):
        code, message, hint = "wrong-format", "this is a rank trace, not a stage plan", EXAMPLE
    elif _CUT.match(text):
        code, message, hint = "truncated-file", "the line is cut short: its last ) is missing", EXAMPLE
    else:
        code, message, hint = "bad-syntax", f"this is not a line of a stage plan: {quoted(text)}", EXAMPLE
    raise InputError(code, message, where=where, hint=hint)
