"""Counts the buffers that libraries next to NCCL hold: those that carry tokens to experts, and user buffers of
Transformer Engine.

Both allocate by themselves (`cudaMalloc`, `cuMemCreate`, NVSHMEM's heap), outside PyTorch's allocator.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.models.model import Experts
from foretrace.readings.answer.memory_fit import MemoryPart
from foretrace.workload.setting import Setting

MIB: Final = 1 << 20

NVL_PEERS: Final = 8
"""GPUs that DeepEP reaches over NVLink, in racks of 72 too (`NUM_MAX_NVL_PEERS`)."""

DEEPEP_CHANNELS: Final = 10
"""Half of the 20 SMs that Megatron gives to DeepEP (`--moe-deepep-num-sms`)."""

DEEPEP_WORKSPACE_BYTES: Final = 32 * MIB
"""`NUM_WORKSPACE_BYTES` of DeepEP."""

TOKEN_EXTRA_BYTES: Final = 8 + 128 * (8 + 4 + 4)
"""DeepEP keeps this with a token: its origin, and room for 128 experts, weights and scales."""

NVSHMEM_PAGE_BYTES: Final = 512 * MIB
"""NVSHMEM's heap grows by this (`NVSHMEM_CUMEM_GRANULARITY`, which DeepEP sets to its default)."""


class DeepEpTokens(NamedTuple):
    """Tokens that a channel of DeepEP buffers for a peer over NVLink and over RDMA, and what the latter is a multiple
    of when tokens are dispatched and when they are combined."""

    nvl: int
    rdma: int
    dispatch_multiple: int
    combine_multiple: int


DEEPEP_CONFIGS: Final = {
    2: DeepEpTokens(256, 128, 6, 6),
    4: DeepEpTokens(256, 128, 6, 6),
    8: DeepEpTokens(256, 128, 6, 6),
    16: DeepEpTokens(288, 128, 20, 12),
    24: DeepEpTokens(288, 128, 32, 8),
    32: DeepEpTokens(288, 128, 32, 8),
    64: DeepEpTokens(288, 128, 28, 20),
    128: DeepEpTokens(560, 128, 32, 12),
    144: DeepEpTokens(720, 128, 12, 8),
    160: DeepEpTokens(720, 128, 12, 8),
}
"""By ranks: `Buffer.get_dispatch_config` and `get_combine_config` (deep_ep/buffer.py)."""

GATHERED_BUFFERS, SCATTERED_BUFFERS = 8, 4
"""User buffers of Transformer Engine: one for each product of a layer whose input is gathered or whose output is
scattered, the bulk and external ones included (transformer_engine/pytorch/module/base.py, `initialize_ub`)."""


def dispatcher_parts(setting: Setting, layout: GroupLayout | None) -> tuple[MemoryPart, ...]:
    """Returns the buffers of the plan's dispatcher; `layout` is that of the ranks it serves, None where it serves none.

    NCCL's all-to-all has no other buffers than its communicator.
    """
    parts = (layer.feed_forward for layer in dict.fromkeys(setting.model.layers))
    experts = next((part for part in parts if isinstance(part, Experts)), None)
    if layout is None or layout.size == 1 or experts is None:
        return ()
    match setting.plan.dispatcher:
        case "deepep":
            return _deepep(setting, layout.size)
        case "low_latency":
            size = _low_latency_bytes(rank_tokens(setting), setting.model.hidden, experts.count, layout.size)
            source = (
                "DeepEP, csrc/config.hpp: a slot for each token of a rank and each expert, twice, sent and received"
            )
            return (MemoryPart("DeepEP low-latency heap", _heap(size), source),)
        case "hybridep":
            return (_hybridep(setting, layout, experts),)
        case _:
            return ()


def rank_tokens(setting: Setting) -> int:
    """Returns the tokens of a microbatch that one rank gives to its experts."""
    return setting.tokens // (setting.plan.tp if setting.sequence_parallel else 1)


