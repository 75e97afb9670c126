"""The defects of SimAI-Analytical that its reference lists (2.7, B1 to B11), tried on our own simulator.

Every one is a small file on which SimAI answers wrongly, answers nothing, or does not say that it left something out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from foretrace import Answer
from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from unit.inputs.aicb.workloads import listed, lowered, messages, row, run

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
H100 = presets.cluster("h100-dgx")
EMBEDDING = row("embedding_layer", 10_000, 1, 5_000)
LAYER = row("attention_layer", 100_000, 80_000, 60_000)


def with_nics(cluster: Cluster, *, nics: int | None = None, factor: float = 1.0) -> Cluster:
    """The cluster with another number of NICs, or with NICs so many times as fast."""
    node = cluster.node
    nic = replace(node.nic, bytes_per_s=node.nic.bytes_per_s * factor)
    return replace(cluster, node=replace(node, nic=nic, nics=nics or node.nics))


def with_links(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with links so many times as fast."""
    gpu = replace(cluster.gpu, link_bytes_per_s=cluster.gpu.link_bytes_per_s * factor)
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


def alone(collective: str, size: int, cluster: Cluster = H100, **header: int) -> Answer:
    """A job that does nothing but one collective, in the forward; computation takes 1 ns."""
    return run([row("attention_layer", (1, collective, size))], cluster=cluster, **header)


def time_of(collective: str, size: int, cluster: Cluster = H100, **header: int) -> float:
    """Seconds that one collective takes."""
    return alone(collective, size, cluster, **header).step_time_s - 1e-9


# B1: SimAI divides pp_comm by an overlap ratio


def pipelined(cluster: Cluster, pp_comm: int = 64 * MIB) -> Answer:
    """Two stages on two nodes."""
    return run([EMBEDDING, LAYER] * 2, cluster=cluster, tp=8, pp=2, ga=2, all_gpus=16, pp_comm=pp_comm)


def test_b1_transfers_between_stages_take_time() -> None:
    answer = pipelined(H100)
    assert answer.breakdown.mean_s["pp exposed"] > 3 * 64 * MIB / H100.node.nic.bytes_per_s  # a0, (a1 g0), g1
    assert pipelined(H100, 128 * MIB).step_time_s > answer.step_time_s > pipelined(H100, 1).step_time_s


def test_b1_a_slower_network_makes_them_longer() -> None:
    full, half = pipelined(H100), pipelined(with_nics(H100, factor=0.5))
    assert half.breakdown.mean_s["pp exposed"] == pytest.approx(2 * full.breakdown.mean_s["pp exposed"], rel=0.05)
    assert half.step_time_s > full.step_time_s
    links = pipelined(with_links(H100, 0.5))
    assert links.step_time_s == full.step_time_s  # the stages sit on different nodes


# B2, B3: vpp


def stages_of_eight(vpp: int | None) -> Answer:
    return run([EMBEDDING, *[LAYER] * 8] * 4, pp=4, ga=4, all_gpus=4, pp_comm=MIB, vpp=vpp)


def test_b2_a_missing_vpp_is_one() -> None:
    answer = stages_of_eight(None)
    assert math.isfinite(answer.step_time_s) and answer.step_time_s > 0
    assert answer.step_time_s == stages_of_eight(1).step_time_s
    assert len(messages(answer.timeline.graph.program, "no vpp")) == 1


def test_b3_layers_per_stage_do_not_shrink_the_bubble() -> None:
    as_written = stages_of_eight(8)
    assert as_written.step_time_s == stages_of_eight(None).step_time_s
    assert as_written.breakdown.mean_s["bubble"] == stages_of_eight(None).breakdown.mean_s["bubble"]
    assert stages_of_eight(2).breakdown.mean_s["bubble"] < as_written.breakdown.mean_s["bubble"]


# B4: more bytes take less time at 1 MiB


