"""Tables of measured runs: what is read, what is skipped and why, and that configuration and measurement stay apart."""

from __future__ import annotations

import csv
import re
from dataclasses import fields
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.validate.training_runs import GIB, RunConfig, TrainingRun, read_training_runs
from shared_files import shared

HEAD = "id,model,layers,hidden,heads,gpu,gpus,mbs,sp,memory_gb,step_time_s,step_time_derived_s,complete,family"
GOOD = "a,GPT 22B,48,6144,64,A100-80GB,8,4,yes,70.5,1.42,,A,korthikanti"


def write(folder: Path, *lines: str, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_row(tmp_path: Path) -> None:
    (run,) = read_training_runs(write(tmp_path, HEAD, GOOD)).runs
    assert (run.config.id, run.config.layers, run.config.heads, run.config.mbs) == ("a", 48, 64, 4)
    assert run.config.sequence_parallel is True
    assert (run.config.tp, run.config.experts, run.config.grade) == (1, None, "A")
    assert run.config.where.endswith("runs.csv:2")
    assert run.measurement.step_s == 1.42
    assert not run.measurement.derived
    assert run.measurement.memory_bytes == {"allocated": 70.5 * GIB}


def test_a_derived_time_counts_where_none_is_reported(tmp_path: Path) -> None:
    rows = "a,m,1,8,1,H100,8,1,,,,2.5,A,f", "b,m,1,8,1,H100,8,1,,,2.0,2.5,A,f"
    derived, reported = (run.measurement for run in read_training_runs(write(tmp_path, HEAD, *rows)).runs)
    assert (derived.step_s, derived.derived) == (2.5, True)
    assert (reported.step_s, reported.derived) == (2.0, False)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("a,m,1,8,1,H100,8,1,,,,,A,f", "no step time was measured"),
        ("a,m,x,8,1,H100,8,1,,,1.0,,A,f", "layers is x"),
        ("a,m,1.5,8,1,H100,8,1,,,1.0,,A,f", "layers is 1.5"),
        ("a,m,1,8,1,H100,0,1,,,1.0,,A,f", "gpus is 0"),
        ("a,m,1,8,1,,8,1,,,1.0,,A,f", "gpu is empty"),
        ("a,m,1,8,1,H100,8,1,maybe,,1.0,,A,f", "neither yes nor no"),
        ("a,m,1,8,1,H100,8,1,,,-1,,A,f", "is less than"),
        ("a,m,1,8,1,H100,8,1,,,nan,,A,f", "not a finite number"),
        ("a,m,1", "3 cells under 14 columns"),
    ],
)
def test_a_row_that_cannot_be_used_is_said_with_its_line(tmp_path: Path, row: str, why: str) -> None:
    found = read_training_runs(write(tmp_path, HEAD, GOOD, "", row))
    (skipped,) = found.skipped
    assert len(found.runs) == 1
    assert why in skipped.why
    assert skipped.where.endswith(":4")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("model,gpu,gpus,step_time_s", 'no column "id"'),
        ("id,model,gpu,gpus", "no column step_time_s"),
        ("id,id,model,gpu,gpus,step_time_s", "twice"),
        ("{not json", "not valid JSON"),
        ('{"name": "a"}\n[1]', "expected an object"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_training_runs(write(tmp_path, text))


def test_a_table_without_grades(tmp_path: Path) -> None:
    found = read_training_runs(write(tmp_path, "id,model,gpu,gpus,mbs,step_time_s", "a,llama3-8b,H100,8,1,2.0"))
    assert [run.config.grade for run in found.runs] == ["A"]
    assert found.notes == ('there is no column "complete": every row counts as grade A',)
    graded = read_training_runs(write(tmp_path, HEAD, GOOD, GOOD.replace(",A,", ",,")))
    assert [run.config.grade for run in graded.runs] == ["A", ""]
    assert graded.notes == ("ids of several rows, each of which counts: a",)


def test_a_missing_column_says_which_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_training_runs(write(tmp_path, "name,model,gpu,gpus,mbs,step_time_s"))
    for column in ("id", "model", "gpu", "gpus", "mbs", "step_time_s", "layers", "hidden", "ffn_hidden", "heads"):
        assert re.search(rf"\b{column}\b", refused.value.hint or "")


@pytest.mark.parametrize(("mark", "words"), [(";", "semicolons"), ("\t", "tabs")])
def test_cells_that_are_parted_otherwise(tmp_path: Path, mark: str, words: str) -> None:
    with pytest.raises(InputError, match=f"parted by {words} here"):
        read_training_runs(write(tmp_path, HEAD.replace(",", mark), GOOD.replace(",", mark)))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (",48,", ",1000000000,", "layers is 1000000000, expected a whole number from 1 to 2,000"),
        (",1.42,", ",1e-300,", "step_time_s is 1e-300, which is less than 1e-09"),
        (",1.42,", ",1e300,", "step_time_s is 1e300, which is too large: at most 1e+12"),
    ],
)
def test_numbers_that_cannot_be_meant(tmp_path: Path, old: str, new: str, why: str) -> None:
    (skipped,) = read_training_runs(write(tmp_path, HEAD, GOOD.replace(old, new))).skipped
    assert skipped.why == why


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as caught:
        read_training_runs(path)
    assert caught.value.code == "not-text"


