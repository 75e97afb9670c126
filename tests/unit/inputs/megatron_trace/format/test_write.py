"""Records from values, and files of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import Facts, RankTrace, line_text, make_op, make_sub, read_runs, write_runs


def test_an_op_is_written_as_the_tracer_does() -> None:
    sub = make_sub(
        "_reduce",
        duration_ms=0.41,
        timestamp_ms=11488701336.83,
        shape=(1, 4096, 5120),
        dtype="torch.float16",
        name="embedding_fwd",
        group="tp",
        comm="allreduce",
    )
    op = make_op(
        0, "forward_step", stage=0, batch=0, state="warmup", duration_ms=148.51, timestamp_ms=11488701484.39, subs=[sub]
    )
    assert line_text(op) == (
        "rank:0:forward_step(stage_id=0,batch_id=0,mg_state=warmup,duration=148.51,description=None,group_kind=None,"
        "input__shape=None,input__dtype=None,timestamp=11488701484.39,sub_operations=['trace_src_func=_reduce,"
        "duration=0.41,timestamp=11488701336.83,input__shape=[1, 4096, 5120],input__dtype=torch.float16,"
        "func_name=embedding_fwd,group=tp,comm_func=allreduce'])"
    )


def test_times_are_rounded_to_nanoseconds() -> None:
    op = make_op(0, "x", duration_ms=1 / 3, timestamp_ms=1e9 + 2 / 3)
    assert (op.text["duration"], op.text["timestamp"]) == ("0.333333", "1000000000.666667")
    assert op.duration_ms == 0.333333
    assert make_op(0, "x", duration_ms=1e-6).duration_ms == 1e-6


def test_an_op_without_a_duration_was_not_traced() -> None:
    text = line_text(make_op(1, "send_forward", stage=0, group="pp"))
    assert (
        text
        == "rank:1:send_forward(stage_id=0,batch_id=None,mg_state=None,duration=None,description=None,group_kind=pp)"
    )
    with pytest.raises(InputError) as caught:
        make_op(1, "send_forward", timestamp_ms=1.0)
    assert caught.value.code == "conflicting-values"


@pytest.mark.parametrize(
    "words",
    [
        {"description": "a,group_kind=dp"},
        {"description": "a\nb"},
        {"description": "a\0b"},
        {"description": "a\ud800b"},
        {"description": "x,sub_operations=[]"},
        {"state": "a,b=c"},
        {"dtype": "torch.float17"},
        {"shape": (-1,)},
        {"batch": -1},
    ],
)
def test_what_would_not_read_back_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        make_op(0, "x", duration_ms=1.0, **words)  # type: ignore[arg-type]
    assert caught.value.where == 'rank 0, op "x"'


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0])
def test_times_that_are_none_are_refused(time: float) -> None:
    with pytest.raises(InputError):
        make_op(0, "x", duration_ms=time)
    with pytest.raises(InputError):
        make_sub("f", duration_ms=0.0, timestamp_ms=time)


def test_a_run_is_written_and_read_back(tmp_path: Path) -> None:
    traces = [RankTrace("", rank, (make_op(rank, "x", duration_ms=1.0, timestamp_ms=2.0),)) for rank in (0, 1)]
    facts = Facts(world=2, tp=1, pp=2, layers=4, micro_batch=1)
    written = write_runs(traces, tmp_path / "new" / "run", facts)
    assert [path.name for path in written.paths] == [
        f"wd2_tp1_pp2_numl4_bs1_rank{rank}_20000101000000.txt" for rank in (0, 1)
    ]
    assert written.diagnostics == ()
    (run,) = read_runs([tmp_path / "new" / "run"])
    assert run.facts == facts
    assert [trace.ops for trace in run.ranks.values()] == [trace.ops for trace in traces]


def test_files_that_are_replaced_or_stay_are_said(tmp_path: Path) -> None:
    trace = RankTrace("", 0, (make_op(0, "x", duration_ms=1.0),))
    write_runs([trace], tmp_path)
    assert [note.message for note in write_runs([trace], tmp_path).diagnostics] == [
        "1 files of the same names were replaced"
    ]
    (note,) = write_runs([trace], tmp_path, Facts(world=1, tp=1, pp=1)).diagnostics
    assert "1 other text files" in note.message


def test_what_cannot_be_written(tmp_path: Path) -> None:
    trace = RankTrace("", 0, (make_op(0, "x", duration_ms=1.0),))
    with pytest.raises(InputError) as caught:
        write_runs([trace, trace], tmp_path)
    assert caught.value.code == "duplicate-name"
    with pytest.raises(InputError) as caught:
        write_runs([RankTrace("", 0, ())], tmp_path)
    assert caught.value.code == "empty-file"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        write_runs([trace], tmp_path / "file")
    assert caught.value.code == "unwritable-file"
