"""Megatron-LM's arguments: the model and the plan they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.models.model import Mlp, SelfAttention
from foretrace.models.parameters import parameters
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.rules import LaunchedJob
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

GPT = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 2048 --vocab-size 50257 "
LLAMA = """
--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention
--num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --normalization RMSNorm --disable-bias-linear
--position-embedding-type rope --seq-length 8192 --vocab-size 128256 --hidden-dropout 0.0 --attention-dropout 0.0
"""
DEEPSEEK = """
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu --disable-bias-linear
--untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope --seq-length 4096
--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
--v-head-dim 128 --num-experts 256 --moe-router-topk 8 --moe-router-num-groups 8 --moe-router-group-topk 4
--moe-ffn-hidden-size 2048
--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*3+[1]*58) --moe-router-enable-expert-bias
--mtp-num-layers 1 --vocab-size 129280 --hidden-dropout 0 --attention-dropout 0
"""


def read(tmp_path: Path, text: str) -> LaunchedJob:
    path = tmp_path / "train.sh"
    path.write_text(text, encoding="utf-8")
    return read_launch(path)


def quoted(text: str) -> str:
    return text.replace("([0]*3+[1]*58)", '"([0]*3+[1]*58)"')


@pytest.mark.parametrize(("name", "text"), [("llama3-70b", LLAMA), ("deepseek-v3", quoted(DEEPSEEK))])
def test_arguments_are_their_preset(name: str, text: str, tmp_path: Path) -> None:
    job, preset = read(tmp_path, text.replace("\n", " ")), presets.model(name)
    assert job.model.layers == preset.layers
    assert parameters(job.model) == parameters(preset)
    assert (job.model.mtp, job.model.dropout, job.model.tied) == (preset.mtp, False, False)
    assert job.diagnostics == ()


def test_defaults_are_megatrons(tmp_path: Path) -> None:
    job = read(tmp_path, GPT)
    (layer,) = set(job.model.layers)
    assert layer.attention == SelfAttention(16, 16, 64, qkv_bias=True, out_bias=True, rope=False)
    assert layer.feed_forward == Mlp(4096, False, "gelu", bias=True)
    assert (job.model.norm, job.model.tied, job.model.positions) == ("layernorm", True, 2048)
    assert (job.model.position_kind, job.model.dropout) == ("learned", True)
    assert (job.plan["precision"], job.plan["zero"], job.plan["recompute"]) == ("fp32", 0, "none")
    assert any("--ffn-hidden-size is not given" in one.message for one in job.diagnostics)


def test_a_gated_part_is_two_thirds_as_wide(tmp_path: Path) -> None:
    part = read(tmp_path, GPT + "--swiglu").model.layers[0].feed_forward
    assert part == Mlp(2688, True, "silu", bias=True)  # 4096 · 2/3 = 2730, in 64s


def test_a_plan(tmp_path: Path) -> None:
    text = LLAMA.replace("\n", " ") + (
        "--micro-batch-size 2 --global-batch-size 512 --tensor-model-parallel-size 4 --sequence-parallel "
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 --context-parallel-size 2 "
        "--cp-comm-type a2a --bf16 --fp8-format hybrid --recompute-granularity full --recompute-method block "
        "--recompute-num-layers 3 --use-distributed-optimizer --overlap-grad-reduce --tp-comm-overlap "
        "--optimizer-cpu-offload"
    )
    assert read(tmp_path, text).plan == {
        "mbs": 2,
        "gbs": 512,
        "seq_len": 8192,
        "tp": 4,
        "cp": 2,
        "pp": 4,
        "vpp": 4,
        "cp_comm": "a2a",
        "sequence_parallel": True,
        "precision": "fp8",
        "stack": "megatron-core",
        "zero": 1,
        "recompute": "full",
        "recompute_layers": 3,
        "grad_overlap": True,
        "param_overlap": False,
        "tp_overlap": True,
        "offload_optimizer": True,
    }


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--recompute-activations", "recompute", "selective"),
        ("--bf16", "precision", "bf16"),
        ("--fp16", "precision", "fp16"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "precision", "fp8_block"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "precision", "mxfp8"),
        ("--bf16 --fp4-format e2m1", "precision", "nvfp4"),
        ("--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-size 2", "vpp", 2),
        ("--tensor-model-parallel-size 2", "sequence_parallel", False),
        ("--use-tp-pp-dp-mapping --pipeline-model-parallel-size 2", "rank_order", "tp-cp-ep-pp-dp"),
        ("--use-torch-fsdp2", "zero", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim --use-distributed-optimizer", "zero", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "grad_overlap", True),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", "zero", 0),
        ("--bf16 --grad-reduce-in-bf16", "grad_dtype", "bf16"),
        ("--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16", "grad_dtype", "bf16"),
        ("--bf16 --use-precision-aware-optimizer", "moment_dtype", "fp32"),
        ("--bf16 --use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype bf16", "moment_dtype", "bf16"),
        ("--bf16 --use-precision-aware-optimizer --main-params-dtype fp16", "master_dtype", "fp16"),
        ("--bf16 --fp8-format hybrid --fp8-param-gather", "fp8_params", True),
        ("--nproc-per-node 8 --nnodes 4", "gpus", 32),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "cuda_graphs", "full"),
        ("--cuda-graph-impl full_iteration", "cuda_graphs", "full"),
        ("--cuda-graph-impl local --cuda-graph-modules moe_router moe_preprocess", "cuda_graphs", "router"),
        ("--enable-cuda-graph", "cuda_graphs", "partial"),
        ("--cuda-graph-impl transformer_engine", "cuda_graphs", "partial"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router", "cuda_graphs", "partial"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope moe_router", "cuda_graphs", "router"),
        ("--cuda-graph-impl local --cuda-graph-scope moe_router moe_preprocess", "cuda_graphs", "router"),
        ("--moe-enable-deepep", "dispatcher", "deepep"),
        ("--moe-flex-dispatcher-backend hybridep", "dispatcher", "hybridep"),
        ("--num-experts 8 --expert-model-parallel-size 4", "ep", 4),
        ("--num-experts 8 --tensor-model-parallel-size 2", "etp", 2),
        ("--num-experts 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1", "etp", 1),
        ("--cpu-offloading-num-layers 2", "offload_layers", 2),
    ],
)
def test_options_of_a_plan(words: str, field: str, value: object, tmp_path: Path) -> None:
    assert read(tmp_path, GPT + words).plan[field] == value


@pytest.mark.parametrize(
    "words", ["--cuda-graph-impl none --cuda-graph-scope full_iteration", "--cuda-graph-scope attn"]
)
def test_a_scope_of_no_graphs_is_reported(words: str, tmp_path: Path) -> None:
    job = read(tmp_path, GPT + words)
    assert "cuda_graphs" not in job.plan
    assert "field-ignored" in {note.code for note in job.diagnostics}


@pytest.mark.parametrize(
    "words",
    [
        "--bf16",
        "--bf16 --accumulate-allreduce-grads-in-fp32",
        "--bf16 --main-grads-dtype bf16",
        "--grad-reduce-in-bf16",
        "--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32",
    ],
)
def test_gradients_are_in_fp32_unless_they_are_told_otherwise(words: str, tmp_path: Path) -> None:
    job = read(tmp_path, GPT + words)
    assert "grad_dtype" not in job.plan
    assert not any("dtype" in one.message for one in job.diagnostics if one.code == "unused-flags")


@pytest.mark.parametrize("words", ["--exp-avg-dtype int4", "--use-megatron-fsdp --data-parallel-sharding-strategy all"])
def test_dtypes_and_strategies_that_megatron_does_not_have(words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, GPT + words)
    assert caught.value.code == "unknown-name"


def test_what_a_plan_takes_from_elsewhere_is_marked(tmp_path: Path) -> None:
    job = read(tmp_path, GPT + "--nproc-per-node 8 --nnodes 4 --num-experts 8 --tensor-model-parallel-size 2")
    assert set(job.plan_guesses) == {"gpus", "etp"}


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("--vocab-file v.json --merge-file m.txt", 50257),
        ("--tokenizer-type GPT2BPETokenizer", 50257),
        ("--tokenizer-type Llama2Tokenizer", 32000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B", 128256),
    ],
)
def test_the_tokenizer_tells_the_vocabulary(words: str, size: int, tmp_path: Path) -> None:
    job = read(tmp_path, GPT.replace("--vocab-size 50257", "") + words)
    assert job.model.vocab == size
    assert any(f"taken as {size:,}" in one.message for one in job.diagnostics)


def test_the_null_tokenizer_adds_a_token(tmp_path: Path) -> None:
    assert read(tmp_path, GPT + "--tokenizer-type NullTokenizer").model.vocab == 50258


def test_every_second_layer_has_experts(tmp_path: Path) -> None:
    layers = read(tmp_path, GPT + "--num-experts 8 --moe-layer-freq 2").model.layers
    assert [isinstance(layer.feed_forward, Mlp) for layer in layers] == [False, True, False, True]


def test_an_unknown_value_is_said_and_left_out(tmp_path: Path) -> None:
    job = read(tmp_path, GPT + "--global-batch-size $GBS --save $DIR")
    assert "gbs" not in job.plan
    warnings = [one.message for one in job.diagnostics if one.level == "warning"]
    assert warnings == ["--global-batch-size has a value that is not in this file: left out"]


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ("--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2", (2, 1, 1)),
        ("--pipeline-model-parallel-size 3 --decoder-last-pipeline-num-layers 0", None),
        ("--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 1", (3, 1)),
        (
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3 "
            "--decoder-last-pipeline-num-layers 1",
            (3, 1),
        ),
        (
            "--num-layers 10 --pipeline-model-parallel-size 3 --num-virtual-stages-per-pipeline-rank 2 "
            "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 2",
            (2, 2, 1, 2, 2, 1),
        ),
        ("--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 1", None),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 9", None),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
            "--decoder-first-pipeline-num-layers 3",
            None,
        ),
    ],
)
def test_uneven_stages(words: str, layers: tuple[int, ...] | None, tmp_path: Path) -> None:
    if layers is not None:
        job = read(tmp_path, GPT + words)
        setting = settle(job.model, Plan(**{**job.plan, "gpus": job.plan["pp"], "gbs": None}))  # type: ignore[arg-type]
        assert tuple(map(len, setting.chunks)) == layers
        return
    with pytest.raises(InputError) as caught:
        read(tmp_path, GPT + words)
    assert caught.value.code in ("not-divisible", "out-of-range")


def test_a_layout_is_read_as_it_is_written(tmp_path: Path) -> None:
    words = '--pipeline-model-parallel-size 16 --pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"'
    job = read(tmp_path, quoted(DEEPSEEK) + words)
    assert job.plan["layout"] == "Et*3|(tt|)*29,m|L"
    assert "field-ignored" not in {note.code for note in job.diagnostics}
    setting = settle(job.model, Plan(**{**job.plan, "gpus": 16, "gbs": 16}))  # type: ignore[arg-type]
    assert (setting.plan.vpp, setting.schedule, setting.mtp_chunk) == (2, "interleaved-1f1b", 30)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--pipeline-model-parallel-layout 'Et*61|mLx'", "bad-value"),
        ("--pipeline-model-parallel-layout 'Et*60|mL'", "bad-plan"),
        ("--pipeline-model-parallel-layout 'Et*61|m|L'", "bad-plan"),
        ("--pipeline-model-parallel-layout 'Et*61|mL' --decoder-first-pipeline-num-layers 31", "conflicting-options"),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", "not-divisible"),
    ],
)
def test_a_division_that_megatron_refuses_is_refused(words: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f"{quoted(DEEPSEEK)} --pipeline-model-parallel-size 2 {words}")
    assert caught.value.code == code


def test_ends_that_count_as_layers(tmp_path: Path) -> None:
    words = "--pipeline-model-parallel-size 9 --num-layers-per-virtual-pipeline-stage 3"
    job = read(tmp_path, f"{LLAMA} {words} --account-for-loss-in-pipeline-split")
    assert (job.plan["account_for"], job.plan["vpp"]) == (("loss",), 3)


@pytest.mark.parametrize(
    ("words", "recompute", "modules", "code"),
    [
        ("--recompute-activations --recompute-modules core_attn", "selective", ("core_attn",), None),
        ("--recompute-activations --recompute-modules mlp moe_act", "selective", ("moe_act", "mlp"), None),
        ("--recompute-granularity selective --recompute-modules mlp mhc", "selective", ("mlp",), "not-modelled"),
        ("--recompute-granularity selective --recompute-modules mhc", "none", None, "not-modelled"),
        ("--recompute-granularity full --recompute-modules mlp", "full", None, "field-ignored"),
        ("--recompute-modules mlp", "none", None, "field-ignored"),
    ],
)
def test_modules_to_recompute(
    words: str, recompute: str, modules: tuple[str, ...] | None, code: str | None, tmp_path: Path
) -> None:
    job = read(tmp_path, f"{GPT} {words}")
    assert (job.plan["recompute"], job.plan.get("recompute_modules")) == (recompute, modules)
    assert {note.code for note in job.diagnostics} & {"not-modelled", "field-ignored", "unused-flags"} == (
        {code} if code else set()
    )


def test_modules_to_offload_and_narrow_inputs(tmp_path: Path) -> None:
    options = "--offload-modules core_attn attn_proj --activation-func-fp8-input-store"
    job = read(tmp_path, f"{GPT} --fine-grained-activation-offloading {options}")
    assert (job.plan["offload_modules"], job.plan["fp8_activation_input"]) == (("core_attn", "attn_proj"), True)
    assert "unused-flags" not in {note.code for note in job.diagnostics}
    assert "offload_modules" not in read(tmp_path, f"{GPT} {options}").plan


def test_flags_without_use_are_listed_once(tmp_path: Path) -> None:
    job = read(tmp_path, GPT + "--lr 1e-4 --save $DIR --moe-token-dispatcher-type alltoall --bf16")
    (note,) = [note for note in job.diagnostics if note.code == "unused-flags"]
    flags = {word for word in note.message.split() if word.startswith("--")}
    assert flags == {"--lr", "--save", "--moe-token-dispatcher-type"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GPT.replace("--num-layers 4", ""), "--num-layers is missing"),
        (
            GPT.replace("--vocab-size 50257", "--tokenizer-type HuggingFaceTokenizer"),
            "--vocab-size is missing, and the tokenizer does not tell",
        ),
        (GPT.replace("16", "15"), "--hidden-size 1024 is no multiple of --num-attention-heads 15"),
        (GPT + "--group-query-attention --num-query-groups 3", "is no multiple of --num-query-groups 3"),
        (GPT + "--position-embedding-type sine", '"sine" is not known'),
        (GPT + "--num-experts 2 --moe-router-topk 3", "cannot go to 3 of 2 experts"),
        (GPT + "--num-experts 8 --moe-router-num-groups 3", "cannot go to 2 of 8 experts in 3 of 3 groups"),
        (GPT + '--num-experts 2 --moe-layer-freq "[1]*3"', "does not say which of 4 layers"),
        (GPT + "--num-experts 2 --moe-layer-freq __import__", "does not say which of 4 layers"),
        (GPT + "--recompute-granularity some", '"some" is not known'),
        (GPT + "--bf16 --fp8-format hybrid --fp8-recipe odd", '"odd" is not known'),
        (GPT + "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "no multiple of 2 stages"),
        (GPT + "--hidden-dropout lots", "is not a number"),
    ],
)
def test_mistakes(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert problem in refused.value.message
    assert str(tmp_path) in (refused.value.where or "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--bf16 --exp-avg-dtype bf16", "field-ignored"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", "not-modelled"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "not-modelled"),
    ],
)
def test_what_changes_memory_and_is_not_followed_is_reported(words: str, code: str, tmp_path: Path) -> None:
    option = words.split()[-2].removeprefix("--")
    notes = [note for note in read(tmp_path, GPT + words).diagnostics if note.code == code]
    assert any(option in note.message for note in notes)


def test_parameters_are_in_8_bits_only_where_products_are(tmp_path: Path) -> None:
    assert "fp8_params" not in read(tmp_path, GPT + "--bf16 --fp8-param-gather").plan


def test_a_given_model_counts_and_another_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(LLAMA.replace("\n", " "), encoding="utf-8")
    same = read_launch(path, presets.model("llama3-70b"))
    assert same.diagnostics == ()
    other = read_launch(path, presets.model("llama3-8b"))
    assert other.model is presets.model("llama3-8b")
    assert {note.code for note in other.diagnostics} == {"conflicting-values"}


MOE = GPT + "--num-experts 8 --expert-model-parallel-size 2 "


@pytest.mark.parametrize(
    ("flags", "dispatcher"),
    [
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
        ("--moe-token-dispatcher-type flex", "deepep"),
        ("--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend deepep", None),
        ("--moe-token-dispatcher-type allgather", None),
    ],
)
def test_the_backend_of_a_dispatcher_counts_where_its_type_is_flex(
    flags: str, dispatcher: str | None, tmp_path: Path
) -> None:
    assert read(tmp_path, MOE + flags).plan.get("dispatcher") == dispatcher


@pytest.mark.parametrize(
    "flags",
    [
        "--moe-token-dispatcher-type bogus",
        "--moe-flex-dispatcher-backend bogus",
        "--cuda-graph-impl bogus",
        "--cuda-graph-impl transformer_engine --cuda-graph-scope attn bogus",
        "--cuda-graph-impl transformer_engine --cuda-graph-modules attn bogus",
    ],
)
def test_words_that_megatron_does_not_know_are_refused(flags: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, MOE + flags)
    assert refused.value.code == "unknown-name"