def user_buffer_parts(setting: Setting) -> tuple[MemoryPart, ...]:
    """Returns the user buffers of tensor parallelism that overlaps with products."""
    plan = setting.plan
    if not plan.tp_overlap or plan.tp == 1:
        return ()
    elements = setting.tokens * setting.model.hidden
    gathered = 1 if plan.precision in ("fp8", "fp8_block", "mxfp8", "nvfp4") else 2
    size = elements * (GATHERED_BUFFERS * gathered + SCATTERED_BUFFERS * 2)
    source = (
        "Transformer Engine, initialize_ub: 12 buffers of tokens × hidden; gathered ones in 8 bits where products are"
    )
    return (MemoryPart("user buffers", size, source),)


def _deepep(setting: Setting, ranks: int) -> tuple[MemoryPart, ...]:
    """Returns the buffers of DeepEP for a group, as Megatron's `get_buffer` asks for them (fused_a2a.py).

    DeepEP refuses sizes that its table does not list; for those the next larger entry is taken.
    """
    known = next((size for size in DEEPEP_CONFIGS if size >= ranks), max(DEEPEP_CONFIGS))
    config = DEEPEP_CONFIGS[known]
    near, nodes = min(ranks, NVL_PEERS), max(ranks // NVL_PEERS, 1)
    token = 2 * setting.model.hidden + TOKEN_EXTRA_BYTES
    counters = DEEPEP_CHANNELS * near * (2 * nodes + 3) * 4
    nvl = DEEPEP_CHANNELS * near * config.nvl * token + counters + DEEPEP_WORKSPACE_BYTES
    parts = [MemoryPart("DeepEP NVLink buffers", nvl, "DeepEP, csrc/config.hpp, get_nvl_buffer_size_hint")]
    if ranks > NVL_PEERS:
        tokens = max(
            math.ceil(config.rdma / multiple) * multiple
            for multiple in (config.dispatch_multiple, config.combine_multiple)
        )
        rdma = 2 * DEEPEP_CHANNELS * nodes * (tokens * (token + 16) + (2 * NVL_PEERS + 2) * 4) + MIB
        source = "DeepEP, csrc/config.hpp, get_rdma_buffer_size_hint, in NVSHMEM's pages of 512 MiB"
        parts.append(MemoryPart("DeepEP RDMA heap", _heap(rdma), source))
    return tuple(parts)


def _heap(size_bytes: int) -> int:
    return math.ceil(size_bytes / NVSHMEM_PAGE_BYTES) * NVSHMEM_PAGE_BYTES


def _low_latency_bytes(tokens: int, hidden: int, experts: int, ranks: int) -> int:
    """Returns the heap of DeepEP's low-latency kernels (`LowLatencyLayout`)."""
    scales = hidden // 128
    dispatched = 16 + max(2 * hidden, hidden + 4 * scales)
    combined = 4 * scales + 2 * hidden
    sent = max(tokens * dispatched, experts * tokens * combined)
    received = experts * tokens * max(dispatched, combined)
    signals = math.ceil((8 * experts + 4 * (experts // ranks)) / 128) * 128
    return 2 * (sent + received + signals)


def _hybridep(setting: Setting, layout: GroupLayout, experts: Experts) -> MemoryPart:
    """Returns the buffers of HybridEP: room for all tokens of the group at one rank, in bf16 with their weights.

    Dispatched tokens and those to combine share memory (`use_shared_buffer`). Between link domains, a rank also holds
    its own tokens and those that it gets of each other domain.
    """
    tokens, hidden, near, nodes = rank_tokens(setting), setting.model.hidden, layout.most_in_island, layout.islands
    weights = math.ceil(experts.count / layout.size) * near
    token = 2 * hidden + 4 * weights
    size = tokens * layout.size * (token + 4 * (hidden // 128))
    if nodes > 1:
        size += tokens * (2 * hidden + 4 * experts.count + 4 * (hidden // 128))
        size += tokens * (nodes - 1) * (3 * token + 4 * (hidden // 128))
    source = "DeepEP, branch hybrid-ep, csrc/hybrid_ep/buffer: all tokens of the group, as if one rank got them all"
    return MemoryPart("HybridEP buffers", size, source)
