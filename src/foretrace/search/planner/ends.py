"""Prices the end of a step: from the last backwards of stages to the meeting of all ranks, and on to the next step.

All ranks meet once a step, where they agree on the norm of gradients. A step is therefore as long as the longest chain
from one meeting to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.unit_costs import MeshPrices
from foretrace.step.end import turns_of
from foretrace.step.spec import Call, Compute, EndItem, RoleSpec, StepSpec

MEETING = "world"
"""The axis of the call in which all ranks meet."""


@dataclass(frozen=True, slots=True, eq=False)
class EndCosts:
    """Seconds of the end of a step on some stages. A stage is given by its place among those.

    Attributes:
        meets: Whether all ranks meet once a step.
        meeting_s: The call in which they meet.
        head_s: From the meeting to the first forward of a stage, to the first forward of the chunk that begins last,
            and until all parameters of the chunk that begins first are gathered, `[stages, 3]`.
        tail_s: From the last action of a stage to the meeting, `[stages]`.
        reduce_s: To the meeting if reductions follow each other without a gap: from the last backward of the chunk
            that is done first, and from the begin of the stage's last backward, `[stages, 2]`.
        host_s: From the meeting to the first launch of the next step, `[stages]`.
        reduced_s: All reductions that run next to the last backwards, `[stages]`.
        gathered_s: All gathers that run next to the first forwards, `[stages]`.
        reduction: One of those reductions; None where there is none.
        gather: One of those gathers; None where there is none.
    """

    meets: bool
    meeting_s: float
    head_s: Floats
    tail_s: Floats
    reduce_s: Floats
    host_s: Floats
    reduced_s: Floats
    gathered_s: Floats
    reduction: Call | None
    gather: Call | None


def end_costs(spec: StepSpec, prices: MeshPrices, stages: Sequence[int]) -> EndCosts:
    """Prices the end of a step on some stages."""
    prices.learn_items([item.item for role in spec.roles for item in role.end])
    turns = turns_of(spec.schedule)
    known: dict[tuple[object, ...], _StageEnd] = {}
    ends = []
    for stage in stages:
        role = _role(spec, stage)
        order, finals = tuple(turns[stage].firsts), tuple(turns[stage].finals)
        key = (id(role.end), order, finals)
        if key not in known:
            known[key] = _StageEnd(role.end, prices, order, finals)
        ends.append(known[key])
    meets = spec.mesh.world > 1 and all(end.meeting is not None for end in ends)
    return EndCosts(
        meets=meets,
        meeting_s=max(end.meeting_s for end in ends),
        head_s=np.array([[end.head_s(0), end.head_s(-1), end.head_s(0, whole=True)] for end in ends]),
        tail_s=np.array([end.tail_s(end.finals[-1:]) for end in ends]),
        reduce_s=np.array(
            [[end.tail_s(end.finals[:1], end.finals[1:]), end.tail_s((), end.finals[-1:])] for end in ends]
        ),
        host_s=np.array([end.host_s for end in ends]),
        reduced_s=np.array([end.reduced_s for end in ends]),
        gathered_s=np.array([end.gathered_s for end in ends]),
        reduction=ends[0].call(lambda item: item.when is not None),
        gather=ends[0].call(lambda item: item.before is not None),
    )


def _role(spec: StepSpec, stage: int) -> RoleSpec:
    return next(role for role in spec.roles if role.stage == stage)


class _StageEnd:
    """The end items of a stage with their seconds."""

    def __init__(
        self, items: tuple[EndItem, ...], prices: MeshPrices, order: tuple[int, ...], finals: tuple[int, ...]
    ) -> None:
        self.items, self.order, self.finals = items, order, finals
        self.seconds = [_seconds(item, prices) for item in items]
        meeting = (at for at, item in enumerate(items) if isinstance(item.item, Call) and item.item.axis == MEETING)
        self.meeting = next(meeting, None)
        self.meeting_s = 0.0 if self.meeting is None else self.seconds[self.meeting]
        # Without a meeting all items belong to the tail of the stage's own step.
        self._next = len(items) if self.meeting is None else self.meeting + 1
        self._after = self._run(self._next, len(items))

    def tail_s(self, chunks: Sequence[int], whole: Sequence[int] = ()) -> float:
        """Returns the seconds to the meeting with the reductions of some chunks; all others are done.

        Without a meeting: to the first forward of the next step.

        Args:
            chunks: Chunks whose last backward has ended: only reductions that wait for its last unit are not done.
            whole: Chunks of which no reduction has begun.
        """
        end = len(self.items) if self.meeting is None else self.meeting
        reductions = {at: item.when for at, item in enumerate(self.items[:end]) if item.when is not None}
        done = {
            at for at, (chunk, unit) in reductions.items() if chunk not in whole and (chunk not in chunks or unit > 0)
        }
        ends = self._run(0, end, frozenset(done))
        if self.meeting is None:
            ends = {at: seconds for at, seconds in ends.items() if self._gates(at, self.order[0])}
        return max(ends.values(), default=0.0)

    def head_s(self, place: int, *, whole: bool = False) -> float:
        """Returns the seconds from the meeting to the first forward of a chunk, by its place in their order.

        `whole`: until the parameters of all its units are gathered, not only those of the first.
        """
        chunk = self.order[place]
        return max((end for at, end in self._after.items() if self._gates(at, chunk, whole=whole)), default=0.0)

    def _gates(self, at: int, chunk: int, *, whole: bool = False) -> bool:
        """Returns whether the next step's first forward of a chunk waits for an item; `whole`: as in `head_s`."""
        item = self.items[at]
        before = item.before
        return item.lane == "compute" or (before is not None and before[0] == chunk and (whole or before[1] == 0))

    def call(self, is_meant: Callable[[EndItem], bool]) -> Call | None:
        """Returns the last call of the items that are meant."""
        calls = [item.item for item in self.items if is_meant(item) and isinstance(item.item, Call)]
        return calls[-1] if calls else None

    @property
    def host_s(self) -> float:
        """The host's time between the meeting and the next step."""
        return sum(self.seconds[at] for at in range(self._next, len(self.items)) if self.items[at].lane == "host")

    @property
    def reduced_s(self) -> float:
        """Reductions that wait for a backward."""
        return sum(self.seconds[at] for at, item in enumerate(self.items) if item.when is not None)

    @property
    def gathered_s(self) -> float:
        """Gathers that a forward waits for."""
        return sum(self.seconds[at] for at, item in enumerate(self.items) if item.before is not None)

    def _run(self, begin: int, end: int, skipped: frozenset[int] = frozenset()) -> dict[int, float]:
        """Returns when items from `begin` to `end` end, if they may start at 0."""
        lanes: dict[str, float] = {}
        ends: dict[int, float] = {}
        for at in range(begin, end):
            if at in skipped:
                continue
            item = self.items[at]
            lane = _lane(item)
            start = max([lanes.get(lane, 0.0), *(ends.get(number, 0.0) for number in item.after)])
            # The host runs ahead of the last backward unless it waits for something.
            is_ahead = lane == "host" and not item.after and lane not in lanes
            ends[at] = lanes[lane] = start + (0.0 if is_ahead else self.seconds[at])
        return ends


def _lane(item: EndItem) -> str:
    return item.lane or (item.item.axis if isinstance(item.item, Call) else "compute")


def _seconds(item: EndItem, prices: MeshPrices) -> float:
    if isinstance(item.item, Call):
        return prices.seconds(item.item)
    return prices.compute_s(item.item) if isinstance(item.item, Compute) else item.item.seconds
