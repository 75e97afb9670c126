"""Finds chains of actions that no step of a schedule can avoid, whatever its actions take.

The step is at least as long as each of them, so the longest is a lower bound. A chain follows a microbatch forward to
a chunk of some stage, goes through the actions of that stage in their order, and follows a microbatch backward to the
first piece. Chains may also begin with the first action of a stage, or end with its last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.schedules import ActionKind
from foretrace.schedules.schedule import StageActions
from foretrace.search.planner.shapes import StepShape
from foretrace.step.segments import OPENS

MAX_STAGES: Final = 6
"""Stages whose chains are followed: the first and last two and those in the middle, which are mostly equal."""

KINDS: Final = len(ActionKind)


@dataclass(frozen=True, slots=True, eq=False)
class ActionChains:
    """Chains of actions of one shape. A stage is given by its place among `stages`.

    Attributes:
        stages: The stages that chains go through, in order.
        counts: How many actions of each kind a chain has for each kind of piece, `[chains, piece kinds · 4]`.
        own: The actions of these on the stage that the chain goes through.
        through: That stage.
        transfers: Transfers between stages on each chain.
        exchanges: Calls that send and receive at once, which computation waits for.
        first: The stage with whose end of the previous step a chain begins.
        enters: Which parameters must have been gathered first: 0 those of the first forward's first unit, 1 those of
            the chunk that begins last, 2 all of the first forward, which is not part of the chain.
        last: The stage with whose end of the step a chain ends.
        leaves: Where reductions follow instead of the rest of the stage: 0 after the last backward of the chunk that is
            done first, 1 before the stage's last backward; -1: the chain ends with the stage's last action.
        whole_stage: Whether a chain is all that one stage does, which bounds a step even where ranks never meet.
        totals: Actions of all of each stage's rows, `[stages, piece kinds · 4]`.
        finals: The kind and piece of the last action of each stage, as a column of `counts`.
        moves: Transfers that each stage sends or receives in a step, next to its computation.
    """

    stages: tuple[int, ...]
    counts: Longs
    own: Longs
    through: Longs
    transfers: Longs
    exchanges: Longs
    first: Longs
    enters: Longs
    last: Longs
    leaves: Longs
    whole_stage: Longs
    totals: Longs
    finals: Longs
    moves: Longs

    @classmethod
    def of(cls, shape: StepShape, kinds_of_pieces: Longs, *, batched: bool) -> ActionChains:
        """Returns the chains of a shape. Where microbatches run in two directions, chains stay on their stage.

        Args:
            shape: The schedule and its pieces.
            kinds_of_pieces: The number of each piece's kind in unpaired actions and in paired ones, `[2, pieces]`.
            batched: Whether computation waits for transfers, as in `schedules.pipeline`.
        """
        return _Finder(shape, kinds_of_pieces, batched).chains()

    def grown(self, other: ActionChains, times: int) -> ActionChains:
        """Returns the chains of a step with more microbatches, of which each round adds as many actions.

        Args:
            other: The chains of a step with one round of microbatches more.
            times: How many rounds are added.
        """
        both = zip(fields(self), fields(other), strict=True)
        values = {mine.name: (getattr(self, mine.name), getattr(other, theirs.name)) for mine, theirs in both}
        grown = {name: own + times * (more - own) for name, (own, more) in values.items() if name in _GROWING}
        return replace(self, **grown)

    def longest(self) -> ActionChains:
        """Returns the chains without those that are part of another, which begins and ends in the same place."""
        places = np.stack([self.first, self.enters, self.last, self.leaves, self.whole_stage], axis=1)
        sizes = np.concatenate([self.counts, self.own, self.transfers[:, None], self.exchanges[:, None]], axis=1)
        same = (places[:, None] == places[None]).all(axis=2)
        inside = same & (sizes[:, None] <= sizes[None]).all(axis=2)
        # Among equal ones the first stays.
        inside &= ~(inside.T & (np.arange(len(sizes))[:, None] <= np.arange(len(sizes))[None]))
        kept = np.flatnonzero(~inside.any(axis=1))
        return replace(self, **{name: getattr(self, name)[kept] for name in _BY_CHAIN})


def sampled_stages(stages: int) -> tuple[int, ...]:
    """Returns the stages whose chains are followed."""
    chosen = {0, 1, stages // 3, 2 * stages // 3, stages - 2, stages - 1}
    return tuple(sorted(stage for stage in chosen if 0 <= stage < stages))[:MAX_STAGES]


@dataclass(frozen=True, slots=True)
class _End:
    """An end of a chain on a stage: the row where it is, and what comes before or after."""

    row: int
    counts: Longs
    transfers: int
    stage: int
    chunk: int
    is_own: bool = False
    """Whether it is the first or the last action of the stage itself."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    counts: Longs
    own: Longs
    facts: tuple[int, ...]
    """Transfers, exchanges, first, enters, last, leaves, whole_stage and through, as `ActionChains` has them."""


