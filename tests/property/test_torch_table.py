"""Profiler tables: any table comes back as it was written, in every form PyTorch has given them."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foretrace.basics.errors import ForetraceError
from foretrace.inputs.profiler_table.format import Column, Field, ProfilerTable, TableRow, parse_tables
from foretrace.inputs.profiler_table.format.read import SELF
from write_table import write_table

times = st.integers(0, 10**12).map(lambda ns: ns / 1e9) | st.sampled_from([0.0, 1e-3, 1.0])
negative = st.integers(-(10**9), -1).map(lambda ns: ns / 1e9)
shares = st.none() | st.integers(-500, 20000).map(lambda points: points / 10000)
sizes = st.none() | st.integers(-1023, 1023) | st.integers(-(2**45), 2**45)
flops = st.none() | st.integers(1, 10**9).map(float)
words = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cc", "Zs"]), min_size=1, max_size=30
)
names = words | st.sampled_from(
    ["aten::mm", "void at::native::kernel<4, at::Functor<float>>(int, at::detail::Array)", "Memcpy HtoD (Pinned)"]
)
locations = words.map(lambda word: f"{word}.py(12): f") | st.just("torch/nn/modules/module.py(1): __call__")
devices = st.sampled_from(["CUDA", "XPU", "HPU", "PRIVATEUSEONE", "NPU"])

HEADINGS = {
    Field.NAME: "Name",
    Field.OVERLOAD: "Overload Name",
    Field.SELF_CPU_SHARE: "Self CPU %",
    Field.SELF_CPU: "Self CPU",
    Field.CPU_TOTAL_SHARE: "CPU total %",
    Field.CPU_TOTAL: "CPU total",
    Field.CPU_AVERAGE: "CPU time avg",
    Field.SELF_DEVICE: "Self {}",
    Field.SELF_DEVICE_SHARE: "Self {} %",
    Field.DEVICE_TOTAL_SHARE: "{} total %",
    Field.DEVICE_TOTAL: "{} total",
    Field.DEVICE_AVERAGE: "{} time avg",
    Field.CPU_MEMORY: "CPU Mem",
    Field.SELF_CPU_MEMORY: "Self CPU Mem",
    Field.DEVICE_MEMORY: "{} Mem",
    Field.SELF_DEVICE_MEMORY: "Self {} Mem",
    Field.CALLS: "# of Calls",
    Field.NODE: "Node ID",
    Field.SHAPES: "Input Shapes",
    Field.FLOPS: "Total MFLOPs",
    Field.STACK: "Source Location",
}
TIMES = (Field.CPU_AVERAGE, Field.SELF_DEVICE, Field.DEVICE_TOTAL, Field.DEVICE_AVERAGE, Field.SELF_CPU)
MEMORY = (Field.CPU_MEMORY, Field.SELF_CPU_MEMORY, Field.DEVICE_MEMORY, Field.SELF_DEVICE_MEMORY)
ALWAYS = {Field.NAME, Field.CPU_TOTAL, Field.CALLS}


@st.composite
def tables(draw: st.DrawFn) -> ProfilerTable:
    """A table with any columns, in PyTorch's order."""
    wanted = draw(st.sets(st.sampled_from(list(HEADINGS)))) | ALWAYS
    device = draw(devices)
    chosen = [field for field in HEADINGS if field in wanted]
    columns = tuple(Column(HEADINGS[one].format(device), one, 1e6 if one is Field.FLOPS else 1.0) for one in chosen)
    has_device = any("{}" in HEADINGS[one] for one in chosen)
    rows = tuple(draw(st.lists(rows_with(chosen), min_size=1, max_size=6)))
    return ProfilerTable(
        path="t.txt",
        line=0,
        columns=columns,
        rows=rows,
        device=device if has_device else "",
        title=draw(st.sampled_from(["", "a title", "two\nlines"])),
        top_level_only=draw(st.booleans()),
        self_cpu_total_s=draw(st.none() | times),
        self_device_total_s=None if not has_device else draw(st.none() | times),
    )


