"""Times ring algorithms hop by hop: all-reduce, all-gather, reduce-scatter, broadcast and reduce."""

from __future__ import annotations

from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.elementary import p_norm
from foretrace.cost.network.nccl.group import NcclGroup
from foretrace.cost.network.nccl.tuning_tables import THREAD_BYTES, THREADS
from foretrace.program.columns import WHOLE, Collective

CORNER: Final = 2.6
"""The power of the mean by which the longer of the two wins. This and the ramp were fitted on groups of 2 and 8 GPUs of
NVIDIA's tables of A100, H100, H200 and B200 together (benchmarks/fit_collectives.py says how)."""

RAMP_S: Final = 41e-6
RAMP_BYTES: Final = 36e6
"""Seconds of a call of Simple or LL128 beyond its steps, once it is large: the first and the last of many chunks have
no other to hide behind. Up to RAMP_S, half of it at RAMP_BYTES."""

TURNS: Final = {
    Collective.ALL_REDUCE: 2,
    Collective.ALL_GATHER: 1,
    Collective.REDUCE_SCATTER: 1,
    Collective.BROADCAST: 1,
    Collective.REDUCE: 1,
}
"""How many times a ring goes round, less one hop."""

LAST_RECEIVE_STEPS: Final = 0.2
"""The steps of an all-reduce beyond its hops: its last receive. Set by hand, as benchmarks/fit_collectives.py says."""

OWN_PART_STEPS: Final = 0.43
"""The same of an all-gather or reduce-scatter: a rank's own part, copied within its memory. Fitted as CORNER."""

LINK_SHARES: Final = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""Payload of all that crosses a link: LL flags every 4 bytes with 4 more, LL128 sends 8 bytes of flags with 120."""


def step_s(data_s: Floats, latency_s: float) -> Floats:
    """Returns the seconds of a step whose data take `data_s` on their channel.

    NCCL moves the data of a hop in two slices (`ALLREDUCE_SLICESTEPS`), and the next hop starts with the first slice
    while the second is still under way. So a step takes the longer of its data, and of half its data and a latency.
    Ranks and channels are never exactly in step, so the transition between the two is smooth.
    """
    # Without latency a step takes as long as its data.
    data = data_s / (1 + 0.5**CORNER) ** (1 / CORNER)
    waiting = data / 2 + latency_s
    return p_norm(data, waiting, CORNER)


def ramp_s(size_bytes: Floats, clock: float) -> Floats:
    """Returns the seconds that a call takes beyond its steps."""
    return np.asarray(RAMP_S / clock * size_bytes / (size_bytes + RAMP_BYTES))


def ring_s(group: NcclGroup, what: Collective, protocol: str, size_bytes: Floats) -> tuple[float, Floats]:
    """The latency of a call and the seconds it takes in all."""
    n, turns = group.layout.size, TURNS[what]
    hops = turns * (n - 1)
    far = turns * (group.nodes - 1)
    latency = ((hops - far) * group.near_s("ring", protocol) + far * group.far_s("ring", protocol)) / hops
    rate = _rate(group, protocol, size_bytes)
    launch = group.machine.launch_s
    if what in WHOLE:
        return launch + hops * latency, launch + hops * latency + size_bytes / rate
    extra = LAST_RECEIVE_STEPS if what is Collective.ALL_REDUCE else OWN_PART_STEPS
    ramp = ramp_s(size_bytes, group.machine.clock) if protocol != "ll" else 0.0
    # No NIC is in the way of what is beyond the hops.
    own = extra * step_s(size_bytes / n / np.maximum(rate, LINK_SHARES[protocol] * group.link_rate), latency)
    steps = hops * step_s(size_bytes / n / rate, latency)
    return launch + (hops + extra) * latency, launch + ramp + steps + own


def _rate(group: NcclGroup, protocol: str, size_bytes: Floats) -> Floats:
    """Returns the rate at which all channels move data past a rank: as many of them as NCCL uses for the size, within
    what the links carry."""
    most = LINK_SHARES[protocol] * group.ring_rate
    channels = group.channels("ring")
    if protocol == "simple":
        return np.full(size_bytes.shape, most)
    each = group.channels_bytes_per_s("ring", protocol) / channels
    threads = THREADS[protocol] * THREAD_BYTES[protocol] * (group.layout.size if protocol == "ll" else 1)
    used = np.clip(size_bytes / threads, 1.0, channels)
    return np.asarray(np.minimum(used * each, most))
