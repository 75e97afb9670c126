"""What is in profilers' traces and in execution traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.inputs.inventory import Inventory
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.execution_trace import read_execution_trace
from foretrace.inputs.profiler_trace.inventory import MAX_RANKS, traces_inventory
from kineto_files import document, kernel, small_step, span, write
from shared_files import shared


def inventory_of(*paths: Path) -> Inventory:
    """The inventory of profilers' traces in files."""
    return traces_inventory(read_traces(paths), [], "job")


def trace_of(path: Path) -> dict[str, Any]:
    """The part of the JSON about the only trace."""
    (trace,) = inventory_of(path).to_dict()["traces"]
    return trace


def labels(inventory: Inventory) -> list[str]:
    """The labels of the facts of a screen."""
    return [label for label, _ in inventory.facts]


def test_a_trace(tmp_path: Path) -> None:
    inventory = inventory_of(write(tmp_path, document(small_step(), distributedInfo={"rank": 2})))
    answer = inventory.to_dict()
    assert (answer["schema"], answer["format"]) == ("foretrace.profiles/1", "profiler traces")
    (trace,) = answer["traces"]
    assert (trace["rank"], trace["world_size"], trace["events"]) == (2, None, 4)
    assert (trace["steps_by"], trace["steps"]) == ("ProfilerStep", ["ProfilerStep#3"])
    assert trace["steps_s"] == pytest.approx([50e-6])
    assert trace["streams"] == [
        {"device": 0, "stream": 7, "kernels": 1, "communications": 0, "copies": 0, "busy_s": pytest.approx(7.5e-6)}
    ]
    assert trace["recorded"]["shapes"] and not trace["recorded"]["stacks"]
    (streams,) = inventory.tables
    assert streams.rows == [("0:7", "1", "0", "0", "7.50 µs")]


def test_several_ranks(tmp_path: Path) -> None:
    for rank in (1, 0):
        content = document(small_step(), distributedInfo={"rank": rank, "world_size": 2})
        write(tmp_path, content, f"trace_{rank}.json.gz")
    inventory = inventory_of(tmp_path)
    assert [one["rank"] for one in inventory.to_dict()["traces"]] == [0, 1]
    assert inventory.world_size == 2
    assert dict(inventory.facts)["trace"].startswith("trace_0.json.gz · ")
    assert list(inventory.tables[-1].rows) == [
        ("trace_0.json.gz", "0", "4", "1", "1", "50.0 µs"),
        ("trace_1.json.gz", "1", "4", "1", "1", "50.0 µs"),
    ]


def test_more_ranks_than_a_screen_shows(tmp_path: Path) -> None:
    for rank in range(MAX_RANKS + 3):
        write(tmp_path, document(small_step(), distributedInfo={"rank": rank}), f"trace_{rank}.json")
    inventory = inventory_of(tmp_path)
    ranks = inventory.tables[-1]
    assert len(ranks.rows) == MAX_RANKS and ranks.note.startswith("3 more ranks")
    assert len(inventory.contents["traces"]) == MAX_RANKS + 3


def test_a_trace_without_a_device(tmp_path: Path) -> None:
    inventory = inventory_of(write(tmp_path, document([span("cpu_op", "aten::mm", 1, 2)])))
    assert dict(inventory.facts)["device"] == "nothing ran on a device"
    assert "cannot tell" in labels(inventory)
    assert not inventory.tables and not inventory.see


def test_what_is_busy_at_once_counts_once(tmp_path: Path) -> None:
    events = [kernel("a", 100, 10, 1), kernel("b", 105, 10, 2), kernel("c", 106, 2, 3), kernel("d", 130, 5, 4)]
    trace = trace_of(write(tmp_path, document(events)))
    assert trace["streams"][0]["busy_s"] == pytest.approx(20e-6)


def test_a_trace_without_marked_steps(tmp_path: Path) -> None:
    inventory = inventory_of(write(tmp_path, document([kernel("a", 100, 10, 1)])))
    assert "whole trace" in dict(inventory.facts)["steps"]


def test_collectives() -> None:
    inventory = inventory_of(shared("data", "kineto", "nccl_parser_config_nccl_data.json.gz"))
    assert inventory.world_size == 2
    collectives = inventory.tables[1]
    assert [row[:4] for row in collectives.rows] == [
        ("all_reduce", "default_pg", "2", "15"),
        ("broadcast", "default_pg", "2", "6"),
    ]
    assert labels(inventory).count("cannot tell") == 2


def test_an_execution_trace() -> None:
    path = shared("data", "kineto", "param_resnet_2gpu_et.json.gz")
    inventory = traces_inventory([], [read_execution_trace(path)], "job")
    answer = inventory.to_dict()
    assert (answer["format"], answer["traces"]) == ("PyTorch execution traces", [])
    (execution,) = answer["execution_traces"]
    assert execution["collectives"] == {"allreduce": 15, "broadcast": 6, "wait": 6}
    assert (execution["nodes"], execution["dependencies"], execution["longest_chain"]) == (14392, 7337, 960)
    assert dict(inventory.facts)["calls"] == "15 allreduce · 6 broadcast · 6 wait"
    assert labels(inventory)[-1] == "cannot tell" and not inventory.see


def test_an_execution_trace_with_the_profilers(tmp_path: Path) -> None:
    execution = read_execution_trace(shared("data", "kineto", "param_resnet_2gpu_et.json.gz"))
    traces = read_traces([write(tmp_path, document(small_step()))])
    inventory = traces_inventory(traces, [execution], "job")
    assert inventory.format == "profiler traces"
    assert labels(inventory).index("trace") < labels(inventory).index("execution")
    assert "cannot tell" not in labels(inventory)[labels(inventory).index("execution") :]
