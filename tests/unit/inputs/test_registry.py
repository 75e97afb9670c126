"""Inputs by what is in their files: every kind is recognised, and options that it does not have are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import Mesh, Plan, Program, ProgramBuilder, save, simulate
from foretrace.basics.codes import CODES
from foretrace.basics.errors import InputError, UsageError
from foretrace.inputs.base import Input
from foretrace.inputs.megatron_trace.format import Facts
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.option_texts import INPUT_OPTIONS
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.inputs.registry import kinds, open_input, open_model
from kineto_files import document, small_step, write
from nsys_export import steps, write_export
from opened import program_of
from shared_files import ROOT
from training_scripts import write_script
from unit.inputs.aicb.workloads import row, text
from unit.inputs.megatron_trace.rank_files import Rank
from unit.inputs.megatron_trace.rank_files import write as write_rank_traces

WORKLOAD = text([row("attention_layer", 100, 80, 60)], tp=1, pp=1, ga=1, all_gpus=2)
EXECUTION = {
    "schema": "1.1.1-chakra.0.0.4",
    "pid": 10,
    "nodes": [
        {
            "id": 3,
            "name": "aten::mm",
            "ctrl_deps": 1,
            "inputs": {"values": [], "shapes": [], "types": []},
            "outputs": {"values": [], "shapes": [], "types": []},
            "attrs": [{"name": "rf_id", "type": "uint64", "value": 2}],
        }
    ],
}
"""The op of `small_step`, as an execution trace has it."""
CONFIGURATION = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


def three_ranks() -> Program:
    build = ProgramBuilder(Mesh(dp=3))
    build.role("all", range(3)).compute("work", 1e-3)
    return build.program()


def program_file(folder: Path) -> Path:
    save(three_ranks(), folder / "job.foretrace")
    return folder / "job.foretrace"


def program_of_another_name(folder: Path) -> Path:
    return program_file(folder).rename(folder / "job.txt")


def answer_file(folder: Path) -> Path:
    simulate(three_ranks()).save(folder / "job.answer")
    return folder / "job.answer"


def workload_file(folder: Path) -> Path:
    return write(folder, WORKLOAD, "job.txt")


def rank_traces(folder: Path) -> Path:
    rank = Rank(0, ex_situ=True).op("forward_step", 9).op("backward_step", 9)
    return write_rank_traces(folder / "run", [rank], Facts(world=1, tp=1, pp=1))


def rank_traces_by_pattern(folder: Path) -> str:
    return str(rank_traces(folder) / "*.txt")


def one_rank_trace(folder: Path) -> Path:
    return next(rank_traces(folder).iterdir())


def profiler_trace(folder: Path) -> Path:
    return write(folder, document(small_step()), "trace.json")


def packed_trace(folder: Path) -> Path:
    return write(folder, document(small_step()), "trace.json.gz")


def trace_of_another_name(folder: Path) -> Path:
    (folder / "named_so.txt").write_bytes(b"\xef\xbb\xbf" + profiler_trace(folder).read_bytes())
    return folder / "named_so.txt"


def folder_of_traces(folder: Path) -> Path:
    (folder / "a" / "b").mkdir(parents=True)
    return write(folder / "a" / "b", document(small_step()), "rank0.json").parent


def traces_by_pattern(folder: Path) -> str:
    folder_of_traces(folder)
    return str(folder / "**" / "rank*.json")


def nsight_export(folder: Path) -> Path:
    return write_export(folder / "report.sqlite", steps(4))


def execution_trace(folder: Path) -> Path:
    return write(folder, EXECUTION, "et.json.gz")


def profiler_table(_: Path) -> Path:
    return ROOT / "examples" / "moe_fairseq_profile.txt"


def model_name(_: Path) -> str:
    return "llama3-8b"


def configuration(folder: Path) -> Path:
    return write(folder, CONFIGURATION, "config.json")


def folder_of_a_model(folder: Path) -> Path:
    return configuration(folder).parent


def job_file(folder: Path) -> Path:
    return write(folder, "model: llama3-8b\nplan:\n  gpus: 8\ncluster: h100-dgx\n", "job.yaml")


def script(folder: Path) -> Path:
    return write_script(folder)


Maker = Callable[[Path], Path | str]
EXAMPLES: list[tuple[Maker, str]] = [
    (program_file, "program"),
    (program_of_another_name, "program"),
    (answer_file, "answer"),
    (workload_file, "aicb"),
    (rank_traces, "megatron-trace"),
    (rank_traces_by_pattern, "megatron-trace"),
    (one_rank_trace, "megatron-trace"),
    (profiler_trace, "profiler-trace"),
    (packed_trace, "profiler-trace"),
    (trace_of_another_name, "profiler-trace"),
    (folder_of_traces, "profiler-trace"),
    (traces_by_pattern, "profiler-trace"),
    (nsight_export, "profiler-trace"),
    (execution_trace, "profiler-trace"),
    (profiler_table, "profiler-table"),
    (model_name, "model"),
    (configuration, "model"),
    (folder_of_a_model, "model"),
    (job_file, "model"),
    (script, "script"),
]
ONE_OF_EACH: list[Maker] = [
    *(program_file, answer_file, workload_file, rank_traces, profiler_trace, profiler_table, model_name),
    script,
]
TEXTS: dict[str, Any] = {
    "cp_comm": "p2p",
    "schedule": "1f1b",
    "stage_layers": "16,16",
    "recompute": "full",
    "precision": "bf16",
    "overlap": "grad",
    "cuda_graphs": "none",
    "documents": "4096,4096",
    "routing": "1.5x",
    "dispatcher": "alltoall",
    "stack": "megatron-core",
    "mesh": "dp=8",
    "pp_comm": "16MiB",
    "sizes": ["params=1e9"],
    "arguments": "--layers 4",
    **dict.fromkeys(("sequence_parallel", "reshard", "offload_optimizer", "every_stage"), True),
}
"""What a command line gives for each option; others take a number."""


@pytest.mark.parametrize(("make", "kind"), EXAMPLES, ids=[make.__name__ for make, _ in EXAMPLES])
def test_every_kind_is_recognised(tmp_path: Path, make: Maker, kind: str) -> None:
    assert open_input([make(tmp_path)]).kind == kind


def test_every_kind_is_among_the_examples() -> None:
    assert {one.kind for one in kinds()} == {kind for _, kind in EXAMPLES}
    assert len(ONE_OF_EACH) == len(list(kinds()))


def test_worlds_and_options(tmp_path: Path) -> None:
    assert program_of(program_file(tmp_path)).world == 3
    job = open_input([workload_file(tmp_path)])
    assert (job.program().world, job.with_options(gpus=8).program().world) == (2, 8)
    assert job.program().world == 2, "an input is not changed"


def test_options_as_texts(tmp_path: Path) -> None:
    assert open_input([workload_file(tmp_path)], {"gpus": "8"}).options.gpus == 8
    assert open_input([profiler_trace(tmp_path)], {"steps": "0,2-4"}).options.steps == (0, 2, 3, 4)
    with pytest.raises(UsageError) as caught:
        open_input([workload_file(tmp_path)], {"vpp": "some"})
    assert caught.value.code == "bad-value"


def test_a_saved_answer_is_opened_as_one(tmp_path: Path) -> None:
    answer = foretrace.open(answer_file(tmp_path))
    assert isinstance(answer, foretrace.Answer)
    assert answer.step_time_s == 1e-3


def test_a_model_s_own_plan(tmp_path: Path) -> None:
    job = open_input([job_file(tmp_path)], {"tp": "4"})
    setting = job.setting()
    assert setting is not None and (setting.plan.gpus, setting.plan.tp) == (8, 4)
    assert job.cluster == "h100-dgx"
    assert foretrace.model("llama3-8b", Plan(8)).setting() is not None
    with pytest.raises(UsageError) as caught:
        open_input(["llama3-8b"]).program()
    assert caught.value.code == "missing-argument"


def test_a_model_by_a_name_that_a_file_has(tmp_path: Path) -> None:
    assert isinstance(open_model("llama3-8b", {"gpus": "8"}), ModelInput)
    assert open_model(str(workload_file(tmp_path))).kind == "aicb"


def test_traces_and_execution_traces_together(tmp_path: Path) -> None:
    for paths in ([profiler_trace, execution_trace], [execution_trace, profiler_trace]):
        job = open_input([make(tmp_path) for make in paths])
        assert isinstance(job, ProfilerTraceInput)
        assert (len(job.traces), len(job.executions)) == (1, 1)


def test_a_trace_whose_metadata_is_a_model_s_is_a_trace(tmp_path: Path) -> None:
    path = write(tmp_path, document(small_step(), model_type="llama", architectures=["Llama"]))
    assert open_input([path]).kind == "profiler-trace"


@pytest.mark.parametrize(
    "makers",
    [
        (workload_file, program_file),
        (program_file, program_file),
        (workload_file, workload_file),
        (profiler_trace, workload_file),
        (rank_traces, workload_file),
        (rank_traces, profiler_trace),
        (model_name, workload_file),
        (model_name, model_name),
        (profiler_table, profiler_table),
    ],
)
def test_only_traces_are_read_together(tmp_path: Path, makers: tuple[Maker, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        open_input([make(tmp_path) for make in makers])
    assert caught.value.code == "several-inputs"


@pytest.mark.parametrize("paths", [[], [""]])
def test_nothing_is_given(paths: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        open_input(paths)
    assert caught.value.code == "missing-argument"


def test_nothing_is_there(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none.txt", "file-not-found"), (tmp_path, "nothing-to-do")):
        with pytest.raises(InputError) as caught:
            open_input([path])
        assert (caught.value.code, caught.value.where) == (code, str(path))
    for name in ("none.foretrace", "none.answer", "none.yaml", "none.json", "none.sqlite", "*.json", "none/*.txt"):
        with pytest.raises(InputError) as caught:
            open_input([tmp_path / name]).program()
        assert str(tmp_path) in (caught.value.where or "")


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("wrong.foretrace", WORKLOAD, "wrong-format"),
        ("wrong.answer", WORKLOAD, "wrong-format"),
        ("wrong.json", '{"a": 1}', "wrong-format"),
        ("wrong.txt", "nothing that is known\n", "wrong-format"),
        ("wrong.yaml", "- 1\n", "bad-value"),
        ("empty.txt", "", "empty-file"),
    ],
)
def test_unknown_files_are_refused_as_what_they_are_called(tmp_path: Path, name: str, content: str, code: str) -> None:
    path = write(tmp_path, content, name)
    with pytest.raises(InputError) as caught:
        open_input([path]).program()
    assert caught.value.code == code
    assert str(caught.value.where).startswith(str(path))


def test_reports_of_nsight_systems_must_be_exported(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").write_bytes(b"QDSTRM")
    with pytest.raises(InputError) as caught:
        open_input([tmp_path / "report.nsys-rep"])
    assert "nsys export" in (caught.value.hint or "")


def test_a_lone_execution_trace_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        program_of(execution_trace(tmp_path))
    assert caught.value.code == "cannot-simulate"


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (program_file, "gpus", 8),
        (answer_file, "gpus", 8),
        (workload_file, "steps", (1,)),
        (workload_file, "mesh", "dp=2"),
        (workload_file, "host", "graphs"),
        (rank_traces, "ends", "every-stage"),
        (rank_traces, "sizes", (("params", "1e9"),)),
        (rank_traces, "batch", 2.0),
        (profiler_trace, "schedule", "1f1b"),
        (profiler_trace, "microbatches", 2),
        (profiler_table, "gpus", 8),
        (profiler_table, "steps", (1,)),
        (model_name, "mesh", "dp=2"),
        (model_name, "microbatches", 2),
    ],
)
def test_options_that_an_input_does_not_have_are_refused(tmp_path: Path, make: Maker, name: str, value: object) -> None:
    job = open_input([make(tmp_path)])
    assert not job.has_option(name)
    for change in (lambda: job.with_options(**{name: value}), lambda: job.read_options({name: value})):
        with pytest.raises(UsageError) as caught:
            change()
        assert caught.value.code == "option-not-for-input"
        assert job.noun in caught.value.message and caught.value.hint is not None


@pytest.mark.parametrize("make", ONE_OF_EACH)
@pytest.mark.parametrize("name", INPUT_OPTIONS)
def test_every_option_of_a_command_line_is_heeded_or_refused(tmp_path: Path, make: Maker, name: str) -> None:
    job = open_input([make(tmp_path)])
    changed: Input | None = None
    try:
        changed = job.read_options({name: TEXTS.get(name, "2")})
    except UsageError as error:
        assert error.code in CODES
        assert error.code == "option-not-for-input" or job.has_option(name)
    assert changed is None or type(changed) is type(job)


def test_a_pattern_of_answers_is_not_an_answer(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_input([tmp_path / "*.answer"])
    assert caught.value.code == "file-not-found"


def test_steps_and_sizes_may_be_lists_and_mappings(tmp_path: Path) -> None:
    job = open_input([write(tmp_path, document(small_step()))])
    assert job.with_options(steps=[0]).program().world == 1
    assert job.with_options(sizes={"moe.tokens": 8}).options.sizes == (("moe.tokens", "8"),)
    with pytest.raises(InputError):
        job.with_options(steps=0)
    with pytest.raises(InputError):
        job.with_options(sizes=["moe.tokens"])
