"""Workload files: any text that can be read comes back to the byte, any records come back as they were."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.inputs.aicb.format import Header, Pass, Workload, WorkloadRow, parse_workload, workload_text
from foretrace.inputs.aicb.format.records import COLLECTIVES, CUSTOMIZED, POLICIES, SUFFIXES

LARGEST = 2**63 - 1
BLANKS = " \t\v\f\r"

words = st.text(
    st.characters(exclude_characters="\0 \t\n\r\v\f", exclude_categories=["Cs"]), min_size=1, max_size=12
) | st.sampled_from(["attention_column", "embedding_layer_2", "pp:", "#", "optimizer1"])
collectives = st.builds(str.__add__, st.sampled_from(COLLECTIVES), st.sampled_from(["", *SUFFIXES])) | words
counts = st.integers(0, 2000) | st.integers(0, LARGEST)
amounts = counts | st.floats(0, 1e18) | st.floats(0, 1e6)
passes = st.builds(Pass, amounts, collectives, amounts)
indices = st.none() | st.lists(counts, max_size=4).map(tuple)
extra_keys = words.map(lambda word: "x" + word.rstrip(":"))
extra_values = st.lists(words.filter(lambda word: word[-1] != ":" and word != "pp_comm"), max_size=3).map(" ".join)
headers = st.builds(
    Header,
    policy=st.sampled_from(POLICIES),
    tp=st.none() | st.integers(1, LARGEST),
    **{name: st.none() | counts for name in ("ep", "pp", "vpp", "ga", "all_gpus", "mode")},
    pp_comm_bytes=st.none() | amounts,
    checkpoints=indices,
    checkpoint_initiates=indices,
    extra=st.lists(st.tuples(extra_keys, extra_values), max_size=3).map(tuple),
)


@st.composite
def rows(draw: st.DrawFn, customized: bool) -> WorkloadRow:
    policy = draw(words) if customized else None
    dependency = draw(st.just(-1) | st.integers(-LARGEST, LARGEST))
    parts = [draw(passes) for _ in range(3)]
    return WorkloadRow(draw(words), dependency, *parts, draw(amounts), policy, draw(st.integers(0, 9)))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    header = draw(headers)
    some = st.lists(rows(header.policy == CUSTOMIZED), min_size=1, max_size=6)
    return Workload(header, draw(counts), tuple(draw(some)))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Workload, str]:
    """A workload and a text of it with blanks, blank lines and line ends wherever they may be."""
    workload = draw(workloads())
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    blanks = BLANKS.replace("\r", "") if end == "\r" else BLANKS
    gap, edge = st.text(blanks, min_size=1, max_size=3), st.text(blanks, max_size=2)

    def line(words: list[str]) -> str:
        apart = words[0] + "".join(draw(gap) + word for word in words[1:])
        empty = "".join(draw(edge) + end for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))))
        return empty + draw(edge) + apart + draw(edge)

    plain = workload_text(workload).encode().split(b"\n")[:-1]
    lines = [line([word.decode() for word in text.split()]) for text in plain]
    mark, last = draw(st.sampled_from(["", "\ufeff"])), draw(st.sampled_from(["", " ", end, f"{end} {end}"]))
    return workload, mark + end.join(lines) + last


@given(workloads())
def test_records_come_back(workload: Workload) -> None:
    text = workload_text(workload)
    back = parse_workload(text.encode())
    assert back == workload
    assert workload_text(back) == text


@given(layouts())
def test_any_layout_comes_back_to_the_byte(drawn: tuple[Workload, str]) -> None:
    workload, text = drawn
    back = parse_workload(text.encode())
    assert back == workload
    assert workload_text(back) == text
    assert workload_text(replace(back, rows=(*back.rows,))) == text


@given(layouts(), workloads(), st.data())
def test_the_text_follows_every_change(drawn: tuple[Workload, str], other: Workload, data: st.DataObject) -> None:
    back = parse_workload(drawn[1].encode())
    policy = back.header.policy == CUSTOMIZED
    pool = st.sampled_from(back.rows) | rows(policy)
    kept = st.just(back.rows) | st.lists(pool, min_size=1, max_size=6).map(tuple)
    header = data.draw(st.sampled_from([back.header, replace(other.header, policy=back.header.policy)]))
    count = data.draw(st.sampled_from([back.declared_rows, other.declared_rows]))
    changed = replace(back, header=header, declared_rows=count, rows=data.draw(kept))
    assert parse_workload(workload_text(changed).encode()) == changed


@given(layouts(), st.data())
def test_damage_is_an_error_or_comes_back(drawn: tuple[Workload, str], data: st.DataObject) -> None:
    raw = bytearray(drawn[1].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 9))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"\n", b"\r", b"-"])
        )
    try:
        workload = parse_workload(bytes(raw))
    except ForetraceError as error:
        assert isinstance(error, InputError)
        assert error.where is not None
        assert error.where.startswith("workload")
        return
    assert workload_text(workload).encode() == bytes(raw)
    numbers = [one for row in workload.rows for one in (row.update_ns, row.forward.compute_ns, row.forward.size_bytes)]
    assert all(math.isfinite(one) and one >= 0 for one in numbers)


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_workload(data)