def test_lines_of_json(tmp_path: Path) -> None:
    sizes = '"seq": 8, "mbs": 2, "hidden": 16, "ffn": 64, "heads": 2, "layers": 3'
    lines = (
        f'{{"name": "x", {sizes}, "kv": 1, "vocab": 0, "tp": 8, "style": "gpt", "compile": true, "fwd_ms": 1.5, '
        '"step_ms": 5, "peak_gb": 2}',
        f'{{"name": "x", {sizes}, "ok": false, "error": "out of memory"}}',
        f'{{"name": "x", {sizes}, "style": "other", "step_ms": 5}}',
        '{"name": "x", "step_ms": 5}',
    )
    found = read_training_runs(write(tmp_path, *lines, name="runs.jsonl"))
    (run,) = found.runs
    assert (run.config.id, run.config.vocab, run.config.share, run.config.gpus) == ("x#1", 0, 8, 1)
    assert (run.config.style, run.config.compiled) == ("gpt", True)
    assert run.measurement.step_s == pytest.approx(0.005)
    assert run.measurement.forward_s == pytest.approx(0.0015)
    assert run.measurement.backward_s is None
    assert run.measurement.memory_bytes == {"allocated": 2 * GIB}
    assert [one.id for one in found.skipped] == ["x#2", "x#3", "x#4"]
    assert "out of memory" in found.skipped[0].why


def test_memory_counts_what_its_family_or_its_column_says(tmp_path: Path) -> None:
    titan = GOOD.replace("korthikanti", "torchtitan")
    given = [GOOD, titan, GOOD.replace("korthikanti", "simumax-b200")]
    kinds = [run.measurement.memory_kind for run in read_training_runs(write(tmp_path, HEAD, *given)).runs]
    assert kinds == ["allocated", "reserved", "allocated"]
    rows = (f"{titan},allocated", f"{GOOD},used", f"{titan},", f"{GOOD},free")
    found = read_training_runs(write(tmp_path, f"{HEAD},memory_kind", *rows))
    assert [run.measurement.memory_kind for run in found.runs] == ["allocated", "used", "reserved"]
    assert len(found.skipped) == 1


SIZES = '"name": "x", "seq": 8, "mbs": 2, "hidden": 16, "ffn": 64, "heads": 2, "layers": 3'


def line_of(tmp_path: Path, fields: str) -> TrainingRun:
    (run,) = read_training_runs(write(tmp_path, f"{{{SIZES}, {fields}}}", name="runs.jsonl")).runs
    return run


def test_memory_without_a_step_time(tmp_path: Path) -> None:
    measured = line_of(tmp_path, '"peak_gb": 2, "reserved_gb": 3, "used_gb": 4').measurement
    assert measured.step_s is None
    assert measured.memory_bytes == {"allocated": 2 * GIB, "reserved": 3 * GIB, "used": 4 * GIB}
    assert line_of(tmp_path, '"step_ms": 5, "reserved_gb": 3').measurement.memory_bytes == {"reserved": 3 * GIB}


def test_lines_of_json_say_what_decides_memory(tmp_path: Path) -> None:
    modules = '"recompute": "none", "recompute_modules": ["core_attn", "mlp"], "offload_layers": 2'
    config = line_of(tmp_path, f'"peak_gb": 2, {modules}').config
    assert (config.recompute, config.offload_layers) == ("selective:core_attn+mlp", 2)
    dtypes = '"grad_dtype": "fp32", "master_dtype": "fp32", "moment_dtype": "bf16"'
    config = line_of(tmp_path, f'"peak_gb": 2, {dtypes}').config
    assert (config.grad_dtype, config.master_dtype, config.moment_dtype) == ("fp32", "fp32", "bf16")
    assert line_of(tmp_path, '"peak_gb": 2, "param_dtype": "fp32"').config.dtype == "fp32"
    assert line_of(tmp_path, '"peak_gb": 2').config.dtype == "bf16"


