"""What the times of traces lack or have too much of, and how sure they are: every constant, with its origin.

None of them is fitted on a run that a prediction is compared with.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from foretrace.lower.megatron_trace.work import Stones
from foretrace.program.program import Source

HOST_GAP_S: Final = 0.12e-3
"""Between two ops of a rank the host prepares the next: the median gap of the real run traces/dense8 (TP 2, PP 4 of
GPT-13B), which has no ex-situ counterpart and is compared with no prediction. Gaps of ex-situ traces are the tracer's
own."""

HOST: Final = Source("host", 0.5, 2.0)
"""What the host does between ops; the band is a judgement: gaps of one real run differ by as much."""

PLACEHOLDER_GAIN: Final = 295 / 257
"""How much faster a power-limited GPU multiplies matrices of nothing. Ex situ an all-to-all is replaced by memory that
nobody wrote, so experts compute on it, draw less power and clock higher. 295 TFLOP/s on zeros against 257 on random
numbers: an A100, 8192³ bf16 (H. He, "Strangely, matrix multiplications on GPUs run faster when given 'predictable'
data!", 2024). benchmarks/gpu/placeholder_data.py finds 1.15 for experts on an H200 in bursts. How much of it a traced
microbatch enjoys is unknown: the middle is taken, and the band holds none and all of it."""

EXPERT_SLOWDOWN: Final = sqrt(PLACEHOLDER_GAIN)
"""What experts' ex-situ times are multiplied by."""


def compute_sources(stones: Stones, ex_situ: bool) -> tuple[Source, Source]:
    """Where computation's times come from: of experts (second) and of all else, each with its band."""
    pools = stones.pools
    name = "ex-situ computation" if ex_situ else "traced computation"
    experts = {
        work.key for one in stones.work.values() for work in (*one.forward, *one.backward) if work.rows is not None
    }
    low, high = pools.spread(lambda key: key not in experts)
    below, above = pools.spread(lambda key: key in experts)
    if ex_situ:
        below = 1 - sqrt((1 - below) ** 2 + (1 - 1 / EXPERT_SLOWDOWN) ** 2)
        above = 1 + sqrt((above - 1) ** 2 + (EXPERT_SLOWDOWN - 1) ** 2)
    return Source(name, low, high), Source(f"{name} of experts", below, above)
