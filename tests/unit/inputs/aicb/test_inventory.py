"""What is in a workload file."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.inputs.aicb.format import Workload, read_workload
from foretrace.inputs.aicb.inventory import workload_inventory
from shared_files import ROOT, shared
from unit.inputs.aicb.workloads import row, workload

ROWS = [
    row("grad_gather", 1, 1, (1, "ALLGATHER", 2000)),
    row("grad_param_comm", 1, 1, (1, "REDUCESCATTER", 4000)),
    row("embedding_layer", (10, "ALLREDUCE", 8192)),
    row("attention_column_1", (100, "ALLGATHER", 8192), (80, "REDUCESCATTER", 0), 60),
    row("attention_column_2", (100, "ALLGATHER", 8192), (80, "REDUCESCATTER", 0), 60),
    row("cross_entropy1", (0, "ALLREDUCE", 16)),
]


def contents(given: Workload) -> dict[str, Any]:
    """What the JSON of a workload holds."""
    return workload_inventory(given, "job.txt").to_dict()


def test_counts() -> None:
    counted = contents(workload(ROWS, tp=2, pp=1, ga=1, all_gpus=8))
    assert (counted["rows"], counted["declared_rows"]) == (6, 6)
    assert counted["kinds"]["attention_column"] == 2
    assert counted["compute_s"] == pytest.approx({"forward": 212e-9, "input_grad": 162e-9, "weight_grad": 122e-9})
    assert (counted["mesh"], counted["world_size"], counted["microbatches"], counted["layers_per_stage"]) == (
        "tp=2,dp=4",
        8,
        1,
        2,
    )
    assert counted["tokens_per_step"] == 16
    assert counted["hidden_size"] == 1024
    assert counted["parameters_per_rank"] == 1000
    assert [tuple(one.values()) for one in counted["traffic"]] == [
        ("dp", "all_gather", 1, 2000),
        ("dp", "reduce_scatter", 1, 4000),
        ("tp", "all_gather", 2, 16384),
        ("tp", "all_reduce", 2, 8208),
    ]


def test_what_crosses_a_stage_boundary() -> None:
    assert contents(workload(ROWS, tp=2, pp=2, ga=1, all_gpus=4))["transfer_bytes"] == 4096
    assert contents(workload(ROWS, tp=2, pp=1, ga=1, all_gpus=2))["transfer_bytes"] == 0


def test_a_file_that_cannot_be_simulated_is_counted_all_the_same() -> None:
    counted = contents(workload(ROWS, tp=2, pp=1, ga=1, all_gpus=7))
    assert counted["rows"] == 6
    assert (counted["mesh"], counted["schedule"], counted["traffic"]) == (None, None, [])
    last = counted["diagnostics"][-1]
    assert (last["level"], last["code"], last["where"]) == ("warning", "cannot-simulate", "job.txt:1")


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ({"ep": None, "pp": None, "ga": None, "all_gpus": None}, "2024-07"),
        ({}, "2024-09 to 2024-10"),
        ({"vpp": 2}, "2024-11"),
        ({"vpp": 2, "pp_comm": 0}, "2024-12 on"),
        ({"vpp": 1, "mode": 1}, "AICB inference"),
    ],
)
def test_versions_by_their_headers(header: dict[str, int | None], version: str) -> None:
    assert contents(workload(ROWS, tp=2, **header))["version"].startswith(version)


@pytest.mark.parametrize(("rows", "version"), [(5, "2025-09 on; 5 rows"), (7, "2024-12 on; 7 rows")])
def test_versions_by_their_experts(rows: int, version: str) -> None:
    layer = [row("attention_column", 100), *[row("mlp_moelayer", 100)] * rows]
    assert contents(workload(layer * 2, vpp=1, pp_comm=0))["version"].startswith(version)


def test_the_examples() -> None:
    llama = contents(read_workload(ROOT / "examples" / "llama405b_1024gpu.txt"))
    assert llama["version"].startswith("2024-09")
    assert (llama["hidden_size"], llama["transfer_bytes"]) == (16384, 16 << 20)
    assert llama["tokens_per_step"] == 4096 * 16 * 8
    assert llama["parameters_per_rank"] == 3_200_516_096  # reference 1.5
    moe = contents(read_workload(ROOT / "examples" / "moe_128gpu.txt"))
    assert (moe["rows"], moe["declared_rows"], moe["hidden_size"]) == (98, 96, 384)
    assert moe["transfer_bytes"] == 50_331_648


@pytest.mark.parametrize(
    ("name", "microbatches", "layers", "tokens"),
    [
        ("gpt13b_tp8.txt", 8, 40, 512 * 2048),
        ("gpt13b_tp8_aiob.txt", 8, 40, 128 * 2048),
        ("llama405b_tp8_pp16_aiob.txt", 16, 8, 524_288),
        ("mixtral8x7b_tp2_ep8_pp4_aiob.txt", 4, 8, 262_144),
        ("Qwen3-Moe-235B*", 1, 94, None),
    ],
)
def test_generated_workloads(name: str, microbatches: int, layers: int, tokens: float | None) -> None:
    """`COMMANDS.txt` beside them says with what global batch and sequence length AICB made them."""
    counted = contents(read_workload(shared("data", "simai", "workloads", name)))
    assert (counted["microbatches"], counted["layers_per_stage"], counted["tokens_per_step"]) == (
        microbatches,
        layers,
        tokens,
    )
    assert not [one for one in counted["diagnostics"] if one["code"] == "cannot-simulate"]


def test_the_screen_has_a_row_for_each_collective() -> None:
    inventory = workload_inventory(workload(ROWS, tp=2, pp=1, ga=1, all_gpus=8), "job.txt")
    assert (inventory.kind, inventory.title, inventory.world_size, inventory.mesh) == (
        "aicb",
        "job.txt",
        8,
        "tp=2,dp=4",
    )
    (table,) = inventory.tables
    assert [row[:3] for row in table.rows] == [
        ("dp", "all_gather", "1"),
        ("dp", "reduce_scatter", "1"),
        ("tp", "all_gather", "2"),
        ("tp", "all_reduce", "2"),
    ]
    assert {"format", "rows", "compute", "ranks", "step", "tokens", "implies"} <= {
        label for label, _ in inventory.facts
    }


def test_the_screen_of_a_file_that_cannot_be_simulated_has_no_job() -> None:
    inventory = workload_inventory(workload(ROWS, tp=2, pp=1, ga=1, all_gpus=7), "job.txt")
    assert not {"ranks", "step"} & {label for label, _ in inventory.facts}
    assert not inventory.tables and not inventory.see
