"""Works out what each stage of a pipeline issues, turn by turn, and what every turn waits for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from foretrace.basics.errors import InputError
from foretrace.schedules.routes import Message, StageRoutes
from foretrace.schedules.schedule import Action, ActionKind, Schedule

Issue = Literal["async", "batched"]
"""Whether transfers run concurrently with computation, or computation waits for them."""

How = Literal["act", "send", "receive", "exchange"]

Wait = tuple[int, int]
"""The number of an earlier turn, and which of its actions is waited for (0 but for actions that run at once)."""


class Turn(NamedTuple):
    """One thing a stage issues: actions (several only where they run at once), or a message by one of its ends."""

    how: How
    microbatch: int
    actions: tuple[Action, ...]
    message: Message | None
    waits: tuple[tuple[Wait, ...], ...]
    """What each action, or the message, waits for."""

    @property
    def channel(self) -> tuple[object, ...]:
        """Equal for messages that are written as one block."""
        assert self.message is not None
        return self.how, self.message.forward, self.message.source, self.message.target


@dataclass(frozen=True, slots=True)
class StageScript:
    """The turns of one stage. `alone` is what `RoleBuilder.place_all` takes: the turns that each waits for, where no
    actions run at once; None otherwise."""

    turns: tuple[Turn, ...]
    microbatches: tuple[int, ...]
    alone: tuple[tuple[int, ...], ...] | None
    channels: tuple[Turn, ...]
    """A turn of each kind of message."""
    channel: tuple[int, ...]
    """Which of these each turn is like; -1 for actions."""


@lru_cache(maxsize=16)
def script_of(schedule: Schedule, issue: Issue, at_once: bool) -> tuple[StageScript, ...]:
    """The turns of every stage; `at_once` keeps actions that share a slot together. A schedule is never edited, so its
    script is given again."""
    routes = StageRoutes(schedule)
    writers = [_StageWriter(routes, stage, at_once) for stage in range(schedule.stages)]
    for writer in writers:
        writer.write_async() if issue == "async" else writer.write_batched()
    return tuple(writer.script() for writer in writers)


class _StageWriter:
    """Writes down one stage."""

    def __init__(self, routes: StageRoutes, stage: int, at_once: bool) -> None:
        self.routes, self.stage, self.at_once = routes, stage, at_once
        self.turns: list[Turn] = []
        self.done: dict[Action, Wait] = {}
        """What completes an action."""

    def script(self) -> StageScript:
        """Returns what has been written."""
        waits = None
        if all(len(turn.waits) == 1 for turn in self.turns):
            waits = tuple(tuple(number for number, _ in turn.waits[0]) for turn in self.turns)
        channels: dict[tuple[object, ...], tuple[int, Turn]] = {}
        channel = [
            -1 if turn.actions else channels.setdefault(turn.channel, (len(channels), turn))[0] for turn in self.turns
        ]
        firsts = tuple(turn for _, turn in channels.values())
        microbatches = tuple(turn.microbatch for turn in self.turns)
        return StageScript(tuple(self.turns), microbatches, waits, firsts, tuple(channel))

    def write_async(self) -> None:
        """Writes transfers that run next to computation, and hold up only what needs them."""
        for slot in self.routes.slots[self.stage]:
            outputs = self._act(slot, [self._arrival(action) for action in slot])
            for action, output in zip(slot, outputs, strict=True):
                made = self.routes.made[self.stage, action]
                if made and made.crosses:
                    self._issue("send", made, (output,))

    def write_batched(self) -> None:
        """The stage computes nothing while it communicates."""
        slots = self.routes.slots[self.stage]
        outputs: list[Wait] = []
        for index, (exchanged, messages) in enumerate(self.routes.batches[self.stage]):
            if exchanged:
                issued = [self._issue("exchange", exchanged, tuple(outputs))]
            else:
                issued = [self._issue(self._end(message), message, tuple(outputs)) for message in messages]
            if index < len(slots):
                slot = slots[index]
                outputs = self._act(slot, [[*self._arrival(action, local=True), *issued] for action in slot])

    def _act(self, slot: tuple[Action, ...], waits: list[list[Wait]]) -> list[Wait]:
        """Adds a slot's actions, each after what it waits for, and returns what completes each."""
        if len(slot) > 1 and self.at_once:
            self.turns.append(Turn("act", slot[0].microbatch, slot, None, tuple(map(tuple, waits))))
            self.done.update((action, (len(self.turns) - 1, i)) for i, action in enumerate(slot))
        else:
            for action, needed in zip(slot, waits, strict=True):
                self.turns.append(Turn("act", action.microbatch, (action,), None, (tuple(needed),)))
                self.done[action] = len(self.turns) - 1, 0
        return [self.done[action] for action in slot]

    def _issue(self, how: How, message: Message, waits: tuple[Wait, ...]) -> Wait:
        self.turns.append(Turn(how, message.microbatch, (), message, (waits,)))
        return len(self.turns) - 1, 0

    def _end(self, message: Message) -> How:
        return "send" if message.source[0] == self.stage else "receive"

    def _arrival(self, action: Action, *, local: bool = False) -> list[Wait]:
        """Returns what an action waits for: a message, the chunk before it on the same stage, or its own forward."""
        needed = self.routes.needed[self.stage, action]
        if needed is None:
            if action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
                return [self.done[Action(ActionKind.FORWARD, action.microbatch, action.chunk)]]
            return []
        if needed.crosses:
            return [] if local else [self._issue("receive", needed, ())]
        kinds = (ActionKind.FORWARD,) if needed.forward else (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        for kind in kinds:
            before = Action(kind, action.microbatch, needed.source[1])
            if before in self.done:
                return [self.done[before]]
        raise InputError("invalid-schedule", f"stage {self.stage}: {action} comes before what it needs")
