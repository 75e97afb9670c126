"""Pricing a program: what is written stays, the rest is priced; ranks whose groups sit differently pay differently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace import Machine, Mesh, ProgramBuilder, Transfer, pipeline, schedule, simulate
from foretrace.basics.errors import InputError
from foretrace.basics.placement import Placement
from foretrace.cost.network import NcclNetwork, network_of
from foretrace.cost.network.nccl.algorithms.ring import OWN_PART_STEPS
from foretrace.cost.network.nccl.machine import machine_of
from foretrace.cost.network.silicon_collectives import slowdown_in_training
from foretrace.cost.pricing import price
from foretrace.hardware import presets
from foretrace.program.columns import Collective
from foretrace.program.expand import expand
from foretrace.program.program import Program

H100 = presets.cluster("h100-dgx")


def threes(world: int = 24, size: int = 1 << 30) -> Program:
    """Groups of three neighbours; on nodes of eight some lie across two."""
    build = ProgramBuilder(Mesh(tp=3, dp=world // 3))
    role = build.role("all", range(world))
    role.compute("work", 1e-3)
    role.collective("all_gather", build.communicator("tp"), bytes=size, lane="compute")
    return build.program()


def network(program: Program) -> NcclNetwork:
    return NcclNetwork(H100, Placement.packed(program.world, 8), slowdown=slowdown_in_training(H100.gpu))


def test_what_is_written_stays() -> None:
    build = ProgramBuilder(Mesh(tp=2))
    role = build.role("all", range(2))
    role.compute("work", 2e-3)
    role.collective("all_reduce", build.communicator("tp"), 5e-3, bytes=1 << 20, lane="compute")
    program = build.program()
    assert simulate(program).step_time_s == simulate(program, Machine("h100-dgx")).step_time_s
    assert simulate(program).step_time_s == pytest.approx(7e-3, rel=1e-12)


def test_without_a_cluster_bytes_have_no_price() -> None:
    with pytest.raises(InputError) as caught:
        simulate(threes())
    assert caught.value.code == "unpriced-op"
    assert "--cluster" in str(caught.value.hint)


def test_computation_without_a_duration_is_named() -> None:
    build = ProgramBuilder(Mesh())
    build.role("all", [0]).compute("gemm", flops=1e12)
    with pytest.raises(InputError, match='"gemm" of role "all" has no duration'):
        simulate(build.program(), Machine("h100-dgx"))


def test_ranks_whose_groups_sit_differently_pay_differently() -> None:
    program = threes()
    ops = expand(program)
    prices = price(ops, network(program))
    inside, across = sorted(set(prices.duration_s[:, 1].tolist()))
    paid = prices.duration_s[prices.profile_of, 1]
    hosts = np.arange(24).reshape(8, 3) // 8
    expected = np.where((hosts[:, 0] == hosts[:, 2])[:, None], inside, across).repeat(3, axis=1)[:, :3].ravel()
    assert paid.tolist() == expected.tolist()
    assert across > 3 * inside
    answer = simulate(program, Machine(H100))
    assert answer.step_time_s == pytest.approx(1e-3 + across)
    assert simulate(program, Machine(H100), folded=False).step_time_s == answer.step_time_s


def test_placement_decides_what_a_transfer_takes() -> None:
    build = ProgramBuilder(Mesh(pp=2))
    block = build.block("work")
    block.compute("work", 1e-3)
    pipeline(build, schedule("1f1b", 2, 4), lambda *_: block, Transfer(bytes=64 << 20))
    program = build.program()
    near = simulate(program, Machine("h100-dgx")).step_time_s
    apart = Placement(np.array([0, 1], dtype=np.int32), np.array([0, 0], dtype=np.int32))
    assert simulate(program, Machine("h100-dgx", placement=apart)).step_time_s > near + 1e-3


def test_the_larger_way_of_an_exchange_sets_its_price() -> None:
    build = ProgramBuilder(Mesh(pp=2))
    pair = build.pair("pp", 0, 1)
    for stage, size in enumerate((1 << 20, 1 << 30)):
        build.role(f"stage {stage}", [stage]).exchange("swap", pair, sends={1 - stage: size})
    program = build.program()
    ops = expand(program)
    one = price(ops, network(program)).duration_s[0]
    layouts, _ = network(program).layouts(np.array([[0, 1]]))
    larger = network(program).price(Collective.EXCHANGE, layouts[0], np.array([1 << 30])).duration_s[0]
    assert one.tolist() == [larger, larger]


def test_an_override_of_bytes_is_priced() -> None:
    build = ProgramBuilder(Mesh(tp=8))
    block = build.block("work")
    block.port("gather", block.collective("all_gather", build.communicator("tp"), bytes=1 << 20))
    role = build.role("all", range(8))
    role.place(block)
    role.place(block, override={"gather": {"bytes": 1 << 30}})
    prices = price(expand(build.program()), network(build.program())).duration_s[0]
    assert prices[1] > 10 * prices[0]


def test_a_cluster_too_small_is_refused() -> None:
    with pytest.raises(InputError, match=r"the job has 24 GPUs, the cluster h100-dgx 16 \(2 nodes of 8\)") as caught:
        simulate(threes(), Machine(replace(H100, nodes=2)))
    assert caught.value.code == "cluster-too-small"


@pytest.mark.parametrize(
    ("placement", "says"),
    [
        (Placement.packed(24, 24), "rank 23 is placed on GPU 23, but nodes of h100-dgx have 8"),
        (Placement.packed(8, 8), "the placement has 8 ranks, the job 24"),
        (Placement.packed(24, 1), "the placement needs 24 nodes, the cluster h100-dgx has 4"),
    ],
)
def test_a_placement_must_fit_the_cluster(placement: Placement, says: str) -> None:
    with pytest.raises(InputError, match=says):
        simulate(threes(), Machine(replace(H100, nodes=4), placement=placement))


def test_a_placement_needs_a_cluster() -> None:
    with pytest.raises(InputError, match="there is none"):
        simulate(threes(), Machine(placement=Placement.packed(24, 8)))


def test_a_job_that_carries_its_prices_names_no_cluster() -> None:
    build = ProgramBuilder(Mesh())
    build.role("all", [0]).compute("work", 1e-3)
    assert simulate(build.program(), Machine("h100-dgx")).cluster is None


def test_latency_is_that_of_the_way_taken() -> None:
    """100 GB over 1,024 ranks go by Simple, whose hops take longer than LL's."""
    network = network_of(H100, 1024)
    (layout,), _ = network.layouts(np.arange(1024)[None])
    priced = network.price(Collective.ALL_GATHER, layout, np.array([1e11]))
    machine = machine_of(H100.gpu)
    near, far = machine.simple_step_s, machine.step_scale * (14 + 3) * 1e-6
    steps = (1023 - 127) * near + 127 * far
    assert priced.latency_s[0] == pytest.approx(machine.launch_s + steps * (1023 + OWN_PART_STEPS) / 1023)
