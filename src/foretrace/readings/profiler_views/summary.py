"""One look at a trace: how long a step takes, where the device's time goes, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.units import format_percent, format_time
from foretrace.inputs.profiler_trace.format.records import TracedDevice
from foretrace.inputs.profiler_trace.write_step import BETWEEN_KERNELS
from foretrace.readings.answer.answer import Answer
from foretrace.readings.critical_path import Bound
from foretrace.readings.explain import Explanation
from foretrace.readings.explain.stragglers import RankLateness
from foretrace.readings.profiler_views.breakdown import Occupancy
from foretrace.readings.profiler_views.idle import IdleTimes, RankIdle
from foretrace.readings.profiler_views.kernels import KindTimes
from foretrace.readings.profiler_views.launches import RankLaunches
from foretrace.readings.profiler_views.rank import Rank
from foretrace.readings.profiler_views.steps import StepStatistics

_WORTH: Final = 0.02
"""Parts of the span below this are not worth an advice."""


@dataclass(frozen=True, slots=True)
class KindShare:
    """Device time of one kind of work, a step and rank."""

    kind: str
    count: float
    total_s: float
    share: float
    """The share of all device time."""


@dataclass(frozen=True, slots=True)
class TraceAdvice:
    """A change to make, and what it could gain in a step at most."""

    text: str
    at_most_s: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """One look; times are means over ranks, of one step."""

    ranks: tuple[int, ...]
    world: int | None
    devices: tuple[str, ...]
    step_s: float
    """The recorded step, with the profiler on, as `foretrace simulate` has it."""
    steps: float
    """How many steps of a rank the times below are of."""
    how: str
    """How steps were told apart."""
    states_s: dict[str, float]
    """The time of the device by what it did: compute, communication, memory, together, idle.

    They sum to the step; by HTA's rule to the span of its work.
    """
    idle: IdleTimes
    exposed_communication_s: float
    communication_s: float
    kinds: tuple[KindShare, ...]
    kernels: float
    """Pieces of work a step."""
    median_kernel_s: float
    median_delay_s: float | None
    """From the end of a launch to the start of what it launched; None where no launches are recorded."""
    median_step_s: float | None
    """None, as what follows, where the traces hold no step that could be replayed."""
    breakdown_s: dict[str, float] | None
    """Where the time of the median step goes, as `foretrace simulate` counts; sums to it."""
    bound: Bound | None
    """What bounds the median step: what more than half of its critical path consists of."""
    advice: tuple[TraceAdvice, ...]


def summary(
    ranks: Sequence[Rank],
    occupancies: Sequence[Occupancy],
    idles: Sequence[RankIdle],
    launches: Sequence[RankLaunches],
    kinds: Sequence[KindTimes],
    steps: StepStatistics,
    explanation: Explanation | None,
    stragglers: Sequence[RankLateness],
) -> TraceSummary:
    """Returns the overview of some ranks, from what the other analyses return."""
    count = max(sum(len(rank.counted) for rank in ranks) / len(ranks), 1.0)
    per = len(ranks) * count
    states = {
        state: sum(occupancy.states_s[state] for occupancy in occupancies) / per for state in occupancies[0].states_s
    }
    idle = IdleTimes(*(sum(getattr(idle.device, name) for idle in idles) / per for name in IdleTimes.__slots__))
    work = sum(len(rank.work) for rank in ranks) / per
    delays_s = np.concatenate([launch.delay_s for launch in launches])
    kernel_s = float(np.median(np.concatenate([rank.work.duration_s for rank in ranks])))
    exposed_s = sum(occupancy.exposed_communication_s for occupancy in occupancies) / per
    first = ranks[0].trace
    return TraceSummary(
        ranks=tuple(rank.number for rank in ranks),
        world=first.world,
        devices=tuple(dict.fromkeys(device.name for rank in ranks for device in _used(rank))),
        step_s=steps.step_s,
        steps=count,
        how=steps.how,
        states_s={state: seconds for state, seconds in states.items() if seconds > 0 or state == "idle"},
        idle=idle,
        exposed_communication_s=exposed_s,
        communication_s=sum(occupancy.communication_s for occupancy in occupancies) / per,
        kinds=_kind_shares(kinds, per),
        kernels=work,
        median_kernel_s=kernel_s,
        median_delay_s=float(np.median(delays_s)) if len(delays_s) else None,
        median_step_s=None if explanation is None else explanation.step_s,
        bound=None if explanation is None else explanation.critical_path.bound,
        breakdown_s=None if explanation is None else explanation.answer.breakdown.mean_s,
        advice=()
        if explanation is None
        else _advice(states, work, kernel_s, explanation, stragglers, _lacks_kernels(ranks)),
    )


def _used(rank: Rank) -> list[TracedDevice]:
    numbers = {device for device, _ in rank.streams}
    return [device for device in rank.trace.devices if device.number in numbers] or list(rank.trace.devices[:1])


def _kind_shares(kinds: Sequence[KindTimes], per: float) -> tuple[KindShare, ...]:
    whole_s = sum(kind.total_s for kind in kinds)
    totals: dict[str, list[float]] = {}
    for kind in kinds:
        sums = totals.setdefault(kind.kind, [0.0, 0.0])
        sums[0] += kind.count
        sums[1] += kind.total_s
    rows = [
        KindShare(kind, count / per, total_s / per, total_s / whole_s if whole_s > 0 else 0.0)
        for kind, (count, total_s) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_s, row.kind)))


def _lacks_kernels(ranks: Sequence[Rank]) -> bool:
    """Returns whether too many kernels are missing for the gaps between the others to mean anything."""
    notes = (note for rank in ranks for note in rank.trace.diagnostics)
    return any(note.code == "launch-without-kernel" and note.level == "warning" for note in notes)


def _advice(
    states: dict[str, float],
    work: float,
    kernel_s: float,
    explanation: Explanation,
    stragglers: Sequence[RankLateness],
    lacks_kernels: bool,
) -> tuple[TraceAdvice, ...]:
    answer = explanation.answer
    step_s, parts = explanation.step_s, answer.breakdown.mean_s
    if step_s <= 0:
        return ()

    def part(seconds: float) -> str:
        return f"{format_time(seconds)} a step, {format_percent(seconds / step_s)}"

    host_s, idle_s, copies_s = parts.get("host", 0.0), parts.get("idle", 0.0), min(states["memory"], step_s)
    exposed_s = sum(seconds for name, seconds in parts.items() if name.endswith(" exposed"))
    gaps_s = _gaps_s(answer)
    lost_s = sum(rank.held_others_s * rank.identical for rank in stragglers) / answer.world_size
    worst = stragglers[0].rank
    gaps: tuple[TraceAdvice, ...] = (
        TraceAdvice(
            f"the device waits for its host {part(host_s)}: {work:,.0f} pieces of work a step, half of them "
            f"shorter than {format_time(kernel_s)}. CUDA graphs or torch.compile launch fewer, a larger batch makes "
            "each longer; foretrace simulate TRACE --what-if cuda-graphs says what that gives",
            host_s,
        ),
        TraceAdvice(
            f"starting kernels one after another takes {part(gaps_s)}: fuse short ones (torch.compile), or CUDA graphs",
            gaps_s,
        ),
        TraceAdvice(f"the device idles {part(idle_s)} for no recorded reason; see --view critical-path", idle_s),
    )
    if lacks_kernels:
        text = "record the trace again: of the time in which no kernel runs, it is not known how much missing ones took"
        gaps = (TraceAdvice(f"{text} ({part(host_s + idle_s)})", host_s + idle_s),)
    advice = [
        *gaps,
        TraceAdvice(
            f"communication is exposed {part(exposed_s)}: start it earlier (buckets, prefetch), or hide it behind "
            "other microbatches",
            exposed_s,
        ),
        TraceAdvice(
            f"only copies run {part(copies_s)}: pin host memory, copy on a stream of its own (non_blocking=True)",
            copies_s,
        ),
        TraceAdvice(
            f"ranks wait for each other {part(lost_s)} in collectives, most for rank {worst}; see --view stragglers",
            lost_s,
        ),
    ]
    worth = [entry for entry in advice if entry.at_most_s >= _WORTH * step_s]
    return tuple(sorted(worth, key=lambda entry: -entry.at_most_s))


def _gaps_s(answer: Answer) -> float:
    """Returns the gaps between kernels that were queued back to back, mean over ranks."""
    timeline = answer.timeline
    graph = timeline.graph
    named = [number for number, text in enumerate(graph.program.strings) if text == BETWEEN_KERNELS]
    nodes = np.flatnonzero(np.isin(graph.ops.ints("name"), named)[graph.op])
    ranks = graph.classes.count[graph.rank_class[nodes]]
    return float(((timeline.end_s - timeline.start_s)[nodes] * ranks).sum()) / answer.world_size
