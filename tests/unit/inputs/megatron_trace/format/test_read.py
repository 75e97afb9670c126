"""Files of rank traces: what is in them, what is odd about them, what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import line_text, looks_like_trace, make_op, read_trace, trace_text
from foretrace.inputs.megatron_trace.format.read import parse_trace
from shared_files import shared

FIRST = "rank:2:get_batch(stage_id=0,batch_id=0,duration=1.32,timestamp=21.31,sub_operations=[])"
SECOND = "rank:2:forward_step(stage_id=0,batch_id=0,duration=28.93,timestamp=51.32,sub_operations=[])"


def write(folder: Path, text: str | bytes, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_gives_its_rank_and_ops(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, f"\ufeff{FIRST}\r\n\n  {SECOND}\n\n"))
    assert trace.rank == 2
    assert [(op.op, op.line) for op in trace.ops] == [("get_batch", 1), ("forward_step", 3)]
    assert trace.diagnostics == ()
    assert trace.at(3) == f"{tmp_path / 'trace.txt'}:3"
    assert trace_text(trace) == f"{FIRST}\n{SECOND}\n"


def test_a_recorded_file_comes_back_to_the_byte() -> None:
    path = shared("seeds", "000*")
    trace = read_trace(path)
    assert trace.rank == 2
    assert [op.op for op in trace.ops][-2:] == ["exp_dp_allreduce", "optimizer_step"]
    assert trace_text(trace).encode() == path.read_bytes()
    assert trace.diagnostics == ()


@pytest.mark.parametrize(
    ("data", "message", "line"),
    [
        (b"", "the file is empty", 1),
        (b" \n\n", "nothing but blanks", 1),
        (FIRST.encode() + b"\n\xff\xfe", "not a text file", 2),
        (b"rank:0:x\0", "is zero", 1),
        (f"{FIRST}\n{SECOND[:40]}".encode(), "the file is cut short here", 2),
        (f"{FIRST}\nhello\n".encode(), "not a line of a rank trace", 2),
        (f"{FIRST}\n{SECOND.replace('rank:2', 'rank:3')}\n".encode(), "this line is of rank 3, line 1 of rank 2", 2),
        (f"{FIRST}\n\n{FIRST.replace('1.32', 'nan')}\n".encode(), "finite", 3),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(tmp_path: Path, data: bytes, message: str, line: int) -> None:
    path = write(tmp_path, data)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path)
    assert caught.value.where == f"{path}:{line}"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is a folder"):
        read_trace(tmp_path)
    write(tmp_path, FIRST, "rank2.txt")
    with pytest.raises(InputError, match="no such file") as caught:
        read_trace(tmp_path / "rank3.txt")
    assert "rank2.txt" in (caught.value.hint or "")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace("a\0b")


def test_unknown_fields_are_kept_and_said_once() -> None:
    odd = FIRST.replace("duration", "colour=red,duration")
    sub = "sub_operations=['trace_src_func=f,duration=1.0,timestamp=2.0,shade=7']"
    trace = parse_trace(f"{SECOND}\n{odd.replace('sub_operations=[]', sub)}\n{odd}\n".encode(), "t")
    assert trace.ops[1].text["colour"] == "red"
    assert trace.ops[1].subs[0].text["shade"] == "7"
    notes = [one for one in trace.diagnostics if one.code == "unknown-field"]
    assert [(one.message.split(": ")[1], one.where) for one in notes] == [("colour, shade", "t:2")]


def test_several_iterations_are_kept_and_said() -> None:
    later = f"{FIRST}\n{SECOND}\n".replace("timestamp=", "timestamp=9")
    trace = parse_trace(f"{FIRST}\n{SECOND}\n{later}".encode())
    assert len(trace.ops) == 4
    (note,) = trace.diagnostics
    assert note.message == "get_batch 0 appears 2 times: the file holds 2 iterations"


def test_untraced_iterations_have_no_ids_that_repeat() -> None:
    op = make_op(0, "send_forward", stage=0, group="pp")
    text = trace_text(parse_trace(f"{FIRST.replace('rank:2', 'rank:0')}\n".encode()))
    trace = parse_trace(f"{line_text(op)}\n{line_text(op)}\n{text}".encode())
    assert len(trace.ops) == 3
    assert trace.diagnostics == ()


def test_what_looks_like_a_trace(tmp_path: Path) -> None:
    trace = write(tmp_path, f"\n{FIRST}\n")
    other = write(tmp_path, "HYBRID_TRANSFORMER_FWD_IN_BCKWD\n", "workload.txt")
    empty = tmp_path / "empty"
    empty.mkdir()
    os.mkfifo(empty / "pipe.txt")
    assert looks_like_trace(trace)
    assert looks_like_trace(tmp_path)
    for path in (other, empty, empty / "pipe.txt", tmp_path / "missing", "a\0b", ""):
        assert not looks_like_trace(path)
