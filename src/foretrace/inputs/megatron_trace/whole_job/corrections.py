"""Corrects the times of traces, and says how sure they are: every constant, with its origin.

None of the constants is fitted on a run that a prediction is compared with.
"""

from __future__ import annotations

from math import hypot, sqrt
from typing import Final

from foretrace.inputs.megatron_trace.whole_job.work import Stones
from foretrace.program.program import Source

HOST_GAP_S: Final = 0.135e-3
"""Between two ops of a rank the host prepares the next: the median gap of the real run traces/dense8 (TP 2, PP 4 of
GPT-13B), which has no ex-situ counterpart and is compared with no prediction (benchmarks/traces.py prints it). Gaps of
ex-situ traces are the tracer's own."""

HOST: Final = Source("host", 0.5, 4.0)
"""What the host does between ops. The band is a judgement: two in three of that run's gaps lie within it, and more
than half of those above are of one slow rank."""

PLACEHOLDER_GAIN: Final = 295 / 257
"""How much faster a power-limited GPU multiplies matrices of nothing. Ex situ an all-to-all is replaced by memory that
nobody wrote, so experts compute on it, draw less power and clock higher. 295 TFLOP/s on zeros against 257 on random
numbers: an A100, 8192³ bf16 (H. He, "Strangely, matrix multiplications on GPUs run faster when given 'predictable'
data!", 2024). For experts on memory that nobody wrote, an H200 gives 1.04 (336 tokens) to 1.16 (6,535) in bursts, more
when sustained (benchmarks/gpu/placeholder_data_h200.json). How much of it a traced microbatch enjoys is unknown: the
middle of the A100's figure is taken, and the band holds none and all of that."""

BURST_GAIN: Final = 1.08
"""How much faster computation runs in a burst, as ex-situ traces time it, than all day long: 1.07 to 1.10 for experts
on random numbers on an H200 (benchmarks/gpu/placeholder_data_h200.json). Whether a traced microbatch is such a burst
depends on what ran before it, so this widens the band upwards and moves nothing else."""

CAMPAIGN_SPREAD: Final = 0.025
"""What one campaign as a whole may be off, either way: two campaigns of the same job differ by 2.2 % (root mean square
of four jobs, see benchmarks/traces.py; no real run is looked at), so one of them by 1.55 %; nine in ten by 2.5 %."""

EXPERT_SLOWDOWN: Final = sqrt(PLACEHOLDER_GAIN)
"""What experts' ex-situ times are multiplied by."""


def compute_sources(stones: Stones, ex_situ: bool) -> tuple[Source, Source]:
    """Where computation's times come from: of experts (second) and of all else, each with its band."""
    pools = stones.pools
    name = "ex-situ computation" if ex_situ else "traced computation"
    experts = {
        work.key
        for rank_work in stones.work.values()
        for work in (*rank_work.forward, *rank_work.backward)
        if work.rows is not None
    }
    low, high = pools.spread(lambda key: key not in experts)
    below, above = pools.spread(lambda key: key in experts)
    if ex_situ:
        whole = CAMPAIGN_SPREAD / sqrt(pools.campaigns)
        low, high = 1 - hypot(1 - low, whole), 1 + hypot(high - 1, whole, BURST_GAIN - 1)
        below = 1 - hypot(1 - below, whole, 1 - 1 / EXPERT_SLOWDOWN)
        above = 1 + hypot(above - 1, whole, EXPERT_SLOWDOWN - 1, BURST_GAIN - 1)
    return Source(name, max(low, 0.0), high), Source(f"{name} of experts", max(below, 0.0), above)
