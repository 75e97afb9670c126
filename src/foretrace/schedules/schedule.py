"""A pipeline schedule as data: which stage runs which microbatch's forward and backward, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise, starmap
from typing import NamedTuple

import numpy as np

from foretrace.basics.arguments import checked_calls
from foretrace.basics.arrays import Longs, Mask
from foretrace.basics.errors import InputError


class ActionKind(IntEnum):
    """The work of a stage for one microbatch in one of its chunks."""

    FORWARD = 0
    BACKWARD = 1
    """The gradients of input and weights together."""
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3

    @property
    def letter(self) -> str:
        """F, B, I or W."""
        return "FBIW"[self]


_KINDS = tuple(ActionKind)


class Action(NamedTuple):
    """One microbatch's forward or backward through one chunk of a stage."""

    kind: ActionKind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        """`F3` is the forward of microbatch 3 in chunk 0, `B3.1` its backward in chunk 1."""
        suffix = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind.letter}{self.microbatch}{suffix}"


@dataclass(frozen=True, slots=True, eq=False)
class StageActions:
    """The actions of one stage, one row each, in the order in which the stage runs them.

    Slots are numbered 0, 1, … without gaps. Rows with the same slot number run at the same time, as the
    overlapped pairs of DualPipe do.
    """

    slot: Longs
    kind: Longs
    microbatch: Longs
    chunk: Longs

    def __post_init__(self) -> None:
        """Lock the columns, as `Schedule` does its tables."""
        for column in (self.slot, self.kind, self.microbatch, self.chunk):
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.slot)

    def action(self, row: int) -> Action:
        """The action in one row."""
        kind = ActionKind(int(self.kind[row]))
        return Action(kind, int(self.microbatch[row]), int(self.chunk[row]))


@checked_calls
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Schedule:
    """A pipeline schedule, with the map that says which piece of the model each chunk is.

    A microbatch visits the pieces 0, 1, … in turn. It does so along its direction: in a bidirectional
    schedule every piece lives in one chunk per direction; in all others there is one direction.
    """

    name: str
    stages: int
    chunks: int
    """Chunks per stage."""
    microbatches: int
    piece: Longs
    """The piece of the model that a chunk is, `[stages, chunks]`."""
    chunk_direction: Longs
    """The direction that a chunk serves, on every stage, `[chunks]`."""
    direction: Longs
    """The direction in which a microbatch travels, `[microbatches]`."""
    stage_actions: tuple[StageActions, ...]

    def __post_init__(self) -> None:
        """Lock the tables: a schedule is shared and never edited in place."""
        for table in (self.piece, self.chunk_direction, self.direction):
            table.setflags(write=False)

    @property
    def directions(self) -> int:
        """1, or 2 for a bidirectional schedule."""
        return int(self.chunk_direction.max()) + 1

    @property
    def pieces(self) -> int:
        """Into how many pieces the model is cut."""
        return self.stages * self.chunks // self.directions

    @property
    def splits_backward(self) -> bool:
        """Whether input and weight gradients are actions of their own."""
        return any(bool((rows.kind == ActionKind.BACKWARD_INPUT).any()) for rows in self.stage_actions)

    def actions(self, stage: int) -> Iterator[tuple[Action, ...]]:
        """Returns the slots of a stage in order; most hold one action, an overlapped pair two."""
        self._check_number("stage", stage, self.stages)
        return self._slots(stage)

    def _slots(self, stage: int) -> Iterator[tuple[Action, ...]]:
        rows = self.stage_actions[stage]
        columns = zip(
            map(_KINDS.__getitem__, rows.kind.tolist()), rows.microbatch.tolist(), rows.chunk.tolist(), strict=True
        )
        actions = list(starmap(Action, columns))
        starts = np.flatnonzero(np.diff(rows.slot, prepend=-1)).tolist()
        for first, last in pairwise([*starts, len(rows)]):
            yield tuple(actions[first:last])

    def paired(self, stage: int) -> Mask:
        """Returns which actions of a stage may run next to an opposite one of another microbatch, `[rows]`.

        If the schedule puts forwards and backwards in one slot, these are the paired ones. Otherwise all are but
        forwards before the stage's first backward and backwards after its last forward.
        """
        self._check_number("stage", stage, self.stages)
        rows = self.stage_actions[stage]
        forward = rows.kind == ActionKind.FORWARD
        if any(len(each) > int(each.slot[-1]) + 1 for each in self.stage_actions):
            forwards, backwards = (
                np.bincount(rows.slot[chosen], minlength=int(rows.slot[-1]) + 1) > 0 for chosen in (forward, ~forward)
            )
            return np.asarray((forwards & backwards)[rows.slot])
        number = np.arange(len(rows))
        first_backward = np.argmin(forward) if not forward.all() else len(rows)
        last_forward = np.flatnonzero(forward)[-1]
        return np.asarray(np.where(forward, number > first_backward, number < last_forward))

    def line(self, stage: int) -> str:
        """A stage's actions as one line of text, such as `F0 F1 B0 B1`; `&` joins overlapped actions."""
        return " ".join("&".join(map(str, slot)) for slot in self.actions(stage))

    def route(self, direction: int = 0) -> tuple[Longs, Longs]:
        """The stage and the chunk that hold each piece for one direction, both `[pieces]`."""
        self._check_number("direction", direction, self.directions)
        serving = np.flatnonzero(self.chunk_direction == direction)
        held = self.piece[:, serving].ravel()
        stage, chunk = np.divmod(np.argsort(held, kind="stable"), len(serving))
        return stage, serving[chunk]

    def where(self, microbatch: int, piece: int) -> tuple[int, int]:
        """The one stage and chunk that run this microbatch through this piece."""
        self._check_number("microbatch", microbatch, self.microbatches)
        self._check_number("piece", piece, self.pieces)
        stage, chunk = self.route(int(self.direction[microbatch]))
        return int(stage[piece]), int(chunk[piece])

    def _check_number(self, word: str, value: int, count: int) -> None:
        if not 0 <= value < count:
            raise InputError("no-such-rank", f"{word} {value} does not exist: {self.name} has 0 to {count - 1}")
