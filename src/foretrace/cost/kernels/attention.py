"""Times fused attention: by the share of the peak rate that its products reach, or by the memory rate."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Final, NamedTuple

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.kernels.gemm import DeviceRates
from foretrace.cost.kernels.parameters import AttentionFit
from foretrace.program.kernels import Attention

BLOCK: Final = 128
"""Queries that one SM works on at a time (flash-attention's kBlockM for head sizes up to 128)."""

LAUNCH_S: Final = 4e-6
"""The least time of a launch: filling the SMs and draining them."""

SIDE_LAUNCH_S: Final = 2.5e-6
"""The least time of each further kernel of the backward pass."""


def attention_fit(
    fits: Mapping[tuple[str, bool, int], AttentionFit], backend: str, backward: bool, head: int
) -> AttentionFit:
    """The constants for a head size: interpolated between those known, in the logarithm; beyond them the nearest's."""
    known = sorted(size for name, way, size in fits if name == backend and way == backward)
    if not known:
        return attention_fit(fits, "cudnn", backward, head)
    logs = [log2(size) for size in known]
    at = log2(max(head, 1))
    rows = [fits[backend, backward, size] for size in known]
    return AttentionFit(
        float(np.interp(at, logs, [row.efficiency for row in rows])),
        float(np.interp(at, logs, [row.keys for row in rows])),
    )


def computed_pairs(kernel: Attention) -> float:
    """Returns the pairs of a query and a key that a kernel computes per head.

    A window cuts keys off in whole blocks: a block of queries computes all blocks of keys that any of them sees. Under
    a causal mask alone, what the blocks on the diagonal waste is part of `AttentionFit.keys`.
    """
    if not kernel.window:
        return float(kernel.pairs)
    blocks = -(-kernel.window // BLOCK) + 1
    computed = kernel.pairs * blocks * BLOCK / kernel.window
    return float(max(kernel.pairs, min(computed, kernel.q * kernel.kv / 2)))


def computed_flops(kernel: Attention) -> float:
    """Returns the FLOPs of all pairs that a kernel computes."""
    return kernel.flops * computed_pairs(kernel) / max(kernel.pairs, 1)


class AttentionWork(NamedTuple):
    """Kernels of attention, one number each.

    FLOPs of all `pairs`; computed `pairs` of a query and a key per head; `q` queries; `sequences` (batch times heads);
    bytes moved; the share of the peak that is reached; further keys per query; the tail in blocks; bytes of the kernels
    before and after the main one; the number of kernels.
    """

    flops: Floats
    pairs: Floats
    q: Floats
    sequences: Floats
    moved_bytes: Floats
    efficiency: Floats
    keys: Floats
    tail: Floats
    side_bytes: Floats
    launches: Floats


def attention_s(work: AttentionWork, device: DeviceRates) -> Floats:
    """Returns the seconds of kernels of attention."""
    flops, pairs, q, sequences, moved_bytes, efficiency, keys, tail, side_bytes, launches = work
    flops_per_s, bytes_per_s, units = device
    reached = flops_per_s * efficiency
    per_pair = flops / np.maximum(sequences * pairs, 1.0)
    spread = sequences * (pairs + keys * q) * per_pair / reached
    # The last blocks run while SMs that are done wait: so many times a block's mean time, and at least once.
    block_s = (pairs / np.maximum(q, 1.0) + keys) * np.minimum(q, BLOCK) * per_pair * units / reached
    main = np.maximum(np.maximum(spread, block_s) + tail * block_s, moved_bytes / bytes_per_s)
    return np.asarray(LAUNCH_S + main + (launches - 1) * SIDE_LAUNCH_S + side_bytes / bytes_per_s)


def side_bytes(kernel: Attention) -> float:
    """Bytes that backward moves in kernels of their own: the queries' gradient in fp32 is set to zero, and at the end
    read and written as bf16; outputs and their gradients are read for the sums of their products. Where queries share
    keys, gradients of keys and values are written for each query head and then added up."""
    if not kernel.backward:
        return 0.0
    heads = kernel.batch * kernel.heads
    moved_bytes = heads * kernel.q * (10.0 * kernel.head_dim + 4.0 * kernel.v_dim)
    if kernel.kv_heads < kernel.heads:
        moved_bytes += heads * kernel.kv * 4.0 * (kernel.head_dim + kernel.v_dim)
    return moved_bytes
