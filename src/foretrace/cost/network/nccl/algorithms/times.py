"""The law of a step: what a hop of a ring takes, data and latency together.

NCCL moves what a hop carries in two slices (`ALLREDUCE_SLICESTEPS`), and the next hop starts with the first while the
second is still on its way. So a step takes as long as its data, or as half of it and a latency, whichever is longer.
Ranks and channels are never quite in step, so the two do not change places at a corner.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats

CORNER: Final = 2.6
"""The power of the mean by which the longer of the two wins. This and the ramp were fitted on groups of 2 and 8 GPUs of
NVIDIA's tables of A100, H100, H200 and B200 together (benchmarks/fit_collectives.py says how)."""

RAMP_S: Final = 41e-6
RAMP_BYTES: Final = 36e6
"""What a call of Simple or LL128 takes beyond its steps, once it is large: the first and the last of many chunks have
no other to hide behind. Up to RAMP_S, half of it at RAMP_BYTES."""


def step_s(data_s: Floats, latency_s: float) -> Floats:
    """Seconds of a step whose data take so long on their channel."""
    # Where latency is nothing, data alone take their own time.
    data = data_s / (1 + 0.5**CORNER) ** (1 / CORNER)
    waiting = data / 2 + latency_s
    return np.asarray((data**CORNER + waiting**CORNER) ** (1 / CORNER))


def ramp_s(size_bytes: Floats, clock: float) -> Floats:
    """Seconds that a call takes beyond its steps."""
    return np.asarray(RAMP_S / clock * size_bytes / (size_bytes + RAMP_BYTES))