@pytest.mark.parametrize(
    "fields",
    [
        '"recompute_modules": "mlp"',
        '"recompute_modules": ["mlp"], "recompute": "full"',
        '"grad_dtype": "fp4"',
        '"param_dtype": "fp32", "dtype": "bf16"',
        '"offload_layers": -1',
        '"kv_lora_rank": "wide"',
    ],
)
def test_lines_of_json_that_cannot_be_meant(tmp_path: Path, fields: str) -> None:
    found = read_training_runs(write(tmp_path, f'{{{SIZES}, "peak_gb": 2, {fields}}}', name="runs.jsonl"))
    assert not found.runs
    assert len(found.skipped) == 1


def test_fields_that_are_not_read_are_named_once(tmp_path: Path) -> None:
    line = f'{{{SIZES}, "peak_gb": 2, "params": 5, "colour": "red"}}'
    (note,) = read_training_runs(write(tmp_path, line, line, name="runs.jsonl")).notes
    assert "colour" in note
    assert "params" not in note
    assert read_training_runs(write(tmp_path, f'{{{SIZES}, "peak_gb": 2}}', name="runs.jsonl")).notes == ()


def test_a_configuration_holds_nothing_measured() -> None:
    names = {field.name for field in fields(RunConfig)}
    assert not {
        name for name in names if any(word in name for word in ("step", "_s", "mfu", "tflops", "tokens", "peak"))
    }


def test_the_published_runs() -> None:
    """Every row with a step time is read, with its grade and family, and all others are skipped for that reason."""
    path = shared("data", "runs", "training_steps_dev.csv")
    with path.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    found = read_training_runs(path)
    timed = {name for name, row in rows.items() if row["step_time_s"] or row["step_time_derived_s"]}
    assert [run.config.id for run in found.runs] == [name for name in rows if name in timed]
    assert {one.id for one in found.skipped} == rows.keys() - timed
    assert all("no step time was measured" in one.why for one in found.skipped)
    for run in found.runs:
        row = rows[run.config.id]
        assert (run.config.grade, run.config.family) == (row["complete"], row["family"])
        assert run.measurement.derived == (not row["step_time_s"])
    assert {run.config.grade for run in found.runs} == {"A", "B"}


def test_the_runs_of_one_gpu() -> None:
    found = read_training_runs(shared("data", "h200", "single_gpu_steps.jsonl"))
    assert len(found.runs) == 8
    assert not found.skipped
    assert all(run.measurement.optimizer_s for run in found.runs)


def test_a_row_that_repeats_another_counts_once(tmp_path: Path) -> None:
    runs = read_training_runs(write(tmp_path, HEAD, GOOD, GOOD.replace("a,", "b,", 1), GOOD))
    assert [run.config.id for run in runs.runs] == ["a", "b"]
    assert [(run.id, run.why) for run in runs.skipped] == [("a", "it repeats line 2")]
    line = '{"name": "a", "layers": 1, "hidden": 8, "ffn": 8, "heads": 1, "seq": 8, "mbs": 1, "step_ms": 3.0}'
    again = read_training_runs(write(tmp_path, line, line.replace("3.0", "3.1"), line, name="runs.jsonl"))
    assert [run.config.id for run in again.runs] == ["a#1", "a#2"]
    assert [run.id for run in again.skipped] == ["a#3"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", "1" * 400),
        ("layers", "true"),
        ("hidden", "[[[[8]]]]"),
        ("gpu", '{"a": 1}'),
        ("gpu", '"' + "x" * 1000 + '"'),
        ("step_ms", "-3"),
        ("step_ms", "1e-300"),
        ("dtype", "5"),
        ("grad_dtype", "[1]"),
    ],
)
def test_values_of_json_that_cannot_be_meant_are_said(tmp_path: Path, name: str, value: str) -> None:
    fields = {"layers": "1", "hidden": "8", "ffn": "8", "heads": "1", "seq": "8", "mbs": "1", "step_ms": "3.0"}
    line = "{" + ", ".join(f'"{key}": {text}' for key, text in (fields | {name: value}).items()) + "}"
    (skipped,) = read_training_runs(write(tmp_path, line, name="runs.jsonl")).skipped
    assert name in skipped.why and len(skipped.why) < 300


def test_names_and_files_longer_than_any_real_one(tmp_path: Path) -> None:
    (skipped,) = read_training_runs(write(tmp_path, HEAD, GOOD.replace("GPT 22B", "_ " * 30_000))).skipped
    assert "model" in skipped.why
    for text in ("\n" * 100_001, "x" * (17 << 20)):
        with pytest.raises(InputError) as caught:
            read_training_runs(write(tmp_path, HEAD, GOOD, text))
        assert caught.value.code == "input-too-large"


def test_a_field_that_a_line_of_json_gives_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_training_runs(write(tmp_path, f'{{{SIZES}, "peak_gb": 2, "peak_gb": 3}}', name="runs.jsonl"))
    assert refused.value.code == "duplicate-name"
    assert str(refused.value.where).endswith("runs.jsonl:1")
