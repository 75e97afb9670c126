"""Places the collectives of a table in the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import InputError, shown
from foretrace.inputs.profiler_table.communication import TableCollective
from foretrace.inputs.profiler_table.format import ProfilerTable
from foretrace.program.columns import Collective, Phase, label
from foretrace.step.spec import Call


@dataclass(frozen=True, slots=True)
class SizedCall:
    """A collective of the table on the wanted mesh: its group, and the bytes of one call."""

    called: TableCollective
    axis: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The collectives of each part of a step; none of them runs next to computation."""

    sized: list[SizedCall]
    steps: int

    def gather(self, phase: Phase) -> list[Call]:
        """Parameters before a pass: half of the gathers before each, or all before the first where they are odd."""
        calls: list[Call] = []
        for item in self._of(Collective.ALL_GATHER):
            count = self._count(item.called)
            half = count // 2 if count % 2 == 0 else (count if phase is Phase.FORWARD else 0)
            calls += _calls(item, half, phase, "gather parameters")
        return calls

    def exchange(self, phase: Phase, what: str) -> list[Call]:
        """Tokens to their experts, or back: a quarter of all exchanges for each way of each pass."""
        calls: list[Call] = []
        for item in self._of(Collective.ALL_TO_ALL):
            count, turn = self._count(item.called), 2 * (phase is Phase.BACKWARD) + (what == "combine")
            calls += _calls(item, count * (turn + 1) // 4 - count * turn // 4, phase, what)
        return calls

    def reduce(self) -> list[Call]:
        """Gradients after the backward pass."""
        calls: list[Call] = []
        for collective, what in ((Collective.REDUCE_SCATTER, "reduce gradients"), (Collective.ALL_REDUCE, "reduce")):
            for item in self._of(collective):
                calls += _calls(item, self._count(item.called), Phase.BACKWARD, what)
        return calls

    def rest(self) -> list[Call]:
        """Everything else at the end of the step."""
        placed = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
        calls: list[Call] = []
        for item in self.sized:
            if item.called.collective not in placed:
                calls += _calls(item, self._count(item.called), Phase.NONE, label(item.called.collective))
        return calls

    def _of(self, collective: Collective) -> list[SizedCall]:
        return [item for item in self.sized if item.called.collective is collective]

    def _count(self, called: TableCollective) -> int:
        """Calls of one step."""
        return max(round(called.calls / self.steps), 1)


MAX_CALLS: Final = 20_000
"""Collectives of one step; thousands of layers and buckets make fewer."""


def check_calls(sized: Sequence[SizedCall], steps: int, table: ProfilerTable) -> None:
    """Raises an error where a step would have more collectives than can be run."""
    total = 0
    for item in sized:
        total += max(round(item.called.calls / steps), 1)
        if total > MAX_CALLS:
            line = next(row.line for row in table.rows if row.name == item.called.name)
            raise InputError(
                "too-large",
                f"{item.called.calls:,} calls of {shown(item.called.name)} in {steps:,} steps are more than can be run",
                where=table.at(line),
                hint="say how many steps the table holds: --set steps=100",
            )


def _calls(item: SizedCall, count: int, phase: Phase, what: str) -> list[Call]:
    return [Call(f"{item.called.name} {what}", phase, item.called.collective, item.axis, item.bytes)] * count
