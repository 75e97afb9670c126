"""Kineto's JSON into records."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile, Thread
from kineto_files import document, kernel, small_step, span, write
from shared_files import shared


def messages(trace: RankProfile) -> str:
    return "\n".join(one.message for one in trace.diagnostics)


def test_a_small_step(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document(small_step(), record_shapes=1)))
    events = trace.events
    assert trace.names(np.arange(len(events))) == ["ProfilerStep#3", "aten::mm", "cudaLaunchKernel", "sgemm"]
    assert [EventCategory(one) for one in events.category] == [
        EventCategory.ANNOTATION,
        EventCategory.CPU_OP,
        EventCategory.RUNTIME,
        EventCategory.KERNEL,
    ]
    assert events.start_s == pytest.approx([0, 1.5e-6, 5e-6, 12.125e-6], abs=1e-15)
    assert events.duration_s == pytest.approx([50e-6, 20.25e-6, 4e-6, 7.5e-6], abs=1e-15)
    assert events.correlation.tolist() == [-1, -1, 77, 77]
    assert events.external.tolist() == [1, 2, 2, 2]
    assert events.sequence.tolist() == [-1, 5, -1, -1]
    assert events.thread.tolist() == [0, 0, 0, -1]
    assert (events.device.tolist(), events.stream.tolist()) == ([-1, -1, -1, 0], [-1, -1, -1, 7])
    assert trace.threads == (Thread(10, 11, "thread 11 (python3)"),)
    inputs = trace.inputs[events.inputs[1]]
    assert (inputs.dims, inputs.types) == (((4, 8), (8, 2)), ("float", "float"))
    assert trace.facts["record_shapes"] == "1"
    assert (trace.producer, trace.rank, trace.world, trace.diagnostics) == ("kineto", None, None, ())


def test_keys_stand_in_any_order_and_lists_may_be_bare(tmp_path: Path) -> None:
    known = {"distributedInfo": {"rank": 3, "world_size": 8, "nccl_version": "2.20"}, "baseTimeNanoseconds": 10**18}
    before = read_trace(write(tmp_path, {**known, "traceEvents": small_step()}))
    after = read_trace(write(tmp_path, {"traceEvents": small_step(), **known}))
    bare = read_trace(write(tmp_path, small_step()))
    for trace in (before, after):
        assert (trace.rank, trace.world, trace.facts["nccl_version"]) == (3, 8, "2.20")
        assert trace.origin_ns == 10**18 + 100_000
    assert bare.events.start_s.tolist() == after.events.start_s.tolist() == before.events.start_s.tolist()


@pytest.mark.parametrize("base", [0, 1_682_725_898_236_567, 3_849_561_941_125, 98_765_432_109_876])
def test_times_keep_their_nanoseconds(base: int, tmp_path: Path) -> None:
    # As text, since Python would round what it writes.
    events = ",".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "dur": 0.125, "ts": {base + at}.{digits:03}}}'
        for at, digits in ((0, 1), (1, 339), (2, 999))
    )
    trace = read_trace(write(tmp_path, f'{{"traceEvents": [{events}]}}'))
    assert np.rint(trace.events.start_s * 1e9).tolist() == [0, 1338, 2998]
    assert trace.events.duration_s.tolist() == pytest.approx([125e-9] * 3, rel=1e-12)
    assert trace.origin_ns == base * 1000 + 1


def test_whole_microseconds_of_old_traces(tmp_path: Path) -> None:
    base = 1_682_725_898_236_567
    trace = read_trace(write(tmp_path, [span("Operator", "a", base, 3), span("Operator", "b", base + 7, 1)]))
    assert trace.events.start_s.tolist() == pytest.approx([0, 7e-6], rel=1e-12)
    assert trace.origin_ns == base * 1000


@pytest.mark.parametrize(
    ("written", "category"),
    [
        ("cpu_op", EventCategory.CPU_OP),
        ("Operator", EventCategory.CPU_OP),
        ("user_annotation", EventCategory.ANNOTATION),
        ("cuda_runtime", EventCategory.RUNTIME),
        ("cuda_driver", EventCategory.RUNTIME),
        ("Runtime", EventCategory.RUNTIME),
        ("hip_runtime", EventCategory.RUNTIME),
        ("xpu_runtime", EventCategory.RUNTIME),
        ("kernel", EventCategory.KERNEL),
        ("Kernel", EventCategory.KERNEL),
        ("gpu_memcpy", EventCategory.MEMCPY),
        ("Memcpy", EventCategory.MEMCPY),
        ("gpu_memset", EventCategory.MEMSET),
        ("Memset", EventCategory.MEMSET),
        ("cuda_sync", EventCategory.SYNC),
        ("gpu_user_annotation", EventCategory.DEVICE_ANNOTATION),
        ("overhead", EventCategory.OVERHEAD),
        ("python_function", EventCategory.PYTHON),
        ("something_new", EventCategory.OTHER),
    ],
)
def test_categories_of_every_version(written: str, category: EventCategory, tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document([span(written, "a", 1, 2, pid=0, tid=7)])))
    assert trace.events.category.tolist() == [category]
    assert ("something_new" in messages(trace)) == (category is EventCategory.OTHER)
    on_device = category in (
        EventCategory.KERNEL,
        EventCategory.MEMCPY,
        EventCategory.MEMSET,
        EventCategory.SYNC,
        EventCategory.DEVICE_ANNOTATION,
    )
    assert trace.events.stream.tolist() == [7 if on_device else -1]


def test_events_of_pytorch_before_kineto(tmp_path: Path) -> None:
    op = {"name": "add", "ph": "X", "ts": 101.5, "dur": 134.4, "tid": 1, "pid": "CPU functions", "args": {}}
    on_gpu = {**op, "ts": 103.0, "tid": 0, "pid": "CUDA functions"}
    trace = read_trace(write(tmp_path, [op, on_gpu]))
    assert trace.events.category.tolist() == [EventCategory.CPU_OP, EventCategory.KERNEL]
    assert trace.diagnostics == ()


def test_rocm(tmp_path: Path) -> None:
    copy = span("gpu_memcpy", "Memcpy HtoD", 5, 2, pid=2, tid=0, device=2, stream=0, correlation=117, kind="HtoD")
    call = span("cuda_runtime", "hipMemcpyWithStream", 1, 6, stream="0x0", cid=153, correlation=117, size="2560")
    far = span("kernel", "Cijk", 9, 2, pid=2, tid=0, device=2, stream="0x7fda0e810200", correlation=118)
    trace = read_trace(write(tmp_path, document([copy, call, far])))
    events = trace.events
    assert events.bytes.tolist() == [2560, 2560, -1]
    assert events.device.tolist() == [-1, 2, 2]
    assert events.stream.tolist() == [-1, 0, 1]  # addresses are numbered


def test_waits(tmp_path: Path) -> None:
    one = span("cuda_sync", "Stream Wait Event", 5, 2, pid=0, tid=24, stream=24, device=0, correlation=1389,
               wait_on_stream=20, wait_on_cuda_event_record_corr_id=1385)  # fmt: skip
    host = span("cuda_sync", "Context Sync", 9, 2, pid=0, tid=-1, stream=-1, device=0, correlation=1424)
    none = 2**32 - 1
    old = span("cuda_sync", "Event Sync", 12, 2, pid=0, tid=none, stream=none, device=0, correlation=1425,
               wait_on_stream=none, wait_on_cuda_event_record_corr_id=none)  # fmt: skip
    events = read_trace(write(tmp_path, document([one, host, old]))).events
    assert events.waits_stream.tolist() == [20, -1, -1]
    assert events.waits_correlation.tolist() == [1385, -1, -1]
    assert events.stream.tolist() == [24, -1, -1]


def collective(**changed: Any) -> dict[str, Any]:
    said = {
        "Collective_name": "allreduce",
        "In_msg_nelems": 2048,
        "Out_msg_nelems": 2048,
        "Group_size": 8,
        "Process_Group_Name": "7",
        "Process_Group_Description": "mesh_dp",
        "Process_Group_Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        "In_split_size": "[]",
        "Out_split_size": "[]",
        "dtype": "BFloat16",
    }
    return span("cpu_op", "record_param_comms", 1, 2, **{**said, **changed})


def test_collectives(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document([collective(), collective()])))
    assert trace.events.call.tolist() == [0, 0]
    (call,) = trace.calls
    assert (call.name, call.in_elements, call.out_elements, call.dtype) == ("allreduce", 2048, 2048, "BFloat16")
    assert (call.group, call.group_size, call.ranks, call.description) == ("7", 8, tuple(range(8)), "mesh_dp")
    assert trace.groups == {"7": tuple(range(8))}
    assert trace.descriptions == {"7": "mesh_dp"}


def test_splits_peers_and_numbered_groups(tmp_path: Path) -> None:
    uneven = collective(Collective_name="all_to_allv", In_split_size="[1, 2, 5]", Out_split_size="[3, 3, 2]")
    sent = collective(Collective_name="send", Src_Rank=3, Dst_Rank=5)
    received = collective(Collective_name="recv", Src_Rank=3, Dst_Rank=5)
    numbered = collective(Process_Group_ID=4)
    del numbered["args"]["Process Group Name"]
    trace = read_trace(write(tmp_path, document([uneven, sent, received, numbered])))
    assert (trace.calls[0].in_split, trace.calls[0].out_split) == ((1, 2, 5), (3, 3, 2))
    assert [call.peer for call in trace.calls] == [-1, 5, 3, -1]
    assert trace.calls[3].group == "4"


def test_ranks_that_are_not_all_listed(tmp_path: Path) -> None:
    known = collective(Process_Group_Ranks="[0, 2, ..., 14]", Global_rank_start=0, Global_rank_stride=2)
    unknown = collective(Process_Group_Ranks="[0, 1, ..., 9]", Process_Group_Name="8", Global_rank_stride=-1)
    trace = read_trace(write(tmp_path, document([known, unknown])))
    assert trace.calls[0].ranks == tuple(range(0, 16, 2))
    assert (trace.calls[1].ranks, trace.calls[1].group_size) == ((), 8)
    assert "1 kinds of collectives do not list all ranks" in messages(trace)


def test_inputs_of_lists_and_values(tmp_path: Path) -> None:
    op = span("cpu_op", "aten::cat", 1, 2, Input_Dims=[[[2, 3], [4, 3]], []], Input_type=["TensorList", "Scalar"],
              Concrete_Inputs=["", "1"], Input_Strides=[[[3, 1], [3, 1]], []])  # fmt: skip
    trace = read_trace(write(tmp_path, document([op, {**op, "ts": 5}])))
    (inputs,) = trace.inputs
    assert inputs.dims == (((2, 3), (4, 3)), ())
    assert inputs.strides == (((3, 1), (3, 1)), ())
    assert (inputs.types, inputs.values) == (("TensorList", "Scalar"), ("", "1"))
    assert trace.events.inputs.tolist() == [0, 0]


def test_events_that_begin_together_come_longest_first(tmp_path: Path) -> None:
    events = [span("cpu_op", name, 5, length) for name, length in (("inner", 1), ("outer", 9), ("middle", 4))]
    trace = read_trace(write(tmp_path, document(events)))
    assert trace.names(np.arange(3)) == ["outer", "middle", "inner"]


def test_what_has_no_usable_time_is_left_out_and_counted(tmp_path: Path) -> None:
    good = small_step()
    bad = [
        span("cpu_op", "negative", 100, -1),
        span("cpu_op", "nan", 100, float("nan")),
        span("kernel", "at zero", -(10**14), 1, pid=0, tid=7),
        {"ph": "X", "cat": "cpu_op", "name": "no time", "pid": 10, "tid": 11, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "no end", "pid": 10, "tid": 11, "ts": 100},
    ]
    trace = read_trace(write(tmp_path, document([*good, *bad])))
    assert len(trace.events) == 4
    said = messages(trace)
    assert "1 events have a negative duration" in said
    assert "1 events have a time or duration that is not a number" in said
    assert "1 events are more than a day from the others" in said
    assert "2 events have no time or duration" in said


def test_what_is_no_span_is_said(tmp_path: Path) -> None:
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 11, "ts": 5, "args": {}}
    counter = {"ph": "C", "name": "GPU utilization", "pid": 0, "ts": 5, "args": {"%": 5}}
    trace = read_trace(write(tmp_path, document([*small_step(), memory, memory, counter, {}, None, "x"])))
    assert "2 records of memory are not read" in messages(trace)
    assert 'phase "C"' in messages(trace)
    assert trace.facts["profile_memory"] == "1"


def test_odd_values_of_arguments(tmp_path: Path) -> None:
    odd = kernel("k", 120, 1, 2**64 - 1, External_id=None)
    listed = {**kernel("l", 130, 1, 5), "args": ["what"]}
    trace = read_trace(write(tmp_path, document([*small_step(), odd, listed])))
    assert trace.events.correlation.tolist()[-2:] == [-1, -1]
    assert trace.events.stream.tolist()[-2:] == [7, 7]


def test_rank_in_the_name(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document(small_step()), "job_rank-12.json.gz"))
    assert trace.rank == 12
    assert "by the name of the file" in messages(trace)


@pytest.mark.parametrize("folder", ["kineto", "h200"])
def test_every_sample_is_read_as_json_itself_has_it(folder: str) -> None:
    for path in sorted(shared("data", folder).glob("*.json.gz")):
        if path.name.endswith("_et.json.gz"):
            continue
        with gzip.open(path) as stream:
            whole = json.load(stream)
        spans = [one for one in whole["traceEvents"] if one["ph"] == "X" and one["cat"] != "Trace"]
        trace = read_trace(path)
        events = trace.events
        assert len(events) == len(spans), path.name
        assert Counter(trace.names(np.arange(len(events)))) == Counter(one["name"] for one in spans)
        assert float(events.duration_s.sum()) == pytest.approx(sum(one["dur"] for one in spans) * 1e-6, rel=1e-9)
        correlations = Counter(one["args"]["correlation"] for one in spans if "correlation" in one.get("args", {}))
        assert Counter(events.correlation[events.correlation >= 0].tolist()) == correlations
        assert (np.diff(events.start_s) >= 0).all()
        assert trace.diagnostics == (), path.name


def test_golden_counts_of_samples() -> None:
    nccl = read_trace(shared("data", "kineto", "nccl_parser_config_nccl_data.json.gz"))
    counts = {one: int((nccl.events.category == one).sum()) for one in EventCategory}
    assert {one: count for one, count in counts.items() if count} == {
        EventCategory.CPU_OP: 14346,
        EventCategory.ANNOTATION: 42,
        EventCategory.RUNTIME: 8740,
        EventCategory.KERNEL: 2700,
        EventCategory.MEMCPY: 960,
        EventCategory.MEMSET: 114,
        EventCategory.DEVICE_ANNOTATION: 30,
    }
    assert (nccl.rank, nccl.world, nccl.groups) == (0, 2, {"0": (0, 1)})
    assert nccl.facts["nccl_version"] == "2.17.1"
    assert Counter(call.name for call in nccl.calls) == {"allreduce": 10, "broadcast": 4, "wait": 1}
    h200 = read_trace(shared("data", "h200", "tinyllama_mbs1_s512.json.gz"))
    assert (len(h200.events), len(h200.inputs), len(h200.strings)) == (43975, 229, 157)
    assert [(one.name, one.sms) for one in h200.devices] == [("NVIDIA H200", 132)]
    amd = read_trace(shared("data", "kineto", "amd_trace_mi250*"))
    assert amd.events.bytes[amd.events.of(EventCategory.MEMCPY)].min() > 0
