"""The JSON of an answer: the dataclasses below are its shape, one field for every key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.plain import to_plain
from foretrace.cost.network.domains import DomainUse
from foretrace.readings.answer.answer import Bottleneck, Remedy
from foretrace.readings.answer.memory_fit import MemoryFit, MemoryPart, Verdict
from foretrace.readings.sharing import NetworkUse

if TYPE_CHECKING:
    from foretrace.readings.answer.answer import Answer

SIMULATION_SCHEMA: Final = "foretrace.simulation/1"
PREDICTION_SCHEMA: Final = "foretrace.prediction/2"


@dataclass(frozen=True, slots=True)
class ScenarioRecord:
    """The differences from normal; `choices` tells in words how the job was built otherwise than recorded."""

    what_if: Mapping[str, float | str]
    stragglers: Mapping[int, float]
    jitter: float
    choices: tuple[str, ...]
    slow_links: Mapping[tuple[int, str], float]


@dataclass(frozen=True, slots=True)
class CriticalPathRecord:
    """The ops that make the step as long as it is."""

    length_s: float
    ops: int
    parts_s: Mapping[str, float]
    bound: str


@dataclass(frozen=True, slots=True)
class PeakMemoryRecord:
    """The rank that holds most, and what it holds at that moment."""

    rank: int
    role: str
    by_category_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """How busy a lane is, as shares of the step."""

    lane: str
    ranks: int
    busy_share: float
    waiting_share: float


@dataclass(frozen=True, slots=True)
class RankClassRecord:
    """Ranks that behave identically, and where their time goes."""

    role: str
    ranks: int
    first_rank: int
    breakdown_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProvenanceRecord:
    """A source of prices and the share of op time that it priced."""

    source: str
    share: float
    band: tuple[float, float]


@dataclass(frozen=True, slots=True)
class BandPartRecord:
    """A reason for the band of a model's step, and the ends of its own band as factors."""

    name: str
    band: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SimulationRecord:
    """The keys that every answer has."""

    schema: str
    title: str
    world_size: int
    mesh: str
    cluster: str | None
    executor: str
    scenario: ScenarioRecord
    unchanged_step_time_s: float | None
    step_time_s: float
    unchanged_step_time_unprofiled_s: float | None
    step_time_unprofiled_s: float | None
    step_time_unprofiled_band_s: tuple[float, float] | None
    step_time_band_s: tuple[float, float] | None
    band_parts: tuple[BandPartRecord, ...]
    step_time_is: str
    until_optimizer_s: float | None
    steps_run: int
    tokens_per_s_per_gpu: float | None
    breakdown_s: Mapping[str, float]
    critical_path: CriticalPathRecord
    bottlenecks: tuple[Bottleneck, ...]
    peak_memory_bytes: int | None
    peak_memory: PeakMemoryRecord | None
    lanes: tuple[LaneRecord, ...]
    network: NetworkUse | None
    remedies: tuple[Remedy, ...] | None
    kernel_limits_s: Mapping[str, float] | None
    domains: DomainUse | None
    overlap_cost_s: float
    rank_classes: tuple[RankClassRecord, ...]
    provenance: tuple[ProvenanceRecord, ...]
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class StageMemoryRecord:
    """The memory that ranks of one role hold at their peak."""

    role: str
    ranks: int
    peak_bytes: int
    reserved_bytes: int
    by_category_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The memory that each stage holds, next to what a GPU has; bands are [low, high]."""

    peak_bytes: int
    reserved_bytes: int
    reserved_band_bytes: tuple[int, int]
    outside_bytes: int
    outside: tuple[MemoryPart, ...]
    needed_bytes: int
    needed_band_bytes: tuple[int, int]
    capacity_bytes: int
    headroom_bytes: int
    verdict: Verdict
    fits: bool
    stages: tuple[StageMemoryRecord, ...]

    @classmethod
    def of(cls, memory: MemoryFit) -> MemoryRecord:
        """Reads a memory fit."""
        stages = tuple(
            StageMemoryRecord(
                stage.role, stage.ranks, stage.peak_bytes, stage.reserved_band_bytes[1], stage.by_category
            )
            for stage in memory.stages
        )
        return cls(
            peak_bytes=memory.peak_bytes,
            reserved_bytes=memory.reserved_bytes,
            reserved_band_bytes=memory.reserved_band_bytes[::2],
            outside_bytes=memory.outside_bytes,
            outside=memory.outside,
            needed_bytes=memory.needed_bytes,
            needed_band_bytes=memory.needed_band_bytes[::2],
            capacity_bytes=memory.capacity_bytes,
            headroom_bytes=memory.headroom_bytes,
            verdict=memory.verdict,
            fits=memory.fits,
            stages=stages,
        )


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The keys that only the answer of a model has."""

    model: str
    plan: Mapping[str, Any]
    tokens_per_s_per_gpu: float
    mfu: float
    mfu_bf16: float | None
    hfu: float
    model_flops: float
    hardware_flops: float
    peak_flops_per_s: float
    peak_dtype: str
    bf16_peak_flops_per_s: float | None
    model_flops_per_s_per_gpu: float
    memory: MemoryRecord


