"""Buffers of dispatchers and user buffers, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.models.presets import model
from foretrace.simulation.dispatch_memory import dispatcher_parts, user_buffer_parts
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle

MIB = 1 << 20
HIDDEN, TOKENS, EXPERTS = 7168, 4096, 256


def deepseek(**fields: Any) -> Setting:
    return settle(model("deepseek-v3"), Plan(gpus=128, pp=2, ep=64, gbs=256, seq_len=TOKENS, **fields))


def layout_of(size: int, islands: int) -> GroupLayout:
    each = size // islands
    return GroupLayout(size, islands, islands, each, each, each, each, 1.0)


def test_deepep_over_eight_nodes() -> None:
    nvl, rdma = dispatcher_parts(deepseek(dispatcher="deepep"), layout_of(64, 8))
    token = 2 * HIDDEN + 8 + 128 * 16
    assert nvl.bytes == 10 * 8 * (288 * token + 19 * 4) + 32 * MIB
    # 2 · 10 · 8 · 140 tokens of 16 KiB are 352 MiB: one page of NVSHMEM.
    assert rdma.bytes == 512 * MIB


def test_deepep_within_a_node_needs_no_nvshmem() -> None:
    names = [part.name for part in dispatcher_parts(deepseek(dispatcher="deepep"), layout_of(8, 1))]
    assert names == ["DeepEP NVLink buffers"]


@pytest.mark.parametrize("ranks", [4, 48, 256, 1024])
def test_deepep_has_an_entry_for_every_size(ranks: int) -> None:
    assert all(part.bytes > 0 for part in dispatcher_parts(deepseek(dispatcher="deepep"), layout_of(ranks, 1)))


def test_hybridep_holds_all_tokens_of_its_group() -> None:
    within, across = (dispatcher_parts(deepseek(dispatcher="hybridep"), layout_of(64, n))[0].bytes for n in (1, 2))
    assert within == 64 * TOKENS * (2 * HIDDEN + 4 * EXPERTS + 4 * HIDDEN // 128)
    # In each of two domains a token has weights for half of the experts; its own tokens and the other's come on top.
    token, scales = 2 * HIDDEN + 4 * EXPERTS // 2, 4 * HIDDEN // 128
    own = 2 * HIDDEN + 4 * EXPERTS + scales
    assert across == TOKENS * (64 * (token + scales) + own + 3 * token + scales)


def test_low_latency_has_a_slot_for_each_token_and_expert() -> None:
    (heap,) = dispatcher_parts(deepseek(dispatcher="low_latency"), layout_of(64, 8))
    slots = 4 * EXPERTS * TOKENS * 2 * HIDDEN
    assert slots < heap.bytes < 1.05 * slots


def test_no_buffers_without_a_dispatcher_or_experts() -> None:
    assert dispatcher_parts(deepseek(), layout_of(64, 8)) == ()
    assert dispatcher_parts(deepseek(dispatcher="deepep"), None) == ()


def test_user_buffers_are_gathered_activations() -> None:
    plan = Plan(gpus=8, tp=8, gbs=8, seq_len=TOKENS, tp_overlap=True)
    size = TOKENS * model("llama3-70b").hidden
    (plain,) = user_buffer_parts(settle(model("llama3-70b"), plan))
    (eight,) = user_buffer_parts(settle(model("llama3-70b"), replace(plan, precision="fp8")))
    assert (plain.bytes, eight.bytes) == (12 * 2 * size, (8 + 4 * 2) * size)
    assert user_buffer_parts(settle(model("llama3-70b"), replace(plan, tp_overlap=False))) == ()
