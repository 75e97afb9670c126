"""The memory outside the allocator, by plan and machine."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.cost.machine import Machine
from foretrace.hardware.presets import names
from foretrace.models.presets import model
from foretrace.simulation.job_memory import CONTEXT_BYTES, NCCL_KERNELS_BYTES, outside_memory
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle

MIB = 1 << 20


@pytest.fixture(scope="module")
def dgx() -> Machine:
    return Machine("h100-dgx")


def setting_of(name: str = "llama3-8b", **fields: Any) -> Setting:
    return settle(model(name), Plan(**fields))


def parts_of(setting: Setting, machine: Machine) -> dict[str, int]:
    return {part.name: part.bytes for part in outside_memory(setting, machine)}


def test_one_gpu_has_its_context_alone(dgx: Machine) -> None:
    assert parts_of(setting_of(gpus=1), dgx) == {"CUDA context": CONTEXT_BYTES}


def test_every_group_of_a_plan_has_its_communicator(dgx: Machine) -> None:
    parts = parts_of(setting_of(gpus=8, tp=2, pp=2, gbs=32), dgx)
    # Pairs within a node: 32 channels of three pages and two of the communicator; 24 rings, or 32 channels to a peer.
    tables = 32 * 6 + 4
    assert parts["NCCL tp"] == parts["NCCL dp"] == (tables + 24 * 12) * MIB
    assert parts["NCCL pp"] == (tables + 32 * 12) * MIB
    assert parts["NCCL world"] == parts["NCCL gradient norm"] > parts["NCCL tp"]
    # verl's PR 6408 frees about 7 GB on such a job, with communicators of its own besides.
    assert 7e9 / 4 < sum(parts.values()) - CONTEXT_BYTES - NCCL_KERNELS_BYTES < 7e9


def test_sharding_over_all_ranks_takes_the_communicator_of_the_world(dgx: Machine) -> None:
    assert set(parts_of(setting_of(gpus=16, zero=3, gbs=16), dgx)) == {"CUDA context", "NCCL kernels", "NCCL world"}
    replicated = setting_of(gpus=16, stack="torch-eager", gbs=16)
    assert set(parts_of(replicated, dgx)) == {"CUDA context", "NCCL kernels", "NCCL world"}
    assert "NCCL dp" in parts_of(setting_of(gpus=16, gbs=16), dgx)
    hybrid = parts_of(setting_of(gpus=16, zero=3, shard=8, gbs=16), dgx)
    assert {"NCCL shard", "NCCL replicate"} <= set(hybrid)


def test_zero_2_of_fsdp_has_the_communicators_of_zero_3(dgx: Machine) -> None:
    """It splits parameters too; that of Megatron does not."""
    by_zero = [parts_of(setting_of(gpus=16, zero=zero, tp=2, gbs=16, stack="fsdp"), dgx) for zero in (2, 3)]
    assert by_zero[0] == by_zero[1]
    assert "NCCL dp" in parts_of(setting_of(gpus=16, zero=2, tp=2, gbs=16), dgx)


def test_experts_that_fsdp_splits_have_a_communicator(dgx: Machine) -> None:
    parts = parts_of(setting_of("mixtral-8x7b", gpus=16, ep=8, zero=3, gbs=16), dgx)
    assert parts["NCCL expert shard"] > 0


def test_stages_that_overlap_have_a_communicator_for_each_neighbour(dgx: Machine) -> None:
    batched = parts_of(setting_of(gpus=8, tp=2, pp=4, gbs=32), dgx)
    single = parts_of(setting_of(gpus=8, tp=2, pp=4, vpp=2, gbs=32), dgx)
    assert single["NCCL pp"] == 2 * (32 * 6 + 4 + 32 * 12) * MIB
    # One communicator of four ranks, which NVLS prepares for, and two neighbours in it.
    assert batched["NCCL pp"] == (32 * 6 + 4 + 34 + 2 * 32 * 12) * MIB


def test_context_parallelism_exchanges_or_gathers(dgx: Machine) -> None:
    by_way = {way: parts_of(setting_of(gpus=8, cp=4, cp_comm=way, gbs=8), dgx)["NCCL cp"] for way in ("p2p", "a2a")}
    assert by_way["a2a"] == (32 * 6 + 4 + 34 + 3 * 32 * 12) * MIB
    assert by_way["p2p"] == 2 * (32 * 6 + 4 + 32 * 12) * MIB


def test_experts_exchange_by_nccl_or_by_buffers_of_their_own(dgx: Machine) -> None:
    fields = {"gpus": 128, "pp": 2, "ep": 64, "gbs": 256}
    exchanged = parts_of(setting_of("deepseek-v3", **fields), dgx)
    assert exchanged["NCCL ep"] == (16 * 6 + 34 + 4 + 7 * 2 * 12 + 32 * 9) * MIB
    dispatched = parts_of(setting_of("deepseek-v3", dispatcher="deepep", **fields), dgx)
    assert "NCCL ep" not in dispatched
    assert {"DeepEP NVLink buffers", "DeepEP RDMA heap"} <= set(dispatched)


@pytest.mark.parametrize("name", names("cluster"))
def test_every_cluster_has_parts_with_sources(name: str) -> None:
    machine = Machine(name)
    for setting in (setting_of(gpus=16, tp=2, pp=2, gbs=32), setting_of(gpus=16, zero=3, gbs=16)):
        parts = outside_memory(setting, machine)
        assert all(part.bytes > 0 and part.source for part in parts)
        assert len({part.name for part in parts}) == len(parts) > 1


def test_a_second_question_of_the_same_plan_is_the_same(dgx: Machine) -> None:
    setting = setting_of(gpus=64, tp=4, pp=2, gbs=64)
    assert outside_memory(setting, dgx) == outside_memory(setting, Machine("h100-dgx")) == outside_memory(setting, dgx)


@pytest.mark.parametrize(
    ("name", "cluster", "fields", "gib"),
    [
        ("llama3-8b", "h100-dgx", {"gpus": 8, "zero": 3, "gbs": 8}, 1.42),
        ("llama3-8b", "h100-dgx", {"gpus": 512, "zero": 3, "gbs": 512}, 1.52),
        ("llama3-8b", "h100-dgx", {"gpus": 8, "tp": 2, "pp": 2, "gbs": 32}, 3.44),
        ("llama3-70b", "h100-dgx", {"gpus": 512, "tp": 4, "pp": 4, "gbs": 1024}, 3.07),
        ("llama3.1-405b", "h100-dgx", {"gpus": 16384, "tp": 8, "pp": 16, "gbs": 2048}, 3.16),
        ("deepseek-v3", "h800-hgx", {"gpus": 2048, "pp": 16, "ep": 64, "gbs": 15360}, 3.76),
        ("deepseek-v3", "h800-hgx", {"gpus": 2048, "pp": 16, "ep": 64, "gbs": 15360, "dispatcher": "deepep"}, 4.06),
        ("deepseek-v3", "gb200-nvl72", {"gpus": 256, "pp": 4, "ep": 64, "gbs": 2048, "dispatcher": "hybridep"}, 9.42),
        ("deepseek-v3", "gb200-nvl72", {"gpus": 256, "pp": 4, "ep": 64, "gbs": 2048}, 29.48),
    ],
)
def test_the_examples_of_the_docs(name: str, cluster: str, fields: dict[str, Any], gib: float) -> None:
    held = sum(parts_of(setting_of(name, **fields), Machine(cluster)).values())
    assert held / 2**30 == pytest.approx(gib, abs=0.006)
