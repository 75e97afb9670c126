"""Stage plans: read, written, and told apart from their cousins."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import make_plan, plan_text, read_plan, write_plan

LINE = (
    "stage:1:loss_func(batch_id=3, mg_state=steady, duration=None, description=loss_func, calculate (x, y=z) / all,"
    " group_kind=None, input__shape=[4096, 1, 5120], input__dtype=torch.float16)"
)


def test_a_plan_comes_back_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "stage1.txt"
    path.write_text(f"{LINE}\n")
    plan = read_plan(path)
    (op,) = plan.ops
    assert (plan.stage, op.op, op.batch, op.state, op.duration_ms) == (1, "loss_func", 3, "steady", None)
    assert op.description == "loss_func, calculate (x, y=z) / all"
    assert (op.shape, op.dtype) == ((4096, 1, 5120), "torch.float16")
    assert plan_text(plan) == f"{LINE}\n"
    write_plan(plan, tmp_path / "again.txt")
    assert read_plan(tmp_path / "again.txt").ops == plan.ops


def test_a_plan_of_values() -> None:
    plan = make_plan(
        0, [("forward_step", {"batch_id": 0, "mg_state": "warmup", "duration": 1.5}), ("x", {"batch_id": 1})]
    )
    assert [(op.op, op.batch, op.duration_ms) for op in plan.ops] == [("forward_step", 0, 1.5), ("x", 1, None)]
    assert plan_text(plan).splitlines()[0] == "stage:0:forward_step(batch_id=0, mg_state=warmup, duration=1.5)"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("stage:0_step_id:1_cmds:[ForwardPass(buffer_id=0,batch_id=0,duration=1.0)]", "DeepSpeed", 1),
        ("0:warmup:forward_step:0", "old form rank:state:op:batch", 1),
        ("rank:0:forward_step(duration=1.0)", "a rank trace, not a stage plan", 1),
        (f"{LINE}\n{LINE[:-1]}", "cut short", 2),
        (f"{LINE}\n{LINE.replace('stage:1', 'stage:2')}", "this line is of stage 2, line 1 of stage 1", 2),
        (LINE.replace("batch_id=3", "batch_id=x"), 'batch_id "x" is not a number', 1),
        (LINE.replace("duration=None", "duration=-1"), "is negative", 1),
        (LINE.replace("batch_id=3", "3"), "fields are not key=value", 1),
        ("stage:" + "9" * 30 + LINE[7:], "not a whole number", 1),
        ("hello", "not a line of a stage plan", 1),
        ("", "the file is empty", 1),
    ],
)
def test_what_is_no_plan_is_refused_with_its_line(tmp_path: Path, text: str, message: str, line: int) -> None:
    path = tmp_path / "plan.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_plan(path)
    assert caught.value.where == f"{path}:{line}"


def test_unknown_fields_of_a_plan_are_said(tmp_path: Path) -> None:
    path = tmp_path / "plan.txt"
    path.write_text(LINE.replace("batch_id=3", "batch_id=3, colour=red"))
    plan = read_plan(path)
    assert plan.ops[0].text["colour"] == "red"
    assert plan.diagnostics[0].code == "unknown-field"
