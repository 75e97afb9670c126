"""What one collective takes on a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import foretrace
from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.placement import Placement
from foretrace.cost.machine import Machine, NetworkMode
from foretrace.cost.network import NcclSettings
from foretrace.cost.network.nccl.network import Candidate
from foretrace.hardware.fabric.fabric import Device
from foretrace.hardware.fabric.topology import Topology
from foretrace.simulation.network.network import ask_network, default_ranks, network, network_table, slower_choice

DGX = foretrace.load_cluster("h100-dgx")


def test_the_public_function() -> None:
    answer = foretrace.network("all-reduce", "256MiB", Machine("h100-dgx", prices="model"), ranks=64)
    assert isinstance(answer, foretrace.NetworkAnswer)
    assert answer == network("AllReduce", 2**28, Machine(DGX, prices="model"), ranks=64)
    assert answer.bound_share == pytest.approx(answer.bound_s / answer.time_s)
    assert 0 < answer.bound_s <= answer.time_s


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all-reduce", 2 * 15 / 16),
        ("all-gather", 15 / 16),
        ("reduce-scatter", 15 / 16),
        ("all-to-all", 15 / 16),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(collective: str, factor: float) -> None:
    answer = network(collective, 2**26, Machine(DGX, prices="model"), ranks=16)
    assert answer.algbw_bytes_per_s == pytest.approx(2**26 / answer.time_s)
    assert answer.busbw_bytes_per_s == pytest.approx(factor * 2**26 / answer.time_s)


def test_how_many_ranks_unless_said() -> None:
    assert network("all-reduce", 1024, Machine(DGX, prices="model")).ranks == 8
    assert network("send", 1024, Machine(DGX, prices="model")).ranks == 2
    placed = ask_network("all-reduce", Machine(DGX, placement=Placement.packed(12, 8)), groups=2)
    assert default_ranks(placed) == 6


def test_more_bytes_and_more_nodes_take_longer() -> None:
    question = ask_network("all-reduce", Machine(DGX, prices="model"))
    found = network_table(question, [2**10, 2**20, 2**30], [8, 64])
    times = [[one.time_s for one in found.answers if one.ranks == ranks] for ranks in (8, 64)]
    assert times[0] == sorted(times[0]) and times[1] == sorted(times[1])
    assert all(near < far for near, far in zip(*times, strict=True))


def test_of_groups_that_sit_differently_the_slowest_counts() -> None:
    """One group on one node, one across two."""
    placement = Placement.packed(16, 8)
    order = [0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13, 14, 15]
    mixed = Placement(placement.host[order], placement.slot[order])
    answer = network("all-reduce", 2**20, Machine(DGX, placement=mixed, prices="model"), ranks=8, groups=2)
    split = Placement(placement.host[order[:8]], placement.slot[order[:8]])
    alone = network("all-reduce", 2**20, Machine(DGX, placement=split, prices="model"), ranks=8)
    assert answer.time_s >= alone.time_s
    assert answer.time_s > network("all-reduce", 2**20, Machine(DGX, prices="model"), ranks=8).time_s


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InputError, match="need 3 nodes"):
        network("all-reduce", 8, Machine(replace(DGX, nodes=2)), ranks=24)
    with pytest.raises(InputError, match="20 ranks"):
        network("all-reduce", 8, Machine(DGX, placement=Placement.packed(20, 8)), ranks=8)
    with pytest.raises(UsageError):
        network("all-reduce", 8, Machine(DGX, placement=Placement.packed(8, 8)), ranks_per_node=1)
    with pytest.raises(InputError, match="unknown-name"):
        network("all-reduce", 8, Machine(DGX, network="magic"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="between 2 ranks"):
        network("exchange", 8, Machine(DGX), ranks=3)


class TestOnLinks:
    def test_a_ring_on_an_idle_network_agrees_with_the_formulas(self) -> None:
        ring = NcclSettings("ring", "simple")
        answer = network("all-gather", "256MiB", Machine(DGX, nccl=ring, network="flow"), ranks=32)
        assert answer.mode == "flow" and answer.links is not None
        formulas = network("all-gather", "256MiB", Machine(DGX, nccl=ring, prices="model"), ranks=32)
        assert answer.links.analytic_time_s == formulas.time_s
        assert answer.time_s == pytest.approx(formulas.time_s, rel=0.25)
        assert answer.time_s >= answer.bound_s
        assert answer.links.time_s == answer.time_s
        assert answer.busbw_bytes_per_s == pytest.approx(31 / 32 * 2**28 / answer.time_s)

    def test_bytes_on_links_are_those_of_the_collective(self) -> None:
        """Each of 16 ranks sends to 8 on the other node, a sixteenth of the size each."""
        answer = network("all-to-all", 16 * 2**20, Machine(DGX, network="flow"), ranks=16)
        assert answer.links is not None
        loads = answer.links.loads
        fabric = loads.fabric
        from_nic = (fabric.kind[fabric.source] == Device.NIC) & (fabric.kind[fabric.target] == Device.LEAF)
        assert loads.bytes_by_axis[0, from_nic].sum() == pytest.approx(16 * 8 * 2**20)
        assert (loads.utilisation <= 1 + 1e-9).all()

    def test_narrow_uplinks_show_where_traffic_crosses_them(self) -> None:
        """128 ranks sit under four leaves of 32 ports: three quarters of an all-to-all go over their uplinks."""
        tree = Topology("fat-tree", "spread", leaf_ports=32)
        wide, narrow = (replace(DGX, topology=replace(tree, oversubscription=by)) for by in (1.0, 8.0))
        wide_s, narrow_s = (
            network("all-to-all", "64MiB", Machine(one, network="flow"), ranks=128).time_s for one in (wide, narrow)
        )
        assert narrow_s > 3 * wide_s

    def test_what_links_cannot_run(self) -> None:
        with pytest.raises(UsageError, match="NCCL's own all-to-all"):
            network("dispatch", "1MiB", Machine(DGX, network="flow"), ranks=16)
        with pytest.raises(UsageError, match="leave out --collectives"):
            network("all-reduce", "1MiB", Machine(DGX, collectives="somewhere.csv", network="flow"))

    def test_one_rank_has_no_links_to_cross(self) -> None:
        assert network("all-reduce", "1MiB", Machine(DGX, network="flow"), ranks=1).time_s == 0


class TestChoices:
    def test_candidates_have_one_that_is_chosen(self) -> None:
        answer = network("all-reduce", "16MiB", Machine(DGX, prices="model"), ranks=64)
        (chosen,) = (one for one in answer.candidates if one.chosen)
        assert (chosen.algorithm, chosen.protocol) == (answer.algorithm, answer.protocol)
        assert chosen.time_s == pytest.approx(answer.time_s)
        assert chosen.nccl_time_s == min(one.nccl_time_s for one in answer.candidates)
        assert {one.algorithm for one in answer.candidates} >= {"ring", "tree"}

    def test_sends_leave_no_choice(self) -> None:
        assert network("all-to-all", "16MiB", Machine(DGX, prices="model"), ranks=64).candidates == ()

    def test_a_forced_choice(self) -> None:
        answer = network("all-reduce", "16MiB", Machine(DGX, nccl=NcclSettings("ring", "simple")), ranks=64)
        assert (answer.algorithm, answer.protocol) == ("ring", "simple")
        assert len(answer.candidates) == 1
        with pytest.raises(InputError, match="no way to run"):
            network("broadcast", "16MiB", Machine(DGX, nccl=NcclSettings("tree")), ranks=64)

    def test_tokens_to_experts(self) -> None:
        plain = network("all-to-all", "64MiB", Machine(DGX, prices="model"), ranks=64)
        deep = network("dispatch", "64MiB", Machine(DGX, prices="model"), ranks=64)
        assert deep.collective == "dispatch" and deep.algorithm == "deepep"
        assert deep.time_s < plain.time_s  # a token crosses the NICs once for each node
        way = "style=deepep,experts=256,topk=8,groups=8,chosen=4"
        said = network("combine", "64MiB", Machine(DGX), ranks=64, way=way)
        assert said.time_s == deep.time_s and not any("--way" in note.message for note in said.diagnostics)
        with pytest.raises(UsageError, match="not for all-reduce"):
            network("all-reduce", 8, Machine(DGX), way="style=deepep experts=256 topk=8")
        with pytest.raises(InputError, match="does not say how"):
            network("dispatch", 8, Machine(DGX), way="style=pigeon")


def test_measured_collectives_come_first(tmp_path: Path) -> None:
    """A table of one's own is what is told; how NCCL runs it is still its rule."""
    file = tmp_path / "own.csv"
    file.write_text(
        "collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,50\nall_reduce,8,1,2097152,80\n", encoding="utf-8"
    )
    answer = network("all-reduce", "1MiB", Machine(DGX, collectives=file))
    assert answer.time_s == pytest.approx(50e-6)
    assert answer.source == "measured collectives"
    assert answer.algorithm != "measured"
    assert "gpu-not-stated" in {note.code for note in answer.diagnostics}
    file.write_text("collective,gpus,nodes,bytes,time_us,hardware\nall_reduce,8,1,1048576,50,A100-SXM4-40GB\n")
    with pytest.raises(InputError) as caught:
        network("all-reduce", "1MiB", Machine(DGX, collectives=file))
    assert caught.value.code == "other-gpu"
    answer = network("all-reduce", "1MiB", Machine("a100-dgx", collectives=file))
    assert "gpu-not-stated" not in {note.code for note in answer.diagnostics}


