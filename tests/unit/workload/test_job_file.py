"""Job files: read, refused with lines, and written so that they read the same."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.workload.job_file import PLAN_KEYS, JobFile, read_job
from foretrace.workload.plan import Plan
from foretrace.workload.write_job import JobDraft, job_text


def read(tmp_path: Path, text: str) -> JobFile:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return read_job(path)


def test_every_field_of_a_plan_can_be_written() -> None:
    assert set(PLAN_KEYS) == {field.name for field in fields(Plan)}


def test_a_whole_job(tmp_path: Path) -> None:
    job = read(
        tmp_path,
        "model: Llama-3-70B\nplan:\n  gpus: 512\n  tp: 4\n  sequence_parallel: yes\n  recompute: full\n"
        "  routing: 1.5x\n  stage_layers: [20, 20, 20, 20]\n  documents: 4096,4096\n  schedule: zb-h1\n"
        "  zero: 0\ncluster: h100-dgx\n",
    )
    assert job.model is presets.model("llama3-70b")
    assert job.cluster == "h100-dgx"
    assert job.plan_fields == {
        "gpus": 512,
        "tp": 4,
        "sequence_parallel": True,
        "recompute": "full",
        "routing": 1.5,
        "stage_layers": (20, 20, 20, 20),
        "documents": (4096, 4096),
        "schedule": "zb-h1",
        "zero": 0,
    }
    assert Plan(**job.plan_fields).tp == 4  # type: ignore[arg-type]


def test_a_model_alone_is_a_job(tmp_path: Path) -> None:
    assert read(tmp_path, "model: gpt2\n") == JobFile(presets.model("gpt2"), {}, None)


def test_a_clusters_file_is_sought_beside_the_job(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("based_on: h100-dgx\n", encoding="utf-8")
    assert read(tmp_path, "model: gpt2\ncluster: mine.yaml\n").cluster == str(tmp_path / "mine.yaml")
    assert read(tmp_path, "model: gpt2\ncluster: other.yaml\n").cluster == "other.yaml"


def test_written_and_read(tmp_path: Path) -> None:
    plan = {
        "gpus": 64,
        "mbs": 2,
        "gbs": 512,
        "tp": 4,
        "pp": 2,
        "vpp": 2,
        "recompute": "selective",
        "precision": "fp8",
        "documents": (1024, 3072),
        "dispatcher": "hybridep",
        "grad_overlap": False,
        "stack": "megatron-core",
        "routing": 1.25,
    }
    text = job_text(JobDraft("llama3-8b", plan, "b200-dgx", "a\ntest", ("this", "that"), {"gpus": "so many"}))
    job = read(tmp_path, text)
    assert job == JobFile(presets.model("llama3-8b"), plan, "b200-dgx")
    assert text.count("# guessed:") == 3
    assert "gpus: 64" in text
    assert "# guessed: so many" in text


def test_deepep_is_an_older_word_for_a_dispatcher(tmp_path: Path) -> None:
    assert read(tmp_path, "model: gpt2\nplan: {deepep: yes}\n").plan_fields == {"dispatcher": "deepep"}
    assert read(tmp_path, "model: gpt2\nplan: {deepep: no}\n").plan_fields == {}
    both = "model: gpt2\nplan: {deepep: yes, dispatcher: hybridep}\n"
    assert read(tmp_path, both).plan_fields == {"dispatcher": "hybridep"}


def test_what_is_not_known_is_guessed_and_marked(tmp_path: Path) -> None:
    text = job_text(JobDraft("llama3-8b", {"tp": 3}, None, "a test"))
    job = read(tmp_path, text)
    assert job.plan_fields == {"gpus": 24, "mbs": 1, "tp": 3, "pp": 1, "recompute": "none", "precision": "bf16"}
    assert job.cluster == "h100-dgx"
    assert text.count("# guessed:") == 6  # and the cluster
    assert "# gbs: chosen unless given" in text


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("plan: {gpus: 8}\n", 1, "field model is missing"),
        ("model: gpt2\nplans: {}\n", 2, '"plans" is not known; did you mean plan?'),
        ("model: gpt2\nplan:\n  gpu: 8\n", 3, '"gpu" is not known; did you mean gpus?'),
        ("model: gpt2\nplan:\n  tp: 4\n  tp: 8\n", 4, "given twice"),
        ("model: gpt2\nplan: {tp: 0}\n", 2, "tp 0 cannot be meant"),
        ("model: gpt2\nplan: {tp: 2.5}\n", 2, "2.5"),
        ("model: gpt2\nplan: {zero: 4}\n", 2, "zero 4 cannot be meant"),
        ("model: gpt2\nplan: {recompute: ful}\n", 2, '"ful" is not known; did you mean full?'),
        ("model: gpt2\nplan: {precision: int8}\n", 2, 'precision "int8" is not known'),
        ("model: gpt2\nplan: {reshard: maybe}\n", 2, "neither yes nor no"),
        ("model: gpt2\nplan: {documents: [1, x]}\n", 2, "documents: expected whole numbers"),
        ("model: gpt2\nplan: {routing: 0.5x}\n", 2, "less than the mean"),
        ("model: gtp22\n", 1, 'no model is called "gtp22"; did you mean'),
        ("model: [gpt2]\n", 1, "expected a model's name or a mapping"),
        ("model: gpt2\nplan: 7\n", 2, "expected a mapping"),
        ("model: gpt2\ncluster: {based_on: h100-dgx}\n", 2, "a name or a file"),
        ("- gpt2\n", 1, "expected a mapping"),
        ("model: gpt2\n  plan: [\n", 2, "not valid YAML"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, line: int, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert problem in refused.value.message
    assert refused.value.where == f"{tmp_path / 'job.yaml'}:{line}"


@pytest.mark.parametrize("text", ["", "\0"])
def test_what_is_no_text(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the job is"):
        read(tmp_path, text)


def test_k_of_tokens_is_binary_and_of_counts_decimal(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: llama3-8b\nplan: {gpus: 1k, gbs: 2k, seq_len: 8k, documents: [4k, 2k, '2048']}\n")
    fields = read_job(job).plan_fields
    assert (fields["gpus"], fields["gbs"]) == (1000, 2000)
    assert (fields["seq_len"], fields["documents"]) == (8192, (4096, 2048, 2048))


@pytest.mark.parametrize("field", ["seq_len: 8kk", "gbs: 1.5", "gbs: -3", "documents: [8kk]", "stage_layers: [1.5]"])
def test_nonsense_is_no_count(field: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"model: llama3-8b\nplan: {{gpus: 8, {field}}}\n")
    with pytest.raises(InputError) as caught:
        read_job(job)
    assert caught.value.code in ("bad-value", "out-of-range")
