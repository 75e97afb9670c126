"""Launch arguments: what is written is read back, and what cannot be written is reported."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace import load_model
from foretrace.basics.errors import ForetraceError, InputError
from foretrace.export.launch import WRITERS, Launch, launch_problem, launch_text
from foretrace.hardware import presets as hardware
from foretrace.workload.launch.megatron_model import unexpressed_parts
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.rules import ESSENTIAL, LaunchedJob, has_effect, launch_value
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from property.plans import PlannedModel, any_plans, planned_models

CLUSTER = hardware.cluster("h100-dgx")
MODEL = load_model("llama3-8b")
laws = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
READS_MODEL = ("megatron-lm", "megatron-bridge")


@st.composite
def launched_plans(draw: st.DrawFn) -> PlannedModel:
    """Draws plans that run, with choices that only some frameworks have."""
    planned = draw(planned_models() | any_plans())
    layers = planned.layers
    choices: dict[str, st.SearchStrategy[Any]] = {
        "cp_comm": st.sampled_from(("p2p", "p2p", "all_gather", "a2a")),
        "rank_order": st.sampled_from(("tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "cp-tp-ep-dp-pp")),
        "precision": st.sampled_from(("bf16", "bf16", "fp16", "fp32", "tf32", "fp8", "fp8_block", "mxfp8", "nvfp4")),
        "grad_dtype": st.sampled_from((None, None, "fp32", "bf16")),
        "moment_dtype": st.sampled_from((None, None, "bf16", "fp8")),
        "master_dtype": st.sampled_from((None, None, "fp32", "fp16")),
        "account_for": st.sampled_from((None, None, None, ("embedding",), ("embedding", "loss"))),
        "first_stage_layers": st.sampled_from((None, None, None, 1, 2)),
        "stage_layers": st.sampled_from((None, None, (layers - 1, 1), (1, layers - 1), (layers // 2,) * 2)),
        "recompute_layers": st.sampled_from((None, 1, 2)),
        "offload_optimizer": st.booleans(),
        "sequence_parallel": st.sampled_from((None, True, False)),
        "dispatcher": st.sampled_from(("alltoall", "deepep", "hybridep", "low_latency")),
        "shard": st.sampled_from((None, 1, 2, 4)),
        "schedule": st.sampled_from((None, "1f1b", "gpipe", "zb-v", "looped-bfs")),
        "stack": st.sampled_from(
            ("megatron-core", "megatron-bridge", "fsdp", "fsdp-compile", "fsdp-compile-rowwise", "torch-eager")
        ),
    }
    changed = draw(st.lists(st.sampled_from(sorted(choices)), max_size=3, unique=True))
    return replace(planned, plan=replace(planned.plan, **{name: draw(choices[name]) for name in changed}))


def settled(planned: PlannedModel) -> Setting:
    """Returns the setting of a plan; rejects an example that no framework runs."""
    try:
        return settle(planned.model, planned.plan)
    except ForetraceError:
        assume(False)
        raise


def read_back(launch: Launch, setting: Setting, folder: Path) -> LaunchedJob:
    """Writes the files of a launch and reads the script among them."""
    for name, text in launch.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return read_launch(folder / "launch.sh", None if launch.framework in READS_MODEL else setting.model)


@laws
@given(planned=launched_plans())
def test_every_field_is_read_back_or_reported(planned: PlannedModel, tmp_path_factory: pytest.TempPathFactory) -> None:
    setting = settled(planned)
    assume(setting.plan.gpus <= 8 or setting.plan.gpus % 8 == 0)
    folder = Path(tmp_path_factory.mktemp("launch"))
    for framework in WRITERS:
        lacks = {lack.field: lack for lack in WRITERS[framework][0].lacks(setting)}
        problem = launch_problem(setting, framework)
        assert problem is not None or not any(name in ESSENTIAL for name in lacks)
        if problem is not None:
            with pytest.raises(InputError) as caught:
                launch_text(setting, CLUSTER, framework)
            assert caught.value.code == "not-launchable"
            continue
        launch = launch_text(setting, CLUSTER, framework)
        assert {note.code for note in launch.diagnostics} <= {"not-expressible"}
        job = read_back(launch, setting, folder)
        assert "unused-flags" not in {note.code for note in job.diagnostics}, job.diagnostics
        assert len(launch.diagnostics) - len(lacks) >= bool(unexpressed_parts(setting.model, job.model))
        again = settle(setting.model, Plan(**job.plan))  # type: ignore[arg-type]  # fields by name
        for field in fields(Plan):
            if field.name not in lacks and has_effect(setting, field.name):
                expected, value = (_launched_software(launch_value(each, field.name)) for each in (setting, again))
                assert value == expected, (framework, field.name)


def _launched_software(value: object) -> object:
    """Returns a stack without its version, which no option says but that of torchtitan's compiled loss."""
    tells = isinstance(value, str) and value.startswith("fsdp-compile@")
    return value if tells or not isinstance(value, str) else value.partition("@")[0]


PIECES = (
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        '"',
        "\n",
        " ",
        "=",
        "true",
        "null",
        "auto",
        "1e9",
        "-1",
        "8",
        "$A",
        "'",
        "--",
        "#",
    ),
    *("[parallelism]", "[training]", "[model]", "tensor_parallel_degree", "pipeline_parallel_degree", "seq_len"),
    *('"zero_optimization"', '"stage"', '"train_batch_size"', '"bf16"', '"enabled"', "mixed_precision", "deepspeed"),
    *("model.tensor_model_parallel_size=", "train.global_batch_size=", "--parallelism.tensor_parallel_degree", "run"),
    *(
        "--parallelism.pipeline_parallel_degree",
        "--deepspeed_config",
        "--job.config_file",
        "x.json",
        "torchtitan.train",
    ),
)


@given(
    pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30),
    glue=st.sampled_from(("", " ")),
    name=st.sampled_from(("x.sh", "x.json", "x.toml")),
)
def test_any_file_is_read_or_refused(
    pieces: list[str], glue: str, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = Path(tmp_path_factory.mktemp("launch")) / name
    path.write_text(glue.join(pieces), encoding="utf-8", errors="replace")
    try:
        read_launch(path, MODEL)
    except ForetraceError as refused:
        assert refused.exit_code == 3
