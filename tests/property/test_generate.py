"""Laws of generated workload files: what they send and compute is what the plan's own program does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace.api import simulate
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.interface import KernelPricer
from foretrace.cost.machine import Machine
from foretrace.cost.sources import PriceSources
from foretrace.export.aicb import Generated, aicb_workload
from foretrace.export.aicb.reduce import reductions
from foretrace.hardware.presets import cluster
from foretrace.inputs.aicb.format import Pass, WorkloadRow, parse_workload, workload_text
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model, SelfAttention
from foretrace.program.columns import Collective
from foretrace.program.expand import expand
from foretrace.program.program import Program
from foretrace.step import build_step
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from foretrace.workload.stacks import stack
from foretrace.workload.step_spec import step_spec

laws = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
CLUSTER = cluster("h100-dgx")
KERNELS = kernel_pricer(CLUSTER.gpu, prices="roofline")

ATTENTIONS = (SelfAttention(16, 4, 64), LatentAttention(16, 256, 128, 64, 32, 64))
MLPS = (
    Mlp(4096, True, "silu"),
    Mlp(4096, False, "gelu", bias=True),
    Experts(8, 2, Mlp(1024, True, "silu"), shared=Mlp(1024, True, "silu")),
    Experts(8, 2, Mlp(1024, True, "silu")),
)


@st.composite
def jobs(draw: st.DrawFn) -> Setting:
    """A small model under a plan that a file can express."""
    second = draw(st.sampled_from(MLPS))
    moe = isinstance(second, Experts)
    tp, pp, dp = (draw(st.sampled_from((1, 2, 4))) for _ in range(3))
    vpp = draw(st.sampled_from((1, 3))) if pp > 1 else 1
    layer = Layer(draw(st.sampled_from(ATTENTIONS)), second)
    model = Model(
        "small",
        1024,
        (layer,) * (2 * pp * vpp),
        8192,
        "rmsnorm",
        tied=False,
        mtp=draw(st.sampled_from((0, 1))),
        seq_len=1024,
    )
    plan = Plan(
        gpus=tp * pp * dp,
        tp=tp,
        etp=tp if moe else 1,
        pp=pp,
        vpp=vpp,
        ep=draw(st.sampled_from([n for n in (1, 2, 4) if dp % n == 0])) if moe else 1,
        gbs=dp * pp * draw(st.integers(1, 2)),
        sequence_parallel=draw(st.sampled_from((None, False))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        precision=draw(st.sampled_from(("bf16", "fp8"))),
        zero=draw(st.sampled_from((0, 1))),
        grad_overlap=draw(st.booleans()),
        param_overlap=draw(st.booleans()),
        tp_overlap=draw(st.booleans()),
        moe_overlap=draw(st.booleans()),
        pp_overlap=draw(st.booleans()),
        cuda_graphs=draw(st.sampled_from(("none", "full"))),
    )
    software = stack(draw(st.sampled_from(("megatron-core", "torch-eager"))))
    return settle(model, plan, replace(software, hides_tp_backward=draw(st.booleans())))


def read_back(generated: Generated, **options: object) -> Program:
    workload = parse_workload(workload_text(generated.workload).encode(), "made.txt")
    assert workload.rows == generated.workload.rows
    return lower_workload(workload, WorkloadOptions(**options))  # type: ignore[arg-type]


def traffic(program: Program) -> dict[tuple[int, str, str], int]:
    """Bytes by stage, axis and collective, scalars left out."""
    ops = expand(program)
    over, size = ops.ints("communicator"), ops.floats("bytes")
    what, on = ops.ints("collective"), ops.ints("enabled")
    found: Counter[tuple[int, str, str]] = Counter()
    for op in np.flatnonzero((over >= 0) & (size > 4) & (on > 0)).tolist():
        one = program.communicators[int(over[op])]
        axis = {"etp": "tp"}.get(one.axis, one.axis)
        found[int(ops.role[op]), axis, Collective(int(what[op])).name] += int(size[op])
    return dict(found)


@laws
@given(jobs())
def test_a_file_sends_what_the_program_sends(setting: Setting) -> None:
    generated = aicb_workload(setting, KERNELS)
    chunks = "chunks" if setting.chunks_per_stage > 1 else "auto"
    overlap = "pp" if setting.plan.pp_overlap else "none"
    ours, its = traffic(build_step(step_spec(setting))), traffic(read_back(generated, vpp=chunks, overlap=overlap))
    within = {key: size for key, size in ours.items() if key[1] not in ("dp", "edp", "embd")}
    assert {key: size for key, size in its.items() if key[1] not in ("dp", "edp")} == within
    # Gradients and parameters are those of the first stage, for every stage.
    first = {key[1:]: size for key, size in ours.items() if key[0] == 0}
    assert {key: size for key, size in its.items() if key[1] in ("dp", "edp")} == {
        (stage, *key): size
        for stage in range(setting.plan.pp)
        for key, size in first.items()
        if key[0] in ("dp", "edp")
    }


def step_s(program: Program, kernels: KernelPricer | None = None) -> float:
    machine = Machine(CLUSTER, overlap_cost=False, prices=PriceSources(kernels=kernels))
    return simulate(program, machine, explain=False).step_time_s


@laws
@given(jobs(), st.booleans())
def test_a_file_read_back_takes_as_long_as_the_reduced_step(setting: Setting, exposed_only: bool) -> None:
    generated = aicb_workload(setting, KERNELS, exposed_only=exposed_only)
    read = read_back(generated, vpp="chunks" if setting.chunks_per_stage > 1 else "auto")
    assert step_s(read) == pytest.approx(step_s(build_step(generated.spec)), rel=1e-9)


@laws
@given(jobs(), st.booleans())
def test_reductions_lead_from_the_plan_to_the_file(setting: Setting, exposed_only: bool) -> None:
    """All but the last keep the kernels of the plan; that one rounds every pass of a row to a nanosecond."""
    generated = aicb_workload(setting, KERNELS, exposed_only=exposed_only)
    steps = list(reductions(step_spec(setting), generated.spec, generated.pieces, exposed_only=exposed_only))
    assert steps[-1][1] is generated.spec
    before = steps[-2][1] if len(steps) > 1 else step_spec(setting)
    rounded_s = 0.5e-9 * 3 * len(generated.workload.rows) * setting.plan.pp
    assert step_s(build_step(before), KERNELS) == pytest.approx(step_s(build_step(generated.spec)), abs=rounded_s)


@laws
@given(jobs())
def test_the_reader_has_nothing_to_warn_of(setting: Setting) -> None:
    made = read_back(aicb_workload(setting, KERNELS), vpp="chunks" if setting.chunks_per_stage > 1 else "auto")
    warned = [one.message for one in made.diagnostics if one.level == "warning"]
    narrow = setting.plan.precision == "fp8" or isinstance(setting.model.layers[0].attention, LatentAttention)
    documented = ("computation takes what the file says", *(("pp_comm is ",) if narrow else ()))
    assert [text for text in warned if not text.startswith(documented)] == []


@laws
@given(jobs())
def test_without_prices_only_the_times_differ(setting: Setting) -> None:
    priced, bare = aicb_workload(setting, KERNELS).workload, aicb_workload(setting).workload
    assert bare.header == priced.header
    for one, other in zip(bare.rows, priced.rows, strict=True):
        assert one.name == other.name
        for part, its in zip(_passes(one), _passes(other), strict=True):
            assert (part.collective, part.size_bytes) == (its.collective, its.size_bytes)
            assert part.compute_ns in (0, 1)
            assert part.compute_ns == 1 or its.compute_ns == 0


def _passes(row: WorkloadRow) -> tuple[Pass, Pass, Pass]:
    return row.forward, row.input_grad, row.weight_grad
