"""Rank traces: any records come back as they were, and no text is anything but read or refused."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import example, given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import SubOp, TraceOp, line_text, make_op, make_sub, parse_line
from foretrace.inputs.megatron_trace.format.fields import split_fields
from foretrace.inputs.megatron_trace.format.lines import sub_of
from foretrace.inputs.megatron_trace.format.read import parse_trace
from foretrace.inputs.megatron_trace.format.values import COMMS, DTYPE_BYTES

SAMPLE = (
    "rank:0:backward_step(stage_id=0,batch_id=4,mg_state=cooldown,duration=2.5,description=a (b), c,group_kind=None,"
    "input__shape=None,input__dtype=None,timestamp=9.5,sub_operations=['trace_src_func=f_async,duration=1.82,"
    "timestamp=7.91,input__shape=[4096, 5120],input__dtype=torch.float16,func_name=g,group=tp,comm_func=allreduce', "
    "'trace_src_func=_reduce,duration=0.5,timestamp=8.0,group=dp,comm_func=alltoall'])"
)

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(
    ["loss_func, calculate / all", "it's", "a (b, c)", '"', "[", ")", "=", "a: b", "\\", "', '", "']"]
)
times = st.floats(0, 1e9) | st.integers(0, 10**6).map(float)
shapes = st.none() | st.lists(st.integers(0, 1 << 12), max_size=5)
dtypes = st.none() | st.sampled_from([f"torch.{name}" for name in DTYPE_BYTES])
maybe = st.none() | words
counts = st.none() | st.integers(0, 10**17)


def made(build: type[TraceOp] | type[SubOp], **facts: object) -> TraceOp | SubOp | None:
    """A record of values, or None where they are refused."""
    try:
        if build is SubOp:
            return make_sub(**facts)  # type: ignore[arg-type]
        return make_op(**facts)  # type: ignore[arg-type]
    except InputError:
        return None


subs = st.builds(
    lambda **facts: made(SubOp, **facts),
    source=identifiers | words,
    duration_ms=times,
    timestamp_ms=times,
    shape=shapes,
    dtype=dtypes,
    name=maybe,
    group=maybe,
    comm=st.none() | st.sampled_from(list(COMMS)),
)
ops = st.builds(
    lambda subs, **facts: made(TraceOp, subs=[sub for sub in subs if sub is not None], **facts),
    st.lists(subs, max_size=3),
    rank=st.integers(0, 10**9),
    op=identifiers,
    stage=counts,
    batch=counts,
    state=maybe,
    duration_ms=times,
    timestamp_ms=st.none() | times,
    description=maybe,
    group=maybe,
    shape=shapes,
    dtype=dtypes,
)


@given(ops)
def test_records_come_back(op: TraceOp | None) -> None:
    if op is not None:
        text = line_text(op)
        assert parse_line(text) == op
        assert line_text(parse_line(text)) == text


@given(identifiers, st.sampled_from(["a, b", "x (y, z=1) w", "it's", "1) 2", "f(a,b=c)", "", "plain"]), times, times)
def test_descriptions_of_all_marks_come_back(name: str, description: str, duration: float, end: float) -> None:
    op = make_op(1, name, duration_ms=duration, timestamp_ms=end, description=description)
    assert parse_line(line_text(op)).description == description


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SAMPLE)),
            st.integers(0, 6),
            st.text(max_size=4) | st.sampled_from([*"()[]'\",=:\\-.", "nan", "None", "9" * 30, ",duration=1", "\n"]),
        ),
        max_size=4,
    )
)
@example([(len(SAMPLE) - 1, 1, "")])
def test_a_line_is_read_or_refused(changes: list[tuple[int, int, str]]) -> None:
    text = SAMPLE
    for at, removed, inserted in changes:
        text = text[:at] + inserted + text[at + removed :]
    try:
        op = parse_line(text, "a:1")
    except InputError as error:
        assert error.where == "a:1"
        assert error.hint
    else:
        assert parse_line(line_text(op)) == op


@given(
    st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")), st.integers(0, 3)
)
def test_a_file_is_read_or_refused(data: bytes, copies: int) -> None:
    try:
        trace = parse_trace((SAMPLE.encode() + b"\n") * copies + data, "a")
    except InputError as error:
        assert error.where is not None
        assert error.where.startswith("a:")
    else:
        assert len(trace.ops) >= min(copies, 1)


@given(
    st.from_regex(r"[a-z_]{1,9}(_async)?", fullmatch=True),
    st.decimals(0, 10**6, places=2),
    st.decimals(0, 10**9, places=2),
    st.lists(st.integers(0, 10**5), max_size=3),
    st.none() | identifiers,
    st.sampled_from(list(COMMS)),
)
def test_the_short_way_gives_what_the_long_one_does(
    source: str, duration: object, end: object, shape: list[int], name: str | None, comm: str
) -> None:
    named = f",func_name={name}" if name else ""
    string = f"trace_src_func={source},duration={duration},timestamp={end},input__shape={shape},input__dtype=torch.bool"
    string += f"{named},group=tp,comm_func={comm}"
    (short,) = parse_line(f"rank:0:x(duration=1.0,sub_operations=['{string}'])").subs
    long = sub_of(split_fields(string), "x", "a:1")
    assert [getattr(short, one.name) for one in fields(SubOp)] == [getattr(long, one.name) for one in fields(SubOp)]
