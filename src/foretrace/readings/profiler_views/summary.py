"""One look at a trace: how long a step takes, where the device's time goes, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.units import format_percent, format_time
from foretrace.inputs.profiler_trace.format.records import TracedDevice
from foretrace.readings.critical_path import Bound
from foretrace.readings.explain import Explanation
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
    """Of all device time."""


@dataclass(frozen=True, slots=True)
class TraceAdvice:
    """What to change, and what it could gain in a step at most."""

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
    """What the device did: compute, communication, memory, together, idle. They sum to the step; by HTA's rule to the
    span of its work."""
    idle: IdleTimes
    exposed_communication_s: float
    communication_s: float
    kinds: tuple[KindShare, ...]
    kernels: float
    """Pieces of work a step."""
    median_kernel_s: float
    median_delay_s: float | None
    """From the end of a launch to the start of what it launched; None where no launches are recorded."""
    bound: Bound
    """What bounds the median step: what more than half of its critical path consists of."""
    advice: tuple[TraceAdvice, ...]


def summary(
    ranks: Sequence[Rank],
    occupancies: Sequence[Occupancy],
    idles: Sequence[RankIdle],
    launches: Sequence[RankLaunches],
    kinds: Sequence[KindTimes],
    steps: StepStatistics,
    explanation: Explanation,
) -> TraceSummary:
    """The look at some ranks, from what the other analyses found."""
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
        devices=tuple(dict.fromkeys(one.name for rank in ranks for one in _used(rank))),
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
        bound=explanation.critical_path.bound,
        advice=_advice(states, idle, exposed_s, work, kernel_s, explanation),
    )


def _used(rank: Rank) -> list[TracedDevice]:
    numbers = {device for device, _ in rank.streams}
    return [device for device in rank.trace.devices if device.number in numbers] or list(rank.trace.devices[:1])


def _kind_shares(kinds: Sequence[KindTimes], per: float) -> tuple[KindShare, ...]:
    whole_s = sum(kind.total_s for kind in kinds)
    totals: dict[str, list[float]] = {}
    for one in kinds:
        sums = totals.setdefault(one.kind, [0.0, 0.0])
        sums[0] += one.count
        sums[1] += one.total_s
    found = [
        KindShare(kind, count / per, total_s / per, total_s / whole_s if whole_s > 0 else 0.0)
        for kind, (count, total_s) in totals.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.total_s, one.kind)))


def _advice(
    states: dict[str, float],
    idle: IdleTimes,
    exposed_s: float,
    work: float,
    kernel_s: float,
    explanation: Explanation,
) -> tuple[TraceAdvice, ...]:
    span_s = sum(states.values())
    if span_s <= 0:
        return ()

    def part(seconds: float) -> str:
        return f"{format_time(seconds)} a step, {format_percent(seconds / span_s)}"

    late = explanation.ranks
    lost_s = sum(rank.held_others_s * rank.alike for rank in late) / explanation.answer.world_size
    worst = max(late, key=lambda rank: rank.held_others_s).rank
    copies_s = states["memory"]
    found = [
        TraceAdvice(
            f"the device waits for its host {part(idle.host_wait_s)}: {work:,.0f} pieces of work a step, half of them "
            f"shorter than {format_time(kernel_s)}. CUDA graphs or torch.compile launch fewer, a larger batch makes "
            "each longer; foretrace simulate TRACE --what-if cuda-graphs says what that gives",
            idle.host_wait_s,
        ),
        TraceAdvice(
            f"communication is exposed {part(exposed_s)}: start it earlier (buckets, prefetch), or hide it behind "
            "other microbatches",
            exposed_s,
        ),
        TraceAdvice(
            f"starting kernels one after another takes {part(idle.kernel_wait_s)}: fuse short ones (torch.compile), or "
            "CUDA graphs",
            idle.kernel_wait_s,
        ),
        TraceAdvice(
            f"the device idles {part(idle.other_s)}, though work is launched: it waits for other streams, copies or "
            "other ranks; see --view critical-path",
            idle.other_s,
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
    worth = [one for one in found if one.at_most_s >= _WORTH * span_s]
    return tuple(sorted(worth, key=lambda one: -one.at_most_s))
