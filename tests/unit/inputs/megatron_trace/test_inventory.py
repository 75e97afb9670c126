"""What is in rank traces of Megatron."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.inputs.inventory import Inventory
from foretrace.inputs.megatron_trace.format import read_runs
from foretrace.inputs.megatron_trace.inventory import MAX_RUNS, TraceInventory, count_runs, runs_inventory
from shared_files import ROOT

EX_SITU_RANK = ROOT / "examples/traces/moe_ex_situ_rank2.txt"
REAL_RANK = ROOT / "examples/traces/gpt13b_real_rank0.txt"


def inventory_of(*paths: Path, mesh: str | None = None) -> Inventory:
    """The inventory of traces in files."""
    return runs_inventory(read_runs(paths), mesh, "job")


def fact(inventory: Inventory, label: str) -> str:
    """The text of a line of the screen."""
    return dict(inventory.facts)[label]


def test_an_ex_situ_rank() -> None:
    answer = inventory_of(EX_SITU_RANK).to_dict()
    assert (answer["schema"], answer["kind"], answer["ranks"]) == ("foretrace.traces/1", "ex situ", 1)
    assert (answer["mesh"], answer["world_size"], answer["missing_ranks"]) == (None, None, None)
    assert answer["expert_tokens"] == [6535]
    assert answer["runs"] == [{"name": "moe_ex_situ_rank2.txt", "ranks": 1}]
    assert {one["op"]: one["lines"] for one in answer["ops"]}["forward_step"] == 1
    assert {"axis": "ep", "collective": "allgather", "calls": 4, "bytes": 256} in answer["calls"]


def test_a_real_run() -> None:
    answer = inventory_of(REAL_RANK).to_dict()
    assert (answer["kind"], answer["lines"], answer["stages"], answer["microbatches"]) == ("real run", 8, [0], 1)
    assert "cannot-simulate" not in {one["code"] for one in answer["diagnostics"]}


def test_a_given_mesh() -> None:
    inventory = inventory_of(EX_SITU_RANK, mesh="pp=2,dp=8,ep=8")
    assert (inventory.world_size, inventory.mesh) == (16, "dp=8,pp=2,ep=8")
    assert inventory.contents["missing_ranks"] == 15
    assert "16 ranks" in fact(inventory, "job") and "15" in fact(inventory, "job")


def test_a_mesh_that_cannot_be() -> None:
    inventory = inventory_of(EX_SITU_RANK, mesh="pp=2,dp=1")
    assert [one.code for one in inventory.diagnostics][-1] == "cannot-simulate"
    assert inventory.mesh is None and inventory.contents["lines"] == 6


@pytest.mark.parametrize("path", [EX_SITU_RANK, REAL_RANK])
def test_the_screen(path: Path) -> None:
    inventory = inventory_of(path)
    answer = inventory.to_dict()
    assert fact(inventory, "kind").startswith(answer["kind"])
    assert "--mesh" in fact(inventory, "job")
    ops, calls = inventory.tables
    assert [row[0] for row in ops.rows] == [one["op"] for one in answer["ops"]]
    assert [row[:2] for row in calls.rows] == [(one["axis"], one["collective"]) for one in answer["calls"]]


def test_many_runs_are_counted_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_as_many(*_: object) -> TraceInventory:
        from dataclasses import replace

        return replace(counted, runs=tuple((f"run{number}", number) for number in range(1, MAX_RUNS + 3)))

    runs = read_runs([REAL_RANK])
    counted = count_runs(runs)
    monkeypatch.setattr("foretrace.inputs.megatron_trace.inventory.count_runs", count_as_many)
    inventory = runs_inventory(runs, None, "job")
    text = fact(inventory, "runs")
    assert text.startswith("run1 (1 rank) · run2 (2 ranks)") and text.endswith(" · 2 more")
    assert len(inventory.contents["runs"]) == MAX_RUNS + 2
