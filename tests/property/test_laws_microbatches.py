"""Laws of microbatches: equal ones cost equally, so a step is linear in their number once the pipeline is full."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace import Machine, Plan, simulate
from foretrace import model as model_input
from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import cluster

laws = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))

NEARLY_LINEAR = 1e-6
"""By how much, relative to the step, the growth by one round of microbatches may differ from the next."""
MAX_RISE = 1.005
"""How many times as long a step may take on better hardware, since overlap costs more there."""
CLUSTER = cluster("h100-dgx")
MACHINE = Machine(CLUSTER)


@st.composite
def plans(draw: st.DrawFn) -> tuple[str, Plan]:
    """Plans of dense models and of one with experts; graphs of the whole step, so that no host holds it up."""
    name = draw(st.sampled_from(("llama3-8b", "gpt3-13b", "mixtral-8x7b")))
    pp, tp, cp, dp = (draw(st.sampled_from(sizes)) for sizes in ((1, 1, 2, 4), (1, 2, 4), (1, 1, 2), (1, 2, 8)))
    schedule = draw(st.sampled_from((None, None, "zb-h1"))) if pp > 1 else None
    maybe = st.sampled_from((None, True, False))
    return name, Plan(
        gpus=pp * tp * cp * dp,
        pp=pp,
        tp=tp,
        cp=cp,
        ep=draw(st.sampled_from((1, 2))) if name.startswith("mixtral") and dp > 1 else 1,
        vpp=draw(st.sampled_from((1, 2))) if pp > 1 and schedule is None else 1,
        schedule=schedule,
        mbs=draw(st.sampled_from((1, 2))),
        seq_len=draw(st.sampled_from((2048, 4096))),
        stack=draw(st.sampled_from(("fsdp", "megatron-core", "fsdp-compile"))),
        zero=draw(st.sampled_from((0, 1, 2, 3))),
        recompute=draw(st.sampled_from(("none", "full", "selective"))),
        grad_overlap=draw(maybe),
        param_overlap=draw(maybe),
        tp_overlap=draw(st.booleans()),
        pp_overlap=draw(st.booleans()),
        moe_overlap=draw(st.booleans()),
        prefetch=draw(st.sampled_from((1, 2))),
        reshard=draw(st.booleans()),
        cuda_graphs="full",
    )


def step_s(name: str, plan: Plan, microbatches: int, machine: Machine = MACHINE) -> float:
    dp = plan.gpus // (plan.tp * plan.cp * plan.pp)
    job = model_input(name, replace(plan, gbs=microbatches * plan.mbs * dp))
    try:
        return simulate(job, machine, explain=False, even_if_oom=True).step_time_s
    except InputError:
        assume(False)
        raise


def better(figure: str, factor: float) -> Cluster:
    """The cluster with `factor` times as much of one figure."""
    node = CLUSTER.node
    gpu = node.gpu
    flops = {kind: factor * peak for kind, peak in gpu.peak_flops.items()}
    changed = {
        "nic": replace(node, nic=replace(node.nic, bytes_per_s=factor * node.nic.bytes_per_s)),
        "nvlink": replace(node, gpu=replace(gpu, link_bytes_per_s=factor * gpu.link_bytes_per_s)),
        "flops": replace(node, gpu=replace(gpu, peak_flops=flops)),
        "hbm": replace(node, gpu=replace(gpu, memory_bytes_per_s=factor * gpu.memory_bytes_per_s)),
    }
    return replace(CLUSTER, node=changed[figure])


@laws
@given(plans(), st.integers(4, 6))
def test_a_step_is_linear_in_its_microbatches(job: tuple[str, Plan], rounds: int) -> None:
    name, plan = job
    steps = [step_s(name, plan, count * plan.pp) for count in (rounds, rounds + 1, rounds + 2)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], abs=NEARLY_LINEAR * steps[2])


def test_the_fourth_microbatch_costs_what_the_third_does() -> None:
    plan = Plan(gpus=64, stack="fsdp", zero=3, seq_len=4096, recompute="full")
    steps = [step_s("llama3-8b", plan, count) for count in (2, 3, 4, 8)]
    each = steps[1] - steps[0]
    assert steps[2] - steps[1] == pytest.approx(each, rel=1e-9)
    assert steps[3] - steps[2] == pytest.approx(4 * each, rel=1e-9)


@laws
@given(plans(), st.sampled_from(("nic", "nvlink", "flops", "hbm")), st.sampled_from((1.05, 1.3, 2.0)))
def test_better_hardware_costs_at_most_a_little_more_overlap(job: tuple[str, Plan], figure: str, factor: float) -> None:
    name, plan = job
    machines = [Machine(cluster, prices="model") for cluster in (CLUSTER, better(figure, factor))]
    before, after = (step_s(name, plan, 2 * plan.pp, machine) for machine in machines)
    alone, faster = (step_s(name, plan, 2 * plan.pp, machine.with_(overlap_cost=False)) for machine in machines)
    assert after <= before * MAX_RISE * max(faster / alone, 1.0)
