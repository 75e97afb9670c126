"""Where in a step its collectives are."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.lower.torch_table.communication import Called
from foretrace.program.columns import Collective, Phase, label
from foretrace.program.program import Communicator
from foretrace.program.role import RoleBuilder


@dataclass(frozen=True, slots=True)
class SizedCall:
    """A collective of the table on the wanted mesh: its group, and the bytes of one call."""

    called: Called
    communicator: Communicator
    bytes: int


@dataclass(slots=True)
class Calls:
    """Puts collectives where a step has them, one after the other with computation."""

    role: RoleBuilder
    found: list[SizedCall]
    steps: int

    def gather(self, phase: Phase) -> None:
        """Parameters before a pass: half of the gathers before each, or all before the first where they are odd."""
        for item in self._of(Collective.ALL_GATHER):
            count = self._count(item.called)
            half = count // 2 if count % 2 == 0 else (count if phase is Phase.FORWARD else 0)
            self._issue(item, half, phase, "gather parameters")

    def exchange(self, phase: Phase, what: str) -> None:
        """Tokens to their experts, or back: a quarter of all exchanges for each way of each pass."""
        for item in self._of(Collective.ALL_TO_ALL):
            count, turn = self._count(item.called), 2 * (phase is Phase.BACKWARD) + (what == "combine")
            share = count * (turn + 1) // 4 - count * turn // 4
            self._issue(item, share, phase, what)

    def reduce(self) -> None:
        """Gradients after the backward pass."""
        for item in self._of(Collective.REDUCE_SCATTER):
            self._issue(item, self._count(item.called), Phase.BACKWARD, "reduce gradients")
        for item in self._of(Collective.ALL_REDUCE):
            self._issue(item, self._count(item.called), Phase.BACKWARD, "reduce")

    def rest(self) -> None:
        """Everything else at the end of the step."""
        placed = (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
        for item in self.found:
            if item.called.collective not in placed:
                self._issue(item, self._count(item.called), Phase.NONE, label(item.called.collective))

    def _of(self, collective: Collective) -> list[SizedCall]:
        return [item for item in self.found if item.called.collective is collective]

    def _count(self, called: Called) -> int:
        """Calls of one step."""
        return max(round(called.calls / self.steps), 1)

    def _issue(self, item: SizedCall, count: int, phase: Phase, what: str) -> None:
        for _ in range(count):
            self.role.collective(
                label(item.called.collective),
                item.communicator,
                name=f"{item.called.name} {what}",
                lane="compute",
                phase=phase,
                bytes=item.bytes,
            )
