"""Overrides of Megatron-Bridge: the model and the plan they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.models.parameters import parameters
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.rules import LaunchedJob
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

LLAMA = """
model.num_layers=32 model.hidden_size=4096 model.ffn_hidden_size=14336 model.num_attention_heads=32
model.num_query_groups=8 model.gated_linear_unit=true model.activation_func=silu model.add_bias_linear=false
model.share_embeddings_and_output_weights=false model.normalization=RMSNorm model.position_embedding_type=rope
model.vocab_size=128256 model.hidden_dropout=0.0 model.attention_dropout=0.0 dataset.seq_length=8192
""".replace("\n", " ")


def read(folder: Path, words: str, *, model: str | None = None) -> LaunchedJob:
    path = folder / "run.sh"
    path.write_text(f"python scripts/training/run_recipe.py --mode pretrain {words}\n", encoding="utf-8")
    return read_launch(path, presets.model(model) if model else None)


def test_a_model_is_its_preset(tmp_path: Path) -> None:
    job = read(tmp_path, f"{LLAMA} mixed_precision=bf16_mixed")
    assert job.model.layers == presets.model("llama3-8b").layers
    assert parameters(job.model) == parameters(presets.model("llama3-8b"))
    assert (job.plan["precision"], job.plan["seq_len"], job.plan["stack"]) == ("bf16", 8192, "megatron-bridge")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("model.tensor_model_parallel_size=4 model.sequence_parallel=true", "sequence_parallel", True),
        ("model.tensor_model_parallel_size=4", "tp", 4),
        ("train.micro_batch_size=2", "mbs", 2),
        ("train.global_batch_size=512", "gbs", 512),
        ("model.pipeline_model_parallel_size=4 model.virtual_pipeline_model_parallel_size=2", "vpp", 2),
        ("ddp.use_distributed_optimizer=false", "zero", 0),
        ("ddp.overlap_grad_reduce=False", "grad_overlap", False),
        ("mixed_precision=bf16_with_mxfp8_mixed", "precision", "mxfp8"),
        ("mixed_precision=bf16_with_fp8_subchannel_scaling_mixed", "precision", "fp8_block"),
        ("mixed_precision=bf16-with-fp8-delayed-scaling-mixed", "fp8_params", True),
        ("mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=delayed mixed_precision.bf16=true", "precision", "fp8"),
        ("mixed_precision.bf16=true mixed_precision.grad_reduce_in_fp32=false", "grad_dtype", "bf16"),
        ("mixed_precision.bf16=false mixed_precision.fp16=false", "precision", "fp32"),
        ("model.recompute_granularity=selective 'model.recompute_modules=[mlp, core_attn]'", "recompute", "selective"),
        ("model.recompute_granularity=selective model.recompute_modules=[mlp]", "recompute_modules", ("mlp",)),
        ("comm_overlap.tp_comm_overlap=true", "tp_overlap", True),
        ("++dist.use_tp_pp_dp_mapping=true", "rank_order", "tp-cp-ep-pp-dp"),
        ("'model.cuda_graph_scope=[full_iteration]' model.cuda_graph_impl=local", "cuda_graphs", "full"),
        ("'model.cuda_graph_scope=[moe_router]' model.cuda_graph_impl=transformer_engine", "cuda_graphs", "router"),
    ],
)
def test_overrides_of_a_plan(words: str, field: str, value: object, tmp_path: Path) -> None:
    assert read(tmp_path, words, model="llama3-8b").plan[field] == value


@pytest.mark.parametrize(
    ("words", "given", "dtype"),
    [
        ("", None, "bf16"),
        ("mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=tensorwise", None, "bf16"),
        ("mixed_precision.grad_reduce_in_fp32=false", "bf16", "bf16"),
        ("mixed_precision.grad_reduce_in_fp32=true", "fp32", "fp32"),
        ("mixed_precision=bf16_mixed", "fp32", "fp32"),
        ("mixed_precision=bf16_with_mxfp8_mixed mixed_precision.grad_reduce_in_fp32=false", "bf16", "bf16"),
        ("mixed_precision=fp16_mixed", "fp32", "fp32"),
        ("mixed_precision.bf16=false", None, "fp32"),
    ],
)
def test_gradients_are_those_of_the_stack_unless_the_file_says_so(
    words: str, given: str | None, dtype: str, tmp_path: Path
) -> None:
    job = read(tmp_path, f"model.tensor_model_parallel_size=2 {words}", model="llama3-8b")
    assert job.plan.get("grad_dtype") == given
    settled = settle(job.model, Plan(**{"gpus": 8, **job.plan}))  # type: ignore[arg-type]  # fields by name
    assert (settled.stack.name, settled.stack.gradient_dtype) == ("megatron-bridge", dtype)


def test_fields_that_the_recipe_decides_are_left_to_the_stack(tmp_path: Path) -> None:
    plan = read(tmp_path, "model.tensor_model_parallel_size=4", model="llama3-8b").plan
    assert not {"zero", "grad_overlap", "param_overlap", "recompute", "gbs"} & set(plan)


def test_a_layout_in_quotes(tmp_path: Path) -> None:
    words = """model.pipeline_model_parallel_size=2 'model.pipeline_model_parallel_layout="Et*15|t*17L"'"""
    assert read(tmp_path, words, model="llama3-8b").plan["layout"] == "Et*15|t*17L"


def test_overrides_without_a_command_one_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "overrides.txt"
    path.write_text("\n".join([*LLAMA.split(), "mixed_precision=bf16_with_mxfp8_mixed", "lr.x=1"]), encoding="utf-8")
    job = read_launch(path)
    assert job.plan["precision"] == "mxfp8"
    (note,) = [note for note in job.diagnostics if note.code == "unused-flags"]
    assert "lr.x" in note.message


def test_errors_name_the_key_and_its_line(tmp_path: Path) -> None:
    for words, code in (
        ("model.tensor_model_parallel_size=many", "bad-value"),
        ("model.tensor_model_parallel_size=0", "out-of-range"),
        ("mixed_precision=int4", "unknown-name"),
    ):
        with pytest.raises(InputError) as caught:
            read(tmp_path, words, model="llama3-8b")
        assert caught.value.code == code
        assert caught.value.where == f"{tmp_path / 'run.sh'}:1"
    with pytest.raises(InputError) as caught:
        read(tmp_path, "model.tensor_model_parallel_size=2")
    assert caught.value.code == "missing-field"
    assert "model.num_layers" in caught.value.message
