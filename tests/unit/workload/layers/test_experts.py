"""Mixtures of experts and latent attention."""

from __future__ import annotations

import pytest

from foretrace.models.flops import forward_flops
from foretrace.models.parameters import layer_parameters, mtp_parameters, norm_parameters
from foretrace.program.columns import Collective
from foretrace.program.kernels import Attention, GroupedGemm
from foretrace.workload.layers import layer_work, mtp_work
from foretrace.workload.setting import Setting
from foretrace.workload.work import Compute, Work
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


def test_deepep_sends_a_token_once_to_each_rank_that_wants_it() -> None:
    sent = talks(_work(setting(MIXTURE, ep=8, deepep=True)).forward, "ep")[0].bytes
    distinct = 8 * (1 - (7 / 8) ** 6)
    assert sent == pytest.approx(TOKENS * distinct * HIDDEN * 2, rel=1e-3)
    assert 4 < distinct < 5


def test_expert_tensor_parallel_ranks_share_tokens_and_split_widths() -> None:
    found = _work(setting(MIXTURE, ep=4, tp=2, etp=2))
    up = next(one for _, one in kernels(found.forward) if isinstance(one, GroupedGemm))
    assert (up.groups, up.m, up.n) == (16, TOKENS // 2 * 6 * 2, 512)
    assert [one.collective for one in talks(found.forward, "etp")] == [Collective.ALL_GATHER, Collective.REDUCE_SCATTER]


def test_uneven_routing_makes_every_rank_the_busiest() -> None:
    even, uneven = (_work(setting(MIXTURE, ep=8, routing=one)) for one in (1.0, 1.5))
    rows = [next(one.m for _, one in kernels(work.forward) if isinstance(one, GroupedGemm)) for work in (even, uneven)]
    assert rows == [6144, 9216]
    assert talks(uneven.forward, "ep")[0].bytes == 1.5 * talks(even.forward, "ep")[0].bytes


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
