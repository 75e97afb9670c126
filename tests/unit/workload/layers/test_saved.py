"""What a layer keeps for its backward: published formulas, and measured peaks of whole steps."""

from __future__ import annotations

import json

import pytest

from foretrace.models.model import Layer, Mlp, Model, SelfAttention
from foretrace.program.columns import Phase
from foretrace.step.spec import Compute, Work
from foretrace.workload.layers import embedding_work, head_work, layer_work
from foretrace.workload.setting import Setting
from shared_files import shared
from unit.workload.layers.settings import GPT, LLAMA, setting, streams

S, B, H, A = 1024, 2, 1024, 16


def _work(of: Setting, number: int = 0) -> Work:
    return layer_work(of, of.model.layers[number], number)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_korthikanti_s_formulas(tp: int) -> None:
    """arXiv:2205.05198, equations 2, 4 and 6; they leave out the norms' statistics, 8 bytes a token each."""
    split, whole = (setting(GPT, "megatron-2021", mbs=B, tp=tp, precision="fp16", sp=sp) for sp in (tp > 1, False))
    selective = setting(GPT, "megatron-2021", mbs=B, tp=tp, precision="fp16", recompute="selective")
    scores = 5 * A * S / H
    statistics = 2 * 8 * S * B
    assert _work(whole).saved_bytes - statistics == S * B * H * (10 + (24 + scores) / tp)
    assert _work(split).saved_bytes - statistics / tp == S * B * H * (34 + scores) / tp
    assert _work(selective).saved_bytes - statistics / tp == S * B * H * 34 / tp


def test_full_recompute_keeps_the_input_and_runs_everything_again() -> None:
    none, full = (_work(setting(LLAMA, tp=2, mbs=B, recompute=one)) for one in ("none", "full"))
    assert full.saved_bytes == S * B * H * 2 // 2
    assert full.saved_bytes + full.recomputed_bytes == none.saved_bytes
    assert [one.name for one in full.recompute] == [one.name for one in none.forward]
    assert {one.phase for one in full.recompute} == {Phase.RECOMPUTE}


def test_non_reentrant_checkpoints_stop_before_the_last_product() -> None:
    names = [one.name for one in _work(setting(LLAMA, "torch-eager", recompute="full")).recompute]
    assert names[-1] == "mlp activation"


def test_selective_recompute_is_core_attention_in_megatron() -> None:
    work = _work(setting(LLAMA, recompute="selective"))
    assert [one.name for one in work.recompute] == ["attention"]


def test_selective_recompute_is_every_second_product_in_torchtitan() -> None:
    work = _work(setting(LLAMA, "fsdp", recompute="selective"))
    names = [one.name for one in work.recompute]
    products = [one for one in names if one in {"q", "k", "v", "attention out", "mlp gate", "mlp up", "mlp down"}]
    assert products == ["k", "attention out", "mlp up"]
    assert "attention" not in names
    tokens = 2 * S  # bytes of a 16-bit element for each
    kept = tokens * (H + H + 256 + H + 2816 + H) + S * A * 4
    assert work.saved_bytes == kept


def test_only_the_first_layers_of_a_stage_are_recomputed() -> None:
    of = setting(LLAMA, recompute="full", recompute_layers=1)
    assert [bool(_work(of, number).recompute) for number in range(2)] == [True, False]


def test_8_bit_layers_keep_narrower_inputs() -> None:
    wide, narrow = (_work(setting(LLAMA, precision=one)).saved_bytes for one in ("bf16", "mxfp8"))
    # Two norm outputs and the product lose a byte an element; attention's output is kept once, in 16 bits.
    assert wide - narrow == S * (2 * H + 2816)


def _measured_model(row: dict[str, object]) -> Model:
    llama = row["style"] == "llama"
    size = {name: int(str(row[name])) for name in ("heads", "kv", "head_dim", "ffn", "layers", "hidden", "vocab")}
    mixer = SelfAttention(size["heads"], size["kv"], size["head_dim"], not llama, not llama, rope=llama)
    layer = Layer(mixer, Mlp(size["ffn"], llama, "silu" if llama else "gelu", bias=not llama))
    return Model(
        str(row["name"]),
        size["hidden"],
        (layer,) * size["layers"],
        size["vocab"],
        "rmsnorm" if llama else "layernorm",
        False,
        position_kind="rope" if llama else "none",
    )


def test_measured_peaks_of_one_gpu() -> None:
    """Parameters and AdamW's states in bf16, cuBLAS's workspaces, what is kept, what runs at the worst moment.

    Two facts were chosen with these peaks in view, so they are no proof of them: the loss of slices without
    vocabulary, and that the logits are freed before the backward.
    """
    errors = {}
    for number, line in enumerate(shared("data", "h200", "single_gpu_steps.jsonl").read_text().splitlines()):
        row = json.loads(line)
        model = _measured_model(row)
        name = "torch-compile" if row["compile"] else "torch-eager"
        of = setting(model, name, row["seq"], mbs=row["mbs"], recompute=row["recompute"])
        assert _peak_bytes(of, row["params"]) == pytest.approx(row["peak_gb"] * 2**30, rel=0.02), row["name"]
        errors[number] = _peak_bytes(of, row["params"]) / row["peak_gb"] / 2**30 - 1
    assert len(errors) == 8
    assert sum(abs(one) for one in errors.values()) / len(errors) < 0.005


def _peak_bytes(of: Setting, parameters: int) -> int:
    layers = [_work(of, number) for number in range(len(of.model.layers))]
    head, embedding = head_work(of), embedding_work(of)
    assert sum(work.parameters for work in (*layers, head, embedding)) == parameters
    resident = 6 * parameters + 64 * 2**20
    kept = sum(work.saved_bytes for work in (*layers, embedding))
    peak = kept + head.saved_bytes + _temporary(head)
    gradients = 2 * head.parameters
    for work in reversed(layers):
        gradients += 2 * work.parameters
        peak = max(peak, kept + work.recomputed_bytes + gradients + _temporary(work) + 2 * work.output_bytes)
        kept -= work.saved_bytes
    return resident + peak


def _temporary(work: Work) -> int:
    return max(item.temporary_bytes for item in work.backward if isinstance(item, Compute))


def test_kernels_of_a_traced_step() -> None:
    """Counts by operator of one step of TinyLlama (22 layers) in a Kineto trace of PyTorch 2.11."""
    attention = SelfAttention(32, 4, 64)
    model = Model("tiny", 2048, (Layer(attention, Mlp(5632, True, "silu")),) * 22, 32000, "rmsnorm", False)
    of = setting(model, "torch-eager", 2048, mbs=4)
    works = [*(_work(of, number) for number in range(22)), head_work(of), embedding_work(of)]
    found = sum((streams((*work.forward, *work.backward)) for work in works), start=streams(()))
    # The trace has 220 products that are not vectorised: four of eager rope each way, one of the gate each way.
    assert (found["mul_broadcast"], found["mul_strided"]) == (176, 44)
    assert (found["neg_strided"], found["cat_strided"], found["add_strided"]) == (88, 88, 88)
    assert (found["mul"], found["add"], found["cat"]) == (22, 88, 44)
    assert (found["silu_strided"], found["silu_backward_strided"]) == (22, 22)
    assert (found["rmsnorm"], found["rmsnorm_backward"]) == (45, 90)
    assert (found["log_softmax"], found["log_softmax_backward"], found["cast"], found["zero"]) == (1, 1, 2, 1)
