"""Computes what calls cost the computation of their own block, from the block alone: its ops, their waits and prices.

A call covers the work that its rank gets done while it runs. That work is followed from the place in the computation
where the call starts, at the pace that the call leaves. A block, such as the backward of a chunk for one microbatch,
says itself where its calls start: the gather of a layer starts with the layer before it, whatever that costs. So this
part of the cost is the same for all microbatches and needs no run. It is part of the price of a block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_LOST: Final = 0.75
"""Share of its pace that communications together may cost an op."""
MAX_COST: Final = MAX_LOST / (1 - MAX_LOST)
"""The same as a share of what the op takes alone."""
ROUNDS: Final = 2
"""How often the ops of a block are placed in time to find where its calls start; their cost moves calls a little."""


@dataclass(frozen=True, slots=True)
class BlockOps:
    """The ops of one block in the order of issue, as columns.

    Attributes:
        alone_s: What each op takes alone, in seconds.
        lane: The in-order queue of each op; -1 for none.
        kernel: The row of the slowdowns of each op that computes; -1 for others.
        use: The column of the slowdowns of each op that communicates next to computation; -1 for others.
        after: The ops of the block that each op waits for, beyond the one before it on its lane. All come before it.
    """

    alone_s: Sequence[float]
    lane: Sequence[int]
    kernel: Sequence[int]
    use: Sequence[int]
    after: Sequence[Sequence[int]]

    @classmethod
    def of(
        cls,
        alone_s: Sequence[float],
        lane: Sequence[int],
        kernel: Sequence[int],
        use: Sequence[int],
        waits: Iterable[tuple[int, int]],
    ) -> BlockOps:
        """Returns ops given their waits as pairs, awaited op first: `deps` of a `BlockBuilder`, such as one unit's."""
        after: list[list[int]] = [[] for _ in alone_s]
        for awaited, waiter in waits:
            after[waiter].append(awaited)
        return cls(alone_s, lane, kernel, use, after)


@dataclass(frozen=True, slots=True)
class CallRest:
    """The rest of a call when the computation of its block has ended.

    Attributes:
        use: The kind of its resource use.
        past_s: Seconds from the end of that computation until the call starts, if it has not started before.
        last_s: How long it still lasts.
    """

    use: int
    past_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class LocalCost:
    """The cost of a block's calls for its ops.

    Attributes:
        cost_s: The seconds by which each op takes longer than alone.
        covered: The share of each op that the calls of each use run next to, by use.
        last: The op that computes last; -1 if none computes.
        rests: What calls leave to what follows the block.
    """

    cost_s: list[float]
    covered: dict[int, list[float]]
    last: int
    rests: tuple[CallRest, ...]


def local_cost(block: BlockOps, slowdown: Sequence[Sequence[float]]) -> LocalCost:
    """Returns what the calls of a block cost its computation.

    Args:
        block: The ops.
        slowdown: How many times as long each kernel takes under each use: [kernels, uses], all at least 1.
    """
    count, alone_s = len(block.alone_s), block.alone_s
    computing = [op for op in range(count) if block.kernel[op] >= 0 and alone_s[op] > 0]
    calls = [op for op in range(count) if block.use[op] >= 0 and alone_s[op] > 0]
    cost = LocalCost([0.0] * count, {}, computing[-1] if computing else -1, ())
    if computing and calls:
        for _ in range(ROUNDS):
            cost = _placed_cost(block, slowdown, computing, calls, cost.cost_s)
    return cost


def _placed_cost(
    block: BlockOps,
    slowdown: Sequence[Sequence[float]],
    computing: Sequence[int],
    calls: Sequence[int],
    before_s: Sequence[float],
) -> LocalCost:
    """Returns what calls cost if they start where they do in a block whose ops take `before_s` longer than alone."""
    start = _starts(block, before_s)
    work = sorted(computing, key=lambda op: start[op])
    alone = [block.alone_s[op] for op in work]
    places = _Places([start[op] for op in work], [start[op] + block.alone_s[op] + before_s[op] for op in work])
    uses = sorted({block.use[op] for op in calls})
    slower = {use: [slowdown[block.kernel[op]][use] for op in work] for use in uses}
    cost = {use: [0.0] * len(work) for use in uses}
    covered: dict[int, list[float]] = {}
    rests: list[CallRest] = []
    # Calls of different uses that run at once leave less of the pace, so each covers less than alone.
    for _ in range(2 if len(uses) > 1 else 1):
        total = [sum(parts) for parts in zip(*cost.values(), strict=True)]
        others = {use: [all_s - own_s for all_s, own_s in zip(total, cost[use], strict=True)] for use in uses}
        rests = []
        for use in uses:
            under = [whole * times + more for whole, times, more in zip(alone, slower[use], others[use], strict=True)]
            mine = [(*places.of(start[op]), block.alone_s[op]) for op in calls if block.use[op] == use]
            among = [0] * len(mine), [len(work)] * len(mine)
            seconds, waits, left = [0.0] * len(work), [0.0] * len(mine), [0.0] * len(mine)
            follow(tuple(zip(*mine, strict=True)), among, (under, places.gap_s), 0, (seconds, waits, left))
            rests += [CallRest(use, wait, rest) for wait, rest in zip(waits, left, strict=True) if rest > 0]
            covered[use] = [spent / slow for spent, slow in zip(seconds, under, strict=True)]
            cost[use] = [
                share * whole * (times - 1)
                for share, whole, times in zip(covered[use], alone, slower[use], strict=True)
            ]
    cost_s, shares = [0.0] * len(block.alone_s), {use: [0.0] * len(block.alone_s) for use in uses}
    for number, op in enumerate(work):
        cost_s[op] = min(sum(of_use[number] for of_use in cost.values()), alone[number] * MAX_COST)
        for use in uses:
            shares[use][op] = min(covered[use][number], 1.0)
    return LocalCost(cost_s, shares, work[-1], tuple(rests))


