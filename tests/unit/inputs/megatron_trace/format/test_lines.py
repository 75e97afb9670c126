"""Lines of rank traces: every version is read by key, and comes back to the byte."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import line_text, parse_line
from shared_files import shared

V1 = (
    "rank:3:dp_allreduce(stage_id=1,batch_id=0,mg_state=finalize,duration=7.74,description=model_chunk.finish_grad_sync()"
    ", All-reduce / reduce-scatter across DP replicas,group_kind=dp,input__shape=[3296778240],"
    "input__dtype=torch.float16,timestamp=11488702195.35,sub_operations=[])"
)
SUB = (
    "trace_src_func=normlinear_bwd_async,duration=1.82,timestamp=11488701927.91,input__shape=[4096, 5120],"
    "input__dtype=torch.float16,func_name=normlinear_bwd,group=tp,comm_func=allreduce"
)
WITH_SUB = (
    f"rank:0:backward_step(stage_id=0,batch_id=4,mg_state=cooldown,duration=2.5,timestamp=9.5,sub_operations=['{SUB}'])"
)
V2 = (
    "rank:0:dp_allreduce(stage_id=0,batch_id=0,mg_state=finalize,duration=0.4,description=None,group_kind=dp,cmd_uid=17,"
    "op_semantics=wait_flush_only,finalize_base_duration_ms=0.02,input__shape=[8],input__dtype=torch.float32,"
    "timestamp=12.0,sub_operations=[])"
)
BUCKET = (
    "rank:0:ddp_grad_comm(comm_uid=4,iter=9,stage_id=0,mg_state=steady,group_kind=dp,comm_func=reduce_scatter,buffer_id=0,"
    "bucket_id=2,bucket_offset=0,bucket_numel=40000000,bucket_numel_unpadded=39999999,param_count=12,trigger_cmd_uid=33,"
    "trigger_op=backward_step,trigger_batch_id=7,trigger_timestamp_ms=10.5,launch_timestamp_ms=10.6,"
    "launch_source=param_hook,timing_domain=metadata_only,metadata_only=True,status=launch_only,completion_source=None,"
    "wait_cmd_uid=40,wait_start_timestamp_ms=None,wait_end_timestamp_ms=None,logical_stream_role=dp_comm,"
    "grad_dtype=torch.float32,data_parallel_world_size=8,duration=0,timestamp=10.6,sub_operations=[])"
)
OLD_STAGE = (
    "rank:1:forward_step(stage_id=0,batch_id=1,stage=warmup,duration=3.25,group_kind=None,input__shape=None,"
    "input__dtype=None,timestamp=77.5,description=a (b, c=d), 'e,f=g' / h: i,sub_operations=[])"
)
UNTRACED = "rank:1:send_forward(stage_id=0,batch_id=None,mg_state=None,duration=None,description=None,group_kind=pp)"


@pytest.mark.parametrize("text", [V1, WITH_SUB, V2, BUCKET, OLD_STAGE, UNTRACED])
def test_every_version_comes_back_to_the_byte(text: str) -> None:
    op = parse_line(text)
    assert line_text(op) == text
    assert parse_line(line_text(op)) == op


def test_fields_are_read_whatever_their_text_holds() -> None:
    op = parse_line(V1, line=7)
    assert (op.rank, op.op, op.stage, op.batch, op.state, op.line) == (3, "dp_allreduce", 1, 0, "finalize", 7)
    assert op.description == "model_chunk.finish_grad_sync(), All-reduce / reduce-scatter across DP replicas"
    assert (op.group, op.shape, op.dtype) == ("dp", (3296778240,), "torch.float16")
    assert op.duration_ms == 7.74
    assert op.start_ms == 11488702195.35 - 7.74


def test_sub_operations_say_whether_they_overlap() -> None:
    (sub,) = parse_line(WITH_SUB).subs
    assert (sub.source, sub.name, sub.group, sub.comm) == ("normlinear_bwd_async", "normlinear_bwd", "tp", "allreduce")
    assert (sub.shape, sub.dtype, sub.overlaps) == ((4096, 5120), "torch.float16", True)
    (plain,) = parse_line(WITH_SUB.replace("normlinear_bwd_async", "_reduce")).subs
    assert not plain.overlaps


def test_a_sub_operation_may_lack_fields_and_order_them_otherwise() -> None:
    text = (
        "rank:0:x(duration=1.0,sub_operations=['comm_func=alltoall,timestamp=3,duration=2,trace_src_func=f', \"a='\"])"
    )
    with pytest.raises(InputError, match="sub-operation 2 of x: duration is missing"):
        parse_line(text)
    (sub,) = parse_line(text.replace(', "a=\'"', "")).subs
    assert (sub.comm, sub.start_ms, sub.shape, sub.group, sub.name) == ("all_to_all", 1.0, None, None, None)


@pytest.mark.parametrize(
    ("written", "comm"),
    [("reducescatter", "reduce_scatter"), ("alltoall", "all_to_all"), ("all_gather", "allgather"), ("broadcast",) * 2],
)
def test_collectives_have_one_spelling(written: str, comm: str) -> None:
    (sub,) = parse_line(WITH_SUB.replace("comm_func=allreduce", f"comm_func={written}")).subs
    assert sub.comm == comm
    assert sub.text["comm_func"] == written


def test_an_old_word_for_the_state_and_a_description_of_all_marks() -> None:
    op = parse_line(OLD_STAGE)
    assert (op.state, op.description) == ("warmup", "a (b, c=d), 'e,f=g' / h: i")


def test_a_bucket_says_its_tensor_in_its_own_words() -> None:
    op = parse_line(BUCKET)
    assert (op.shape, op.dtype, op.group, op.batch, op.duration_ms) == ((40000000,), "torch.float32", "dp", None, 0.0)


def test_what_was_not_traced_has_no_times() -> None:
    op = parse_line(UNTRACED)
    assert (op.duration_ms, op.timestamp_ms, op.start_ms, op.subs, op.subs_at) == (None, None, None, (), None)
    zero = parse_line(V1.replace("timestamp=11488702195.35", "timestamp=0"))
    assert zero.timestamp_ms is None


def test_unmatched_brackets_and_apostrophes_in_a_description() -> None:
    for description in ("1) first", "it's here", "a (b", "[x"):
        text = V2.replace("description=None", f"description={description}")
        assert parse_line(text).description == description
        assert line_text(parse_line(text)) == text


def test_sub_operations_need_not_come_last() -> None:
    text = "rank:0:x(duration=1.0,sub_operations=['trace_src_func=f,duration=0.0,timestamp=1.0'],timestamp=2.0,note=[])"
    op = parse_line(text)
    assert (op.timestamp_ms, len(op.subs), op.subs_at) == (2.0, 1, 1)
    assert line_text(op) == text
    first = "rank:0:x(sub_operations=[],duration=1.0)"
    assert line_text(parse_line(first)) == first


def test_strings_with_quotes_and_escapes() -> None:
    text = (
        r"""rank:0:x(duration=1.0,sub_operations=["trace_src_func=it's,duration=0.0,timestamp=1.0,func_name=a\\b\t"])"""
    )
    (sub,) = parse_line(text).subs
    assert (sub.source, sub.name) == ("it's", "a\\b\t")
    assert line_text(parse_line(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("duration=7.74", "duration=-7.74", 'duration "-7.74" is negative'),
        ("duration=7.74", "duration=nan", 'duration "nan" is not a finite number'),
        ("duration=7.74", "duration=inf", "is not a finite number"),
        ("duration=7.74", "duration=", 'duration "" is empty'),
        ("duration=7.74", "duration=1_0", "is not a number"),
        ("duration=7.74", "duration=" + "9" * 500, "too long for a number: 500"),
        ("duration=7.74", "duration=1e300", "too large"),
        ("duration=7.74", "duration=None", "duration is None, although the op has a timestamp"),
        (",duration=7.74", "", "duration is missing"),
        ("stage_id=1", "stage_id=one", 'stage_id "one" is not a number'),
        ("stage_id=1", "stage_id=1.5", "not a whole number"),
        ("batch_id=0", "batch_id=-1", 'batch_id "-1" is negative'),
        ("[3296778240]", "[3296778240", "input__shape"),
        ("[3296778240]", "[4, -1]", "not a shape such as"),
        ("[3296778240]", "3296778240", "not a shape such as"),
        ("[3296778240]", "[4294967296, 4294967296]", "no tensor has 2"),
        ("torch.float16", "torch.float17", "not a known type; did you mean float16"),
        ("batch_id=0", "batch_id=0,batch_id=1", "batch_id is given twice"),
        ("sub_operations=[]", "sub_operations=[],sub_operations=[]", "sub_operations is given twice"),
        ("sub_operations=[]", "sub_operations=None", "sub_operations is not a list"),
        ("sub_operations=[]", "sub_operations=[1]", "not a list of strings in quotes"),
        ("sub_operations=[]", "sub_operations=['a'", "] is missing"),
        ("sub_operations=[]", "sub_operations=['\\q']", "unknown escape"),
        ("sub_operations=[]", "sub_operations=[]x", "followed by something"),
        (
            "sub_operations=[]",
            "sub_operations=['nothing']",
            "sub-operation 1 of dp_allreduce: fields are not key=value",
        ),
        ("rank:3:", "rank:" + "9" * 30 + ":", "is too large"),
        ("sub_operations=[])", "sub_operations=[]", "cut short"),
        ("rank:3:", "", "not a line of a rank trace"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_line(V1.replace(old, new), "a.txt:12")
    assert caught.value.where == "a.txt:12"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stage:0:forward_step(batch_id=0, mg_state=warmup)", "a stage plan"),
        ("stage:0_step_id:1_cmds:[ForwardPass(buffer_id=0)]", "DeepSpeed"),
        ("0:warmup:forward_step:0", "old form"),
        ("rank:0:x()", "there are no fields"),
    ],
)
def test_cousins_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_line(text)


def test_every_line_of_every_sample_comes_back_to_the_byte() -> None:
    files = sorted(shared("data", "traces").rglob("*.txt"))
    files += [shared("seeds", "000*"), shared("seeds", "001*")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n") if line]
    assert len(lines) > 5000
    for line in lines:
        op = parse_line(line)
        assert line_text(op) == line
        assert parse_line(line_text(op)) == op
