"""Two to five sentences that say what cost the most and what to look at, each with its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrace.basics.units import format_bandwidth, format_bytes, format_percent, format_time

if TYPE_CHECKING:
    from foretrace.readings.explain.explain import Explanation

MAX_SENTENCES = 5
MIN_SENTENCES = 2
_WORTH_SAYING = 0.01
"""The share of the step from which on something is advice."""
_UNEVEN = 1.1
_JITTER = 0.05


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence, and the seconds of the step (mean over ranks, or along the critical path) it is about."""

    topic: str
    seconds: float
    text: str


def advice(explanation: Explanation) -> tuple[Advice, ...]:
    """Returns advice on what costs the most, the costliest first; where little stands out, on what the step consists
    of."""
    if explanation.step_s <= 0:
        return ()
    told = [
        *_experts(explanation),
        *_stragglers(explanation),
        *_stages(explanation),
        *_calls(explanation),
        *_optimizer(explanation),
    ]
    told += [*_host(explanation), *_jitter(explanation)]
    told = sorted(
        (remark for remark in told if remark.seconds > _WORTH_SAYING * explanation.step_s),
        key=lambda remark: -remark.seconds,
    )
    told = told[:MAX_SENTENCES]
    plain = [*_path(explanation), *_compute(explanation)]
    return (*told, *plain[: max(MIN_SENTENCES - len(told), 0)])


def _experts(explanation: Explanation) -> Iterator[Advice]:
    experts = explanation.experts
    if experts is None or experts.max_load < _UNEVEN:
        return
    busiest = experts.busiest
    lost = sum(other.held_others_s for other in experts.loads if other.load >= _UNEVEN) / explanation.answer.world_size
    who = f"rank {busiest.ranks[0]} (stage {busiest.stage}, experts {busiest.ep}) receives"
    if len(busiest.ranks) > 1:
        who = f"{len(busiest.ranks)} ranks ({busiest.ranks[0]}, …; stage {busiest.stage}, experts {busiest.ep}) receive"
    text = (
        f"{who} {busiest.load:.1f}× the mean tokens, {format_bytes(busiest.received_bytes)} an all-to-all; "
        f"{format_time(lost)} of the step is others waiting for overloaded experts, and balanced routing would "
        f"save at most {format_time(experts.balanced_saves_s)} of expert compute."
    )
    yield Advice("experts", max(lost, experts.balanced_saves_s), text)


def _stragglers(explanation: Explanation) -> Iterator[Advice]:
    loads = () if explanation.experts is None else explanation.experts.loads
    # What experts do to their ranks is said of the experts.
    loaded = {rank for load in loads if load.load >= _UNEVEN for rank in load.ranks}
    flagged = [rank for rank in explanation.ranks if rank.flags and rank.rank not in loaded]
    if not flagged:
        return
    worst = max(flagged, key=lambda rank: rank.held_others_s)
    lost = worst.held_others_s * worst.identical / explanation.answer.world_size
    slow = ""
    if worst.compute_ratio is not None and worst.compute_ratio > 1:
        slow = f" computes {format_percent(worst.compute_ratio - 1)} longer than the median of its stage and"
    more = "" if len(flagged) == 1 else f"; {len(flagged) - 1} more stand out"
    text = (
        f"rank {worst.rank} (stage {worst.stage}){slow} came last {worst.times_last:,} times of {worst.meetings:,}: "
        f"its partners lost {format_time(worst.held_others_s)} in sum, {format_time(lost)} of the step{more}."
    )
    yield Advice("straggler", lost, text)


def _stages(explanation: Explanation) -> Iterator[Advice]:
    line, step = explanation.pipeline, explanation.step_s
    ideal = line.ideal_bubble
    if ideal is None:
        return
    count, pp = line.microbatches, len(line.stages)
    twice = (pp - 1) / (2 * count + pp - 1)
    text = (
        f"{format_percent(line.waits_share)} of the step, {format_time(line.waits_share * step)}, ranks wait for other "
        f"pipeline stages; {count} microbatch{'' if count == 1 else 'es'} on {pp} equal stages cost "
        f"{format_percent(ideal)}, {2 * count} would cost {format_percent(twice)}."
    )
    yield Advice("pipeline", line.waits_share * step, text)
    slowest = line.slowest
    mean = sum(stage.microbatch_s for stage in line.stages) / pp
    if slowest is not None and mean > 0 and slowest.microbatch_s > (1 + _JITTER) * mean:
        excess = slowest.microbatch_s - mean
        text = (
            f"stage {slowest.stage} computes {format_time(slowest.microbatch_s)} for a microbatch, "
            f"{format_percent(excess / mean)} above the mean of the stages: {format_time(excess * count)} over "
            f"{count} microbatch{'' if count == 1 else 'es'} that an even split would spread."
        )
        yield Advice("slowest stage", excess * count, text)


