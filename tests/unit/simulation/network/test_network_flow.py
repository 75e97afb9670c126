"""Communications that meet on links: `network="flow"` beside `network="analytic"`."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest

from foretrace import Machine, Mesh, Plan, Program, ProgramBuilder, Scenario, model, simulate
from foretrace.basics.errors import InputError
from foretrace.basics.placement import Placement
from foretrace.cost.machine import NetworkMode
from foretrace.cost.network import network_of
from foretrace.cost.network.sharing import Sharing
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.presets import cluster
from foretrace.program.columns import Collective
from foretrace.report.terminal import print_answer

H100, B200 = cluster("h100-dgx"), cluster("b200-dgx")
SIZE = 1 << 30


def at_once(calls: int, world: int = 16, what: str = "all_gather") -> Program:
    """So many equal calls on communicators of their own, all over all ranks, with nothing to wait for."""
    build = ProgramBuilder(Mesh(dp=world), repeats=False)
    role = build.role("all", range(world))
    for number in range(calls):
        groups = build.groups(f"group {number}", [range(world)], axis=f"axis {number}")
        role.collective(what, groups, bytes=SIZE, lane=f"lane {number}")
    return build.program()


def step(program: Program, on: Cluster = H100, network: NetworkMode = "analytic") -> float:
    return simulate(program, Machine(on, prices="model", network=network), explain=False).step_time_s


def capacity(name: str, on: Cluster = H100, world: int = 16) -> float:
    resources = Sharing(on, Placement.packed(world, 8)).resources
    return next(one.capacity_per_s for one in resources if one.name == name)


@pytest.mark.parametrize("what", ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"])
def test_alone_a_call_takes_its_price(what: str) -> None:
    program = at_once(1, what=what)
    assert step(program, network="flow") == pytest.approx(step(program), rel=1e-9)


def test_calls_that_fill_a_nic_take_their_sum() -> None:
    """A further call adds what its bytes need on the NIC: latencies pass at the same time. Links of B200s carry more
    than their NICs, so that a ring over nodes fills these."""
    network = network_of(B200, 16)
    (kind,), _ = network.layouts(np.arange(16)[None])
    needed_s = dict(network.explain(Collective.ALL_GATHER, kind, float(SIZE)).draws)["nic"] / capacity("nic", B200)
    steps = [step(at_once(calls), B200, network="flow") for calls in (1, 2, 3)]
    assert steps[2] - steps[1] == pytest.approx(needed_s, rel=1e-6)
    assert steps[1] > 1.5 * steps[0]
    assert step(at_once(3), B200) == pytest.approx(steps[0], rel=1e-9)


def test_durations_written_in_the_program_share_nothing() -> None:
    build = ProgramBuilder(Mesh(dp=16), repeats=False)
    role = build.role("all", range(16))
    for number in range(2):
        role.collective("all_gather", build.groups(f"g{number}", [range(16)]), 1e-3, bytes=SIZE, lane=f"l{number}")
    role.collective("all_gather", build.groups("priced", [range(16)]), bytes=8, lane="priced")
    answer = simulate(build.program(), Machine(H100, network="flow"), explain=False)
    assert answer.step_time_s == pytest.approx(1e-3)


def test_only_who_sends_draws_and_both_ways_of_a_pair_go_at_once() -> None:
    build = ProgramBuilder(Mesh(pp=2, dp=8), repeats=False)
    for stage in range(2):
        role = build.role(f"stage {stage}", range(8 * stage, 8 * stage + 8))
        there, back = build.pair("pp", 0, 1, name="there"), build.pair("pp", 1, 0, name="back")
        role.transfer("there", there, to=1 if stage == 0 else None, bytes=SIZE)
        role.transfer("back", back, to=1 if stage == 1 else None, bytes=SIZE)
    program = build.program()
    assert step(program, network="flow") == pytest.approx(step(program), rel=1e-9)


def test_a_transfer_under_a_collective_slows_both() -> None:
    build = ProgramBuilder(Mesh(pp=2, dp=8), repeats=False)
    for stage in range(2):
        role = build.role(f"stage {stage}", range(8 * stage, 8 * stage + 8))
        role.transfer("send", build.pair("pp", 0, 1), to=1 if stage == 0 else None, bytes=SIZE)
        role.collective("all_gather", build.groups("all", [range(16)], axis="dp"), bytes=8 * SIZE)
    answer = simulate(build.program(), Machine(H100, network="flow"), explain=False)
    use = answer.network
    assert use is not None
    assert answer.step_time_s > 1.05 * use.analytic_step_time_s
    assert {one.axis for one in use.slowed} == {"pp", "dp"}
    assert all(one.flow_s > one.analytic_s for one in use.slowed)
    hottest = use.hot[0]
    assert hottest.resource == "nic"
    assert hottest.utilisation <= hottest.utilisation_in_use <= 1.0 + 1e-9
    assert hottest.utilisation > 0.9


def oversubscribed(**topology: object) -> Cluster:
    """Leaves of two nodes, four to a job of 64 GPUs."""
    chosen = {"kind": "fat-tree", "leaf_ports": 16} | topology
    return replace(H100, topology=Topology(**chosen))  # type: ignore[arg-type]


def test_an_oversubscribed_leaf_is_shared_and_named() -> None:
    narrow = oversubscribed(oversubscription=4.0)
    program = at_once(2, world=64, what="all_to_all")
    answer = simulate(program, Machine(narrow, network="flow"), explain=False)
    assert answer.network is not None
    assert answer.network.hot[0].resource == "leaf"
    assert answer.step_time_s == pytest.approx(2 * step(program, narrow), rel=0.05)
    assert step(at_once(1, 64, "all_to_all"), narrow, network="flow") == pytest.approx(
        step(at_once(1, 64, "all_to_all"), narrow), rel=1e-9
    )


def test_a_failed_uplink_slows_the_groups_of_its_leaf() -> None:
    """Two groups of four nodes with leaves of their own; the first loses most of what leaves one of its leaves."""

    def by_rank(on: Cluster, mode: str) -> tuple[float, float]:
        build = ProgramBuilder(Mesh(dp=64), repeats=False)
        role = build.role("all", range(64))
        role.collective("all_to_all", build.groups("halves", [range(32), range(32, 64)]), bytes=SIZE)
        timeline = simulate(build.program(), Machine(on, network=mode), explain=False).timeline  # type: ignore[arg-type]
        return tuple(float(timeline.rank(rank).end_s[-1]) for rank in (0, 63))  # type: ignore[return-value]

    whole = oversubscribed()
    lost = replace(whole, topology=replace(whole.topology, failed=("leaf 0 - spine 0",)))
    for mode in ("analytic", "flow"):
        first, second = by_rank(lost, mode)
        assert first > 1.2 * second
        assert second == pytest.approx(by_rank(whole, mode)[1], rel=1e-9)


def test_folded_and_unfolded_agree() -> None:
    narrow = oversubscribed(oversubscription=2.0, background=(("leaf 0 - spine 0", 1e11),))
    build = ProgramBuilder(Mesh(dp=4, tp=8), repeats=True)
    role = build.role("all", range(32))
    role.compute("work", 1e-3)
    role.collective("all_gather", build.communicator("tp"), bytes=SIZE // 16)
    role.collective("all_to_all", build.groups("ep", [range(32)]), bytes=SIZE // 16)
    role.collective("all_reduce", build.communicator("dp"), bytes=SIZE // 4)
    role.collective("reduce_scatter", build.groups("pairs", [[r, r + 16] for r in range(16)]), bytes=SIZE // 8)
    program = build.program()
    folded = simulate(program, Machine(narrow, network="flow"), explain=False)
    whole = simulate(program, Machine(narrow, network="flow"), explain=False, folded=False)
    assert len(folded.timeline.graph) < len(whole.timeline.graph)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.network is not None and whole.network is not None
    assert folded.network.hot[0].utilisation == pytest.approx(whole.network.hot[0].utilisation, rel=1e-9)


def test_more_of_a_resource_is_a_what_if() -> None:
    program = at_once(2)
    wider = simulate(program, Machine(H100, network="flow"), Scenario(what_if={"nic": 2.0, "link": 2.0}), explain=False)
    assert wider.unchanged_step_time_s == pytest.approx(step(program, network="flow"))
    assert wider.step_time_s < 0.7 * step(program, network="flow")


def test_gains_name_resources() -> None:
    answer = simulate(at_once(2), Machine(H100, network="flow"))
    assert {"nic", "link"} <= {one.name for one in answer.bottlenecks}
    assert answer.step_time_band_s is not None


def test_a_prediction_says_what_sharing_did() -> None:
    plan = Plan(gpus=32, tp=2, pp=4, gbs=32)
    flow = simulate(model("llama3-8b", plan), Machine("h100-dgx", network="flow", prices="model"))
    alone = simulate(model("llama3-8b", plan), Machine("h100-dgx", prices="model"))
    assert flow.network is not None
    assert flow.network.mode == "flow"
    assert flow.executor == "shared"
    assert flow.network.analytic_step_time_s == pytest.approx(alone.step_time_s, rel=1e-9)
    assert flow.step_time_s >= alone.step_time_s * (1 - 1e-9)
    assert alone.network is not None
    assert (alone.network.mode, alone.network.hot) == ("analytic", ())
    assert flow.step_time_band_s is not None


def test_what_cannot_be_is_refused() -> None:
    program = at_once(1)
    with pytest.raises(InputError, match="did you mean flow"):
        simulate(program, Machine(H100, network="flows"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="links of a cluster"):
        simulate(program, Machine(network="flow"))
    with pytest.raises(InputError, match="as if alone"):
        simulate(program, Machine(H100, network="flow"), executor="fixed")


def test_every_axis_has_its_limit() -> None:
    """Small calls wait for latency, large ones for the wires they need; of one axis the longer calls count."""
    build = ProgramBuilder(Mesh(tp=8, dp=2), repeats=False)
    role = build.role("all", range(16))
    for axis in ("tp", "dp"):
        role.collective("all_gather", build.communicator(axis), bytes=8, lane="compute")
        role.collective("all_gather", build.communicator(axis), bytes=SIZE, lane="compute")
    tokens = build.groups("tokens", [range(16)], axis="ep")
    role.collective("all_to_all", tokens, bytes=SIZE, lane="compute")
    words = build.groups("words", [range(16)], axis="words")
    role.collective("all_reduce", words, bytes=8, lane="compute")
    answer = simulate(build.program(), Machine(H100, prices="model"))
    assert answer.network is not None
    kinds = {limit.axis: limit.kind for limit in answer.network.limits}
    assert kinds == {"tp": "nvlink", "dp": "nic", "ep": "nic", "words": "latency"}
    assert all(0.9 < limit.share <= 1 and limit.name for limit in answer.network.limits)
    screen = StringIO()
    print_answer(answer, screen)
    (line,) = (line for line in screen.getvalue().splitlines() if "ep exposed" in line)
    assert "NICs" in line and len(line) <= 80
    unexplained = simulate(build.program(), Machine(H100, prices="model"), explain=False)
    assert unexplained.network is not None and not unexplained.network.limits
