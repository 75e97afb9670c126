"""PyTorch's execution traces, of every version, read into one form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.execution_trace import looks_like_execution_trace, read_execution_trace
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments
from shared_files import shared

TENSOR = [6, 7, 0, 32, 4, "cuda:0"]


def node(
    number: int, name: str, function: int, inputs: list[Any], types: list[str], shapes: list[Any], **attrs: Any
) -> dict[str, Any]:
    """A node of version 1.1."""
    known = {"rf_id": function, "seq_id": -1, "tid": 1, "op_schema": "", **attrs}
    return {
        "id": number, "name": name, "ctrl_deps": 1,
        "inputs": {"values": inputs, "shapes": shapes, "types": types},
        "outputs": {"values": [TENSOR], "shapes": [[8, 4]], "types": ["Tensor(float)"]},
        "attrs": [{"name": key, "type": "string", "value": value} for key, value in known.items()],
    }  # fmt: skip


def write(folder: Path, nodes: list[dict[str, Any]], name: str = "et.json") -> Path:
    """A file of version 1.1."""
    text = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 77, "time": "now", "start_ts": 1, "nodes": nodes})
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_inputs_are_in_the_words_of_the_profiler(tmp_path: Path) -> None:
    add = node(
        5, "aten::add", 9, [TENSOR, [TENSOR, TENSOR], [1, 2], 0.5, "<None>", "cuda"],
        ["Tensor(c10::BFloat16)", "GenericList[Tensor(float),Tensor(float)]", "GenericList[Int,Int]", "Double", "None",
         "Device"],
        [[8, 4], [[8, 4], [2]], [[], []], [], [], []], seq_id=3,
    )  # fmt: skip
    found = read_execution_trace(write(tmp_path, [add], "et.json.gz"))
    [read] = found.nodes
    assert (found.schema, found.process, read.function, read.sequence) == ("1.1.1-chakra.0.0.4", 77, 9, 3)
    assert read.inputs.types == ("c10::BFloat16", "TensorList", "ScalarList", "Scalar", "", "")
    assert read.inputs.dims == ((8, 4), ((8, 4), (2,)), (), (), (), ())
    assert read.inputs.values == ("", "", "[1, 2]", "0.5", "", "cuda")
    assert [one.number for one in read.reads] == [6, 6, 6] and read.writes[0].storage == 7


def test_communications_have_their_arguments(tmp_path: Path) -> None:
    said = {
        "collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 32, "out_msg_nelems": 32, "pg_name": "0",
        "pg_desc": "default_pg", "pg_size": 2, "global_rank_start": 4, "global_rank_stride": 2, "in_split_size": "[]",
        "out_split_size": "[]",
    }  # fmt: skip
    [read] = read_execution_trace(write(tmp_path, [node(5, "record_param_comms", 9, [], [], [], **said)])).nodes
    assert read.call == CollectiveArguments("allreduce", 32, 32, "Float", "0", 2, (4, 6), description="default_pg")


def test_the_first_version_has_fields_instead_of_attributes() -> None:
    found = read_execution_trace(shared("data", "kineto", "execution_trace_benchmark_simple_add_et.json.gz"))
    assert found.schema == "1.0.1" and len(found.nodes) == 38
    empty = next(node for node in found.nodes if node.name == "aten::empty")
    assert (empty.number, empty.function, empty.parent) == (5, 3, 4)
    assert empty.inputs.values[0] == "[256, 256]" and empty.writes[0].elements == 65536
    assert [node.number for node in found.nodes] == sorted(node.number for node in found.nodes)
    assert {node.name for node in found.leaves()} >= {"aten::empty", "aten::uniform_", "aten::add"}


def test_groups_and_collectives_of_a_run_on_two_gpus() -> None:
    found = read_execution_trace(shared("data", "kineto", "param_resnet_2gpu_et.json.gz"))
    assert len(found.nodes) == 14_392 and dict(found.groups) == {"0": ()}
    calls = [node.call for node in found.nodes if node.call is not None and node.call.name == "allreduce"]
    assert len(calls) == 15 and calls[0].in_elements == 2_049_000 and calls[0].ranks == (0, 1)


def test_files_are_told_by_their_head(tmp_path: Path) -> None:
    plain, packed = write(tmp_path, []), write(tmp_path, [], "et.json.gz")
    other = tmp_path / "trace.json"
    other.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert looks_like_execution_trace(plain) and looks_like_execution_trace(packed)
    assert not looks_like_execution_trace(other) and not looks_like_execution_trace(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"schema": "1.1.1", "nodes": [', "bad-syntax"),
        (b'{"schema": "1.1.1"}', "wrong-format"),
        (b"[]", "wrong-format"),
        (b'{"schema": "1.1.1", "nodes": [{"id": 1}]}', "missing-field"),
        (b'{"schema": "1.1.1", "nodes": [7]}', "bad-value"),
        (b'{"schema": "1.1.1", "nodes": [%s7%s]}' % (b"[" * 600, b"]" * 600), "too-deep"),
        (gzip.compress(b'{"schema": "1.1.1", "nodes": []}', mtime=0)[:-12], "truncated-file"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_execution_trace(path)
    assert error.value.code == code
