"""DeepSpeed's configurations: the plan they mean for a model that is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.rules import LaunchedJob
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle

MODEL = presets.model("llama3-8b")
CONFIG: dict[str, Any] = {
    "train_batch_size": 512,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
}


def read(folder: Path, config: object, script: str = "") -> LaunchedJob:
    path = folder / "ds_config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config, indent=1), encoding="utf-8")
    if script:
        (folder / "run.sh").write_text(script, encoding="utf-8")
        path = folder / "run.sh"
    return read_launch(path, MODEL)


def test_a_configuration(tmp_path: Path) -> None:
    job = read(tmp_path, CONFIG)
    assert job.model is MODEL
    assert job.plan == {
        "gpus": 64,
        "mbs": 2,
        "gbs": 512,
        "zero": 3,
        "grad_overlap": True,
        "precision": "bf16",
        "master_dtype": "fp32",
        "offload_optimizer": True,
        "stack": "torch-eager",
    }
    assert set(job.plan_guesses) == {"gpus", "stack"}
    settle(job.model, Plan(**job.plan))  # type: ignore[arg-type]
    assert {note.code for note in job.diagnostics} == {"unused-flags"}


def test_the_launcher_says_the_gpus(tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "train_batch_size"}
    script = "deepspeed --num_nodes 4 --num_gpus=8 train.py --deepspeed --deepspeed_config ds_config.json\n"
    plan = read(tmp_path, config, script).plan
    assert (plan["gpus"], plan["gbs"]) == (32, 256)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"tensor_parallel": {"autotp_size": 4}}, "tp", 4),
        ({"sequence_parallel_size": 2, "data_parallel_size": 4}, "cp_comm", "a2a"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "shard", 8),
        ({"zero_optimization": {"stage": 2}}, "grad_overlap", False),
        ({"zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}}, "grad_dtype", "fp32"),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, "precision", "fp16"),
        ({"bf16": {"enabled": "auto"}}, "precision", "fp32"),
    ],
)
def test_options_of_a_plan(changes: dict[str, Any], field: str, value: object, tmp_path: Path) -> None:
    assert read(tmp_path, CONFIG | changes).plan[field] == value


@pytest.mark.parametrize(
    "changes",
    [
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
        {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
        {"activation_checkpointing": {"partition_activations": True}},
    ],
)
def test_options_that_change_the_work_and_are_not_followed_are_reported(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    assert "not-modelled" in {note.code for note in read(tmp_path, CONFIG | changes).diagnostics}


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (json.dumps(CONFIG)[:-20], "bad-syntax"),
        ('{"train_batch_size": 1, "train_batch_size": 2}', "duplicate-name"),
        ('{"bf16": {"enabled": true, "enabled": true}}', "duplicate-name"),
        ("[1, 2]", "bad-value"),
        ('{"name": 1}', "wrong-format"),
        ("[" * 10_000, "too-deep"),
        ('{"bf16": ' * 20_000, "too-deep"),
        ("{" + " " * 300_000 + "}", "input-too-large"),
        (CONFIG | {"train_batch_size": "many"}, "bad-value"),
        (CONFIG | {"train_batch_size": -1}, "out-of-range"),
        (CONFIG | {"train_batch_size": 10**12}, "out-of-range"),
        (CONFIG | {"train_batch_size": 511}, "not-divisible"),
        (CONFIG | {"zero_optimization": {"stage": 7}}, "out-of-range"),
        (CONFIG | {"zero_optimization": {"stage": 1, "overlap_comm": "maybe"}}, "bad-value"),
        (CONFIG | {"bf16": {"enabled": [True]}, "fp16": {"enabled": 3}}, "bad-value"),
        (CONFIG | {"fp16": {"enabled": True}}, "conflicting-values"),
    ],
)
def test_files_that_cannot_be_meant(config: object, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, config)
    assert caught.value.code == code
    assert str(tmp_path) in (caught.value.where or "")


def test_values_of_the_wrong_kind_do_not_count(tmp_path: Path) -> None:
    config = CONFIG | {"bf16": True, "zero_optimization": [{"stage": 3}], "fp16": None}
    plan = read(tmp_path, config).plan
    assert (plan["precision"], plan["zero"]) == ("fp32", 0)


def test_a_model_has_to_be_given(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_launch(path)
    assert caught.value.code == "missing-field"


@pytest.mark.parametrize(("name", "code"), [("no.json", "file-not-found"), (".", "unreadable-file")])
def test_a_configuration_that_cannot_be_read(name: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, CONFIG, f"deepspeed train.py --deepspeed_config {name}\n")
    assert caught.value.code == code
