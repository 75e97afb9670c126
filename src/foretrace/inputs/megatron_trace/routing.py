"""Expert all-to-alls: what every rank sends to every other.

A trace has what a rank gives to each all-to-all, not to whom. But what the experts of a rank send back is what they
were sent, so both what every rank sends and what it receives are known, and each is taken to send to all in the same
proportions: the matrix of most entropy with these sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Floats, Longs


def exchange(sent: Sequence[int], received: Sequence[int]) -> Longs:
    """The bytes from each rank (row) to each, given what each sends and receives in all, its own share included."""
    out, into = np.asarray(sent, dtype=np.float64), np.asarray(received, dtype=np.float64)
    total = into.sum()
    share = into / total if total > 0 else np.full(len(into), 1 / len(into))
    return np.rint(np.outer(out, share)).astype(np.int64)


def reshaped(rows: Sequence[int], unevenness: float) -> list[int]:
    """The tokens that ranks receive, made as uneven as asked: the busiest has `unevenness` times the mean, the others
    keep their order and the sum stays (1: all alike). Where several are the busiest, they stay so, and get what there
    is at most."""
    had = np.asarray(rows, dtype=np.float64)
    mean, n = had.mean(), len(had)
    if mean == 0 or n == 1 or unevenness <= 1:
        return _whole(np.full(n, mean), had.sum())
    unevenness = min(unevenness, float(n))
    # Powers of the shares keep their order, sum to one and reach from all alike to all in one.
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
