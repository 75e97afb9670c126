"""Groups that a network slows differently, and jobs too large to run all of them apart."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import foretrace
from foretrace import Answer, Machine, Plan
from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.topology import Topology

LLAMA_3 = Path(__file__).parents[4] / "examples" / "clusters" / "h100_24k.yaml"
CODE = "slowest-stands-for-all"


def hashed(cluster: str, **facts: object) -> Cluster:
    """A cluster whose flows are hashed, so that nearly every group has a price of its own."""
    known = presets.cluster(cluster)
    return replace(known, topology=replace(known.topology, routing="ecmp", **facts))


def run(cluster: Cluster, plan: Plan, folded: bool = True) -> Answer:
    machine = Machine(cluster, overlap_cost=False)
    return foretrace.simulate(foretrace.model("llama3-8b", plan), machine, folded=folded, explain=False)


def small() -> tuple[Cluster, Plan]:
    cluster = replace(presets.cluster("h100-dgx"), topology=Topology(kind="fat-tree", leaf_ports=16, routing="ecmp"))
    return cluster, Plan(gpus=128, tp=2, pp=4, gbs=64)


def codes(answer: Answer) -> list[str]:
    return [note.code for note in answer.diagnostics]


def test_a_small_job_tells_every_group_apart() -> None:
    answer = run(*small())
    assert CODE not in codes(answer)
    assert len(answer.timeline.graph.classes) > 4
    assert answer.step_time_s == run(*small(), folded=False).step_time_s


def test_in_a_large_job_the_slowest_group_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = run(*small())
    monkeypatch.setattr("foretrace.cost.network.layouts.MAX_OPS_APART", 0)
    merged = run(*small())
    assert CODE in codes(merged)
    assert len(merged.timeline.graph.classes) == 4
    assert merged.step_time_s == run(*small(), folded=False).step_time_s
    assert exact.step_time_s < merged.step_time_s < 1.2 * exact.step_time_s


def test_groups_of_different_shape_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stages of 3 × 2 ranks on nodes of 8 some lie across two nodes: the others do not pay for that."""
    cluster, _ = small()
    threes = Plan(gpus=96, tp=2, pp=16, gbs=96)
    exact = run(cluster, threes)
    monkeypatch.setattr("foretrace.cost.network.layouts.MAX_OPS_APART", 0)
    merged = run(cluster, threes)
    assert CODE in codes(merged)
    assert 16 < len(merged.timeline.graph.classes) < len(exact.timeline.graph.classes)


def test_jobs_of_any_size_run_on_hashed_ways() -> None:
    """Ranks with prices of their own would be 12 million ops."""
    plan = Plan(gpus=4096, tp=8, pp=16, zero=2, gbs=512)
    job = foretrace.model("llama3.1-405b", plan)
    answer = foretrace.simulate(job, Machine(hashed(str(LLAMA_3))), explain=False)
    assert CODE in codes(answer)
    assert len(answer.timeline.graph.classes) == 16


def test_the_cluster_of_llama_3_folds_as_it_is() -> None:
    """Its pods are narrow towards each other, but where flows spread all groups in one position are slowed equally."""
    plan = Plan(gpus=16384, tp=8, pp=16, vpp=8, zero=2, gbs=2048)
    answer = foretrace.simulate(foretrace.model("llama3.1-405b", plan), Machine(LLAMA_3), explain=False)
    assert CODE not in codes(answer)
    assert len(answer.timeline.graph.classes) == 16


def test_the_cluster_of_llama_3_is_as_published() -> None:
    """arXiv 2407.21783, section 3.3.1."""
    cluster = presets.cluster(str(LLAMA_3))
    gpu, topology = cluster.gpu, cluster.topology
    assert (gpu.name, gpu.power_w) == ("h100-sxm", 700)
    assert (cluster.node.gpus, cluster.node.nics, cluster.node.nic.bytes_per_s) == (8, 8, 50e9)
    assert (cluster.nodes, topology.leaf_ports, topology.pod_gpus) == (3072, 16, 3072)
    assert (topology.oversubscription, topology.core_oversubscription) == (1, 7)
    assert any("2407.21783" in source for source in cluster.sources)


def test_a_job_that_is_too_large_is_not_sent_to_an_option_that_predict_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.program.fold.MAX_NODES", 100)
    with pytest.raises(InputError) as caught:
        run(*small())
    assert caught.value.code == "too-large"
    assert not re.findall(r"--\w", f"{caught.value} {caught.value.hint}")