def _starts(block: BlockOps, cost_s: Sequence[float]) -> list[float]:
    """Returns when each op of a block starts if the block runs alone."""
    start: list[float] = []
    end: list[float] = []
    free: dict[int, float] = {}
    for lane, after, alone_s, more_s in zip(block.lane, block.after, block.alone_s, cost_s, strict=True):
        begin = free.get(lane, 0.0) if lane >= 0 else 0.0
        for op in after:
            if end[op] > begin:
                begin = end[op]
        start.append(begin)
        end.append(begin + alone_s + more_s)
        if lane >= 0:
            free[lane] = end[-1]
    return start


def longest_chain(block: BlockOps, cost_s: Sequence[float]) -> list[int]:
    """Returns the ops of a chain that takes as long as the block, which runs alone with `cost_s` more for each op."""
    start = _starts(block, cost_s)
    end = [begin + alone_s + more_s for begin, alone_s, more_s in zip(start, block.alone_s, cost_s, strict=True)]
    before: list[int] = []
    last: dict[int, int] = {}
    for op, (lane, after) in enumerate(zip(block.lane, block.after, strict=True)):
        waits = [*after, last[lane]] if lane in last else list(after)
        before.append(max(waits, key=end.__getitem__, default=-1))
        if lane >= 0:
            last[lane] = op
    chain: list[int] = []
    op = max(range(len(end)), key=end.__getitem__, default=-1)
    while op >= 0:
        chain.append(op)
        op = before[op]
    return chain[::-1]


class _Places:
    """Places in a sequence of computations, given when each starts and ends."""

    def __init__(self, start_s: list[float], end_s: list[float]) -> None:
        self.start_s, self.end_s = start_s, end_s
        self.gap_s = [max(begin - end, 0.0) for begin, end in zip(start_s[1:], end_s[:-1], strict=True)] + [0.0]

    def of(self, moment_s: float) -> tuple[int, float, float]:
        """Returns within or after which computation a moment is, the share of it that is done, and seconds past it.

        A moment before all computations has none of them (-1), and negative seconds.
        """
        at = bisect_right(self.start_s, moment_s) - 1
        if at < 0:
            return at, 0.0, moment_s - self.start_s[0]
        start, end = self.start_s[at], self.end_s[at]
        return at, min((moment_s - start) / (end - start), 1.0), max(moment_s - end, 0.0)


def follow(calls: Any, among: Any, work: Any, turns: int, out: Any) -> None:
    """Follows calls through the computations of their ranks. A plain loop over sequences, which numba can compile.

    Time is counted as if a call covered everything. A call then covers what lies between its start and its end.

    Args:
        calls: At which computation each call starts, the share of it that is done, seconds past it, and how long the
            call lasts. A call before all computations has the computation -1, and negative seconds past it.
        among: The first computation of each call's rank, and the one after its last.
        work: What each computation takes next to a call, and the idle time after it, in seconds.
        turns: How often a call goes on with the first computation when it has passed the last.
        out: Seconds that calls run next to each computation, to which is added; and for each call what is left after
            the last turn: seconds until it starts, and how long it still lasts.
    """
    at, share, past, last = calls
    lows, highs = among
    under, gap = work
    seconds, waits, rest = out
    for call in range(len(at)):
        low = lows[call]
        high = highs[call]
        here = at[call]
        wait = past[call]
        left = last[call]
        inside = 0.0
        if here < 0:
            here = low
            left += wait
            wait = 0.0
        else:
            inside = share[call] * under[here]
        turn = 0
        while left > 0.0:
            room = under[here] - inside
            step = min(wait, room)
            wait -= step
            room -= step
            step = min(left, room)
            seconds[here] += step
            left -= step
            if left <= 0.0:
                break
            room = gap[here]
            step = min(wait, room)
            wait -= step
            left -= room - step
            here += 1
            inside = 0.0
            if here == high:
                here = low
                turn += 1
                if turn > turns:
                    break
        waits[call] = wait
        rest[call] = max(left, 0.0)
