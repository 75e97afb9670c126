"""Works out what every expert rank sends to every other in an all-to-all.

A trace has what a rank gives to each all-to-all, not to whom. But what the experts of a rank send back is what they
were sent, so both what every rank sends and what it receives are known, and each is taken to send to all in the same
proportions: the matrix of most entropy with these sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.whole_job.work import Stones, Stretch, all_to_alls, sent_bytes
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


def exchange(sent: Sequence[int], received: Sequence[int]) -> Longs:
    """Returns the bytes from each rank (row) to each, given what each sends and receives, its own share included."""
    out, into = np.asarray(sent, dtype=np.float64), np.asarray(received, dtype=np.float64)
    total = into.sum()
    share = into / total if total > 0 else np.full(len(into), 1 / len(into))
    return np.rint(np.outer(out, share)).astype(np.int64)


def reshaped(rows: Sequence[int], unevenness: float) -> list[int]:
    """Returns the tokens that ranks receive, with `unevenness` times the mean for the busiest rank.

    The other ranks keep their order and the sum stays. An unevenness of 1 makes all ranks equal. Where several ranks
    are the busiest, all of them stay so, and receive at most what there is.
    """
    had = np.asarray(rows, dtype=np.float64)
    mean, n = had.mean(), len(had)
    if mean == 0 or n == 1 or unevenness <= 1:
        return _whole(np.full(n, mean), had.sum())
    unevenness = min(unevenness, float(n))
    # Powers of the shares keep their order, sum to one and reach from all equal to all in one.
    shares = had / had.sum() if had.max() > had.min() else np.arange(n, 0, -1) / (n * (n + 1) / 2)
    shares = np.maximum(shares, 1e-9)
    low, high = 0.0, 200.0
    for _ in range(100):
        power = (low + high) / 2
        tried = _power(shares, power)
        if tried.max() * n < unevenness:
            low = power
        else:
            high = power
    return _whole(_power(shares, high) * had.sum(), had.sum())


def _power(shares: Floats, power: float) -> Floats:
    raised = (shares / shares.max()) ** power
    return np.asarray(raised / raised.sum())


def _whole(values: Floats, total: float) -> list[int]:
    """Whole numbers near these that keep their sum."""
    floor = np.floor(values).astype(np.int64)
    missing = round(total) - int(floor.sum())
    order = np.argsort(floor - values, kind="stable")
    floor[order[:missing]] += 1
    return [int(count) for count in floor]
