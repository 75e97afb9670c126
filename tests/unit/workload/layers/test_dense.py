"""Dense layers: products, collectives and their order, kernels by stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from foretrace.models.flops import forward_flops
from foretrace.models.model import Layer, Model, SelfAttention
from foretrace.models.parameters import head_parameters, layer_parameters, norm_parameters
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Attention, Gemm, Stream
from foretrace.step.spec import Call, Compute, Item, Work
from foretrace.workload.layers import embedding_work, head_work, layer_work
from foretrace.workload.setting import Setting
from foretrace.workload.stacks import STACKS
from unit.workload.layers.settings import GPT, LLAMA, flops, kernels, product_flops, setting, streams, talks


def _work(of: Setting) -> Work:
    return layer_work(of, of.model.layers[0], 0)


def _all(work: Work) -> tuple[Item, ...]:
    return (*work.forward, *work.backward)


def _named(items: Iterable[Item], name: str) -> list[Item]:
    return [item for item in items if item.name == name]


@pytest.mark.parametrize("model", [LLAMA, GPT])
@pytest.mark.parametrize("name", sorted(name for name, entry in STACKS.items() if entry.attention != "unfused"))
def test_forward_flops_are_the_closed_formula(model: Model, name: str) -> None:
    of = setting(model, name, mbs=2)
    layers = [layer_work(of, layer, number) for number, layer in enumerate(model.layers)]
    expected = forward_flops(model, 1024)
    assert sum(flops(work.forward) for work in layers) == pytest.approx(2 * (expected.linear + expected.attention))
    assert flops(head_work(of).forward) == pytest.approx(2 * expected.head)


def test_unfused_attention_computes_masked_scores_too() -> None:
    fused = flops(_work(setting(GPT, mbs=2)).forward)
    whole = flops(_work(setting(GPT, "megatron-2021", mbs=2, precision="fp16")).forward)
    masked = 2 * 2 * 2 * 16 * 64 * 1024 * 1024 // 2
    assert whole - fused == pytest.approx(masked)


@pytest.mark.parametrize("model", [LLAMA, GPT])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_parameters_are_the_rank_s_share(model: Model, tp: int) -> None:
    of = setting(model, tp=tp)
    work = _work(of)
    share = layer_parameters(model.layers[0], model.hidden, norm_parameters(model), tp=tp)
    assert (work.parameters, work.expert_parameters) == (share.dense, 0)
    assert embedding_work(of).parameters == model.hidden * (model.vocab // tp + model.positions)
    assert head_work(of).parameters == head_parameters(model, tp=tp)


def test_products_of_one_rank_have_its_shapes() -> None:
    found = [one for _, one in kernels(_work(setting(LLAMA, tp=8, mbs=4)).forward) if isinstance(one, Gemm)]
    # 16 query heads over 8 ranks; 4 key/value heads are fewer than ranks: one each.
    assert [(one.m, one.n, one.k) for one in found] == [
        (4096, (2 + 2) * 64, 1024),
        (4096, 1024, 128),
        (4096, 2 * 352, 1024),
        (4096, 1024, 352),
    ]


def test_without_sequence_parallelism_outputs_are_summed() -> None:
    work = _work(setting(LLAMA, tp=2, sp=False))
    whole = 1024 * 1024 * 2
    assert [(one.collective, one.bytes) for one in talks(work.forward)] == [(Collective.ALL_REDUCE, whole)] * 2
    assert [(one.collective, one.concurrent) for one in talks(work.backward)] == [(Collective.ALL_REDUCE, "next")] * 2


def test_with_sequence_parallelism_the_input_is_gathered_again_beside_the_input_gradient() -> None:
    work = _work(setting(LLAMA, tp=2))
    kinds = [one.collective for one in talks(work.forward)]
    assert kinds == [Collective.ALL_GATHER, Collective.REDUCE_SCATTER] * 2
    at = next(number for number, item in enumerate(work.backward) if item.name == "qkv gather again")
    order = [(item.name, getattr(item, "concurrent", None)) for item in work.backward[at : at + 4]]
    assert order == [
        ("qkv gather again", "next"),
        ("qkv input gradient", None),
        ("qkv reduce gradient", "next"),
        ("qkv weight gradient", None),
    ]


@pytest.mark.parametrize("name", list(STACKS))
def test_one_rank_talks_to_nobody(name: str) -> None:
    of = setting(LLAMA, name)
    for work in (_work(of), embedding_work(of), head_work(of)):
        assert talks((*work.forward, *work.backward)) == []


def test_megatron_adds_weight_gradients_into_fp32() -> None:
    found = [
        one
        for item in _work(setting(LLAMA)).backward
        if isinstance(item, Compute) and item.phase == Phase.BACKWARD_WEIGHT
        for _, one in item.kernels
        if isinstance(one, Gemm)
    ]
    assert len(found) == 4
    assert {(one.out, one.accumulate, one.layout) for one in found} == {("fp32", True, "nt")}


def test_pytorch_runs_the_weight_gradient_first() -> None:
    names = [item.name for item in _work(setting(LLAMA, "torch-eager")).backward]
    assert names.index("mlp down weight gradient") < names.index("mlp down input gradient")
    assert names.index("mlp down input gradient") < names.index("mlp up weight gradient")


def test_compiled_code_launches_fewer_kernels_and_moves_fewer_bytes() -> None:
    def cost(name: str) -> tuple[int, float]:
        found = kernels((*_work(setting(LLAMA, name)).forward, *_work(setting(LLAMA, name)).backward))
        return sum(n * one.launches for n, one in found), sum(n * one.moved_bytes for n, one in found)

    eager, compiled = cost("torch-eager"), cost("torch-compile")
    assert compiled[0] < 0.6 * eager[0]
    assert compiled[1] < eager[1]


def test_dropout_and_biases_are_kernels_of_their_own_in_megatron_2021() -> None:
    work = _work(setting(GPT, "megatron-2021", precision="fp16"))
    forward = streams(work.forward)
    assert (forward["softmax_fused"], forward["dropout"], forward["bias_gelu"], forward["bias_dropout_add"]) == (
        1,
        1,
        1,
        2,
    )
    # Three biases are summed beside fused kernels, the one of queries, keys and values beside its product.
    assert streams(work.backward)["reduce"] == 4


def test_windows_and_documents_shorten_attention() -> None:
    def pairs(of: Setting) -> int:
        return next(one.pairs for _, one in kernels(_work(of).forward) if isinstance(one, Attention))

    windowed = replace(LLAMA, layers=(Layer(SelfAttention(16, 4, 64, window=256), LLAMA.layers[0].feed_forward),))
    assert pairs(setting(LLAMA)) == 1024 * 1024 // 2
    assert pairs(setting(windowed)) == 256 * 1024 - 256 * 256 // 2
    assert pairs(setting(LLAMA, documents=(256, 768))) == (256 * 256 + 768 * 768) // 2


@pytest.mark.parametrize(("documents", "window"), [(None, 256), ((256,) * 4, 0), ((257, 767), 256)])
def test_documents_within_a_window_are_not_cut_by_it(documents: tuple[int, ...] | None, window: int) -> None:
    windowed = replace(LLAMA, layers=(Layer(SelfAttention(16, 4, 64, window=256), LLAMA.layers[0].feed_forward),))
    work = _work(setting(windowed, documents=documents))
    assert next(one.window for _, one in kernels(work.forward) if isinstance(one, Attention)) == window


@pytest.mark.parametrize("comm", ["p2p", "all_gather", "a2a"])
def test_context_parallelism_divides_attention(comm: str) -> None:
    alone = _work(setting(LLAMA, seq_len=4096))
    shared = _work(setting(LLAMA, seq_len=4096, cp=4, cp_comm=comm))
    assert flops(shared.forward) == pytest.approx(flops(alone.forward) / 4)
    assert flops(shared.backward) == pytest.approx(flops(alone.backward) / 4)
    keys_and_values = 4096 * 2 * 4 * 64 * 2
    found = talks(shared.forward, "cp")
    if comm == "a2a":
        assert [one.collective for one in found] == [Collective.ALL_TO_ALL] * 4
    else:
        assert [(one.bytes, one.concurrent) for one in found] == [(keys_and_values, "next" if comm == "p2p" else None)]


@pytest.mark.parametrize(("name", "compiled"), [("fsdp", False), ("fsdp-compile", True)])
def test_pytorch_attends_to_one_rank_after_the_other_and_merges_in_fp32(name: str, compiled: bool) -> None:
    work = _work(setting(LLAMA, name, seq_len=4096, cp=4, cp_comm="all_gather"))
    keys_and_values = 2 * 4096 * 16 * 64 * 2  # keys and values of all query heads
    beside = None if compiled else "next"
    assert [(one.bytes, one.concurrent) for one in talks(work.forward, "cp")] == [(keys_and_values, beside)]
    # Backward, gradients of both in fp32 go along.
    assert [(one.bytes, one.concurrent) for one in talks(work.backward, "cp")] == [(3 * keys_and_values, beside)]
    assert [count for count, _ in kernels(_named(work.forward, "attention"))] == [1, 3], "its own part, three others"
    merges = streams(_named(work.forward, "attention merge"))
    assert merges["add"] == (3 if compiled else 2 * 3)
    assert streams(_named(work.backward, "attention merge"))["add"] == 2 * 4


def test_rows_of_fp8_operands_are_scaled_where_they_are_whole() -> None:
    tensor, rows = (
        _work(setting(LLAMA, name, tp=4, precision="fp8")) for name in ("fsdp-compile", "fsdp-compile-rowwise")
    )
    # What is gathered is in 16 bits, and then quantized whole; the products are the same.
    assert talks(rows.forward)[0].bytes == 2 * talks(tensor.forward)[0].bytes
    assert talks(rows.forward)[0].bytes == talks(_work(setting(LLAMA, "fsdp-compile", tp=4)).forward)[0].bytes
    assert product_flops(_all(rows)) == product_flops(_all(tensor))
    products = [one for _, one in kernels(_all(rows)) if isinstance(one, Gemm)]
    assert {one.dtype for one in products} == {"fp8"}
    # Seven weights, and the inputs of attention, of its projection back, of gate and up together, and of down.
    assert streams(rows.forward)["quantize_rows"] == 7 + 4
    assert streams(rows.backward)["quantize_rows"] == 7
    assert streams(rows.backward)["quantize_columns"] == 2 * (7 + 7 + 4)
    assert streams(rows.backward)["mul"] == 7, "results of input gradients are scaled after them"
    bf16 = _work(setting(LLAMA, "fsdp-compile", tp=4))
    assert rows.saved_bytes == bf16.saved_bytes, "inputs are kept in 16 bits"


def test_rows_are_scaled_in_fp8_alone() -> None:
    for precision in ("bf16", "fp8_block"):
        plain, rows = (
            _work(setting(LLAMA, name, precision=precision)) for name in ("fsdp-compile", "fsdp-compile-rowwise")
        )
        assert (plain.forward, plain.backward, plain.saved_bytes) == (rows.forward, rows.backward, rows.saved_bytes)


def test_full_recompute_of_2023_runs_the_last_product_again() -> None:
    mpt = replace(GPT, dropout=False)
    whole, stopped = (_work(setting(mpt, name, recompute="full")) for name in ("llm-foundry@2023", "llm-foundry"))
    assert product_flops(whole.recompute) == product_flops(whole.forward)
    down = 2 * 1024 * 4096 * 1024
    assert product_flops(stopped.recompute) == product_flops(whole.recompute) - down


def test_llm_foundry_packs_sequences_around_flash_attention_2() -> None:
    packed, plain = (_work(setting(GPT, name)) for name in ("llm-foundry", "llm-foundry@2023"))
    size = 1024 * 1024 * 2
    more = streams(packed.forward) - streams(plain.forward)
    assert more == {"copy": 3, "zero": 1, "put_rows": 1}
    assert streams(packed.backward) - streams(plain.backward) == {"zero": 3, "scatter_rows": 3, "copy": 1}
    assert packed.saved_bytes == plain.saved_bytes + size, "the output is there twice"
    backends = [
        {one.backend for _, one in kernels(_all(work)) if isinstance(one, Attention)} for work in (packed, plain)
    ]
    assert backends == [{"flash2"}, {"triton"}]


def test_8_bit_layers_quantize_inputs_and_gradients_and_leave_the_head_alone() -> None:
    of = setting(LLAMA, precision="fp8")
    work = _work(of)
    # For each of four linear layers a pass finds the scale, another applies it.
    passes = ("quantize_amax_fused", "quantize_cast_both_fused")
    assert [streams(work.forward)[name] for name in passes] == [4, 4]
    # Backward, gradients, and attention's output again, which is kept in 16 bits.
    assert [streams(work.backward)[name] for name in passes] == [5, 5]
    products = [one for _, one in kernels((*work.forward, *work.backward)) if isinstance(one, Gemm)]
    assert {(one.dtype, one.layout) for one in products} == {("fp8", "tn"), ("fp8", "nn"), ("fp8", "nt")}
    assert {one.dtype for _, one in kernels(head_work(of).forward) if isinstance(one, Gemm)} == {"bf16"}


@pytest.mark.parametrize(
    ("stack", "forward", "to_input", "to_weight"), [("megatron-core@0.15", 2, 2, 2), ("megatron-core@0.16", 1, 1, 0)]
)
def test_scales_of_blocks_are_swizzled_before_products(stack: str, forward: int, to_input: int, to_weight: int) -> None:
    """From Transformer Engine 2.12 on those of weights only, of which a weight gradient has none."""

    def swizzles(precision: str, suffix: str) -> list[int]:
        items = _all(_work(setting(LLAMA, stack, precision=precision)))
        layers = ("qkv", "attention out", "mlp up", "mlp down")
        names = [f"{layer}{suffix}" for layer in layers]
        return [streams([item])["quantize_mx_fused"] for item in items if item.name in names]

    assert swizzles("mxfp8", "") == [forward] * 4
    assert swizzles("mxfp8", " input gradient") == [to_input] * 4
    assert swizzles("mxfp8", " weight gradient") == [to_weight] * 4
    assert swizzles("fp8", "") == swizzles("fp8_block", "") == [0] * 4


def test_swizzled_scales_are_a_32nd_of_the_elements() -> None:
    def moved(stack: str, suffix: str) -> int:
        items = _all(_work(setting(LLAMA, stack, precision="mxfp8")))
        (item,) = (item for item in items if item.name == f"mlp down{suffix}")
        return sum(one.read for _, one in kernels([item]) if isinstance(one, Stream))

    weight, rows, gradients = 2816 * 1024, 1024 * 2816, 1024 * 1024
    assert moved("megatron-core@0.16", "") == weight // 32
    assert moved("megatron-core@0.15", "") == (weight + rows) // 32
    assert moved("megatron-core@0.15", " input gradient") == (weight + gradients) // 32
    assert moved("megatron-core@0.15", " weight gradient") == (rows + gradients) // 32


def test_products_beside_tp_collectives_are_cut_along_their_tokens() -> None:
    whole, cut = (_work(setting(LLAMA, tp=4, tp_overlap=overlap)) for overlap in (False, True))
    assert flops(_all(cut)) == pytest.approx(flops(_all(whole)))
    counts = {item.name: item.kernels[-1][0] for item in _all(cut) if isinstance(item, Compute)}
    assert counts["qkv"] == counts["mlp down input gradient"] == 4, "as many as ranks, gathered around a ring"
    assert counts["attention out"] == 4, "as many as Transformer Engine's splits"
    assert counts["qkv input gradient"] == counts["mlp up weight gradient"] == 1


def test_torchtitan_norms_and_rotates_operator_by_operator_in_fp32() -> None:
    eager, fused = (streams(_work(setting(LLAMA, name)).forward) for name in ("fsdp", "torch-eager"))
    assert eager["rmsnorm"] == 0 and fused["rmsnorm"] == 2
    assert eager["mul_complex"] == 2 and fused["mul_complex"] == 0, "queries and keys"
    assert eager["cast"] == 2 * 2 + 2 * 2, "there and back, of two norms and of queries and keys"


def test_gathers_of_8_bit_inputs_are_half_as_large() -> None:
    wide, narrow = (talks(_work(setting(LLAMA, tp=2, precision=one)).forward)[0] for one in ("bf16", "mxfp8"))
    assert wide.bytes == 2 * narrow.bytes


def test_vocabulary_parallel_loss_sums_three_numbers_per_token() -> None:
    found = talks(head_work(setting(LLAMA, tp=4)).forward)
    assert [one.bytes for one in found if one.collective == Collective.ALL_REDUCE] == [1024 * 4] * 3


def test_backward_products_are_twice_the_forward_s() -> None:
    for name in STACKS:
        work = _work(setting(LLAMA, name))
        assert product_flops(work.backward) == pytest.approx(2 * product_flops(work.forward))


def test_items_are_hidden_only_before_compute() -> None:
    for of in (setting(LLAMA, tp=4, cp=2), setting(GPT, tp=4, sp=False)):
        for items in (_work(of).forward, _work(of).backward):
            for item, following in pairwise(items):
                if isinstance(item, Call) and item.concurrent:
                    assert isinstance(following, Compute)


def test_metrics_of_training_compute_the_loss_again() -> None:
    of = setting(GPT, "llm-foundry")
    plain = replace(of, stack=replace(of.stack, metrics=0))
    more, fewer = streams(head_work(of).backward), streams(head_work(plain).backward)
    assert more["log_softmax"] - fewer["log_softmax"] == 2
    assert more["cast"] - fewer["cast"] == 2
    assert head_work(of).saved_bytes == head_work(plain).saved_bytes
