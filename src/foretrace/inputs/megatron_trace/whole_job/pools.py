"""Takes noise out of ex-situ traces: stretches of computation that do the same work are pooled.

An ex-situ campaign times each rank for one microbatch, and single timings are noisy, almost always upwards (a host
that launches late, a first layer that runs cold). But the same work is timed many times: layers are identical, so are
the ranks of a stage up to the tokens their experts receive, and so are stages in the middle. Everything with the same
key is one pool, and its median is what each of its members takes.

Pools were chosen without looking at any real run. By single timings two campaigns of the same job differ by up to 19 %,
pooled by rank and place in the op by 2.2 % (root mean square of four jobs). Pooling layers too gives the same 2.2 % and
makes the pools several times larger (benchmarks/traces.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt

from foretrace.inputs.megatron_trace.pieces import PieceKey

BAND = (0.05, 0.95)
"""The part of a pool's timings that its band holds: nine in ten."""

FEW = 3
"""A pool of fewer timings does not tell its spread."""

UNKNOWN_SPREAD = (0.92, 1.16)
"""The spread of a single timing where no pool tells it: the widest that the pools of one campaign have among the six
ex-situ MoE campaigns of docs/traces.md. No real run is looked at."""

AIM = 0.02
"""The band a person would like to see: ± 2 %."""


@dataclass(slots=True)
class Pools:
    """Timings by the work they are of, in seconds."""

    campaigns: float
    one_sided: bool = True
    """Whether noise goes upwards only, as ex situ, where the median is nearest to the truth. In a real run what varies
    is part of it, and the mean is what it takes."""
    samples: dict[PieceKey, list[float]] = field(default_factory=dict)
    used_s: dict[PieceKey, float] = field(default_factory=dict)
    """What of the program rests on each pool, for weighing their spread."""
    _typical: dict[PieceKey, float] = field(default_factory=dict)

    def add(self, key: PieceKey, seconds: float) -> None:
        """One timing."""
        self.samples.setdefault(key, []).append(seconds)

    def typical(self, key: PieceKey) -> float:
        """Returns the typical time of this work: the median."""
        value = self._typical.get(key)
        if value is None:
            times = self.samples[key]
            value = _quantile(sorted(times), 0.5) if self.one_sided else sum(times) / len(times)
            self._typical[key] = value
        self.used_s[key] = self.used_s.get(key, 0.0) + value
        return value

    def fastest(self, key: PieceKey) -> float:
        """The least it was seen to take: for work of the host, whose timings ex situ are upper bounds."""
        return min(self.samples[key])

    def spread(self, among: Callable[[PieceKey], bool]) -> tuple[float, float]:
        """Returns how far the pools may be off, as factors.

        The factors are the middle nine tenths of the pools, weighed by the time that depends on them, and narrowed as
        the mean of several campaigns is. The errors of all pools are taken to have the same sign.
        """
        keys = [key for key in self.used_s if among(key)]
        total = sum(self.used_s[key] for key in keys)
        if not total:
            return 1.0, 1.0
        low = high = known = 0.0
        for key in keys:
            times = sorted(self.samples[key])
            below, middle, above = (_quantile(times, share) for share in (BAND[0], 0.5, BAND[1]))
            if len(times) < FEW or middle <= 0:
                continue
            known += self.used_s[key]
            low += self.used_s[key] * below / middle
            high += self.used_s[key] * above / middle
        # Pools too small to tell are taken to spread as the others do, or as is usual.
        low, high = (low / known, high / known) if known else UNKNOWN_SPREAD
        narrower = sqrt(self.campaigns)
        return 1 - (1 - low) / narrower, 1 + (high - 1) / narrower

    def campaigns_for(self, aim: float = AIM) -> int:
        """How many campaigns would narrow the spread to ± `aim`."""
        low, high = self.spread(lambda _: True)
        widest = max(1 - low, high - 1)
        return max(1, ceil(self.campaigns * (widest / aim) ** 2))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of ordered values lies, between neighbours where need be. For the few values of
    a pool this is faster than numpy's."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
