"""Says how uneven tokens go to the ranks of an expert-parallel group: at most, and where a plan does not state it.

A routing is the number of tokens of the busiest rank over the mean. It is 1 where a benchmark forces balance
(Megatron-core's `--moe-router-force-load-balancing`). A router that is trained is never balanced in every microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Final, TypeVar

from foretrace.models.model import Experts

PUBLISHED_ROUTING: Final = 1.30
"""The busiest rank over the mean in training DeepSeek-V3 with its own balancing: UltraEP (arXiv:2606.04101), Figure 11
and the lower end of the range in the abstract."""
PUBLISHED_RANKS: Final = 64
PUBLISHED_EXPERTS: Final = 256
"""Expert-parallel ranks and experts of a layer in that run."""

UNEVEN_ROUTING: Final = 2.86
"""The same of Qwen3 235B, the least even of the three models there (the third has 2.23)."""
UNEVEN_RANKS: Final = 64
UNEVEN_EXPERTS: Final = 128
"""Expert-parallel ranks and experts of a layer in that run."""


_Routing = TypeVar("_Routing", float, float | None)


def layer_routing(routing: _Routing | tuple[float, ...], layer: int | None = None) -> _Routing | float:
    """Returns the routing of a layer by number, from that of all layers or of each.

    Without a number it is that of the most uneven layer.
    """
    if not isinstance(routing, tuple):
        return routing
    return max(routing) if layer is None else routing[layer]


def expected_maximum(count: int) -> float:
    """Returns how many standard deviations above the mean the largest of normal numbers is expected.

    Blom's formula, Statistical Estimates and Transformed Beta-Variables, 1958; off by less than 0.03.
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _excess(experts: int, ranks: int) -> float:
    """Returns the excess of the busiest rank over the mean, in relative spreads of one expert's tokens.

    Where experts are independent, the relative spread of a rank falls with the square root of its experts.
    """
    return expected_maximum(ranks) * math.sqrt(ranks / experts)


EXPERT_SPREAD: Final = (PUBLISHED_ROUTING - 1) / _excess(PUBLISHED_EXPERTS, PUBLISHED_RANKS)
"""The relative standard deviation of an expert's tokens that gives the published figure: 0.257."""

UNEVEN_SPREAD: Final = (UNEVEN_ROUTING - 1) / _excess(UNEVEN_EXPERTS, UNEVEN_RANKS)
"""The same of the least even model: 1.13."""


def assumed_routing(kinds: Iterable[Experts], ranks: int) -> float:
    """Returns the routing that is assumed where none is stated, in hundredths; 1 where one rank has all experts.

    Args:
        kinds: The kinds of layers with experts of a model.
        ranks: The ranks that share the experts of a layer.
    """
    return max((_spread_routing(moe, ranks, EXPERT_SPREAD) for moe in kinds), default=1.0)


def least_even_routing(experts: Experts, ranks: int) -> float:
    """Returns the routing of a router that is as uneven as the least even published one: see `assumed_routing`."""
    return _spread_routing(experts, ranks, UNEVEN_SPREAD)


def _spread_routing(experts: Experts, ranks: int, spread: float) -> float:
    # Halves of hundredths, which powers of two give, are rounded up on every CPU.
    return min(round(1 + spread * _excess(experts.count, ranks) + 1e-9, 2), max_routing(experts, ranks))


def max_routing(moe: Experts, ranks: int) -> float:
    """Returns the largest routing there can be: all tokens go to one rank, or to as many of its experts as it has."""
    return min(float(ranks), max(moe.count / moe.topk, 1.0))
