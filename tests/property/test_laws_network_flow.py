"""Laws of communications that share links, over random jobs on random networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace import Machine, Mesh, Program, ProgramBuilder, simulate
from foretrace.cost.machine import NetworkMode
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.topology import Topology
from foretrace.hardware.presets import cluster

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Nodes of several kinds beneath leaves of one to four of them, oversubscribed or not."""
    base = cluster(draw(st.sampled_from(["h100-dgx", "a100-dgx", "h100-pcie", "gb200-nvl72", "mi300x"])))
    kind = draw(st.sampled_from(["fat-tree", "rail-optimised"]))
    nodes = draw(st.sampled_from([1, 2, 4]))
    ports = nodes * base.node.nics if kind == "fat-tree" else nodes
    topology = Topology(
        kind=kind,
        routing=draw(st.sampled_from(["spread", "rail"] if kind == "rail-optimised" else ["spread"])),
        leaf_ports=ports,
        oversubscription=draw(st.sampled_from([1.0, 2.0, 4.0])),
    )
    return replace(base, topology=topology)


@st.composite
def programs(draw: st.DrawFn, overlapping: bool, stage_ranks: int = 64) -> Program:
    """Stages that compute, communicate over tp, dp and all of a stage, and send to each other. Where nothing overlaps
    everything is on one lane, and stages do not wait for what the others do not."""
    tp = draw(st.sampled_from([2, 8]))
    mesh = Mesh(
        tp=tp,
        dp=draw(st.sampled_from([dp for dp in (2, 8) if tp * dp <= stage_ranks])),
        pp=draw(st.sampled_from([1, 2])) if overlapping else 1,
    )
    build = ProgramBuilder(mesh, repeats=draw(st.booleans()))
    calls = draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["compute", "tp", "dp", "stage", "pp"] if mesh.pp > 1 else ["compute", "tp", "dp", "stage"]
                ),
                st.sampled_from(COLLECTIVES),
                st.integers(16, 31),
                st.integers(0, 2),
            ),
            min_size=2,
            max_size=8,
        )
    )
    stage = build.groups("stage", [mesh.where(pp=pp).tolist() for pp in range(mesh.pp)], axis="ep")
    for pp in range(mesh.pp):
        role = build.role(f"stage {pp}", mesh.where(pp=pp).tolist())
        for number, (where, what, log_size, lane_number) in enumerate(calls):
            lane = f"lane {lane_number}" if overlapping else "lane"
            match where:
                case "compute":
                    role.compute(f"work {number}", (1 + pp) * 1e-9 * 2**log_size / 50)
                case "pp":
                    to = 1 if pp == 0 else None
                    role.transfer("send", build.pair("pp", 0, 1), to=to, bytes=1 << log_size)
                case _:
                    communicator = stage if where == "stage" else build.communicator(where)
                    role.collective(what, communicator, bytes=1 << log_size, lane=lane)
    return build.program()


def step(program: Program, on: Cluster, network: NetworkMode = "analytic", *, folded: bool = True) -> float:
    machine = Machine(on, prices="model", network=network)
    return simulate(program, machine, folded=folded, explain=False).step_time_s


@settings(max_examples=40)
@given(programs(overlapping=False), clusters())
def test_one_after_the_other_communications_take_what_they_take_alone(program: Program, on: Cluster) -> None:
    assert step(program, on, "flow") == pytest.approx(step(program, on), rel=1e-9, abs=1e-15)


@settings(max_examples=40)
@given(programs(overlapping=True), clusters())
def test_sharing_never_makes_a_step_shorter(program: Program, on: Cluster) -> None:
    """Every op takes as long as alone or longer, and the order of lanes is fixed, so that nothing can come earlier."""
    assert step(program, on, "flow") >= step(program, on) * (1 - 1e-9)


@settings(max_examples=25)
@given(programs(overlapping=True, stage_ranks=16), clusters())
def test_folded_and_unfolded_steps_agree_under_sharing(program: Program, on: Cluster) -> None:
    folded = step(program, on, "flow")
    assert step(program, on, "flow", folded=False) == pytest.approx(folded, rel=1e-9, abs=1e-15)
