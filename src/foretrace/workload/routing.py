"""Says how uneven tokens go to the ranks of an expert-parallel group: at most, and where a plan does not state it.

A routing is the number of tokens of the busiest rank over the mean. It is 1 where a benchmark forces balance
(Megatron-core's `--moe-router-force-load-balancing`). A router that is trained is never balanced in every microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, TypeVar

from foretrace.models.model import Experts

PUBLISHED_ROUTING: Final = 1.30
"""The busiest rank over the mean in training DeepSeek-V3 with its own balancing: UltraEP (arXiv:2606.04101), Figure 11
and the lower end of the range in the abstract. Less well balanced models there have 2.23 and 2.86."""
PUBLISHED_RANKS: Final = 64
PUBLISHED_EXPERTS: Final = 256
"""Expert-parallel ranks and experts of a layer in that run."""


_Routing = TypeVar("_Routing", float, float | None)


def layer_routing(routing: _Routing | tuple[float, ...], layer: int | None = None) -> _Routing | float:
    """Returns the routing of a layer by number, from that of all layers or of each.

    Without a number it is that of the most uneven layer.
    """
    if not isinstance(routing, tuple):
        return routing
    return max(routing) if layer is None else routing[layer]


def _excess(experts: int, ranks: int) -> float:
    """Returns the excess of the busiest rank over the mean, in relative spreads of one expert's tokens.

    Where experts are independent, the relative spread of a rank falls with the square root of its experts. The largest
    of n normal numbers is expected about sqrt(2 ln n) standard deviations above the mean.
    """
    return math.sqrt(2 * math.log(ranks) * ranks / experts)


EXPERT_SPREAD: Final = (PUBLISHED_ROUTING - 1) / _excess(PUBLISHED_EXPERTS, PUBLISHED_RANKS)
"""The relative standard deviation of an expert's tokens that gives the published figure: 0.21."""


def assumed_routing(kinds: Iterable[Experts], ranks: int) -> float:
    """Returns the routing that is assumed where none is stated, in hundredths; 1 where one rank has all experts.

    Args:
        kinds: The kinds of layers with experts of a model.
        ranks: The ranks that share the experts of a layer.
    """
    return max((min(_assumed(moe, ranks), max_routing(moe, ranks)) for moe in kinds), default=1.0)


def _assumed(moe: Experts, ranks: int) -> float:
    factor = 1 + EXPERT_SPREAD * _excess(moe.count, ranks)
    return round(factor + 1e-9, 2)  # halves, which powers of two give, are rounded up on every CPU


def max_routing(moe: Experts, ranks: int) -> float:
    """Returns the largest routing there can be: all tokens go to one rank, or to as many of its experts as it has."""
    return min(float(ranks), max(moe.count / moe.topk, 1.0))