_BY_CHAIN: Final = (
    *("counts", "own", "through", "transfers", "exchanges", "first", "enters", "last", "leaves", "whole_stage"),
)
_GROWING: Final = ("counts", "own", "transfers", "exchanges", "totals", "moves")
"""Columns that grow with the microbatches."""


def rounds(schedule: str, stages: int, microbatches: int) -> tuple[int, int, int]:
    """Returns a small number of microbatches from which on chains grow evenly, a round, and how many rounds more.

    Past the warm-up and the cool-down of a pipeline, every round of microbatches adds the same actions to each stage.
    """
    size = stages if schedule.startswith("interleaved") else 2 if schedule.startswith("dualpipe") else 1
    least = 4 * stages + 2
    if microbatches <= least + size:
        return microbatches, size, 0
    times = (microbatches - least) // size
    return microbatches - times * size, size, times


class _Finder:
    """Finds the chains of one schedule."""

    def __init__(self, shape: StepShape, kinds_of_pieces: Longs, batched: bool) -> None:
        self.schedule, self.batched = shape.schedule, batched
        self.piece_kind = kinds_of_pieces
        self.paired = [shape.schedule.paired(stage).astype(np.int64) for stage in range(shape.schedule.stages)]
        self.width = KINDS * (int(kinds_of_pieces.max()) + 1)
        self.one_way = self.schedule.directions == 1
        self.stage_of, self.chunk_of = self.schedule.route(0)
        crosses = self.stage_of[1:] != self.stage_of[:-1]
        self.crossings = np.concatenate([[0], np.cumsum(crosses)])
        self.stages = sampled_stages(self.schedule.stages)

    def chains(self) -> ActionChains:
        """Returns all chains, in an order that does not depend on the number of microbatches."""
        kept: list[_Chain] = []
        totals, finals = [], []
        for place, stage in enumerate(self.stages):
            rows = self.schedule.stage_actions[stage]
            code = self._code(stage, rows)
            totals.append(np.bincount(code, minlength=self.width))
            finals.append(int(code[-1]))
            ends = self._ends(place, stage, rows)
            for begin in self._begins(place, stage, rows):
                for end in ends:
                    if begin.row <= end.row:
                        kept += [self._chain(place, code, totals[-1], begin, end)]
        facts = np.array([chain.facts for chain in kept]).T
        transfers, exchanges, first, enters, last, leaves, whole, through = facts
        return ActionChains(
            stages=self.stages,
            counts=np.array([chain.counts for chain in kept]),
            own=np.array([chain.own for chain in kept]),
            through=through,
            transfers=transfers,
            exchanges=exchanges,
            first=first,
            enters=enters,
            last=last,
            leaves=leaves,
            whole_stage=whole,
            totals=np.array(totals),
            finals=np.array(finals),
            moves=np.array([self._moves(stage) for stage in self.stages]),
        )

    def _chain(self, place: int, code: Longs, total: Longs, begin: _End, end: _End) -> _Chain:
        """Returns the chain through a stage from one row to another."""
        own = total - np.bincount(code[: begin.row], minlength=self.width)
        own = own - np.bincount(code[end.row + 1 :], minlength=self.width)
        whole = begin.row == 0 and end.row == len(code) - 1
        transfers, exchanges = self._messages(self.stages[place], whole=whole)
        alone = whole and begin.stage == end.stage and begin.is_own and end.is_own
        transfers += begin.transfers + end.transfers
        facts = (transfers, exchanges, begin.stage, begin.chunk, end.stage, end.chunk, int(alone), place)
        return _Chain(own + begin.counts + end.counts, own, facts)

    def _moves(self, stage: int) -> int:
        """Returns how many transfers a stage sends and receives next to its computation."""
        if self.batched or not self.one_way:
            return 0
        count = 0
        for piece in self.schedule.piece[stage].tolist():
            neighbours = [other for other in (piece - 1, piece + 1) if 0 <= other < len(self.stage_of)]
            count += sum(int(self.stage_of[other] != stage) for other in neighbours)
        # An activation and a gradient for every microbatch.
        return 2 * count * self.schedule.microbatches

    def _code(self, stage: int, rows: StageActions) -> Longs:
        piece = self.schedule.piece[stage][rows.chunk]
        return np.asarray(self.piece_kind[self.paired[stage], piece] * KINDS + rows.kind)

    def _begins(self, place: int, stage: int, rows: StageActions) -> list[_End]:
        """Returns the ways to begin: with the stage's own first action, or after a microbatch has come forward."""
        nothing = np.zeros(self.width, dtype=np.int64)
        begins = [_End(0, nothing, 0, place, 0, is_own=True)]
        begins += [_End(1, nothing, 0, place, 2)] if len(rows) > 1 else []
        forward = np.flatnonzero(rows.kind == ActionKind.FORWARD)
        order = list(dict.fromkeys(rows.chunk[forward].tolist()))
        for number in sorted({0, len(order) - 1}):
            chunk = order[number]
            row = int(forward[np.argmax(rows.chunk[forward] == chunk)])
            if number:
                begins.append(_End(row, nothing, 0, place, 1))
            piece = int(self.schedule.piece[stage, chunk])
            if piece and self.one_way:
                microbatch = int(rows.microbatch[row])
                counts = self._counts(piece, ActionKind.FORWARD, microbatch)
                begins.append(_End(row, counts, int(self.crossings[piece]), 0, 0))
        return begins

    def _ends(self, place: int, stage: int, rows: StageActions) -> list[_End]:
        """Returns the ways to end: with the stage's last action, with reductions, or backward to the first piece."""
        nothing = np.zeros(self.width, dtype=np.int64)
        last = len(rows) - 1
        ends = [_End(last, nothing, 0, place, -1, is_own=True)]
        closing = np.flatnonzero((rows.kind == ActionKind.BACKWARD) | (rows.kind == ActionKind.BACKWARD_WEIGHT))
        finals = list(dict.fromkeys(rows.chunk[closing][::-1].tolist()))[::-1]
        row = int(closing[np.flatnonzero(rows.chunk[closing] == finals[0])[-1]])
        ends += [_End(row, nothing, 0, place, 0), _End(int(closing[-1]) - 1, nothing, 0, place, 1)]
        opening = np.flatnonzero(np.isin(rows.kind, OPENS))
        for chunk in dict.fromkeys((finals[0], finals[-1])):
            row = int(opening[np.flatnonzero(rows.chunk[opening] == chunk)[-1]])
            piece = int(self.schedule.piece[stage, chunk])
            if piece and self.one_way:
                counts = self._backward_from(piece, int(rows.microbatch[row]))
                ends.append(_End(row, counts, int(self.crossings[piece]), 0, -1))
        return ends

    def _backward_from(self, piece: int, microbatch: int) -> Longs:
        """Returns the backward of a microbatch through the pieces before one, and what their first stage does then."""
        first = self.schedule.stage_actions[int(self.stage_of[0])]
        row = self._row(0, ActionKind.BACKWARD, microbatch)
        counts = self._counts(piece, ActionKind.BACKWARD, microbatch)
        return counts + np.bincount(self._code(int(self.stage_of[0]), first)[row + 1 :], minlength=self.width)

    def _counts(self, pieces: int, kind: ActionKind, microbatch: int) -> Longs:
        """Returns the actions of a microbatch's forward or backward through the first pieces.

        Some stages divide the backward of a microbatch while others do not (DualPipeV). Schedules whose first stage
        divides none divide none at all.
        """
        divides = bool((self.schedule.stage_actions[int(self.stage_of[0])].kind == ActionKind.BACKWARD_INPUT).any())
        paired, actions = np.zeros(pieces, dtype=np.int64), np.full(pieces, kind, dtype=np.int64)
        if divides or (self.piece_kind[0] != self.piece_kind[1]).any():
            for piece in range(pieces):
                stage, row = int(self.stage_of[piece]), self._row(piece, kind, microbatch)
                paired[piece], actions[piece] = self.paired[stage][row], self.schedule.stage_actions[stage].kind[row]
        return np.bincount(self.piece_kind[paired, np.arange(pieces)] * KINDS + actions, minlength=self.width)

    def _row(self, piece: int, kind: ActionKind, microbatch: int) -> int:
        """Returns the row of a microbatch's forward, or of its backward or input gradient, on the stage of a piece."""
        rows = self.schedule.stage_actions[int(self.stage_of[piece])]
        same = (rows.microbatch == microbatch) & (rows.chunk == self.chunk_of[piece])
        same &= np.isin(rows.kind, (ActionKind.FORWARD,) if kind == ActionKind.FORWARD else OPENS)
        return int(np.flatnonzero(same)[-1])

    def _messages(self, stage: int, *, whole: bool) -> tuple[int, int]:
        """Returns the transfers and exchanges between the first and the last action of a stage that waits for them.

        Those of parts of it are not counted. The order is that of Megatron's 1F1B, and of GPipe.
        """
        stages, count = self.schedule.stages, self.schedule.microbatches
        if not self.batched or not whole or stages == 1:
            return 0, 0
        first, last = stage == 0, stage == stages - 1
        if self.schedule.name == "gpipe":
            return (2 * count - 2 if last else 2 * count if first else 4 * count - 2), 0
        warmup = min(stages - 1 - stage, count)
        steady = count - warmup
        if last:
            return 0, count - 1
        if first:
            return 2 * warmup, steady
        return (4 * warmup, 2 * steady - 1) if steady else (4 * count - 2, 0)
