"""From a model's name, a plan and a cluster to an answer: the program of the step is generated, then simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from foretrace.analysis.answer import PeakMemory, Simulation
from foretrace.analysis.breakdown import Breakdown
from foretrace.analysis.host import host_notes
from foretrace.analysis.memory_fit import MemoryFit, Relief, memory_fit, relief
from foretrace.analysis.scenario import Scenario
from foretrace.analysis.sharing import NetworkMode
from foretrace.analysis.simulate import simulate
from foretrace.cost.network import NcclSettings
from foretrace.cost.sources import PriceSource
from foretrace.errors import Diagnostic, InfeasibleError, InputError
from foretrace.formats.calibration import Calibration, calibration_of
from foretrace.hardware.cluster import Cluster, Gpu
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.models.flops import model_flops
from foretrace.models.load import read_model
from foretrace.models.model import Model
from foretrace.placement import Placement
from foretrace.program.columns import Kind, Phase
from foretrace.program.kernels import PEAK_OF
from foretrace.units import format_bytes
from foretrace.workload.assemble import program_of
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from foretrace.workload.stacks import TORCH_COMPILE, TORCH_EAGER

BLOCK_SCALED: Final = {"mxfp8": "fp4"}
"""What tells whether a GPU multiplies with scales of blocks: such units came with those for 4 bits (Blackwell, CDNA 4).
Transformer Engine refuses the recipe elsewhere."""

EAGER_STREAMS: Final = frozenset({"silu", "gelu", "mul"})
"""Kernels that only activations written op by op have: fused stacks run one for all of them."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """When the parts of a step end that are timed apart, as durations in seconds; 0 where a part has no ops."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True, repr=False)  # without slots: what is rarely asked for is read off when it is
class Prediction:
    """The answer to a prediction: the simulation of the step, and what only a model's step has."""

    setting: Setting
    cluster: Cluster
    simulation: Simulation
    memory: MemoryFit
    model_flops: float
    """Of a step, whole job: what the model needs by the formula, causal attention counted half, no recomputation."""
    hardware_flops: float
    """Of a step, whole job: what the kernels of the program do, recomputation included."""
    peak_flops: float
    """Dense peak of one GPU in the dtype of linear layers, per second."""

    @property
    def step_time_s(self) -> float:
        """The time of a step."""
        return self.simulation.step_time_s

    @property
    def step_time_band_s(self) -> tuple[float, float] | None:
        """The central 90 % interval of the step time."""
        return self.simulation.step_time_band_s

    @property
    def breakdown(self) -> Breakdown:
        """Where the time of every rank goes."""
        return self.simulation.breakdown

    @property
    def peak_memory(self) -> PeakMemory | None:
        """The most memory any rank allocates, and what for; `memory` has all stages, and what the GPU has."""
        return self.simulation.peak_memory

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of the global batch by second and GPU."""
        tokens = self.setting.gbs * self.setting.seq_len
        return tokens / self.step_time_s / self.setting.plan.gpus

    @property
    def model_flops_per_s_per_gpu(self) -> float:
        """The model's FLOPs by second and GPU."""
        return self.model_flops / self.step_time_s / self.setting.plan.gpus

    @property
    def peak_dtype(self) -> str:
        """For which dtype `peak_flops` is: that of linear layers."""
        return PEAK_OF.get(self.setting.plan.precision, self.setting.plan.precision)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the model's FLOPs over what the GPUs could do at their dense peak."""
        return self.model_flops_per_s_per_gpu / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: the same with everything that is computed, recomputation included."""
        return self.hardware_flops / (self.step_time_s * self.setting.plan.gpus * self.peak_flops)

    @cached_property
    def parts(self) -> StepParts:
        """How long the forward, the backward after it and the optimizer after that take."""
        return step_parts(self.simulation)

    def __repr__(self) -> str:
        step, name = self.step_time_s, self.setting.model.name
        return f"<Prediction: {name}, step {step:.6g} s on {self.setting.plan.gpus:,} GPUs, MFU {100 * self.mfu:.1f} %>"


def predict(
    model: Model | str | Path,
    plan: Plan,
    cluster: Cluster | str,
    *,
    prices: PriceSource = "best",
    silicon: bool | None = None,
    calibration: Calibration | str | Path | None = None,
    explain: bool = True,
    even_if_oom: bool = False,
    placement: Placement | None = None,
    network: NetworkMode = "analytic",
    overlap_cost: bool = True,
    nccl: NcclSettings | None = None,
    scenario: Scenario | None = None,
    notes: tuple[Diagnostic, ...] = (),
) -> Prediction:
    """Predicts the step of a model under a plan on a cluster.

    A model is one, a preset's name, or the path of a Hugging Face config.json or of the folder with it.
    `prices` says where kernels' times come from: the best source that knows each, the fitted model alone, or the
    datasheet's roofline; `silicon` whether NVIDIA's tables count among the best (None: if they are installed);
    `calibration` names a user's own measurements, which come before all of these. A job
    that does not fit in memory is an `InfeasibleError` that names a plan that does, unless `even_if_oom`. `network`
    says whether communications that meet on links divide them (`flow`) or each goes as if alone (`analytic`);
    `overlap_cost` whether kernels take longer beside a collective; `nccl` what NCCL may choose, and what it said on a
    user's machine. `notes` are diagnostics that the answer should carry as well. `explain=False` leaves out what takes
    further runs: the gains and the band.
    """
    if prices not in ("best", "model", "roofline"):
        raise InputError(f'prices "{prices}" are not known', hint="known: best, model, roofline")
    for value, kind, example in ((model, Model, "llama3-70b"), (cluster, Cluster, "h100-dgx")):
        if not isinstance(value, str | kind) and not (kind is Model and isinstance(value, Path)):
            raise InputError(f"a {kind.__name__.lower()} is no {type(value).__name__}", hint=f'a name: "{example}"')
    if not isinstance(model, Model):
        model, guesses = read_model(model)
        notes = (*notes, *guesses)
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    setting = settle(model, plan)
    cluster.check_fits(plan.gpus)
    fit = calibration_of(calibration, cluster.gpu.name)
    setting = _with_host(setting, fit)
    peak = peak_flops(cluster.gpu, plan.precision)
    simulation = _run(
        setting, cluster, prices, silicon, explain, placement, scenario or Scenario(), network, nccl, overlap_cost, fit
    )
    notes = (*notes, *_stack_notes(setting, fit), *simulation.diagnostics, *host_notes(simulation.timeline))
    simulation = replace(simulation, diagnostics=notes)
    memory = memory_fit(simulation, cluster)
    answer = Prediction(
        setting=setting,
        cluster=cluster,
        simulation=simulation,
        memory=memory,
        model_flops=setting.gbs * model_flops(model, setting.seq_len, documents=setting.plan.documents),
        hardware_flops=_hardware_flops(simulation),
        peak_flops=peak,
    )
    if not memory.fits and not even_if_oom:
        raise misfit(answer, find_relief(answer, prices, silicon))
    return answer


def find_relief(answer: Prediction, prices: PriceSource = "best", silicon: bool | None = None) -> Relief | None:
    """A change of the plan by which a job that does not fit would; None where no simple one is found."""

    def measure(plan: Plan) -> MemoryFit:
        changed = settle(answer.setting.model, plan)
        return memory_fit(_run(changed, answer.cluster, prices, silicon, False, None, Scenario()), answer.cluster)

    return relief(answer.setting, answer.cluster, measure)


def misfit(answer: Prediction, found: Relief | None) -> InfeasibleError:
    """The error of a job that does not fit, with the change by which it would."""
    hint = "no single change of recomputation, ZeRO, tp or pp makes it fit: use more GPUs, or predict --even-if-oom"
    if found is not None:
        size = format_bytes(found.peak_bytes)
        hint = f"{found.words} would: {size} at the peak; or predict --even-if-oom for the time"
    memory, worst = answer.memory, answer.memory.worst
    assert worst is not None
    kinds = ", ".join(f"{name} {format_bytes(size)}" for name, size in worst.by_category.items())
    message = (
        f"{answer.setting.model.name} needs {format_bytes(worst.peak_bytes)} on {worst.role} ({kinds}) and about "
        f"{format_bytes(memory.overhead_bytes)} for CUDA and NCCL, of {format_bytes(memory.capacity_bytes)} "
        f"that {answer.cluster.gpu.title} has"
    )
    return InfeasibleError(message, hint=hint)


def peak_flops(gpu: Gpu, precision: str) -> float:
    """The dense peak of a GPU for linear layers of a precision; an error where it has no such units."""
    dtype = PEAK_OF.get(precision, precision)
    if dtype not in gpu.peak_flops or BLOCK_SCALED.get(precision, dtype) not in gpu.peak_flops:
        raise InputError(
            f"{gpu.title} has no {precision if dtype in gpu.peak_flops else dtype} units",
            where=f"precision {precision}",
            hint=f"it has {', '.join(gpu.peak_flops)}",
        )
    return gpu.peak_flops[dtype]


def step_parts(simulation: Simulation) -> StepParts:
    """The parts of a step by when the last compute op of each ends, one after the other."""
    timeline = simulation.timeline
    graph = timeline.graph
    computes = graph.ops.ints("kind")[graph.op] == Kind.COMPUTE
    phase = graph.ops.ints("phase")[graph.op]
    if not computes.any():
        return StepParts(0.0, 0.0, 0.0)
    start = float(timeline.start_s[computes].min())

    def end(*phases: Phase) -> float:
        mine = computes & np.isin(phase, phases)
        return float(timeline.end_s[mine].max()) if mine.any() else start

    forward = end(Phase.FORWARD)
    backward = max(end(Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE), forward)
    return StepParts(forward - start, backward - forward, max(end(Phase.OPTIMIZER) - backward, 0.0))


def _run(
    setting: Setting,
    cluster: Cluster,
    prices: PriceSource,
    silicon: bool | None,
    explain: bool,
    placement: Placement | None,
    scenario: Scenario,
    network: NetworkMode = "analytic",
    nccl: NcclSettings | None = None,
    overlap_cost: bool = True,
    calibration: Calibration | None = None,
) -> Simulation:
    return simulate(
        program_of(setting),
        cluster=cluster,
        prices=prices,
        silicon=silicon,
        placement=placement,
        what_if=scenario.what_if,
        stragglers=scenario.stragglers,
        slow_links=scenario.slow_links,
        jitter=scenario.jitter,
        network=network,
        overlap_cost=overlap_cost,
        nccl=nccl,
        calibration=calibration,
        explain=explain,
    )


def _with_host(setting: Setting, calibration: Calibration | None) -> Setting:
    """A setting whose host launches as fast as a calibration's: other stacks by the ratio that its own shows."""
    if calibration is None or calibration.host is None:
        return setting
    host = calibration.host
    usual = (TORCH_EAGER if host.style == "eager" else TORCH_COMPILE).launch_s
    launch_s = setting.stack.launch_s * host.launch_s / usual
    stack = replace(setting.stack, launch_s=launch_s, launch_source=f"host launches, calibration {calibration.name}")
    return replace(setting, stack=stack)


def _stack_notes(setting: Setting, calibration: Calibration | None) -> tuple[Diagnostic, ...]:
    """A note where a calibration is of PyTorch's kernels one by one, and the plan's stack runs others."""
    if calibration is None or setting.stack.pointwise == "eager":
        return ()
    names = {one.name.removeprefix("stream ").partition("_")[0] for one in calibration.families}
    if not names & EAGER_STREAMS or names & {"swiglu", "geglu"}:
        return ()
    text = (
        f"calibration {calibration.name} holds kernels of eager PyTorch, and {setting.stack.name} runs others beside "
        "its products: these keep their usual prices (--stack torch-eager, if that is what you run)"
    )
    return (Diagnostic("note", text),)


def _hardware_flops(simulation: Simulation) -> float:
    graph = simulation.timeline.graph
    done = np.where(graph.ops.ints("enabled"), graph.ops.column("flops"), 0.0).astype(np.float64)
    return float(np.sum(done[graph.op] * graph.weight))
