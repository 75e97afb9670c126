"""The all-to-alls between expert ranks of a stage: what each of them sends to each."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.routing import exchange
from foretrace.inputs.megatron_trace.work import Stones, Stretch, all_to_alls, sent_bytes
from foretrace.step.spec import Call

Exchange = tuple[tuple[int, ...], ...]
"""Bytes that each member of an all-to-all sends to each."""

_PASSES = {"forward_step": "forward", "backward_step": "backward"}


def check_equal_calls(stage: int, name: str, calls: Sequence[Sequence[Call]]) -> None:
    """Raises an error unless all expert ranks of a stage issue the same collectives in an op."""
    if len({tuple((call.collective, call.axis) for call in each) for each in calls}) > 1:
        raise InputError(
            "rendezvous-mismatch",
            f"ranks of stage {stage} differ in what they communicate in {name}",
            hint="the traces are not of one job, or the mesh is another: give --mesh",
        )


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
        check_equal_calls(stage, name, [[work.call for work in works if work.call] for works in each])
        numbers = all_to_alls(each[0])
        exchanges: dict[int, Exchange] = {}
        for place, number in enumerate(numbers):
            # Experts give back as many tokens as they were given.
            back = numbers[place ^ 1] if len(numbers) % 2 == 0 else number
            sent, received = (tuple([sent_bytes(works[at]) for works in each]) for at in (number, back))
            exchanges[number] = self._exchange(sent, received)
        return exchanges

    def _exchange(self, sent: tuple[int, ...], received: tuple[int, ...]) -> Exchange:
        if (sent, received) not in self._known:
            made = exchange(sent, received)
            self._known[sent, received] = tuple([tuple(row) for row in made.tolist()])
        return self._known[sent, received]
