"""Rows of measured runs to models, plans and clusters."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.model import Experts, LatentAttention, Mlp
from foretrace.models.parameters import parameters
from foretrace.validate.rows import job_of
from foretrace.validate.training_runs import RunConfig, read_training_runs
from foretrace.workload.settle import settle
from shared_files import shared

BASE = RunConfig(
    id="row",
    where="runs.csv:2",
    family="megatron-bridge",
    grade="A",
    model="LLAMA3_8B",
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    kv_heads=8,
    vocab=128256,
    seq_len=8192,
    gpu="H100",
    gpus=8,
    mbs=1,
    gbs=128,
    dtype="BF16",
    sharding="DDP/distopt",
    recompute="none",
)


def row(**changes: Any) -> RunConfig:
    return replace(BASE, **changes)


class TestModel:
    def test_sizes_of_a_preset(self) -> None:
        job = job_of(row(family="simumax-b200"))
        assert parameters(job.model) == 8_030_261_248
        assert job.notes == ()

    def test_a_truncated_model(self) -> None:
        job = job_of(row(model="llama3_70b L12", layers=12, hidden=8192, ffn=28672, heads=64))
        assert len(job.model.layers) == 12
        assert any("12 of" in note for note in job.notes)

    def test_a_truncated_mixture_keeps_its_dense_layer(self) -> None:
        job = job_of(
            row(
                model="deepseek_v2 L4",
                layers=4,
                hidden=5120,
                ffn=1536,
                heads=128,
                kv_heads=128,
                experts=160,
                topk=6,
                vocab=102400,
                notes="first layer dense (dense_layers=1), rest MoE",
            )
        )
        first, *rest = job.model.layers
        assert isinstance(first.attention, LatentAttention)
        assert isinstance(first.feed_forward, Mlp)
        assert first.feed_forward.ffn == 12288
        assert all(isinstance(one.feed_forward, Experts) for one in rest)
        experts = rest[0].feed_forward
        assert isinstance(experts, Experts)
        assert (experts.count, experts.topk, experts.expert.ffn) == (160, 6, 1536)
        assert experts.shared is not None

    def test_the_width_of_heads_comes_from_the_preset(self) -> None:
        job = job_of(
            row(model="Qwen3_30B_a3B", layers=48, hidden=2048, ffn=768, heads=32, kv_heads=4, vocab=None, experts=128)
        )
        assert parameters(job.model) == 30_532_122_624

    def test_gpt(self) -> None:
        sizes = {"layers": 48, "hidden": 6144, "ffn": 24576, "heads": 64, "kv_heads": 64, "seq_len": 2048}
        job = job_of(row(model="GPT 22B", vocab=None, **sizes))
        layer = job.model.layers[0]
        assert isinstance(layer.feed_forward, Mlp)
        assert not layer.feed_forward.gated
        assert (job.model.tied, job.model.positions, job.model.vocab) == (True, 2048, 51200)
        assert any("51,200" in note for note in job.notes)

    def test_one_gpu_without_embedding_or_head(self) -> None:
        sizes = {"layers": 4, "hidden": 12288, "ffn": 6144, "heads": 12, "kv_heads": 12, "head_dim": 128, "vocab": 0}
        job = job_of(row(model="share", style="gpt", compiled=False, share=8, gpus=1, gpu="H200", **sizes))
        assert parameters(job.model) == 906_307_584
        assert (job.plan.tp, job.plan.stack) == (1, "torch-eager")

    def test_one_gpu_with_experts(self) -> None:
        sizes = {"layers": 2, "hidden": 64, "ffn": 32, "heads": 4, "kv_heads": 4, "head_dim": 16, "vocab": 0}
        mixture = {"experts": 8, "topk": 2, "expert_ffn": 48, "shared_ffn": 96}
        job = job_of(row(model="moe", style="llama", compiled=False, gpus=1, gpu="H200", **sizes, **mixture))
        experts = job.model.layers[0].feed_forward
        assert isinstance(experts, Experts)
        assert experts.shared is not None
        assert (experts.count, experts.topk, experts.expert.ffn, experts.shared.ffn) == (8, 2, 48, 96)
        attention, routed = 4 * 64 * 64, 8 * 3 * 64 * 48 + 3 * 64 * 96 + 8 * 64
        assert parameters(job.model) == 2 * (attention + routed + 2 * 64)

    def test_one_gpu_with_latent_attention(self) -> None:
        sizes = {"layers": 2, "hidden": 64, "ffn": 32, "heads": 4, "kv_heads": 4, "head_dim": 16, "vocab": 0}
        latent = {"q_lora_rank": 24, "kv_lora_rank": 16, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}
        job = job_of(row(model="mla", style="llama", compiled=False, gpus=1, gpu="H200", **sizes, **latent))
        assert job.model.layers[0].attention == LatentAttention(4, 24, 16, 8, 4, 8)
        down, up = 64 * 24 + 64 * (16 + 4), 24 * 4 * 12 + 16 * 4 * 16
        assert parameters(job.model) == 2 * (down + up + 24 + 16 + 4 * 8 * 64 + 3 * 64 * 32 + 2 * 64)

    def test_a_model_nobody_knows(self) -> None:
        job = job_of(row(model="Heron-9B"))
        assert any("like Llama" in note for note in job.notes)
        with pytest.raises(InputError, match="hidden") as caught:
            job_of(row(model="Heron-9B", hidden=None))
        assert caught.value.code == "missing-field"


DEEPSEEK = {
    "layers": 61, "hidden": 7168, "ffn": 2048, "heads": 128, "kv_heads": 128, "experts": 256, "topk": 8,
    "vocab": 129280, "seq_len": 4096, "gpu": "GB200", "gpus": 256, "pp": 4, "vpp": 4, "ep": 64, "gbs": 4096,
}  # fmt: skip


class TestMultiTokenPrediction:
    @pytest.mark.parametrize(
        ("name", "mtp"),
        [
            ("DeepSeekV3 (w/ MTP)", 1),
            ("DeepSeekV3 (w/o MTP)", 0),
            ("DeepSeek-V3 without MTP", 0),
            ("deepseek_v3 with MTP", 1),
            ("DeepSeekV3", 1),
        ],
    )
    def test_a_name_may_say_whether_there_is_any(self, name: str, mtp: int) -> None:
        job = job_of(row(model=name, **DEEPSEEK))
        assert job.model.mtp == mtp and isinstance(job.model.layers[0].attention, LatentAttention)
        assert not any("like Llama" in note for note in job.notes)
        setting = settle(job.model, job.plan)
        assert [len(chunk) for chunk in setting.chunks] == [*[4] * 15, 1], "the recipe's layout, with MTP or without"

    def test_another_remark_is_reported(self) -> None:
        job = job_of(row(model="DeepSeekV3 (tokendrop)", **DEEPSEEK))
        assert isinstance(job.model.layers[0].attention, LatentAttention)
        assert any("tokendrop" in note for note in job.notes)

    def test_a_layout_of_the_table(self) -> None:
        told = "a2a=1; pp_layout=Et*4|(t*4|)*12t*3|t*3|t*3mL; moe_flex_dispatcher_backend=hybridep"
        job = job_of(row(model="DeepSeekV3", overlap=told, **DEEPSEEK))
        assert [len(chunk) for chunk in settle(job.model, job.plan).chunks] == [*[4] * 13, 3, 3, 3]
        assert job_of(row(overlap="pp_layout=None")).plan.layout is None


class TestPlan:
    @pytest.mark.parametrize(
        ("gpu", "dtype", "precision"),
        [
            ("H100", "FP8-CS", "fp8"),
            ("H100", "FP8 per-tensor current scaling", "fp8"),
            ("B200", "FP8-MX", "mxfp8"),
            ("GB300", "MXFP8", "mxfp8"),
            ("B200", "FP8 fine-grained (parenthesised value)", "mxfp8"),
            ("H100", "FP8 fine-grained (parenthesised value)", "fp8_block"),
            ("H100", "FP8 tensorwise (linear)", "fp8"),
            ("B200", "NVFP4", "nvfp4"),
            ("A100-80GB", "amp_bf16", "bf16"),
            ("A100-80GB SXM", "FP16", "fp16"),
        ],
    )
    def test_precisions(self, gpu: str, dtype: str, precision: str) -> None:
        assert job_of(row(gpu=gpu, dtype=dtype)).plan.precision == precision

    @pytest.mark.parametrize(
        ("words", "zero"),
        [
            ("FSDP FULL_SHARD (ZeRO-3)", 3),
            ("FSDP2 (params resharded)", 3),
            ("DDP/distopt", 1),
            ("ZeRO-1 distopt", 1),
            ("none", 0),
            ("", None),
        ],
    )
    def test_sharding(self, words: str, zero: int | None) -> None:
        assert job_of(row(sharding=words)).plan.zero == zero

    @pytest.mark.parametrize(
        ("words", "recompute", "layers"),
        [
            ("full 5 layers", "full", 5),
            ("full", "full", None),
            ("selective (AC)", "selective", None),
            ("none (recipe sets none)", "none", None),
        ],
    )
    def test_recompute(self, words: str, recompute: str, layers: int | None) -> None:
        plan = job_of(row(recompute=words)).plan
        assert (plan.recompute, plan.recompute_layers) == (recompute, layers)

    @pytest.mark.parametrize(
        ("words", "modules"),
        [
            ("selective:layernorm+moe_act", ("moe_act", "layernorm")),
            ("selective: mla_up_proj, mlp", ("mla_up_proj", "mlp")),
            ("selective", None),
            ("selective per-op", None),
            ("selective (AC)", None),
        ],
    )
    def test_recomputed_modules(self, words: str, modules: tuple[str, ...] | None) -> None:
        plan = job_of(row(recompute=words)).plan
        assert (plan.recompute, plan.recompute_modules) == ("selective", modules)

    def test_unknown_modules_are_noted(self) -> None:
        job = job_of(row(recompute="selective:mhc"))
        assert job.plan.recompute == "none"
        assert any("mhc" in note for note in job.notes)

    def test_what_is_not_said_is(self) -> None:
        assert any("recomputes" in note for note in job_of(row(recompute="")).notes)
        assert any("which software" in note for note in job_of(row(family="elsewhere")).notes)
        assert any("not understood" in note for note in job_of(row(sharding="half of it")).notes)
        with pytest.raises(InputError, match="microbatch") as caught:
            job_of(row(mbs=None))
        assert caught.value.code == "missing-field"

    def test_published_runs_are_balanced(self) -> None:
        assert job_of(row()).plan.routing == 1.0

    def test_words_about_overlap(self) -> None:
        graphs = "cuda_graph_impl=transformer_engine; cuda_graph_scope=['moe_router']"
        assert job_of(row(overlap=graphs)).plan.cuda_graphs == "router"
        both = "cuda_graph_impl=transformer_engine; cuda_graph_scope=['attn', 'moe_router']"
        assert job_of(row(overlap=both)).plan.cuda_graphs == "partial"
        assert job_of(row(overlap="cuda_graph_impl=none; cuda_graph_scope=full_iteration")).plan.cuda_graphs == "none"
        assert job_of(row(overlap="cuda_graph_impl=local; cuda_graph_scope=full_iteration")).plan.cuda_graphs == "full"
        moe = job_of(row(overlap="moe_flex_dispatcher_backend=deepep; moe_a2a_overlap=True")).plan
        assert (moe.dispatcher, moe.moe_overlap) == ("deepep", True)
        assert job_of(row(notes="recipe X: cpu_offload_layers=20")).plan.offload_layers == 20
        assert job_of(row(notes="recipe X: cpu_offload_layers=None")).plan.offload_layers == 0
        assert job_of(row(overlap="no DP overlap")).plan.grad_overlap is False

    def test_what_decides_memory_on_one_gpu(self) -> None:
        dtypes = {"grad_dtype": "fp32", "master_dtype": "fp32", "moment_dtype": "bf16"}
        plan = job_of(row(offload_layers=3, **dtypes)).plan
        assert (plan.offload_layers, plan.grad_dtype, plan.master_dtype, plan.moment_dtype) == (
            3,
            "fp32",
            "fp32",
            "bf16",
        )
        assert job_of(row(dtype="fp32")).plan.precision == "fp32"
        assert job_of(row(recompute="selective:mlp+core_attn")).plan.recompute == "selective"

    def test_recipes_overlap_tp_unless_they_say_otherwise(self) -> None:
        assert job_of(row(tp=4)).plan.tp_overlap
        assert not job_of(row(tp=1)).plan.tp_overlap
        assert not job_of(row(tp=4, sequence_parallel=False)).plan.tp_overlap
        assert not job_of(row(tp=4, family="simumax-b200", overlap="tp-comm-overlap off")).plan.tp_overlap

    def test_asynchronous_tensor_parallelism_is_noted(self) -> None:
        plain, overlapped = (job_of(row(family="torchtitan", tp=8, overlap=words)) for words in ("", "async TP"))
        assert overlapped.plan == plain.plan
        assert len(overlapped.notes) == len(plain.notes) + 1

    def test_sequence_parallelism_as_said_or_as_old_as_it_is(self) -> None:
        assert job_of(row(tp=4, sequence_parallel=True)).plan.sequence_parallel is True
        assert job_of(row(tp=4)).plan.sequence_parallel is None
        assert job_of(row(tp=4, family="sc21")).plan.sequence_parallel is False
        assert job_of(row(tp=1, sequence_parallel=True)).plan.sequence_parallel is None

    @pytest.mark.parametrize(
        ("family", "notes", "stack"),
        [
            ("korthikanti", "", "megatron-2021"),
            ("llm-foundry", "", "llm-foundry@2023"),
            ("torchtitan", "local batch size 2; eager", "fsdp"),
            ("torchtitan", "local batch size 2; compile+fp8", "fsdp-compile"),
            ("simumax-b200", "", "megatron-core@0.14"),
            ("nemo", "", "megatron-core"),
            ("megatron-bridge", "", "megatron-bridge"),
            ("megatron-bridge", "container 26.04; GBS as in the table", "megatron-bridge@26.04"),
            ("megatron-bridge", "container 26.04.01.", "megatron-bridge@26.04.01"),
            ("nemo", "container 25.09", "megatron-core"),
        ],
    )
    def test_stacks(self, family: str, notes: str, stack: str) -> None:
        assert job_of(row(family=family, notes=notes)).plan.stack == stack

    def test_stacks_by_what_else_a_row_says(self) -> None:
        assert job_of(row(family="sc21", sharding="ZeRO-3 (DeepSpeed)")).plan.stack == "deepspeed-2021"
        assert job_of(row(family="sc21", sharding="none")).plan.stack == "megatron-2021"
        rows = job_of(row(family="torchtitan", dtype="FP8 rowwise", notes="compile"))
        assert (rows.plan.stack, rows.plan.precision) == ("fsdp-compile-rowwise", "fp8")

    @pytest.mark.parametrize(
        ("facts", "dtypes"),
        [
            ({}, ("bf16", "fp32", False)),
            ({"dtype": "FP8-CS"}, ("bf16", None, True)),
            ({"gpu": "B200", "dtype": "FP8-MX"}, ("bf16", None, True)),
            ({"sharding": "FSDP"}, ("bf16", None, False)),
            ({"family": "nemo", "dtype": "FP8"}, (None, None, False)),
            ({"family": "simumax-b200"}, (None, None, False)),
        ],
    )
    def test_dtypes_of_recipes(self, facts: dict[str, Any], dtypes: tuple[str | None, str | None, bool]) -> None:
        plan = job_of(row(**facts)).plan
        assert (plan.grad_dtype, plan.moment_dtype, plan.fp8_params) == dtypes


class TestCluster:
    @pytest.mark.parametrize(
        ("gpu", "interconnect", "name", "gbits"),
        [
            ("A100-80GB SXM", "NVLink3/NVSwitch; 8x200Gb HDR IB (Selene)", "a100-80g-sxm", 200),
            ("A100-80GB", "1600Gbps/node RoCE", "a100-80g-sxm", 200),
            ("A100-80GB", "800Gbps/node RoCE", "a100-80g-sxm", 100),
            ("H100", "DGX-H100", "h100-sxm", 400),
            ("H100-96GB HBM2e 2.4TB/s 500W", "NVLink; 400Gb/s RDMA per GPU (Grand Teton)", "h100-96g-500w", 400),
            ("B200", "NVLink5 single node", "b200", 400),
        ],
    )
    def test_gpus_and_networks(self, gpu: str, interconnect: str, name: str, gbits: float) -> None:
        cluster = job_of(row(gpu=gpu, interconnect=interconnect, gpus_per_node=8)).cluster
        assert cluster.gpu.name == name
        assert cluster.node.nic.bytes_per_s * 8 / 1e9 == gbits
        assert cluster.node.nics == 8

    def test_a_rack_and_cards(self) -> None:
        assert job_of(row(gpu="GB200", gpus_per_node=4)).cluster.node.domain_gpus == 72
        cards = job_of(row(gpu="A100-80GB PCIe", interconnect="PCIe only")).cluster.node
        assert (cards.domain_gpus, cards.gpu.name) == (1, "a100-80g-pcie")
        assert job_of(row(gpu="H100", gpus_per_node=4)).cluster.node.domain_gpus == 4

    def test_a_gpu_nobody_knows(self) -> None:
        with pytest.raises(InputError) as caught:
            job_of(row(gpu="Abacus"))
        assert caught.value.code == "unknown-name"


def test_published_parameter_counts() -> None:
    """The table's own counts, to the digits it gives: sizes, styles, biases and tying are all in them."""
    path = shared("data", "runs", "training_steps_dev.csv")
    with path.open(encoding="utf-8") as stream:
        published = {one["id"]: one["params_b"] for one in csv.DictReader(stream)}
    counted = 0
    for run in read_training_runs(path).runs:
        text = published[run.config.id]
        if "." not in text:  # rounded to what a model is called
            continue
        digits = len(text.partition(".")[2])
        billions = parameters(job_of(run.config).model) / 1e9
        assert billions == pytest.approx(float(text), abs=0.51 * 10.0**-digits), run.config.id
        counted += 1
    assert counted > 90


def test_every_published_row_is_understood() -> None:
    for name in (("runs", "training_steps_dev.csv"), ("h200", "single_gpu_steps.jsonl")):
        for run in read_training_runs(shared("data", *name)).runs:
            job = job_of(run.config)
            assert not any("not understood" in note or "which software" in note for note in job.notes)


def test_megatron_lm_overlaps_no_gradients_unless_told() -> None:
    plain, recipe = job_of(row(family="simumax-b200")).plan, job_of(row(family="megatron-bridge")).plan
    assert (plain.grad_overlap, plain.param_overlap) == (False, False)
    assert (recipe.grad_overlap, recipe.param_overlap) == (None, None)
