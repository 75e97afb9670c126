"""Laws of prices over random machines and plans: better figures, hypothetical GPUs, microbatches, refusals.

Bounds and bytes of collectives are laws of the network: `test_laws_network`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import Answer, ForetraceError, Plan, PriceSources, simulate
from foretrace.basics.arrays import Floats
from foretrace.cost.kernels.interface import PriceSource
from foretrace.cost.network.interface import Explained
from foretrace.cost.sources import gpu_pricer
from foretrace.program.columns import Collective
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, Stream
from property.machines import CLUSTERS, FACTORS, FIGURES, Hardware, hardware, text, value
from property.plans import PlannedModel, any_plans, planned_models

CLOSE: Final = 1 + 1e-6
"""Corrections by measured kernels are interpolated in single precision."""
OVERLAP_SLACK: Final = 1.005
"""How much longer a step may get by a better figure where kernels and collectives slow each other down."""
CHANGED: Final = 0.99
"""A price that depends on a figure is at most this share of itself when the figure is doubled."""
LINEAR: Final = 1e-6
ROUNDS: Final = (6, 8, 10, 12, 14)
"""Microbatches for each stage: enough to fill the pipeline, and more slopes than another slowest stage changes."""

SOURCES: Final = st.sampled_from(("best", "model"))
PRESETS: Final = st.sampled_from([Hardware(name) for name in CLUSTERS])
GPU_FIGURES: Final = st.sampled_from([figure for figure in FIGURES if figure != "nic"])
WIDTHS: Final = st.sampled_from((128, 512, 1000, 2048, 4096, 11008, 32768))
LARGE: Final = st.sampled_from((8192, 12288, 16384))
BYTES: Final = st.sampled_from((2**12, 2**20, 2**25, 2**30))
LAYOUTS: Final = st.sampled_from(("tn", "nn", "nt"))
GEMMS: Final = st.builds(Gemm, WIDTHS, WIDTHS, WIDTHS, st.sampled_from(("bf16", "fp8")), LAYOUTS)
GROUPED: Final = st.builds(
    GroupedGemm, st.sampled_from((4, 16)), WIDTHS, WIDTHS, WIDTHS, layout=LAYOUTS, separate=st.booleans()
)
ATTENTION: Final = st.builds(
    lambda batch, heads, length, backward: Attention(
        batch, heads, heads, length, length, 128, 128, length * length // 2, backward
    ),
    st.sampled_from((1, 4)),
    st.sampled_from((4, 32)),
    st.sampled_from((1024, 8192)),
    st.booleans(),
)
STREAM_NAMES: Final = st.sampled_from(("add", "adam", "gelu", "rmsnorm", "softmax", "swiglu_backward", "cast_fused"))
STREAMS: Final = st.builds(Stream, STREAM_NAMES, BYTES, BYTES)
KERNELS: Final = st.one_of(GEMMS, GROUPED, ATTENTION, STREAMS, st.builds(Copy, BYTES))
CALLS: Final = st.tuples(
    st.sampled_from([call for call in Collective if call is not Collective.NONE]),
    st.sampled_from((2, 4, 8, 16, 32)),
    st.sampled_from((1, 1, 2, 8)),
    st.sampled_from((2**10, 2**17, 2**24, 2**31)),
)
"""A collective, the ranks of its group, how far apart they are, and its bytes."""
Call = tuple[Collective, int, int, int]
Test = Callable[..., None]


def law(quick: int, fuzz: int) -> Callable[[Test], Test]:
    """Returns the settings of a law with few examples in `make test` and many in `make fuzz`."""
    count = fuzz if os.environ.get("FORETRACE_FUZZ") else quick
    return settings(deadline=None, max_examples=count, suppress_health_check=list(HealthCheck))


def kernel_s(machine: Hardware, kernels: Sequence[Kernel], source: PriceSource = "best") -> Floats:
    """Returns the seconds of each kernel alone on a GPU of the machine."""
    return gpu_pricer(machine.cluster.gpu, PriceSources(source), None).price(kernels).duration_s


def call(machine: Hardware, group: Call, source: PriceSource = "best") -> Explained:
    """Returns how a collective runs on an idle network during training."""
    what, ranks, stride, size = group
    members = stride * np.arange(2 if what in (Collective.TRANSFER, Collective.EXCHANGE) else ranks)
    network = machine.machine(prices=source).network_of(int(members[-1]) + 1, in_training=True)
    layouts, _ = network.layouts(members[None])
    return network.explain(what, layouts[0], float(size))


def way(machine: Hardware, group: Call) -> tuple[str, str]:
    """Returns the algorithm and protocol that NCCL chooses for a collective."""
    explained = call(machine, group, "model")
    return explained.algorithm, explained.protocol


def states(answer: Answer, code: str) -> bool:
    """Returns whether an answer has a diagnostic of this code."""
    return any(diagnostic.code == code for diagnostic in answer.diagnostics)


# A better figure never raises a price.


@law(quick=25, fuzz=500)
@given(hardware(), GPU_FIGURES, FACTORS, st.lists(KERNELS, min_size=4, max_size=12), SOURCES)
def test_a_better_figure_raises_no_kernel_price(
    machine: Hardware, figure: str, factor: float, kernels: list[Kernel], source: PriceSource
) -> None:
    assume(machine.has(figure))
    before, after = (kernel_s(one, kernels, source) for one in (machine, machine.better(figure, factor)))
    ratio = float((after / before).max())
    assert ratio <= CLOSE


@law(quick=30, fuzz=500)
@given(hardware(), st.sampled_from(FIGURES), FACTORS, CALLS)
def test_a_better_figure_raises_no_collective_price_under_the_same_algorithm(
    machine: Hardware, figure: str, factor: float, group: Call
) -> None:
    assume(machine.has(figure))
    better = machine.better(figure, factor)
    assume(way(machine, group) == way(better, group))
    ratio = call(better, group).time_s / call(machine, group).time_s
    assert ratio <= CLOSE


@law(quick=8, fuzz=250)
@given(planned_models(), hardware(), st.sampled_from(FIGURES), FACTORS)
def test_a_better_figure_lengthens_no_step_without_overlap_cost(
    job: PlannedModel, machine: Hardware, figure: str, factor: float
) -> None:
    assume(machine.has(figure))
    before = job.answer(machine, overlap_cost=False)
    after = job.answer(machine.better(figure, factor), overlap_cost=False)
    ratio = after.step_time_s / before.step_time_s
    assert ratio <= CLOSE


@law(quick=8, fuzz=250)
@given(planned_models(), hardware(), st.sampled_from(FIGURES), FACTORS)
def test_a_better_figure_hardly_lengthens_a_step_with_overlap_cost(
    job: PlannedModel, machine: Hardware, figure: str, factor: float
) -> None:
    assume(machine.has(figure))
    before, after = job.answer(machine), job.answer(machine.better(figure, factor))
    ratio = after.step_time_s / before.step_time_s
    assert ratio <= OVERLAP_SLACK


# A hypothetical GPU is priced by the figure that it changes.


@law(quick=15, fuzz=300)
@given(hardware(max_changes=1), GPU_FIGURES, FACTORS, st.lists(KERNELS, min_size=4, max_size=12), SOURCES)
def test_a_better_figure_shortens_no_kernel_by_more_than_itself(
    machine: Hardware, figure: str, factor: float, kernels: list[Kernel], source: PriceSource
) -> None:
    assume(machine.has(figure))
    before, after = (kernel_s(one, kernels, source) for one in (machine, machine.better(figure, factor)))
    ratio = float((before / after).max()) / factor
    assert ratio <= CLOSE


@law(quick=12, fuzz=150)
@given(PRESETS, st.sampled_from(("memory_bandwidth", "bf16", "memory", "power_w")), st.lists(KERNELS, min_size=12))
def test_a_figure_stated_again_changes_no_kernel_price(machine: Hardware, figure: str, kernels: list[Kernel]) -> None:
    again = Hardware(machine.preset, {figure: text(figure, value(machine.cluster, figure))})
    before, after = kernel_s(machine, kernels), kernel_s(again, kernels)
    ratio = float(np.exp(np.abs(np.log(after / before)).max()))
    assert ratio <= CLOSE


@law(quick=12, fuzz=150)
@given(PRESETS, st.sampled_from(("link_bandwidth", "pcie_bandwidth", "memory", "power_w")), CALLS)
def test_a_figure_stated_again_changes_no_collective_price(machine: Hardware, figure: str, group: Call) -> None:
    again = Hardware(machine.preset, {figure: text(figure, value(machine.cluster, figure))})
    before, after = call(machine, group).time_s, call(again, group).time_s
    ratio = max(after / before, before / after)
    assert ratio <= CLOSE


@law(quick=8, fuzz=100)
@given(planned_models(), PRESETS, st.sampled_from((1.01, 2.0)))
def test_more_memory_alone_changes_no_step(job: PlannedModel, machine: Hardware, factor: float) -> None:
    larger = Hardware(machine.preset, {"memory": text("memory", value(machine.cluster, "memory") * factor)})
    before, after = job.answer(machine).step_time_s, job.answer(larger).step_time_s
    ratio = max(after / before, before / after)
    assert ratio <= CLOSE


@law(quick=12, fuzz=150)
@given(PRESETS, LARGE, LARGE, LARGE, LAYOUTS, st.sampled_from(("bf16", "fp8")), SOURCES)
def test_twice_the_peak_shortens_a_large_product(
    machine: Hardware, m: int, n: int, k: int, layout: str, dtype: str, source: PriceSource
) -> None:
    assume(machine.has(dtype))
    kernels = [Gemm(m, n, k, dtype, layout)]
    ratio = float(kernel_s(machine.better(dtype, 2.0), kernels, source)[0] / kernel_s(machine, kernels, source)[0])
    assert ratio <= CHANGED


@law(quick=12, fuzz=150)
@given(PRESETS, st.sampled_from(("add", "mul", "elementwise", "copy")), st.integers(2**28, 2**32), SOURCES)
def test_twice_the_memory_bandwidth_shortens_a_stream(
    machine: Hardware, name: str, size: int, source: PriceSource
) -> None:
    kernels = [Stream(name, size, size)]
    better = machine.better("memory_bandwidth", 2.0)
    ratio = float(kernel_s(better, kernels, source)[0] / kernel_s(machine, kernels, source)[0])
    assert ratio <= CHANGED


@law(quick=10, fuzz=100)
@given(PRESETS, st.integers(2**28, 2**33), SOURCES)
def test_twice_the_host_bandwidth_shortens_a_copy(machine: Hardware, size: int, source: PriceSource) -> None:
    figure = "host_bandwidth" if machine.has("host_bandwidth") else "pcie_bandwidth"
    kernels: list[Kernel] = [Copy(size)]
    better = machine.better(figure, 2.0)
    ratio = float(kernel_s(better, kernels, source)[0] / kernel_s(machine, kernels, source)[0])
    assert ratio <= CHANGED


@law(quick=10, fuzz=100)
@given(
    PRESETS,
    st.sampled_from((Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)),
    st.sampled_from((2, 4, 8)),
    st.integers(2**28, 2**32),
    SOURCES,
)
def test_twice_the_link_bandwidth_shortens_a_collective_of_one_domain(
    machine: Hardware, what: Collective, ranks: int, size: int, source: PriceSource
) -> None:
    assume(ranks <= machine.cluster.node.domain_gpus)
    # A quarter of the rate, so that links are slower than the channels that copy.
    slow, group = machine.better("link_bandwidth", 0.25), (what, ranks, 1, size)
    ratio = call(slow.better("link_bandwidth", 2.0), group, source).time_s / call(slow, group, source).time_s
    assert ratio <= CHANGED


@law(quick=5, fuzz=150)
@given(planned_models(), hardware(max_changes=1), st.sampled_from(("flops", "memory_bandwidth")))
def test_a_step_that_a_doubled_figure_leaves_is_not_limited_by_computation(
    job: PlannedModel, machine: Hardware, figure: str
) -> None:
    before, after = (job.answer(one, explain=True) for one in (machine, machine.better(figure, 2.0)))
    named = max((gain.gain_10_percent_s or 0.0 for gain in after.bottlenecks if gain.name == "compute"), default=0.0)
    ratio = after.step_time_s / before.step_time_s
    assert ratio < 1 - LINEAR or named <= 0.01 * after.step_time_s


# Equal microbatches cost equally.


@law(quick=6, fuzz=240)
@given(planned_models(), hardware(max_changes=1), st.booleans())
def test_a_step_is_linear_in_its_microbatches(job: PlannedModel, machine: Hardware, overlap_cost: bool) -> None:
    """A stage that is slower, but ahead at first, may come to set the pace: the slope rises once and stays constant."""
    counts = [rounds * job.plan.pp for rounds in ROUNDS]
    answers = [job.with_microbatches(count).answer(machine, overlap_cost=overlap_cost) for count in counts]
    # A host that falls behind a little with every microbatch holds up only those that come after its lead is used up.
    assume(not any(states(answer, "host-busy") for answer in answers))
    slopes = np.diff([answer.step_time_s for answer in answers]) / np.diff(counts)
    growth = np.diff(slopes) / slopes[0]
    assert growth.min() >= -LINEAR
    assert np.abs(growth).min() <= LINEAR


def test_the_fourth_microbatch_costs_what_the_third_does() -> None:
    plan = Plan(gpus=64, stack="fsdp", zero=3, seq_len=4096, recompute="full")
    job, machine = PlannedModel("llama3-8b", 32, plan), Hardware("h100-dgx")
    steps = [job.with_microbatches(count).answer(machine).step_time_s for count in (2, 3, 4, 8)]
    each = steps[1] - steps[0]
    assert steps[2] - steps[1] == pytest.approx(each, rel=1e-9)
    assert steps[3] - steps[2] == pytest.approx(4 * each, rel=1e-9)


# A plan runs, or is refused with a code and a hint.


def outcome(job: PlannedModel, machine: Hardware) -> Answer | ForetraceError:
    """Returns the answer, or the error by which the plan is refused; any other exception is a failure."""
    try:
        return simulate(foretrace.model(job.model, job.plan), machine.machine(), explain=False)
    except ForetraceError as error:
        return error


@law(quick=40, fuzz=500)
@given(any_plans(), PRESETS)
def test_a_refusal_has_a_code_and_a_hint(job: PlannedModel, machine: Hardware) -> None:
    refusal: Any = outcome(job, machine)
    assume(isinstance(refusal, ForetraceError))
    assert refusal.code
    assert refusal.hint


@law(quick=8, fuzz=150)
@given(planned_models(), hardware())
def test_a_plan_that_is_not_refused_has_a_finite_step(job: PlannedModel, machine: Hardware) -> None:
    answer = job.answer(machine)
    assert math.isfinite(answer.step_time_s)
    assert answer.step_time_s > 0
