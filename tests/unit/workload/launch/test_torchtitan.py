"""torchtitan's options: on a command line and in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.rules import LaunchedJob
from foretrace.workload.launch.torchtitan import part_layers
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

MODEL = '[model]\nname = "llama3"\nflavor = "8B"\n'


def read(folder: Path, text: str, name: str = "train.toml") -> LaunchedJob:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_launch(path)


def command(words: str) -> str:
    return f"torchrun --nproc_per_node=8 --nnodes 2 -m torchtitan.train --module llama3 --config llama3_8b {words}\n"


def test_a_configuration_of_2025(tmp_path: Path) -> None:
    text = f"""{MODEL}converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 4
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
    job = read(tmp_path, text)
    assert job.model is presets.model("llama3-8b")
    assert job.plan == {
        "gpus": 32,
        "mbs": 2,
        "gbs": 16,
        "seq_len": 8192,
        "tp": 4,
        "zero": 3,
        "shard": 4,
        "sequence_parallel": True,
        "precision": "fp8",
        "recompute": "selective",
        "tp_overlap": True,
        "stack": "fsdp-compile",
    }
    settle(job.model, Plan(**job.plan))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--parallelism.tensor_parallel_degree 4", "tp", 4),
        ("--parallelism.tensor-parallel-degree=4", "tp", 4),
        (
            "--parallelism.tensor_parallel_degree 2 --parallelism.no-enable-sequence-parallel",
            "sequence_parallel",
            False,
        ),
        ("--parallelism.context_parallel_degree 2", "cp_comm", "all_gather"),
        ("--compile.enable", "stack", "fsdp-compile@2025-10"),
        ("--compile.enable --compile.components model", "stack", "fsdp-compile"),
        ("--compile.enable --compile.components loss", "stack", "fsdp"),
        ("--training.compile", "stack", "fsdp-compile"),
        ("--compile.no-enable", "stack", "fsdp"),
        ("--activation_checkpoint.mode full", "recompute", "full"),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule 1f1b", "schedule", "1f1b"),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.fsdp_reshard_after_forward default", "reshard", False),
        ("--parallelism.data_parallel_replicate_degree 16 --parallelism.data_parallel_shard_degree 1", "zero", 0),
        ("--training.local_batch_size 4", "gbs", 64),
        ("--training.mixed_precision_param float32", "precision", "fp32"),
    ],
)
def test_options_of_a_plan(words: str, field: str, value: object, tmp_path: Path) -> None:
    job = read(tmp_path, command(words), "run.sh")
    assert job.plan[field] == value
    assert job.plan["gpus"] == 16


def test_fields_that_the_configuration_in_code_decides_are_left_open(tmp_path: Path) -> None:
    assert set(read(tmp_path, command("--training.steps 10"), "run.sh").plan) == {"gpus", "stack"}


def test_a_command_line_overrides_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"{MODEL}[training]\nlocal_batch_size = 2\nseq_len = 4096\n", encoding="utf-8")
    words = "NGPU=8 torchrun -m torchtitan.train --job.config_file a.toml --training.seq_len 8192"
    job = read(tmp_path, words, "run.sh")
    assert (job.plan["seq_len"], job.plan["mbs"], job.plan["recompute"]) == (8192, 2, "selective")
    assert job.plan_guesses.keys() >= {"recompute"}


@pytest.mark.parametrize(
    ("options", "layers", "vpp"),
    [
        ('schedule = "1F1B"', (16, 16), None),
        ('schedule = "Interleaved1F1B"\npipeline_parallel_layers_per_stage = 8', (8, 9, 9, 6), None),
        ('schedule = "Interleaved1F1B"', (8, 9, 8, 7), 2),
        ('schedule = "ZBVZeroBubble"', (8, 9, 8, 7), None),
        ('schedule = "GPipe"\npipeline_parallel_first_stage_less_layers = 0', (17, 15), None),
    ],
)
def test_a_division_of_layers(options: str, layers: tuple[int, ...], vpp: int | None, tmp_path: Path) -> None:
    text = f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_{options}\n"
    if "layers_per_stage = 8" in options:  # 32 layers and two ends make five parts of 8, which two stages do not share
        with pytest.raises(InputError) as caught:
            read(tmp_path, text)
        assert caught.value.code == "not-divisible"
        return
    job = read(tmp_path, text)
    assert (job.plan["stage_layers"], job.plan.get("vpp")) == (layers, vpp)


@pytest.mark.parametrize(
    ("layers", "parts", "first", "last", "counts"),
    [(32, 1, 1, 1, (32,)), (32, 4, 0, 0, (8, 8, 8, 8)), (126, 16, 1, 1, (7, *(8,) * 14, 7)), (4, 8, 0, 0, None)],
)
def test_parts_as_torchtitan_divides_them(
    layers: int, parts: int, first: int, last: int, counts: tuple[int, ...] | None
) -> None:
    assert part_layers(layers, parts, first, last) == counts


def test_modules_of_each_part(tmp_path: Path) -> None:
    parts = [["tok_embeddings", "layers.0"], [f"layers.{number}" for number in range(1, 32)] + ["norm", "output"]]
    text = f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {parts}\n"
    assert read(tmp_path, text).plan["stage_layers"] == (1, 31)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[parallelism]\ntensor_parallel_degree = 2\n", "missing-field"),
        ('[model]\nname = "gpt9"\nflavor = "1B"\n', "missing-field"),
        (f"{MODEL}[parallelism]\ntensor_parallel_degree = \n", "bad-syntax"),
        (f"{MODEL}[parallelism]\ntensor_parallel_degree = 2\ntensor_parallel_degree = 2\n", "bad-syntax"),
        (f"{MODEL}[parallelism\n", "bad-syntax"),
        (f"{MODEL}a = {'[' * 50_000}", "too-deep"),
        (f"{MODEL}[training]\nseq_len = 9{'9' * 5000}\n", "out-of-range"),
        (f"{MODEL}[parallelism]\ntensor_parallel_degree = -3\n", "out-of-range"),
        (f"{MODEL}[parallelism]\ntensor_parallel_degree = 10000000000\n", "out-of-range"),
        (f'{MODEL}[parallelism]\ntensor_parallel_degree = "two"\n', "bad-value"),
        (f"{MODEL}[parallelism]\ntensor_parallel_degree = [2]\n[compile]\nenable = 2\n", "bad-value"),
        (f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'x'\n", "unknown-name"),
        (f"{MODEL}[parallelism]\npipeline_parallel_degree = 100000000\n", "not-divisible"),
        ("[tool]\nx = 1\n", "wrong-format"),
        (f"{MODEL}{'# long' * 50_000}", "input-too-large"),
    ],
)
def test_files_that_cannot_be_meant(text: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert caught.value.code == code
    assert str(tmp_path) in (caught.value.where or "")
