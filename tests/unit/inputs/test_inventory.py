"""The shape that all inventories share, and the keys of each kind's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.aicb.format import read_workload
from foretrace.inputs.aicb.inventory import workload_inventory
from foretrace.inputs.aicb.program import lower_workload
from foretrace.inputs.inventory import Inventory, counted_text, mesh_text, some_of
from foretrace.inputs.megatron_trace.format import read_runs
from foretrace.inputs.megatron_trace.inventory import runs_inventory
from foretrace.inputs.profiler_table.format import read_tables
from foretrace.inputs.profiler_table.inventory import tables_inventory
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.execution_trace import read_execution_trace
from foretrace.inputs.profiler_trace.inventory import traces_inventory
from foretrace.inputs.program_file.inventory import program_inventory
from shared_files import ROOT, shared
from unit.inputs.key_paths import key_paths

COMMON = {"schema", "kind", "format", "title", "world_size", "mesh", "diagnostics"}
RECORDED = json.loads((Path(__file__).parent / "inventory_keys.json").read_text(encoding="utf-8"))
"""The keys of version 0.6, which programs rely on; a list of paths by schema."""


def workload() -> Inventory:
    return workload_inventory(read_workload(ROOT / "examples/moe_128gpu.txt"), "job")


def runs() -> Inventory:
    return runs_inventory(read_runs([ROOT / "examples/traces/moe_ex_situ_rank2.txt"]), None, "job")


def profiles() -> Inventory:
    folder = shared("data", "kineto")
    traces = read_traces([folder / "nccl_parser_config_nccl_data.json.gz"])
    return traces_inventory(traces, [read_execution_trace(folder / "param_resnet_2gpu_et.json.gz")], "job")


def tables() -> Inventory:
    return tables_inventory(read_tables(ROOT / "examples/moe_fairseq_profile.txt"), "job")


def program() -> Inventory:
    return program_inventory(lower_workload(read_workload(ROOT / "examples/moe_128gpu.txt")), 1234, "job")


@pytest.mark.parametrize("make", [workload, runs, profiles, tables, program])
def test_every_recorded_key_is_still_there(make: Callable[[], Inventory]) -> None:
    answer = make().to_dict()
    answer = json.loads(json.dumps(answer, allow_nan=False))
    recorded = set(RECORDED[answer["schema"]])
    assert recorded <= set(key_paths(answer))
    assert set(answer) - {path for path in recorded if "." not in path} <= COMMON
    assert set(answer) >= COMMON


def test_keys_of_the_contents_replace_common_ones() -> None:
    inventory = Inventory("schema/1", "kind", "format", "title", contents={"kind": "own", "count": 1})
    assert inventory.to_dict() == {
        "schema": "schema/1",
        "kind": "own",
        "format": "format",
        "title": "title",
        "world_size": None,
        "mesh": None,
        "count": 1,
        "diagnostics": [],
    }


def test_diagnostics_are_plain() -> None:
    note = Diagnostic("note", "odd-input", "is odd", "job.txt:1")
    (plain,) = Inventory("schema/1", "kind", "format", "title", diagnostics=(note,)).to_dict()["diagnostics"]
    assert plain == {"level": "note", "code": "odd-input", "message": "is odd", "where": "job.txt:1"}


def test_texts() -> None:
    assert mesh_text("tp=8,pp=4") == "tp 8 · pp 4"
    assert some_of(["a", "b", "c"], 3) == "a · b · c"
    assert some_of(["a", "b", "c"], 2) == "a · b · 1 more"
    assert (counted_text(1, "rank"), counted_text(2000, "rank")) == ("1 rank", "2,000 ranks")
    assert counted_text(0, "class", "classes") == "0 classes"
