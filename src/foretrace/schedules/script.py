"""Works out what each stage of a pipeline issues, turn by turn, and what every turn waits for.

A turn is an action, several actions that run at once, or one end of a message. Turns are columns: a pipeline has tens
of thousands of them, and a Python object for each would cost more than to run the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from foretrace.basics.arrays import Ints, Longs, Mask, ranges, stable_order
from foretrace.schedules.routes import PipeChannel, exchanges, find_routes
from foretrace.schedules.schedule import Schedule
from foretrace.schedules.slots import flatten

Issue = Literal["async", "batched"]
"""Whether transfers run concurrently with computation, or computation waits for them."""

How = Literal["send", "receive", "exchange"]

_HOW: tuple[How, ...] = ("send", "receive", "exchange")
_SEND, _RECEIVE, _EXCHANGE = range(3)
_ACT = -1


@dataclass(frozen=True, slots=True, eq=False)
class StageScript:
    """The turns of one stage in order, one row each.

    Attributes:
        microbatch: Its microbatch; that of the first action where several run at once.
        row: The row of its first action in the stage's `StageActions`; -1 for messages.
        channel: The number of its message's kind in `channels`; -1 for actions.
        channels: The kinds of messages: how the stage issues it, and the channel. Each kind is written as one block.
        together: Whether a turn has several actions, which run at once; None where none has.
        turn_of: The turn of each row of the stage's `StageActions`.
        wait: A turn that waits, in order; a turn may wait for several.
        awaited: The earlier turn that it waits for.
        wait_member: Which of its actions waits; None where no actions run at once.
        awaited_member: Which action is waited for; None where no actions run at once.
    """

    microbatch: Ints
    row: Ints
    channel: Ints
    channels: tuple[tuple[How, PipeChannel], ...]
    together: Mask | None
    turn_of: Ints
    wait: Ints
    awaited: Ints
    wait_member: Ints | None
    awaited_member: Ints | None


_SCRIPTS: WeakKeyDictionary[Schedule, dict[tuple[Issue, bool], tuple[StageScript, ...]]] = WeakKeyDictionary()


def script_of(schedule: Schedule, issue: Issue, at_once: bool) -> tuple[StageScript, ...]:
    """Returns the turns of every stage; `at_once` keeps actions that share a slot together.

    A schedule is never edited, so its scripts are kept as long as the schedule is.

    Raises:
        InputError: A stage runs an action before another one of its own that it needs.
    """
    scripts = _SCRIPTS.setdefault(schedule, {})
    if (issue, at_once) not in scripts:
        scripts[issue, at_once] = _ScriptWriter(schedule, issue, at_once).write()
    return scripts[issue, at_once]


class _ScriptWriter:
    """Writes the turns of all stages as one table and divides it."""

    def __init__(self, schedule: Schedule, issue: Issue, at_once: bool) -> None:
        self.schedule, self.issue = schedule, issue
        rows = self.rows = flatten(schedule)
        self.routes = find_routes(schedule, rows)
        first = np.flatnonzero(np.diff(rows.slot, prepend=-1)) if at_once else np.arange(len(rows.slot))
        self.act_row = first
        """The first row of each turn with actions."""
        self.act_count = np.diff(np.append(first, len(rows.slot)))
        self.member = np.arange(len(rows.slot)) - np.repeat(first, self.act_count)

    def write(self) -> tuple[StageScript, ...]:
        """Returns the turns of every stage."""
        gap, how, row, message = self._messages()
        # Within a gap a stage receives, computes and sends, or does all transfers first.
        rank = _ASYNC_RANK if self.issue == "async" else _BATCHED_RANK
        order = stable_order(np.concatenate([gap * 4 + rank[how], self._gap(self.act_row) * 4 + rank[_ACT]]))
        how = np.append(how, np.full(len(self.act_row), _ACT))[order]
        row = np.append(row, self.act_row)[order]
        message = np.append(message, np.full(len(self.act_row), -1))[order]
        turn = np.empty_like(order)
        turn[order] = np.arange(len(order))
        message_turn, act_turn = turn[: len(gap)], np.repeat(turn[len(gap) :], self.act_count)
        if self.issue == "async":
            waits = self._waits_async(act_turn, how, row)
        else:
            waits = self._waits_batched(message_turn, act_turn, gap)
        return self._divide(how, row, message, act_turn, waits)

    def _gap(self, row: Longs) -> Longs:
        """Returns the number of the gap before the slot of each row; a stage has one more gap than slots."""
        rows = self.rows
        gap: Longs = rows.slot[row] + (rows.stage[row] if self.issue == "batched" else 0)
        return gap

    def _messages(self) -> tuple[Longs, Longs, Longs, Longs]:
        """Returns the gap of every end of a message, how it is issued, its action and its number."""
        routes = self.routes
        sends, receives = np.flatnonzero(routes.sent >= 0), np.flatnonzero(routes.received >= 0)
        sent, received = routes.sent[sends], routes.received[receives]
        # Batched sends follow the slot, in the gap before the next; async ones belong to it.
        send_gap, receive_gap = self._gap(sends) + (self.issue == "batched"), self._gap(receives)
        how = np.repeat([_SEND, _RECEIVE], [len(sends), len(receives)])
        if self.issue == "batched":
            gaps = int(self.rows.first_slot[-1]) + self.schedule.stages + 1
            alone = (np.bincount(send_gap, minlength=gaps) == 1) & (np.bincount(receive_gap, minlength=gaps) == 1)
            send, receive = np.flatnonzero(alone[send_gap]), np.flatnonzero(alone[receive_gap])
            fused = exchanges(routes, sent[send], received[receive])
            how[send[fused]] = _EXCHANGE
            kept = np.delete(np.arange(len(how)), len(sends) + receive[fused])
        else:
            kept = np.arange(len(how))
        gap, row, message = (
            np.concatenate(both)[kept] for both in ((send_gap, receive_gap), (sends, receives), (sent, received))
        )
        return gap, how[kept], row, message

    def _waits_async(self, act_turn: Longs, how: Longs, row: Longs) -> _Waits:
        """An action waits for its message or for an action of its stage, a message for the action that makes it."""
        member, sends, receives = self.member, np.flatnonzero(how == _SEND), np.flatnonzero(how == _RECEIVE)
        local = np.flatnonzero(self.routes.awaited < len(self.member))
        awaited = self.routes.awaited[local]
        return _Waits(
            np.concatenate([act_turn[row[receives]], act_turn[local], sends]),
            np.concatenate([member[row[receives]], member[local], np.zeros_like(sends)]),
            np.concatenate([receives, act_turn[awaited], act_turn[row[sends]]]),
            np.concatenate([np.zeros_like(receives), member[awaited], member[row[sends]]]),
        )

    def _waits_batched(self, message_turn: Longs, act_turn: Longs, gap: Longs) -> _Waits:
        """Messages wait for all actions before their gap, actions for all messages in the gap before them."""
        member, all_rows = self.member, np.arange(len(self.member))
        local = np.flatnonzero(self.routes.awaited < len(member))
        awaited = self.routes.awaited[local]
        before = self._gap(all_rows)
        made, message = _joined(before + 1, gap)
        needed, action = _joined(gap, before)
        return _Waits(
            np.concatenate([message_turn[message], act_turn[local], act_turn[action]]),
            np.concatenate([np.zeros_like(message), member[local], member[action]]),
            np.concatenate([act_turn[made], act_turn[awaited], message_turn[needed]]),
            np.concatenate([member[made], member[awaited], np.zeros_like(needed)]),
        )

    def _divide(
        self, how: Longs, row: Longs, message: Longs, act_turn: Longs, waits: _Waits
    ) -> tuple[StageScript, ...]:
        """Returns the part of every stage; turns and rows count from the first of their stage."""
        rows, stages = self.rows, np.arange(self.schedule.stages + 1)
        stage = rows.stage[row]
        first_turn, first_row = np.searchsorted(stage, stages), np.searchsorted(rows.stage, stages)
        waits = waits.ordered()
        first_wait = np.searchsorted(waits.turn, first_turn)
        channel, channels, first_channel = self._channels(how, message, stage)
        pairs = bool((self.act_count > 1).any())
        together = np.zeros(len(how), dtype=np.bool_)
        together[act_turn[self.act_row]] = self.act_count > 1
        microbatch = np.where(how == _ACT, rows.microbatch[row], message % self.schedule.microbatches)
        scripts = []
        for at in range(self.schedule.stages):
            turns, own, waiting = (
                slice(int(first[at]), int(first[at + 1])) for first in (first_turn, first_row, first_wait)
            )
            is_act = how[turns] == _ACT
            script = StageScript(
                microbatch=_ints(microbatch[turns]),
                row=_ints(np.where(is_act, row[turns] - own.start, -1)),
                channel=_ints(np.where(is_act, -1, channel[turns] - first_channel[at])),
                channels=tuple(channels[first_channel[at] : first_channel[at + 1]]),
                together=together[turns] if pairs else None,
                turn_of=_ints(act_turn[own] - turns.start),
                wait=_ints(waits.turn[waiting] - turns.start),
                awaited=_ints(waits.awaited[waiting] - turns.start),
                wait_member=_ints(waits.member[waiting]) if pairs else None,
                awaited_member=_ints(waits.awaited_member[waiting]) if pairs else None,
            )
            scripts.append(script)
        return tuple(scripts)

    def _channels(
        self, how: Longs, message: Longs, stage: Longs
    ) -> tuple[Longs, list[tuple[How, PipeChannel]], list[int]]:
        """Numbers the kinds of messages of all stages in the order of their turns.

        Returns the number of each turn's kind, 0 for actions; the kinds; and the first kind of each stage.
        """
        routes, issued = self.routes, np.flatnonzero(how != _ACT)
        code = (stage[issued] * len(routes.channels) + routes.channel(message[issued])) * len(_HOW) + how[issued]
        _, first, number = np.unique(code, return_index=True, return_inverse=True)
        by_turn = np.argsort(first)
        place = np.empty_like(by_turn)
        place[by_turn] = np.arange(len(by_turn))
        channel = np.zeros(len(how), dtype=np.int64)
        channel[issued] = place[number]
        example = issued[first[by_turn]]
        kinds = [
            (_HOW[way], routes.channels[number])
            for way, number in zip(how[example].tolist(), routes.channel(message[example]).tolist(), strict=True)
        ]
        first_kind = np.searchsorted(stage[example], np.arange(self.schedule.stages + 1))
        return channel, kinds, first_kind.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """Which turn, and which of its actions, waits for which."""

    turn: Longs
    member: Longs
    awaited: Longs
    awaited_member: Longs

    def ordered(self) -> _Waits:
        """Returns the same in the order of the turns."""
        columns = (self.turn, self.member, self.awaited, self.awaited_member)
        order = np.lexsort(columns[::-1])
        return _Waits(*(column[order] for column in columns))


# By how a turn is issued: send, receive, exchange, action.
_ASYNC_RANK = np.array([2, 0, 3, 1])
_BATCHED_RANK = np.array([0, 1, 0, 2])


def _joined(left: Longs, right: Longs) -> tuple[Longs, Longs]:
    """Returns the positions of all pairs of equal values."""
    order = stable_order(left)
    ordered = left[order]
    first, last = np.searchsorted(ordered, right, "left"), np.searchsorted(ordered, right, "right")
    return order[ranges(first, last - first)], np.repeat(np.arange(len(right)), last - first)


def _ints(column: Longs) -> Ints:
    narrow = column.astype(np.int32)
    narrow.setflags(write=False)
    return narrow
