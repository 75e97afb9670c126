"""Mixtures of experts and latent attention."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from foretrace.models.flops import forward_flops
from foretrace.models.model import Experts
from foretrace.models.parameters import layer_parameters, mtp_parameters, norm_parameters
from foretrace.program.columns import Collective
from foretrace.program.kernels import Attention, GroupedGemm
from foretrace.step.spec import Compute, Work
from foretrace.workload.layers import layer_work, mtp_work
from foretrace.workload.setting import Setting
from unit.workload.layers.settings import LLAMA, MIXTURE, flops, kernels, product_flops, setting, streams, talks

TOKENS, HIDDEN = 1024, 1024


def _work(of: Setting) -> Work:
    return layer_work(of, of.model.layers[0], 0)


@pytest.mark.parametrize(("ep", "tp", "etp"), [(1, 1, 1), (8, 1, 1), (8, 2, 1)])
def test_flops_are_the_closed_formula_s_share(ep: int, tp: int, etp: int) -> None:
    expected = forward_flops(MIXTURE, 1024)
    work = _work(setting(MIXTURE, ep=ep, tp=tp, etp=etp))
    assert flops(work.forward) == pytest.approx((expected.linear + expected.attention) / 2 / tp)
    assert product_flops(work.backward) == pytest.approx(2 * product_flops(work.forward))


@pytest.mark.parametrize(("ep", "tp", "etp"), [(1, 1, 1), (8, 2, 1), (4, 2, 2)])
def test_parameters_are_the_rank_s_share(ep: int, tp: int, etp: int) -> None:
    work = _work(setting(MIXTURE, ep=ep, tp=tp, etp=etp))
    norm = norm_parameters(MIXTURE)
    share = layer_parameters(MIXTURE.layers[0], HIDDEN, norm, tp=tp, ep=ep, etp=etp)
    assert (work.parameters, work.expert_parameters) == (share.dense, share.experts)


def test_tokens_go_out_and_come_back_both_ways() -> None:
    work = _work(setting(MIXTURE, ep=8))
    for items in (work.forward, work.backward):
        found = talks(items, "ep")
        assert [(one.collective, one.bytes) for one in found] == [(Collective.ALL_TO_ALL, TOKENS * 6 * HIDDEN * 2)] * 2


def test_sequence_parallel_ranks_send_their_own_tokens_only() -> None:
    assert talks(_work(setting(MIXTURE, ep=8, tp=2)).forward, "ep")[0].bytes == TOKENS // 2 * 6 * HIDDEN * 2


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_deepep_sends_a_token_once_to_each_rank_that_wants_it(dispatcher: str) -> None:
    talk = talks(_work(setting(MIXTURE, ep=8, dispatcher=dispatcher)).forward, "ep")[-1]
    distinct = 8 * (1 - comb(56, 6) / comb(64, 6))
    assert talk.bytes == pytest.approx(TOKENS * distinct * HIDDEN * 2, rel=1e-3)
    assert 4 < distinct < 5
    assert talk.way == f"dispatch style={dispatcher} experts=64 topk=6"


@pytest.mark.parametrize("dispatcher", ["hierarchical", "low_latency"])
def test_other_ways_send_a_copy_for_each_expert(dispatcher: str) -> None:
    found = talks(_work(setting(MIXTURE, ep=8, dispatcher=dispatcher)).forward, "ep")
    assert [one.bytes for one in found] == [TOKENS * 6 * HIDDEN * 2] * 2
    assert {one.way for one in found} == {f"dispatch style={dispatcher} experts=64 topk=6"}


def test_hybridep_gathers_who_goes_where_first() -> None:
    work = _work(setting(MIXTURE, ep=8, dispatcher="hybridep"))
    first, *_ = talks(work.forward, "ep")
    assert (first.collective, first.bytes) == (Collective.ALL_GATHER, TOKENS * 64 * 8)
    assert {one.collective for one in talks(work.backward, "ep")} == {Collective.ALL_TO_ALL}


def test_nccl_s_all_to_all_needs_no_word_on_how_it_goes() -> None:
    assert {one.way for one in talks(_work(setting(MIXTURE, ep=8)).forward, "ep")} == {None}


def test_routing_that_is_limited_to_groups_is_said() -> None:
    layer = MIXTURE.layers[0]
    assert isinstance(layer.feed_forward, Experts)
    limited = replace(layer, feed_forward=replace(layer.feed_forward, groups=8, topk_groups=2))
    of = setting(MIXTURE, ep=8, dispatcher="deepep")
    plain, talk = (talks(layer_work(of, one, 0).forward, "ep")[0] for one in (layer, limited))
    assert talk.way == "dispatch style=deepep experts=64 topk=6 groups=8 chosen=2"
    assert talk.bytes == pytest.approx(TOKENS * 2 * HIDDEN * 2, rel=0.01), "two of eight ranks hold all of its experts"
    assert talk.bytes < plain.bytes


def test_expert_tensor_parallel_ranks_share_tokens_and_split_widths() -> None:
    found = _work(setting(MIXTURE, ep=4, tp=2, etp=2))
    up = next(one for _, one in kernels(found.forward) if isinstance(one, GroupedGemm))
    assert (up.groups, up.m, up.n) == (16, TOKENS // 2 * 6 * 2, 512)
    assert [one.collective for one in talks(found.forward, "etp")] == [Collective.ALL_GATHER, Collective.REDUCE_SCATTER]


def test_uneven_routing_makes_every_rank_the_busiest() -> None:
    even, uneven = (_work(setting(MIXTURE, ep=8, routing=one)) for one in (1.0, 1.5))
    rows = [next(one.m for _, one in kernels(work.forward) if isinstance(one, GroupedGemm)) for work in (even, uneven)]
    assert rows == [6144, 9216]
    sent = [
        [call.bytes for call in talks(work.forward, "ep") if call.collective == Collective.ALL_TO_ALL]
        for work in (even, uneven)
    ]
    assert sent[1] == [1.5 * size for size in sent[0]]


def test_the_host_waits_for_token_counts_unless_graphs_forbid_it() -> None:
    def waits(of: Setting) -> int:
        work = _work(of)
        return sum(isinstance(one, Compute) and one.syncs_host for one in (*work.forward, *work.backward))

    assert waits(setting(MIXTURE, ep=8)) == 1
    assert waits(setting(MIXTURE, ep=8, cuda_graphs="partial")) == 0
    assert waits(setting(LLAMA)) == 0


def test_each_expert_is_a_launch_in_transformer_engine_and_not_in_pytorch() -> None:
    for name, launches in (("megatron-core", 64), ("fsdp", 1)):
        found = [one for _, one in kernels(_work(setting(MIXTURE, name)).forward) if isinstance(one, GroupedGemm)]
        assert [one.launches for one in found] == [launches, launches]


def test_the_tokens_of_each_expert_are_quantized_by_launches_of_their_own() -> None:
    work = _work(setting(MIXTURE, ep=8, precision="mxfp8"))
    found = {item.name: streams([item])["quantize_mx_fused"] for item in work.forward}
    assert found["experts up quantize"] == 8
    assert found["experts up"] == 2 * 8, "and the scales of both operands arranged"


def test_latent_attention_has_wider_queries_than_values() -> None:
    found = next(one for _, one in kernels(_work(setting(MIXTURE)).forward) if isinstance(one, Attention))
    assert (found.heads, found.kv_heads, found.head_dim, found.v_dim) == (16, 16, 96, 64)


def test_latent_attention_gathers_narrow_tensors() -> None:
    found = talks(_work(setting(MIXTURE, tp=2)).forward, "tp")
    gathered = [one.bytes for one in found if one.collective == Collective.ALL_GATHER]
    assert gathered[:2] == [TOKENS * 512 * 2, TOKENS * 256 * 2]


def test_a_module_that_predicts_one_token_more_is_a_layer_and_a_projection() -> None:
    of = setting(MIXTURE)
    work, share = mtp_work(of), mtp_parameters(MIXTURE)
    assert (work.parameters, work.expert_parameters) == (share.dense, share.experts)
    head = 2.0 * TOKENS * HIDDEN * MIXTURE.vocab
    projection = 2.0 * TOKENS * 2 * HIDDEN * HIDDEN
    assert flops(work.forward) == pytest.approx(flops(_work(of).forward) + head + projection)
    assert streams(work.forward)["embedding"] == 1
