"""Traces of the PyTorch profiler: however formatted and wherever the file is cut into pieces, the same is read."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.kineto import read_kineto
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile
from kineto_files import document, small_step, span, write

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['}, {"', "}, {", "},\n  {", '"traceEvents": [', "]}", "\\", '"', "ü", "漢字", "\x00", "🙂"]
)
times = st.integers(0, 10**9).map(lambda ns: ns / 1000)
dims = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3)
nested = st.recursive(
    st.integers(0, 9) | texts, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2)
)
HOST = ("cpu_op", "user_annotation", "cuda_runtime", "python_function")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@st.composite
def spans(draw: st.DrawFn) -> dict[str, Any]:
    category = draw(st.sampled_from(HOST + DEVICE))
    on_device = category in DEVICE
    arguments: dict[str, Any] = {"External id": draw(st.integers(0, 99)), "other": draw(nested)}
    if on_device or category == "cuda_runtime":
        arguments["correlation"] = draw(st.integers(0, 99))
    if on_device:
        arguments |= {"device": 0, "stream": draw(st.integers(0, 9))}
    if category == "cpu_op":
        arguments["Input Dims"] = draw(dims)
    event = span(category, draw(texts), draw(times), draw(times), pid=0 if on_device else 10)
    return {**event, "args": arguments}


flows = st.just({"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"})
events_of_a_trace = st.lists(spans() | flows, min_size=1, max_size=12).filter(
    lambda events: any(one["ph"] == "X" for one in events)
)
layouts = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 2, "\t"]),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", " : ")]),
    }
)


def read(text: str, piece_bytes: int) -> RankProfile:
    with tempfile.TemporaryDirectory() as folder:
        return read_kineto(write(Path(folder), text), piece_bytes)


def rows(trace: RankProfile) -> list[tuple[object, ...]]:
    """The events as what they mean, whatever the numbering."""
    events = trace.events
    return sorted(
        (
            trace.strings[events.name[at]],
            EventCategory(events.category[at]).name,
            round((events.start_s[at] * 1e9) + trace.origin_ns),
            round(events.duration_s[at] * 1e9),
            int(events.correlation[at]),
            int(events.external[at]),
            int(events.stream[at]),
            trace.inputs[events.inputs[at]].dims if events.inputs[at] >= 0 else None,
        )
        for at in range(len(events))
    )


def expected(events: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    kinds = dict(
        zip(HOST + DEVICE, ("CPU_OP", "ANNOTATION", "RUNTIME", "PYTHON", "KERNEL", "MEMCPY", "MEMSET"), strict=True)
    )
    return sorted(
        (
            one["name"],
            kinds[one["cat"]],
            round(one["ts"] * 1000),
            round(one["dur"] * 1000),
            one["args"].get("correlation", -1),
            one["args"]["External id"],
            one["args"].get("stream", -1),
            tuple(map(tuple, one["args"]["Input Dims"])) if "Input Dims" in one["args"] else None,
        )
        for one in events
        if one["ph"] == "X"
    )


def ordered(found: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, found))


@given(events_of_a_trace, layouts, st.integers(1, 400), st.booleans())
def test_any_formatting_in_any_pieces(
    events: list[dict[str, Any]], layout: dict[str, Any], piece: int, bare: bool
) -> None:
    text = json.dumps(events if bare else document(events, traceName="x"), **layout)
    trace = read(text, piece)
    assert ordered(rows(trace)) == ordered(expected(events))
    assert trace.diagnostics == ()


def test_pieces_that_end_at_every_byte() -> None:
    events = [*small_step(), span("cpu_op", "ü漢🙂", 130, 1, External_id=9)]
    for indent in (None, 2):
        content = document(events, deviceProperties=[{"id": 0, "name": "A"}, {"id": 1, "name": "B"}])
        text = json.dumps(content, indent=indent, ensure_ascii=False)
        whole = read(text, len(text.encode()) + 1)
        for piece in range(1, len(text.encode()) + 1):
            trace = read(text, piece)
            assert rows(trace) == rows(whole)
            assert [one.name for one in trace.devices] == ["A", "B"]


@given(st.text(max_size=60) | st.text(st.sampled_from('{}[]",:\\ 12traceEvents'), max_size=60), st.integers(1, 70))
@example('{"traceEvents": [{"ph": "X"', 5)
@example('{"traceEvents": [{}, {}', 1)
@example('{"traceEvents": [{"a": }, {"b": 1}]}', 3)
def test_no_text_is_anything_but_read_or_refused(text: str, piece: int) -> None:
    try:
        trace = read(text, piece)
    except InputError as error:
        assert error.message
    else:
        assert len(trace.events) > 0


@given(st.data())
def test_a_changed_byte_is_read_or_refused(data: st.DataObject) -> None:
    text = json.dumps(document(small_step()), indent=data.draw(st.sampled_from([None, 2])))
    at = data.draw(st.integers(0, len(text) - 1))
    broken = text[:at] + data.draw(st.characters(exclude_categories=["Cs"])) + text[at + 1 :]
    try:
        trace = read(broken, data.draw(st.integers(1, 700)))
    except InputError as error:
        assert error.message
    else:
        assert np.isfinite(trace.events.start_s).all()
        assert (trace.events.duration_s >= 0).all()