def answer_dict(answer: Answer) -> dict[str, Any]:
    """Returns an answer as plain values."""
    record = to_plain(_simulation(answer))
    if answer.model is None:
        return dict(record)
    return {**record, "schema": PREDICTION_SCHEMA, **to_plain(_model(answer))}


def _simulation(answer: Answer) -> SimulationRecord:
    scenario, peak, path = answer.scenario, answer.peak_memory, answer.critical_path
    what_if, stragglers, slow_links = scenario.what_if, scenario.stragglers, scenario.slow_links
    return SimulationRecord(
        schema=SIMULATION_SCHEMA,
        title=answer.title,
        world_size=answer.world_size,
        mesh=answer.mesh,
        cluster=None if answer.cluster is None else answer.cluster.name,
        executor=answer.executor,
        scenario=ScenarioRecord(what_if, stragglers, scenario.jitter, answer.changes, slow_links),
        unchanged_step_time_s=answer.unchanged_step_time_s,
        step_time_s=answer.step_time_s,
        unchanged_step_time_unprofiled_s=answer.unchanged_step_time_unprofiled_s,
        step_time_unprofiled_s=answer.step_time_unprofiled_s,
        step_time_unprofiled_band_s=answer.step_time_unprofiled_band_s,
        step_time_band_s=answer.step_time_band_s,
        band_parts=tuple(BandPartRecord(part.name, (part.low, part.high)) for part in answer.band_parts),
        step_time_is="steady period" if answer.repeats else "makespan of one step",
        until_optimizer_s=answer.until_optimizer_s,
        steps_run=answer.steps_run,
        tokens_per_s_per_gpu=answer.tokens_per_s_per_gpu,
        breakdown_s=answer.breakdown.mean_s,
        critical_path=CriticalPathRecord(path.length_s, len(path.node), path.parts_s, path.bound),
        bottlenecks=answer.bottlenecks,
        peak_memory_bytes=None if peak is None else peak.bytes,
        peak_memory=None if peak is None else PeakMemoryRecord(peak.rank, peak.role, peak.by_category),
        lanes=tuple(LaneRecord(lane.lane, lane.ranks, lane.busy, lane.waiting) for lane in answer.lanes),
        network=answer.network,
        remedies=answer.remedies,
        kernel_limits_s=answer.kernel_limits_s,
        domains=answer.domains,
        overlap_cost_s=answer.overlap_cost_s,
        rank_classes=rank_classes(answer),
        provenance=tuple(
            ProvenanceRecord(part.source, part.share, (part.low, part.high)) for part in answer.provenance
        ),
        diagnostics=answer.diagnostics,
    )


def _model(answer: Answer) -> ModelRecord:
    figures, step_s = answer.model, answer.step_time_s
    assert figures is not None
    return ModelRecord(
        model=figures.name,
        plan=figures.plan,
        tokens_per_s_per_gpu=figures.tokens_per_step / step_s / figures.gpus,
        mfu=figures.mfu(step_s),
        mfu_bf16=figures.mfu_bf16(step_s),
        hfu=figures.hfu(step_s),
        model_flops=figures.model_flops,
        hardware_flops=figures.hardware_flops,
        peak_flops_per_s=figures.peak_flops,
        peak_dtype=figures.peak_dtype,
        bf16_peak_flops_per_s=figures.bf16_peak_flops,
        model_flops_per_s_per_gpu=figures.flops_per_s_per_gpu(step_s),
        memory=MemoryRecord.of(figures.memory),
    )


def rank_classes(answer: Answer) -> tuple[RankClassRecord, ...]:
    """Returns the groups of ranks that behave identically, each with the parts of its step."""
    graph, parts = answer.timeline.graph, answer.breakdown
    program, classes = graph.program, graph.classes
    rounding = 1e-12 * answer.step_time_s
    records = []
    for number, rank in enumerate(classes.representative.tolist()):
        spent = zip(parts.parts, parts.per_class_s[number].tolist(), strict=True)
        breakdown_s = {part: seconds for part, seconds in spent if seconds > rounding}
        role = program.roles[int(program.role_of[rank])]
        records.append(RankClassRecord(role, int(classes.count[number]), rank, breakdown_s))
    return tuple(records)