def test_a_way_that_is_much_faster_than_nccls_choice_is_reported() -> None:
    chosen, other = (
        Candidate("tree", "simple", 32, 1e-3, 2e-3, chosen=True),
        Candidate("nvls-tree", "ll128", 16, 1.5e-3, 1.6e-3, chosen=False),
    )
    (note,) = slower_choice((chosen, other), 2e-3)
    assert note.code == "slower-choice" and "NCCL_ALGO=NVLSTree NCCL_PROTO=LL128" in note.message
    assert not slower_choice((chosen, replace(other, time_s=1.85e-3)), 2e-3)
    assert not slower_choice((chosen,), 2e-3) and not slower_choice((), 2e-3)
    assert not slower_choice((chosen, other), 1.7e-3)  # measured, and less than the estimate


def test_a_choice_that_faster_hardware_makes_worse_is_reported() -> None:
    """Channels of nvls-tree move the same whatever the links and NICs are; rings gain by both."""
    node, gpu = DGX.node, DGX.gpu
    fast = replace(
        node,
        nic=replace(node.nic, bytes_per_s=2 * node.nic.bytes_per_s),
        gpu=replace(gpu, link_bytes_per_s=2 * gpu.link_bytes_per_s, pcie_bytes_per_s=2 * gpu.pcie_bytes_per_s),
    )

    def codes(on: foretrace.Cluster, mode: NetworkMode = "analytic") -> set[str]:
        machine = Machine(on, prices="model", network=mode)
        return {note.code for note in network("all-reduce", "1GiB", machine, ranks=64).diagnostics}

    assert "slower-choice" not in codes(DGX)
    assert "slower-choice" in codes(replace(DGX, node=fast))
    assert "slower-choice" not in codes(replace(DGX, node=fast), "flow")