def _calls(explanation: Explanation) -> Iterator[Advice]:
    exposed = {
        part.removesuffix(" exposed"): seconds
        for part, seconds in explanation.answer.breakdown.mean_s.items()
        if part.endswith(" exposed")
    }
    if not exposed:
        return
    axis = max(exposed, key=lambda name: exposed[name])
    kind = max(
        (call for call in explanation.calls if call.axis == axis), key=lambda call: call.transfer_s, default=None
    )
    if kind is None:
        return
    rate = "" if kind.bytes_per_s is None else f" at {format_bandwidth(kind.bytes_per_s)}"
    seconds = exposed[axis]
    alone = " One rank alone does not tell how much of that is waiting." if explanation.answer.world_size == 1 else ""
    text = (
        f"{axis} communication is exposed for {format_time(seconds)}, {format_percent(seconds / explanation.step_s)} "
        f"of the step, most of it {kind.collective} ({format_time(kind.transfer.mean_s)} a call{rate}).{alone}"
    )
    yield Advice("communication", seconds, text)


def _optimizer(explanation: Explanation) -> Iterator[Advice]:
    seconds = explanation.answer.breakdown.mean_s.get("optimizer", 0.0)
    share = seconds / explanation.step_s
    text = (
        f"the optimizer takes {format_time(seconds)}, {format_percent(share)} of the step; over dp it could be sharded."
    )
    if explanation.answer.timeline.graph.program.mesh.dp == 1:
        text = f"the optimizer takes {format_time(seconds)}, {format_percent(share)} of the step."
    if share > 5 * _WORTH_SAYING:
        yield Advice("optimizer", seconds, text)


def _host(explanation: Explanation) -> Iterator[Advice]:
    host = explanation.host
    if host.longest:
        worst = host.longest[0]
        text = (
            f"the host keeps ranks waiting {format_time(host.total_s)}, {format_percent(host.share)} of the step, at "
            f"most {format_time(worst.seconds)} at a time (rank {worst.place.rank}, {worst.place.block})."
        )
        yield Advice("host", host.total_s, text)


def _jitter(explanation: Explanation) -> Iterator[Advice]:
    worst = max(explanation.variation, key=lambda row: row.of_passes, default=None)
    if worst is None or worst.of_passes < _JITTER:
        return
    stage = explanation.pipeline.stages[worst.stage]
    passes = stage.forward if worst.phase == "forward" else stage.backward
    seconds = 0.0 if passes is None else passes.mean_s * worst.of_passes * worst.microbatches
    text = (
        f"the {worst.phase} pass of stage {worst.stage} varies by {format_percent(worst.of_passes)} between "
        f"microbatches (median deviation), {format_time(seconds)} over {worst.microbatches} microbatches."
    )
    yield Advice("jitter", seconds, text)


def _path(explanation: Explanation) -> Iterator[Advice]:
    path = explanation.critical_path
    if not path.by_part_s:
        return
    part, seconds = next(iter(path.by_part_s.items()))
    rank = next(iter(path.by_rank_s), 0)
    text = (
        f"the critical path is {format_percent(seconds / explanation.step_s)} {part} ({format_time(seconds)}) and runs "
        f"longest on rank {rank} ({format_time(path.by_rank_s.get(rank, 0.0))})."
    )
    yield Advice("critical path", seconds, text)


def _compute(explanation: Explanation) -> Iterator[Advice]:
    seconds = explanation.answer.breakdown.mean_s.get("compute", 0.0)
    text = (
        f"compute is {format_time(seconds)}, {format_percent(seconds / explanation.step_s)} of the step; the rest is "
        "the most that better communication and balance could gain."
    )
    yield Advice("compute", seconds, text)
