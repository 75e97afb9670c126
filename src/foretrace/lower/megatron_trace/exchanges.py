"""The all-to-alls between expert ranks of a stage: what each of them sends to each."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.errors import InputError
from foretrace.lower.megatron_trace.routing import exchange
from foretrace.lower.megatron_trace.work import Stones, Stretch, all_to_alls

Exchange = tuple[tuple[int, ...], ...]
"""What each member of an all-to-all sends to each."""

_PASSES = {"forward_step": "forward", "backward_step": "backward"}


class Exchanges:
    """Finds the all-to-alls of stages; layers repeat them, and each distinct one is worked out once."""

    def __init__(self, stones: Stones, ep: int) -> None:
        self._stones, self._ep = stones, ep
        self._passes: dict[tuple[int, str], dict[int, Exchange]] = {}
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Exchange] = {}

    def of(self, stage: int, name: str) -> dict[int, Exchange]:
        """Returns the all-to-alls of a stage's pass, by number of the stretch they end."""
        if (stage, name) not in self._passes:
            self._passes[stage, name] = self._find(stage, name)
        return self._passes[stage, name]

    def _find(self, stage: int, name: str) -> dict[int, Exchange]:
        if name not in _PASSES or self._ep == 1:
            return {}
        each: list[Sequence[Stretch]] = [
            getattr(self._stones.work[stage, expert], _PASSES[name]) for expert in range(self._ep)
        ]
        kinds = {tuple((one.call.collective, one.call.axis) for one in works if one.call) for works in each}
        if len(kinds) > 1:
            raise InputError(
                "rendezvous-mismatch",
                f"ranks of stage {stage} differ in what they communicate in {name}",
                hint="the traces are not of one job, or the mesh is another: give --mesh",
            )
        numbers = all_to_alls(each[0])
        found: dict[int, Exchange] = {}
        for place, number in enumerate(numbers):
            # What experts give back is what they were given.
            back = numbers[place ^ 1] if len(numbers) % 2 == 0 else number
            sent, received = (tuple([_bytes(works[one]) for works in each]) for one in (number, back))
            found[number] = self._exchange(sent, received)
        return found

    def _exchange(self, sent: tuple[int, ...], received: tuple[int, ...]) -> Exchange:
        if (sent, received) not in self._known:
            made = exchange(sent, received)
            self._known[sent, received] = tuple([tuple(row) for row in made.tolist()])
        return self._known[sent, received]


def _bytes(work: Stretch) -> int:
    return 0 if work.call is None else work.call.bytes
