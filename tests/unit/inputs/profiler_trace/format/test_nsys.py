"""Nsight Systems' exports become the same records as Kineto's traces."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.nsys import read_nsys, read_nsys_processes, read_nvtx_text
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile
from nsys_export import PROCESS, one_step, write_export


def _named(trace: RankProfile, name: str) -> int:
    return trace.names(np.arange(len(trace.events))).index(name)


@pytest.fixture
def step(tmp_path: Path) -> RankProfile:
    return read_nsys(write_export(tmp_path / "step.sqlite", one_step()))


def test_kernels_copies_and_calls(step: RankProfile) -> None:
    events = step.events
    gemm, copy = _named(step, "void gemm<float>(int)"), _named(step, "Memcpy HtoD")
    assert events.category[gemm] == EventCategory.KERNEL and events.stream[gemm] == 7 and events.thread[gemm] == -1
    assert events.start_s[gemm] == pytest.approx(9e-6) and events.duration_s[gemm] == pytest.approx(20e-6)
    assert events.bytes[copy] == 4096 and events.category[copy] == EventCategory.MEMCPY
    launches = [at for at in events.of(EventCategory.RUNTIME) if events.correlation[at] == events.correlation[gemm]]
    assert step.names(np.array(launches)) == ["cudaLaunchKernel"]  # the version's suffix is not part of the name
    assert step.threads[events.thread[launches[0]]].name == "python3"
    assert (np.diff(events.start_s) >= 0).all()


def test_ranges_are_ops_where_pytorch_wrote_them(step: RankProfile) -> None:
    events = step.events
    mm, user, load = _named(step, "aten::mm"), _named(step, "step"), _named(step, "load")
    assert events.category[mm] == EventCategory.CPU_OP and events.sequence[mm] == 4
    assert step.inputs[events.inputs[mm]].dims == ((8, 4), (4, 2), ())
    assert events.category[user] == events.category[load] == EventCategory.ANNOTATION
    assert events.thread[load] != events.thread[user]  # start/end ranges need not nest with the others
    assert "a mark" not in step.strings


def test_a_stream_that_waits_names_the_record_it_waits_for(step: RankProfile) -> None:
    wait = _named(step, "Stream Wait Event")
    assert step.events.category[wait] == EventCategory.SYNC and step.events.stream[wait] == 13
    assert step.events.waits_stream[wait] == 7
    assert step.events.waits_correlation[wait] == 103  # the last record before the wait, not the first nor a later one


def test_facts_and_devices(step: RankProfile) -> None:
    assert step.producer == "nsys" and step.rank is None and step.world is None
    assert step.facts["nsys_version"] == "2024.6.2.225" and step.facts["process"] == "77 python3 train.py"
    assert [(one.number, one.sms) for one in step.devices] == [(0, 132)]


def test_kernels_of_a_graph_share_its_launch(tmp_path: Path) -> None:
    rows = one_step()
    rows["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        (10_000 + at * 1_000, 10_900 + at * 1_000, 0, 1, 7, 101, PROCESS, 1, 2, 500 + at) for at in range(5)
    ]
    trace = read_nsys(write_export(tmp_path / "graph.sqlite", rows))
    kernels = trace.events.of(EventCategory.KERNEL)
    assert len(kernels) == 5 and set(trace.events.correlation[kernels].tolist()) == {101}


def test_graphs_traced_as_wholes_are_said(tmp_path: Path) -> None:
    rows = one_step() | {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [(50_000, 90_000, 0, 7, 120, PROCESS, 3)]}
    trace = read_nsys(write_export(tmp_path / "graph.sqlite", rows))
    assert trace.events.duration_s[_named(trace, "CUDA graph 3")] == pytest.approx(40e-6)
    assert any("--cuda-graph-trace=node" in one.message for one in trace.diagnostics)


def test_missing_columns_and_tables_are_noted(tmp_path: Path) -> None:
    without = ["CUPTI_ACTIVITY_KIND_KERNEL.globalPid", "CUPTI_ACTIVITY_KIND_KERNEL.demangledName"]
    rows = {name: values for name, values in one_step().items() if name not in ("CUPTI_ACTIVITY_KIND_CUDA_EVENT",)}
    trace = read_nsys(write_export(tmp_path / "old.sqlite", rows, without=without))
    assert trace.names(trace.events.of(EventCategory.KERNEL)) == ["gemm", "add"]
    assert any("CUPTI_ACTIVITY_KIND_KERNEL.globalPid" in one.message for one in trace.diagnostics)
    assert trace.events.waits_correlation[_named(trace, "Stream Wait Event")] == -1


def test_each_process_is_a_trace(tmp_path: Path) -> None:
    rows, other = one_step(), 88 << 24
    rows["CUPTI_ACTIVITY_KIND_KERNEL"] += [(9_500, 9_600, 0, 1, 7, 101, other, 10, 10, None)]
    rows["CUPTI_ACTIVITY_KIND_RUNTIME"] += [(9_000, 9_100, other | 2, 101, 3)]
    path = write_export(tmp_path / "two.sqlite", rows)
    both = read_nsys_processes(path)
    assert [len(one.events.of(EventCategory.KERNEL)) for one in both] == [2, 1]
    assert [one.facts["process"] for one in both] == ["77 python3 train.py", "88"]
    assert [(one.rank, one.world) for one in both] == [(0, 2), (1, 2)] and len(read_traces([path])) == 2
    busiest = read_nsys(path)
    assert len(busiest.events.of(EventCategory.KERNEL)) == 2
    assert any(one.code == "guessed" for one in busiest.diagnostics)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    whole = write_export(tmp_path / "whole.sqlite", one_step())
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole.read_bytes()[:-4096])
    with pytest.raises(InputError) as caught:
        read_nsys(cut)
    assert caught.value.code == "truncated-file"
    text = tmp_path / "report.nsys-rep"
    text.write_bytes(b"no database")
    with pytest.raises(InputError) as caught:
        read_nsys(text)
    assert caught.value.code == "wrong-format"
    assert "nsys export" in (caught.value.hint or "")
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(whole.read_bytes()[:4096] + b"\xff" * (len(whole.read_bytes()) - 4096))
    with pytest.raises(InputError) as caught:
        read_nsys(damaged)
    assert caught.value.code == "bad-syntax"
    with pytest.raises(InputError) as caught:
        read_nsys(tmp_path / "none.sqlite")
    assert caught.value.code == "file-not-found"
    with pytest.raises(InputError) as caught:
        read_nsys(write_export(tmp_path / "cpu.sqlite", {"StringIds": [(1, "x")]}))
    assert caught.value.code == "not-recorded"


def test_a_number_that_is_none_is_said(tmp_path: Path) -> None:
    rows = one_step()
    rows["CUPTI_ACTIVITY_KIND_MEMCPY"] = [("soon", 31_000, 0, 7, 102, PROCESS, 4096, 1)]
    with pytest.raises(InputError) as caught:
        read_nsys(write_export(tmp_path / "odd.sqlite", rows))
    assert caught.value.code == "bad-value"


def test_a_file_that_is_being_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_export(tmp_path / "busy.sqlite", one_step())
    monkeypatch.setattr("foretrace.inputs.profiler_trace.format.nsys_tables._WAIT_S", 0.0)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(InputError) as caught:
            read_nsys(path)
        assert caught.value.code == "unreadable-file"
    finally:
        writer.close()


def test_an_export_is_not_read_from_a_pipe() -> None:
    given, taken = os.pipe()
    os.write(taken, b"SQLite format 3\0" + bytes(200))
    os.close(taken)
    with pytest.raises(InputError, match="from files, not from pipes") as caught:
        read_traces([f"/dev/fd/{given}"])
    assert caught.value.code == "wrong-format"
    os.close(given)


@pytest.mark.parametrize(
    ("text", "name", "sequence", "dims"),
    [
        ("aten::mm", "aten::mm", -1, None),
        ("AddmmBackward0, seq = 12", "AddmmBackward0", 12, None),
        ("aten::add, op_id = 3, sizes = [[1, 2], []]", "aten::add", -1, ((1, 2), ())),
        ("aten::cat, seq = 2, sizes = [[[1, 2], [3, 2]], []]", "aten::cat", 2, (((1, 2), (3, 2)), ())),
        ("aten::add, sizes = [[1, 2]], input_op_ids = [(1, 0)]", "aten::add", -1, ((1, 2),)),
        ("aten::add, sizes = [[1, x]]", "aten::add", -1, None),
    ],
)
def test_nvtx_text(text: str, name: str, sequence: int, dims: object) -> None:
    found = read_nvtx_text(text)
    assert (found.name, found.is_op, found.sequence) == (name, True, sequence)
    assert (None if found.inputs is None else found.inputs.dims) == dims


def test_a_users_range_stays_one() -> None:
    assert read_nvtx_text("epoch 3, loss = 2").is_op is False


def test_a_name_that_is_not_utf8_does_not_make_an_export_unreadable(tmp_path: Path) -> None:
    path = write_export(tmp_path / "step.sqlite", one_step())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(x'ff41' AS TEXT) WHERE id = 1")
    trace = read_nsys(path)
    assert "\ufffdA" in trace.strings
    assert "not-text" in [note.code for note in trace.diagnostics]


def test_times_before_the_session_are_left_out(tmp_path: Path) -> None:
    path = write_export(tmp_path / "step.sqlite", one_step())
    whole = read_nsys(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET start = -5")
    trace = read_nsys(path)
    assert len(trace.events) < len(whole.events) and (trace.events.duration_s >= 0).all()
    assert "rows-skipped" in [note.code for note in trace.diagnostics]


def test_texts_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_export(tmp_path / "step.sqlite", one_step())
    monkeypatch.setattr("foretrace.inputs.profiler_trace.format.nsys_tables._MAX_TEXT_BYTES", 1000)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO StringIds (id, value) VALUES (999999, zeroblob(2000))")
    with pytest.raises(InputError) as caught:
        read_nsys(path)
    assert caught.value.code == "input-too-large"
