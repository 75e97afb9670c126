"""A profiler's trace gets the shapes of an execution trace of the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.execution_join import attach_execution_traces, data_flow, with_shapes_of
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.execution_trace import read_execution_trace
from foretrace.inputs.profiler_trace.format.records import EventCategory
from kineto_files import document, kernel, span
from kineto_files import write as write_trace
from shared_files import shared

PROCESS = 10


def _trace(folder: Path, shift: int = 0, name: str = "trace.json") -> Path:
    """Three ops, numbered from 1 as the execution trace has them, or `shift` later."""
    ops = [("aten::mm", 4), ("aten::add", -1), ("aten::mm", 5)]
    events: list[dict[str, Any]] = []
    for at, (op, sequence) in enumerate(ops):
        said = {"External id": at + 1 + shift} | ({"Sequence number": sequence} if sequence >= 0 else {})
        one = span("cpu_op", op, 100 + 50 * at, 20, pid=PROCESS)
        one["args"] |= said
        events += [one, span("cuda_runtime", "cudaLaunchKernel", 105 + 50 * at, 2, pid=PROCESS, correlation=at + 1)]
        events.append(kernel("gemm", 120 + 50 * at, 10, at + 1))
    return write_trace(folder, document(events), name)


def _execution(folder: Path, *, before: int = 0, process: int = PROCESS) -> Path:
    """The same ops, after `before` others of an earlier step."""
    nodes: list[dict[str, Any]] = []
    earlier = [("aten::mm", 4 - before + at) for at in range(before)]
    for at, (op, sequence) in enumerate([*earlier, ("aten::mm", 4), ("aten::add", -1), ("aten::mm", 5)]):
        tensor = [20 + at, 20 + at, 0, 8, 2, "cuda:0"]
        made = [21 + at, 21 + at, 0, 8, 2, "cuda:0"]
        attrs = {"rf_id": at + 1, "seq_id": sequence, "tid": 1, "op_schema": ""}
        nodes.append({
            "id": at + 2, "name": op, "ctrl_deps": 1,
            "inputs": {"values": [tensor], "shapes": [[at + 1, 8]], "types": ["Tensor(c10::BFloat16)"]},
            "outputs": {"values": [made], "shapes": [[8]], "types": ["Tensor(c10::BFloat16)"]},
            "attrs": [{"name": key, "type": "", "value": value} for key, value in attrs.items()],
        })  # fmt: skip
    path = folder / "et.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": process, "nodes": nodes}))
    return path


@pytest.mark.parametrize(
    ("shift", "before", "how"), [(0, 0, "by number"), (7, 0, "by name and order"), (3, 2, "order")]
)
def test_ops_are_joined(tmp_path: Path, shift: int, before: int, how: str) -> None:
    trace = read_trace(_trace(tmp_path, shift))
    joined = with_shapes_of(trace, read_execution_trace(_execution(tmp_path, before=before)))
    ops = joined.events.of(EventCategory.CPU_OP)
    found = [joined.inputs[number].dims[0] for number in joined.events.inputs[ops].tolist()]
    assert found == [(before + 1, 8), (before + 2, 8), (before + 3, 8)]
    assert how in joined.diagnostics[-1].message and "3 of 3 ops" in joined.diagnostics[-1].message
    assert len(joined.events) == len(trace.events)


def test_the_pair_of_the_samples() -> None:
    trace = read_trace(shared("data", "kineto", "execution_trace_benchmark_simple_add_trace.json.gz"))
    assert (trace.events.inputs < 0).all()
    et = shared("data", "kineto", "execution_trace_benchmark_simple_add_et.json.gz")
    [joined] = attach_execution_traces([trace], [et])
    add = [at for at in joined.events.of(EventCategory.CPU_OP) if joined.strings[joined.events.name[at]] == "aten::add"]
    dims = [joined.inputs[joined.events.inputs[at]].dims[:2] for at in add]
    assert dims == [((256, 256), (256, 256))] * 2


def test_an_execution_trace_of_another_process_is_refused(tmp_path: Path) -> None:
    trace = read_trace(_trace(tmp_path))
    with pytest.raises(InputError) as caught:
        attach_execution_traces([trace], [_execution(tmp_path, process=99)])
    assert caught.value.code == "several-inputs"


def test_an_execution_trace_alone_has_no_times(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        attach_execution_traces([], [_execution(tmp_path)])
    assert caught.value.code == "cannot-simulate"


def test_data_flows_by_storage(tmp_path: Path) -> None:
    flow = data_flow(read_execution_trace(_execution(tmp_path)))
    assert [node.name for node in flow.ops] == ["aten::mm", "aten::add", "aten::mm"]
    assert (flow.source.tolist(), flow.target.tolist(), flow.longest) == ([0, 1], [1, 2], 3)