@st.composite
def rows_with(draw: st.DrawFn, chosen: list[Field]) -> TableRow:
    values: dict[str, object] = {"name": draw(names), "line": 0, "calls": draw(st.integers(0, 10**9))}
    values["cpu_total_s"] = draw(times)
    for field in chosen:
        if field in TIMES:
            values[field] = draw(times | negative if field in SELF else times)
        elif field in (Field.SELF_CPU_SHARE, Field.SELF_DEVICE_SHARE, Field.DEVICE_TOTAL_SHARE, Field.CPU_TOTAL_SHARE):
            values[field] = draw(shares if field in SELF else shares.filter(lambda share: share is None or share >= 0))
        elif field in MEMORY:
            values[field] = draw(sizes)
        elif field is Field.FLOPS:
            values[field] = draw(flops)
        elif field is Field.NODE:
            values[field] = draw(st.integers(-1, 99))
        elif field is Field.OVERLOAD:
            values[field] = draw(st.sampled_from(["", "Tensor", "out"]))
        elif field is Field.SHAPES:
            values[field] = draw(st.sampled_from(["[]", "[[4, 8], [8]]", "[[4, 8], [8"]))
        elif field is Field.STACK:
            values[field] = tuple(draw(st.lists(locations, max_size=3)))
    return TableRow(**values)  # type: ignore[arg-type]


@given(tables(), st.sampled_from(["right", "left"]), st.sampled_from([None, "us", "ms", "s"]), st.booleans())
def test_a_table_comes_back(table: ProfilerTable, align: str, unit: str | None, capital: bool) -> None:
    own_s = [row.self_cpu_s or 0.0 for row in table.rows]
    assume(min(own_s, default=0.0) >= 0 or sum(own_s) > 1e-3 * len(own_s))
    text = write_table(table, align=align, time_unit=unit, capital=capital)  # type: ignore[arg-type]
    (read,) = parse_tables(f"a log\n{text}its end\n", "t.txt")
    assert write_table(read, align=align, time_unit=unit, capital=capital) == text  # type: ignore[arg-type]
    assert (read.columns, read.device, read.title) == (table.columns, table.device, table.title)
    # Random numbers contradict each other.
    contradicting = ("conflicting-values", "implausible-time", "implausible-rate")
    assert read.top_level_only == table.top_level_only
    assert all(note.code in contradicting for note in read.diagnostics)
    digit_s = {None: 5.1e-10, "us": 5.1e-10, "ms": 5.1e-7, "s": 5.1e-4}[unit]
    for before, after in zip(table.rows, read.rows, strict=True):
        _same(before, after, digit_s, table)


def _same(before: TableRow, after: TableRow, digit_s: float, table: ProfilerTable) -> None:
    shown = {column.field for column in table.columns}
    for one in fields(TableRow):
        was, now = getattr(before, one.name), getattr(after, one.name)
        if one.name == "cut":
            assert now == before.name.endswith("...")
        elif one.name == "asynchronous":
            assert not now
        elif one.name in ("line",) or one.name not in shown:
            continue
        elif isinstance(was, float) and one.name.endswith("_s"):
            assert now == pytest.approx(was, rel=5.1e-4, abs=digit_s), one.name
        elif isinstance(was, int) and "memory" in one.name:
            assert now == pytest.approx(was, rel=6e-3), one.name
        elif isinstance(was, float):
            assert now == pytest.approx(was, rel=1e-3, abs=1e3), one.name
        else:
            assert now == was, one.name


@given(tables(), st.integers(0, 4000), st.integers(0, 4000))
def test_a_damaged_table_is_read_or_refused(table: ProfilerTable, first: int, last: int) -> None:
    text = write_table(table)
    damaged = text[: min(first, len(text))] + text[min(first, len(text)) + last :]
    try:
        found = parse_tables(damaged, "t.txt")
    except ForetraceError as error:
        assert error.exit_code == 3 and str(error)
    else:
        assert found
