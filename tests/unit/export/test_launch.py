"""Launch scripts: the framework of a stack, its words, the header of a batch job."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.export.launch import WRITERS, launch_problem, launch_text
from foretrace.hardware import presets as hardware
from foretrace.models import presets
from foretrace.workload.launch.megatron_model import unexpressed_parts
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.rules import DIVISION, launch_value
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle

H100 = hardware.cluster("h100-dgx")
NVL72 = hardware.cluster("gb200-nvl72")


def setting(name: str = "llama3-8b", **fields: object) -> Setting:
    return settle(presets.model(name), Plan(**{"gpus": 64, "gbs": 128, **fields}))  # type: ignore[arg-type]


def lines(text: str) -> list[str]:
    return [line.strip(" \\") for line in text.splitlines()]


@pytest.mark.parametrize(
    ("stack", "framework"),
    [
        ("megatron-core", "megatron-lm"),
        ("megatron-core@0.14", "megatron-lm"),
        ("megatron-bridge", "megatron-bridge"),
        ("megatron-bridge@26.04", "megatron-bridge"),
        ("fsdp", "torchtitan"),
        ("fsdp-compile", "torchtitan"),
        ("fsdp-compile-rowwise", "torchtitan"),
    ],
)
def test_the_framework_is_that_of_the_stack(stack: str, framework: str) -> None:
    assert launch_text(setting(stack=stack), H100).framework == framework


@pytest.mark.parametrize("stack", ["megatron-2021", "llm-foundry", "torch-eager", "torch-compile"])
def test_a_stack_that_is_no_framework_has_no_launch_arguments(stack: str) -> None:
    chosen = setting(stack=stack)
    assert launch_problem(chosen) is not None
    with pytest.raises(InputError) as caught:
        launch_text(chosen, H100)
    assert caught.value.code == "not-launchable"


@pytest.mark.parametrize(
    ("framework", "fields"),
    [
        ("megatron-lm", {"pp": 2, "schedule": "zb-h1"}),
        ("megatron-lm", {"pp": 2, "schedule": "dualpipe-v"}),
        ("megatron-bridge", {"pp": 2, "schedule": "gpipe"}),
        ("torchtitan", {"pp": 2, "schedule": "zb-h1", "stack": "fsdp"}),
        ("torchtitan", {"stack": "megatron-core", "zero": 1}),
        ("deepspeed", {"pp": 2}),
        ("deepspeed", {"cp": 2, "cp_comm": "p2p"}),
        ("deepspeed", {"tp": 2, "zero": 3, "stack": "torch-eager"}),
        ("deepspeed", {"tp": 16, "stack": "megatron-core"}),
    ],
)
def test_what_a_framework_cannot_run_is_not_launched(framework: str, fields: dict[str, object]) -> None:
    chosen = setting(**fields)
    assert launch_problem(chosen, framework) is not None
    with pytest.raises(InputError) as caught:
        launch_text(chosen, H100, framework)
    assert caught.value.code == "not-launchable"


def test_a_framework_that_is_not_known() -> None:
    for ask in (launch_problem, lambda chosen, name: launch_text(chosen, H100, name)):
        with pytest.raises(InputError) as caught:
            ask(setting(), "megatron-lmm")
        assert caught.value.code == "unknown-name"


def test_the_words_of_megatron() -> None:
    launch = launch_text(setting(tp=4, pp=2, vpp=2, recompute_modules=("mlp", "layernorm")), H100)
    words = lines(launch.text)
    assert launch.diagnostics == ()
    assert {
        "#SBATCH --nodes=8",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--tensor-model-parallel-size 4",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--recompute-modules layernorm mlp",
        "--num-layers 32",
        "--swiglu",
    } <= set(words)
    assert not any("segment" in word or "None" in word or "False" in word for word in words)


@pytest.mark.parametrize(
    ("framework", "name", "value", "fields"),
    [
        ("megatron-lm", "shard", 16, {"zero": 3, "stack": "megatron-core", "tp": 2}),
        ("megatron-bridge", "shard", 16, {"zero": 3, "stack": "megatron-core", "cp": 2}),
        ("torchtitan", "shard", 16, {"stack": "fsdp", "cp": 2}),
        ("torchtitan-toml", "shard", 8, {"stack": "fsdp"}),
        ("deepspeed", "shard", 8, {"zero": 3, "stack": "torch-eager"}),
        ("megatron-lm", "rank_order", "tp-cp-ep-pp-dp", {"pp": 2}),
        ("megatron-lm", "layout", "Et*14|(t*6|)*2t*6L", {"pp": 4}),
        ("megatron-lm", "stage_layers", (14, 6, 6, 6), {"pp": 4}),
        ("megatron-lm", "first_stage_layers", 5, {"pp": 4}),
        ("megatron-bridge", "last_stage_layers", 2, {"pp": 4}),
        ("megatron-bridge", "offload_modules", ("core_attn", "attn_proj"), {}),
        ("megatron-lm", "moment_dtype", "fp8", {"master_dtype": "fp16"}),
        ("megatron-bridge", "fp8_params", True, {"precision": "mxfp8"}),
        ("megatron-bridge", "cuda_graphs", "partial", {}),
        ("torchtitan", "schedule", "dualpipe-v", {"pp": 2, "stack": "fsdp"}),
        ("torchtitan", "vpp", 4, {"pp": 2, "stack": "fsdp"}),
        ("torchtitan", "zero", 0, {"stack": "fsdp"}),
    ],
)
def test_rare_choices_are_read_back(
    framework: str, name: str, value: object, fields: dict[str, object], tmp_path: Path
) -> None:
    chosen = setting(**{name: value, **fields})
    launch = launch_text(chosen, H100, framework)
    assert name not in {lack.field for lack in WRITERS[framework][0].lacks(chosen)}
    for file, text in launch.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    job = read_launch(tmp_path / "launch.sh", chosen.model)
    again = settle(chosen.model, Plan(**job.plan))  # type: ignore[arg-type]  # fields by name
    assert launch_value(again, name) == launch_value(chosen, name)
    assert name in DIVISION or launch_value(again, name) == value


def test_the_words_of_bridge_turn_off_what_a_recipe_may_have_on() -> None:
    words = lines(launch_text(setting(tp=4, zero=0), H100, "Megatron_Bridge").text)
    assert {
        "model.tensor_model_parallel_size=4",
        "model.sequence_parallel=true",
        "train.global_batch_size=128",
        "ddp.use_distributed_optimizer=false",
        "model.recompute_granularity=null",
        "model.pipeline_model_parallel_layout=null",
        "mixed_precision.bf16=true",
    } <= set(words)


def test_the_words_of_torchtitan() -> None:
    launch = launch_text(setting(tp=2, pp=2, cp=2, mbs=2, stack="fsdp", recompute="full"), H100)
    assert {
        "--module llama3 --config llama3_8b",
        "--parallelism.tensor_parallel_degree 2",
        "--parallelism.data_parallel_shard_degree 8",
        "--parallelism.pipeline_parallel_microbatch_size 2",
        "--training.local_batch_size 16",
        "--training.global_batch_size 128",
        "--activation_checkpoint.mode full",
        "--parallelism.no-enable-sequence-parallel",
        "--compile.no-enable",
    } <= set(lines(launch.text))


@pytest.mark.parametrize(
    ("stack", "words", "lacks"),
    [
        ("fsdp", {"--compile.no-enable"}, False),
        ("fsdp-compile", {"--compile.enable", "--compile.components model"}, False),
        ("fsdp-compile@2025-10", {"--compile.enable", "--compile.components model,loss"}, False),
        ("fsdp-compile-rowwise", {"--compile.enable", "--compile.components model"}, True),
        ("torch-compile", {"--compile.enable", "--compile.components model,loss"}, True),
        ("megatron-core", set(), True),
    ],
)
def test_torchtitan_compiles_what_the_stack_compiles(stack: str, words: set[str], lacks: bool) -> None:
    chosen = setting(stack=stack, zero=3)
    found = lines(launch_text(chosen, H100, "torchtitan").text)
    assert {word for word in found if word.startswith("--compile")} == words
    reported = {
        lack.field for framework in ("torchtitan", "torchtitan-toml") for lack in WRITERS[framework][0].lacks(chosen)
    }
    assert ("stack" in reported) is lacks


@pytest.mark.parametrize(
    ("framework", "stack", "reported"),
    [
        ("megatron-lm", "megatron-core", False),
        ("megatron-lm", "megatron-bridge", True),
        ("megatron-bridge", "megatron-bridge", False),
        ("megatron-bridge", "megatron-core", True),
    ],
)
def test_the_other_megatron_is_reported(framework: str, stack: str, reported: bool, tmp_path: Path) -> None:
    chosen = setting(stack=stack, tp=2)
    launch = launch_text(chosen, H100, framework)
    assert len(launch.diagnostics) == reported
    (tmp_path / "launch.sh").write_text(launch.text, encoding="utf-8")
    again = settle(chosen.model, Plan(**read_launch(tmp_path / "launch.sh").plan))  # type: ignore[arg-type]  # fields by name
    assert again.stack.name == WRITERS[framework][0].reads_as
    assert again.stack.gradient_dtype == chosen.stack.gradient_dtype, "which is written"


def test_files_of_older_torchtitan_and_deepspeed_are_valid() -> None:
    toml = launch_text(setting(stack="fsdp", tp=2, sequence_parallel=True), H100, "torchtitan-toml").files["train.toml"]
    assert tomllib.loads(toml)["parallelism"]["tensor_parallel_degree"] == 2
    config = launch_text(setting(stack="torch-eager", zero=2, tp=2), H100, "deepspeed").files["ds_config.json"]
    assert json.loads(config)["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("gpus", "cluster", "nodes", "each", "segment"),
    [
        (4, "h100-dgx", 1, 4, None),
        (64, "h100-dgx", 8, 8, None),
        (64, "gb200-nvl72", 16, 4, 16),
        (256, "gb200-nvl72", 64, 4, 16),
    ],
)
def test_the_header_asks_for_nodes_and_segments(
    gpus: int, cluster: str, nodes: int, each: int, segment: int | None
) -> None:
    text = launch_text(setting(gpus=gpus, gbs=gpus), hardware.cluster(cluster)).text
    words = lines(text)
    assert {f"#SBATCH --nodes={nodes}", f"#SBATCH --gpus-per-node={each}"} <= set(words)
    assert [word for word in words if "segment" in word] == ([f"#SBATCH --segment={segment}"] if segment else [])
    assert (("srun" in text), ("#SBATCH --exclusive" in words)) == (nodes > 1, gpus > 4)


def test_gpus_that_do_not_fill_nodes_cannot_be_launched() -> None:
    with pytest.raises(InputError) as caught:
        launch_text(setting(gpus=12, gbs=12), H100)
    assert caught.value.code == "not-divisible"


def test_reports_are_comments_of_the_script_too() -> None:
    launch = launch_text(setting(tp=4, stack="fsdp", zero=3, prefetch=2), H100, "torchtitan")
    (note,) = launch.diagnostics
    assert note.code == "not-expressible"
    assert note.message in launch.files["launch.sh"]


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-bridge"])
@pytest.mark.parametrize("name", presets.names())
def test_models_are_read_back_or_reported(name: str, framework: str, tmp_path: Path) -> None:
    """No arguments are written for windows, sinks, clamps, gates of outputs, ALiBi or norms without a bias."""
    stack = WRITERS[framework][0].reads_as
    launch = launch_text(setting(name, gpus=1, gbs=1, precision="bf16", stack=stack), H100, framework)
    (tmp_path / "launch.sh").write_text(launch.files["launch.sh"], encoding="utf-8")
    job = read_launch(tmp_path / "launch.sh")
    parts = unexpressed_parts(presets.model(name), job.model)
    assert len(launch.diagnostics) == bool(parts)
    clamped = name.startswith("gpt-oss")
    assert set(parts) <= {*_ATTENTION, *_DENSE, *(("clamp",) if clamped else ())}
    assert ("clamp" in parts) == clamped


_ATTENTION = ("window", "sinks", "rope", "norm_bias", "head_bias", "position_kind", "output_gate")
_DENSE = ("out_bias", "qkv_bias", "activation", "bias", "positions", "shared", "router_bias")


def test_every_framework_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "launch.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in WRITERS)


def test_plans_that_megatron_asserts_against_are_refused() -> None:
    def code(**plan: Any) -> str | None:
        try:
            launch_text(settle(presets.model("qwen3-30b-a3b"), Plan(gpus=32, gbs=64, **plan)), H100)
        except InputError as error:
            return error.code
        return None

    assert code(ep=8, pp=2, moe_overlap=True) == code(pp=2, offload_layers=1) == "not-launchable"
    assert code(ep=8, pp=2, vpp=2, moe_overlap=True) is code(offload_layers=1) is None


def test_no_option_says_which_release_runs() -> None:
    for name, tells in (("megatron-bridge@26.06", False), ("megatron-bridge", True), ("fsdp-compile@2025-10", True)):
        launch = launch_text(setting(stack=name), H100)
        assert (
            "stack" not in {lack.field for lack in WRITERS[launch.framework][0].lacks(setting(stack=name))}
        ) == tells