@pytest.mark.parametrize("word", ["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"])
@pytest.mark.parametrize("tp", [8, 16])
def test_b4_more_bytes_never_take_less_around_1_mib(word: str, tp: int) -> None:
    sizes = [MIB // 2, MIB - 4096, MIB - 1, MIB, MIB + 1, MIB + 4096, 2 * MIB]
    times = [time_of(word, size, tp=tp, all_gpus=tp) for size in sizes]
    assert times == sorted(times)
    assert times[0] > 0


# B5, B6: groups that are no power of two, and large ones


@pytest.mark.parametrize("ranks", [2, 3, 24, 256])
@pytest.mark.parametrize("size", [8, 512 * KIB, 64 * MIB])
@pytest.mark.parametrize("word", ["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"])
def test_b5_no_group_of_more_than_one_is_free(word: str, size: int, ranks: int) -> None:
    assert time_of(word, size, tp=ranks, all_gpus=ranks) > 5e-6


@pytest.mark.parametrize("size", [512 * KIB, 64 * MIB, GIB])
def test_b6_a_larger_group_is_never_faster_all_to_all(size: int) -> None:
    """Of the same bytes per rank, more have farther to go: within a node, and over whole nodes."""
    groups = [3, 8, 16, 24, 64, 128, 256]
    times = [time_of("ALLTOALL_EP", size, ep=ranks, all_gpus=ranks) for ranks in groups]
    assert times == sorted(times)


@pytest.mark.parametrize("size", [512 * KIB, 64 * MIB, GIB])
def test_b6_over_more_nodes_a_gather_is_never_faster(size: int) -> None:
    """Of the same bytes in all, over whole nodes; a node that is partly used has fewer NICs, and takes longer."""
    times = [time_of("ALLGATHER", size, tp=ranks, all_gpus=ranks) for ranks in (8, 16, 24, 32, 64, 256)]
    assert times == sorted(times)


# B7: data parallelism within a server


def test_b7_data_parallelism_within_a_node_goes_over_links() -> None:
    """TP 2 and DP 4 fill one node of eight."""
    rows = [row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", GIB)), LAYER]
    header = {"tp": 2, "all_gpus": 8}
    time = run(rows, cluster=H100, **header).step_time_s
    assert run(rows, cluster=with_nics(H100, factor=1e-3), **header).step_time_s == time
    assert run(rows, cluster=with_links(H100, 0.5), **header).step_time_s > 1.5 * time
    assert 1 < (time - 240e-6) / (3 / 4 * GIB / 450e9) < 2, "NVLink's 450 GB/s, and what NCCL makes of it"


# B8: fewer NICs than TP


@pytest.mark.parametrize("nics", [1, 2, 4])
def test_b8_fewer_nics_than_tp(nics: int) -> None:
    rows = [row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 64 * MIB)), LAYER]
    few = run(rows, cluster=with_nics(H100, nics=nics), tp=8, all_gpus=32).step_time_s
    assert 0 < run(rows, cluster=H100, tp=8, all_gpus=32).step_time_s < few < 1


# B9: over 16 GiB


def test_b9_a_gather_of_20_gib() -> None:
    assert 1 < time_of("ALLGATHER", 20 * GIB, tp=8, all_gpus=8) / (7 / 8 * 20 * GIB / 450e9) < 2
    assert time_of("ALLTOALL", 20 * GIB, tp=16, all_gpus=16) > time_of("ALLTOALL", 16 * GIB, tp=16, all_gpus=16)


# B10: a number of rows that is not the number of rows


def test_b10_rows_that_are_not_declared_run_all_the_same() -> None:
    rows = [EMBEDDING, LAYER, LAYER, row("optimizer1", 7_000), row("optimizer2", 8_000)]
    whole, fewer = lowered(rows), lowered(rows, declared=3)
    assert listed(fewer) == listed(whole)
    assert [op.name for op in listed(fewer)][-2:] == ["optimizer1", "optimizer2"]
    assert messages(whole, "declared") == []
    (said,) = messages(fewer, "declared")
    assert said.startswith("warning job.txt:2: 3 rows declared, 5 in the file; SimAI would drop the last 2")


def test_b10_more_rows_declared_than_there_are() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:2: 6 rows declared, 2 found: the file is cut short") as refused:
        lowered([EMBEDDING, LAYER], declared=6)
    assert refused.value.exit_code == 3


# B11: an unknown collective


@pytest.mark.parametrize("word", ["BROADCAST", "SENDRECV", "ALLGETHER", "ALL_REDUCE"])
def test_b11_an_unknown_collective_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=rf'^job\.txt:3: collective "{word}" is not known') as refused:
        alone(word, MIB, tp=8, all_gpus=8)
    assert refused.value.exit_code == 3
    assert "known: NONE ALLREDUCE ALLGATHER" in str(refused.value.hint)
    meant = {"ALLGETHER": "ALLGATHER", "ALL_REDUCE": "ALLREDUCE"}.get(word)
    assert meant is None or f"; did you mean {meant}?" in refused.value.message
