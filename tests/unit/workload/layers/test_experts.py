"""Mixtures of experts and latent attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import comb

import pytest

from foretrace.models.flops import forward_flops
from foretrace.models.model import Experts, Layer, Mlp, SelfAttention
from foretrace.models.parameters import layer_parameters, mtp_parameters, norm_parameters
from foretrace.program.columns import Collective
from foretrace.program.dispatch import parse_dispatch
from foretrace.program.kernels import Attention, GroupedGemm, Stream
from foretrace.step.spec import Compute, CudaGraphs, Item, Work
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
    tokens, probabilities = TOKENS * 6 * HIDDEN * 2, TOKENS * 6 * 4
    assert _sent(work.forward) == {
        "dispatch all-to-all": tokens,
        "dispatch probabilities": probabilities,
        "combine all-to-all": tokens,
    }
    assert _sent(work.backward) == {
        "combine backward all-to-all": tokens,
        "dispatch backward all-to-all": tokens,
        "dispatch backward probabilities": probabilities,
    }


def _sent(items: Iterable[Item]) -> dict[str, int]:
    """Returns the bytes of all-to-alls among expert ranks by name."""
    return {call.name: call.bytes for call in talks(items, "ep") if call.collective == Collective.ALL_TO_ALL}


def test_ranks_gather_the_counts_of_all_experts_before_nccl_s_all_to_all() -> None:
    first, *rest = talks(_work(setting(MIXTURE, ep=8)).forward, "ep")
    assert (first.collective, first.bytes) == (Collective.ALL_GATHER, 64 * 8 * 8), "64 numbers of 8 bytes a rank"
    assert Collective.ALL_GATHER not in {call.collective for call in rest}
    assert not talks(_work(setting(MIXTURE)).forward, "ep")


@pytest.mark.parametrize(
    ("stack", "dispatcher"), [("fsdp", "alltoall"), ("megatron-core", "deepep"), ("megatron-core", "hybridep")]
)
def test_probabilities_travel_with_the_tokens_elsewhere(stack: str, dispatcher: str) -> None:
    work = _work(setting(MIXTURE, stack, ep=8, dispatcher=dispatcher))
    assert set(_sent(work.forward)) == {"dispatch all-to-all", "combine all-to-all"}
    assert set(_sent(work.backward)) == {"combine backward all-to-all", "dispatch backward all-to-all"}


def test_sequence_parallel_ranks_send_their_own_tokens_only() -> None:
    work = _work(setting(MIXTURE, ep=8, tp=2))
    assert _sent(work.forward)["dispatch all-to-all"] == TOKENS // 2 * 6 * HIDDEN * 2


@pytest.mark.parametrize(("dispatcher", "sms"), [("deepep", ""), ("hybridep", " sms=16")])
def test_deepep_sends_a_token_once_to_each_rank_that_wants_it(dispatcher: str, sms: str) -> None:
    talk = talks(_work(setting(MIXTURE, ep=8, dispatcher=dispatcher)).forward, "ep")[-1]
    distinct = 8 * (1 - comb(56, 6) / comb(64, 6))
    assert talk.bytes == pytest.approx(TOKENS * distinct * HIDDEN * 2, rel=1e-3)
    assert 4 < distinct < 5
    assert talk.way == f"dispatch style={dispatcher} experts=64 topk=6{sms}"


def test_the_sms_of_hybridep_are_those_of_the_stack() -> None:
    def sms(stack: str, dispatcher: str) -> int:
        way = talks(_work(setting(MIXTURE, stack, ep=8, dispatcher=dispatcher)).forward, "ep")[-1].way
        assert way is not None
        return parse_dispatch(way).sms

    assert sms("megatron-core", "hybridep") == 16
    assert sms("megatron-bridge", "hybridep") == 32
    assert sms("megatron-bridge", "deepep") == 0


@pytest.mark.parametrize("dispatcher", ["hierarchical", "low_latency"])
def test_other_ways_send_a_copy_for_each_expert(dispatcher: str) -> None:
    found = [call for call in talks(_work(setting(MIXTURE, ep=8, dispatcher=dispatcher)).forward, "ep") if call.way]
    assert [one.name for one in found] == ["dispatch all-to-all", "combine all-to-all"]
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


def _waits(of: Setting) -> list[str]:
    """Returns the names of the computations that the host waits for."""
    work = _work(of)
    return [one.name for one in (*work.forward, *work.backward) if isinstance(one, Compute) and one.syncs_host]


@pytest.mark.parametrize("graphs", ["none", "router", "partial"])
def test_the_host_waits_for_token_counts(graphs: CudaGraphs) -> None:
    assert _waits(setting(MIXTURE, ep=8, cuda_graphs=graphs)) == ["dispatch preprocess"]


def test_the_host_waits_for_no_counts_that_it_does_not_need() -> None:
    assert not _waits(setting(LLAMA))
    assert not _waits(setting(MIXTURE, ep=8, cuda_graphs="full"))
    assert not _waits(setting(MIXTURE, ep=8, dispatcher="low_latency"))
    fused = "megatron-bridge@26.06"
    assert not _waits(setting(MIXTURE, fused, ep=8, precision="mxfp8", dispatcher="hybridep"))
    assert not _waits(setting(MIXTURE, fused, precision="mxfp8"))
    assert _waits(setting(MIXTURE, fused, ep=8, precision="mxfp8")), "NCCL needs the counts on the host"
    assert _waits(setting(MIXTURE, fused, ep=8, precision="mxfp8", dispatcher="deepep"))
    assert _waits(setting(MIXTURE, fused, ep=8)), "16-bit products are not fused"
    assert _waits(setting(MIXTURE, "megatron-bridge@26.04", ep=8, precision="mxfp8"))


def test_each_expert_is_a_launch_in_transformer_engine_and_not_in_pytorch() -> None:
    for name, launches in (("megatron-core", 64), ("fsdp", 1)):
        found = [one for _, one in kernels(_work(setting(MIXTURE, name)).forward) if isinstance(one, GroupedGemm)]
        assert [one.launches for one in found] == [launches, launches]


def test_the_tokens_of_each_expert_are_quantized_by_launches_of_their_own() -> None:
    work = _work(setting(MIXTURE, ep=8, precision="mxfp8"))
    found = {item.name: streams([item])["quantize_mx_fused"] for item in work.forward}
    assert found["experts up quantize"] == 8
    assert found["experts up"] == 1, "one kernel swizzles the scales of all experts' weights"
    (casts,) = (item for item in work.forward if item.name == "experts up quantize")
    assert all(isinstance(one, Stream) and one.looped for _, one in kernels([casts]))


def test_scales_of_all_experts_are_swizzled_by_a_kernel_for_each_operand() -> None:
    def launches(stack: str) -> dict[str, int]:
        items = _both(_work(setting(MIXTURE, stack, ep=8, precision="mxfp8")))
        return {item.name: streams([item])["quantize_mx_fused"] for item in items if item.name.startswith("experts")}

    names = ("experts up", "experts up input gradient", "experts up weight gradient")
    assert [launches("megatron-core@0.15")[name] for name in names] == [2, 2, 2]
    assert [launches("megatron-core@0.16")[name] for name in names] == [1, 1, 0]


def _both(work: Work) -> tuple[Item, ...]:
    return (*work.forward, *work.backward)


def test_fused_experts_need_no_kernel_of_their_own_for_activations_and_no_padding() -> None:
    """One product for all experts each way; up quantizes what down reads, and backward the other way around."""
    before, fused = (
        _work(setting(MIXTURE, f"megatron-bridge@{version}", ep=8, precision="mxfp8")) for version in ("26.04", "26.06")
    )
    gone = {item.name for item in _both(before)} - {item.name for item in _both(fused)}
    pads = {"dispatch pad", "combine unpad", "dispatch backward unpad", "combine backward pad"}
    assert gone == {"experts activation", "experts activation backward"} | pads

    def quantized(items: Iterable[Item]) -> list[str]:
        return [item.name for item in items if item.name in ("experts up quantize", "experts down quantize")]

    assert (
        quantized(before.forward)
        == quantized(before.backward)[::-1]
        == ["experts up quantize", "experts down quantize"]
    )
    assert quantized(fused.forward) == ["experts up quantize"]
    assert quantized(fused.backward) == ["experts down quantize"]
    products = [one for _, one in kernels(_both(fused)) if isinstance(one, GroupedGemm)]
    assert len(products) == 6 and {(one.launches, one.separate) for one in products} == {(1, False)}
    assert flops(_both(fused)) == flops(_both(before))


@pytest.mark.parametrize(
    ("dispatcher", "precision", "pads"),
    [
        ("alltoall", "fp8", True),
        ("alltoall", "mxfp8", True),
        ("hierarchical", "mxfp8", True),
        ("alltoall", "bf16", False),
        ("deepep", "fp8", False),
        ("hybridep", "mxfp8", False),
    ],
)
def test_rows_are_padded_for_8_bit_products_behind_an_all_to_all(dispatcher: str, precision: str, pads: bool) -> None:
    """DeepEP and HybridEP pad on the way. All rows of experts are read and written once."""
    names = ["dispatch pad", "combine unpad", "combine backward pad", "dispatch backward unpad"]
    work = _work(setting(MIXTURE, ep=8, dispatcher=dispatcher, precision=precision))
    found = [item for item in _both(work) if item.name.endswith("pad")]
    assert [item.name for item in found] == (names if pads else [])
    rows = TOKENS * 6 * HIDDEN * 2
    copies = [one for _, one in kernels(found)]
    assert copies == [Stream("copy_fused", rows, rows, launches=2)] * len(found)
    assert not any("pad" in item.name for item in _work(setting(MIXTURE, "fsdp", ep=8, precision=precision)).forward)


GPT_OSS = replace(
    MIXTURE,
    layers=(Layer(SelfAttention(16, 4, 64), Experts(64, 4, Mlp(512, True, "silu", bias=True, clamp=True))),) * 2,
)
"""Experts with biases and clamps, each of a width of 512."""


def _streams_of(work: Work, prefix: str) -> list[Stream]:
    found = [item for item in _both(work) if item.name.startswith(prefix)]
    return [one for _, one in kernels(found) if isinstance(one, Stream)]


def test_clamps_of_gates_are_operators_of_their_own() -> None:
    """Forward: two clamps read and write half of a row of 2 x 512 each, cat all of it. Backward: half of that more."""
    work = _work(setting(GPT_OSS, ep=8))
    half = TOKENS * 4 * 512 * 2
    assert _streams_of(work, "experts activation clamp") == [
        Stream("clamp_gates", 4 * half, 4 * half, launches=3),
        Stream("clamp_gates_backward", 5 * half, 5 * half, launches=3),
    ]
    names = [item.name for item in work.forward]
    assert names.index("experts activation clamp") < names.index("experts activation")
    assert not _streams_of(_work(setting(MIXTURE, ep=8)), "experts activation clamp")


@pytest.mark.parametrize(
    ("dispatcher", "name", "forward", "backward"),
    [("alltoall", "expert_bias", 12, 16), ("hybridep", "expert_bias_wide", 28, 40)],
)
def test_biases_of_experts_are_added_in_a_loop(dispatcher: str, name: str, forward: int, backward: int) -> None:
    """A product and a sum for each of 8 experts and a concatenation; four operators for each of them backward."""
    work = _work(setting(GPT_OSS, ep=8, dispatcher=dispatcher))
    elements = TOKENS * 4 * HIDDEN
    there, back = _streams_of(work, "experts bias")
    assert there == Stream(name, forward // 2 * elements, forward // 2 * elements, launches=2 * 8 + 1)
    assert back == Stream(name, backward // 2 * elements, backward // 2 * elements, launches=4 * 8 + 1)
    assert not there.looped, "the loop is in Python"


def test_stacks_that_fuse_clamps_and_biases_have_no_operators_for_them() -> None:
    for name, precision in (("fsdp-compile", "bf16"), ("megatron-bridge@26.06", "mxfp8")):
        work = _work(setting(GPT_OSS, name, ep=8, precision=precision))
        assert not _streams_of(work, "experts activation clamp") and not _streams_of(work, "experts bias")


@pytest.mark.parametrize(
    ("width", "clamp", "forward", "backward"),
    [
        (512, False, "weighted_swiglu_fused", "weighted_swiglu_backward_fused"),
        (768, False, "weighted_swiglu_fused", "weighted_swiglu_backward_uneven_fused"),
        (512, True, "weighted_quick_geglu_fused", "weighted_quick_geglu_backward_fused"),
        (768, True, "weighted_quick_geglu_fused", "weighted_quick_geglu_backward_fused"),
    ],
)
def test_gates_of_experts_are_weighted_by_compiled_code(width: int, clamp: bool, forward: str, backward: str) -> None:
    """Code that divides by a width that is no power of two is slower; etp cuts the width."""
    moe = Experts(64, 6, Mlp(width, True, "silu", clamp=clamp))
    layer = Layer(SelfAttention(16, 4, 64), moe)
    for degrees in ({}, {"tp": 2, "etp": 2}):
        work = layer_work(setting(MIXTURE, ep=4, **degrees), layer, 0)
        gates = [one.name for one in _streams_of(work, "experts activation") if not one.name.startswith("clamp")]
        assert gates == [forward, backward]


def test_gates_of_dense_layers_and_shared_experts_are_clamped_too() -> None:
    mlp = Mlp(512, True, "silu", clamp=True)
    shared = Experts(64, 6, Mlp(512, True, "silu"), shared=mlp)
    for feed_forward, tokens, name in ((mlp, TOKENS, "mlp"), (shared, TOKENS, "shared experts")):
        work = layer_work(setting(MIXTURE, ep=4), Layer(SelfAttention(16, 4, 64), feed_forward), 0)
        half = tokens * 512 * 2
        assert _streams_of(work, f"{name} activation clamp") == [
            Stream("clamp_gates", 4 * half, 4 * half, launches=3),
            Stream("clamp_gates_backward", 5 * half, 5 * half, launches=3),
        ]


def test_nvfp4_has_a_scale_of_all_and_one_for_16_elements_by_one_kernel_for_all_experts() -> None:
    work = _work(setting(MIXTURE, ep=8, precision="nvfp4"))
    largest, blocks = _streams_of(work, "experts up quantize")[:2]
    elements = blocks.read / 2
    assert largest.launches == blocks.launches == 1
    assert largest.name == "quantize_amax_fused" and largest.read == blocks.read
    assert blocks.write == 2 * elements * (1 / 2 + 1 / 16)


def test_gates_of_dense_layers_are_not_weighted() -> None:
    names = streams(_both(_work(setting(LLAMA))))
    assert names["swiglu_fused"] == names["swiglu_backward_fused"] == 1
    assert not any(name.startswith("weighted") for name in names)


def test_cuda_graphs_replay_attention_and_routers_up_to_the_dispatch() -> None:
    forward = _work(setting(MIXTURE, ep=8)).forward
    scopes = [getattr(item, "scope", None) for item in forward]
    names = [item.name for item in forward]
    first, counts, permute = (names.index(name) for name in ("mlp norm", "dispatch counts", "dispatch permute"))
    assert set(scopes[:first]) == {"attention"}
    assert set(scopes[first:permute]) == {"router"} and first < counts < permute
    assert set(scopes[permute:]) == {None}


def test_the_busiest_expert_of_a_rank_has_more_rows_than_the_mean() -> None:
    """8 experts of 6,144 rows: 768 on average, and 1.434 sqrt(768 (1 - 6 / 64)) = 37.8 more in the busiest."""
    up = next(one for _, one in kernels(_work(setting(MIXTURE, ep=8)).forward) if isinstance(one, GroupedGemm))
    assert (up.groups, up.m, up.largest) == (8, 6144, 806)
    alone = next(one for _, one in kernels(_work(setting(MIXTURE, ep=64)).forward) if isinstance(one, GroupedGemm))
    assert (alone.groups, alone.m, alone.largest) == (1, 6144, 6144)


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


@pytest.mark.parametrize(("rows", "groups"), [(1, 2), (2, 3), (7, 64), (64, 64)])
def test_no_expert_is_busier_than_all_rows(rows: int, groups: int) -> None:
    from foretrace.workload.layers.experts import Routed, _busiest

    for share in (0.0, 0.5, 1.0):
        assert rows / groups <= _busiest(rows, Routed(groups, rows, rows, 1, share, 1)) <= rows
    assert _busiest(rows, Routed(groups, rows, rows, 1, 1.0, 1)) == -(-rows // groups), "all tokens go to every expert"
