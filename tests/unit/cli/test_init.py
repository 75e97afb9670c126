"""`foretrace init`, and models in `list` and `show`, as a person runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.models import presets
from foretrace.models.parameters import parameters
from foretrace.workload.job_file import read_job
from unit.cli.command_line import answer_of, call

SCRIPT = """TP=4
ARGS=(
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --group-query-attention
  --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --normalization RMSNorm --disable-bias-linear
  --position-embedding-type rope --vocab-size 128256 --seq-length 8192 --micro-batch-size 1 --bf16
)
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py ${ARGS[@]} --tensor-model-parallel-size $TP
"""
CONFIG = """{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
 "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}"""


def test_from_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    assert call("init", "--model", "Llama-3-70B", "--cluster", "b200-dgx", "-o", path) == 0
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", f"{path}: 6 guesses to look at\n")
    job = read_job(path)
    assert job.model is presets.model("llama3-70b")
    assert (job.plan_fields["seq_len"], job.cluster) == (8192, "b200-dgx")


def test_from_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, path = tmp_path / "train.sh", tmp_path / "job.yaml"
    script.write_text(SCRIPT, encoding="utf-8")
    assert call("init", "--from-megatron", script) == 0
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    job = read_job(path)
    assert parameters(job.model) == 8_030_261_248
    assert (job.plan_fields["gpus"], job.plan_fields["tp"], job.plan_fields["sequence_parallel"]) == (16, 4, False)
    text = path.read_text(encoding="utf-8")
    assert "# guessed: --nproc-per-node times --nnodes" in text
    assert "# guessed: --hidden-dropout" in text


def test_from_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, path = tmp_path / "config.json", tmp_path / "job.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    assert call("init", "--hf", config, "-o", path) == 0
    capsys.readouterr()
    assert read_job(path).model.layers == presets.model("llama3-8b").layers
    assert "# guessed: tie_word_embeddings is not given" in path.read_text(encoding="utf-8")


def test_from_a_configuration_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, path = tmp_path / "ds_config.json", tmp_path / "job.yaml"
    config.write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 2}, "lr": 1}', encoding="utf-8")
    assert call("init", "--from", config, "--model", "llama3-8b", "-o", path) == 0
    job = read_job(path)
    assert job.model is presets.model("llama3-8b")
    assert (job.plan_fields["gbs"], job.plan_fields["zero"]) == (64, 2)
    assert "# not used: lr" in path.read_text(encoding="utf-8")
    capsys.readouterr()
    assert call("init", "--from", config) == 3
    assert "[missing-field]" in capsys.readouterr().err


def test_from_overrides_of_bridge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, path = tmp_path / "run.sh", tmp_path / "job.yaml"
    words = ("generate", "llama3-8b", "--gpus", 16, "--tp", 2, "--pp", 2, "--gbs", 32, "--cluster", "h100-dgx")
    assert call(*words, "--format", "launch", "--framework", "megatron-bridge", "-o", script) == 0
    assert call("init", "--from", script, "-o", path) == 0
    capsys.readouterr()
    job = read_job(path)
    assert job.model.layers == presets.model("llama3-8b").layers
    assert [job.plan_fields[name] for name in ("gpus", "tp", "pp", "gbs")] == [16, 2, 2, 32]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ((), 2, "from what?"),
        (("--model", "gpt2", "--hf", "config.json"), 2, "--hf and --model cannot both be meant"),
        (("--model", "lama3-70b"), 3, "did you mean llama3-70b?"),
        (("--model", "gpt2", "--cluster", "h10-dgx"), 3, "did you mean h100-dgx?"),
        (("--hf", "nowhere.json"), 3, "nowhere.json: cannot read the model configuration"),
        (("--from-megatron", "nowhere.sh"), 3, "nowhere.sh: there is no such file"),
        (("--model", "gpt2", "-o", "nowhere/job.yaml"), 3, "[unwritable-file]"),
    ],
)
def test_mistakes(
    words: tuple[str, ...],
    code: int,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("init", *words) == code
    assert problem in capsys.readouterr().err


def test_a_file_is_not_written_over_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("mine", encoding="utf-8")
    assert call("init", "--model", "gpt2", "-o", path) == 2
    assert "is there already" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"
    assert call("init", "--model", "gpt2", "-o", path, "--force") == 0
    assert read_job(path).model.name == "gpt2"


def test_list_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "models") == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["model", "parameters", "active"]
    assert [row.split()[0] for row in rows] == list(presets.names())
    mixture = next(row for row in rows if row.split()[0] == "qwen3-30b-a3b")
    assert "30.5 B" in mixture
    assert "3.35 B" in mixture
    answer = answer_of(capsys, "list", "models")
    assert (answer["schema"], answer["kind"]) == ("foretrace.list/1", "models")
    assert [item["name"] for item in answer["models"]] == list(presets.names())


def test_show_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "DeepSeek-V3") == 0
    text = capsys.readouterr().out
    assert "671,026,419,200" in text
    assert "8 of 256 experts" in text
    assert "latent attention, 128 heads of 128+64" in text
    assert "https://" in text
    answer = answer_of(capsys, "show", "llama3-70b")
    assert (answer["schema"], answer["kind"], answer["name"]) == ("foretrace.show/1", "model", "llama3-70b")
    assert answer["parameters"] == answer["published_parameters"] == 70_553_706_496
    assert sum(answer["parameters_by_part"].values()) == answer["parameters"]
    assert answer["training_flops_per_token"] == pytest.approx(449.2e9, rel=1e-3)


def test_show_the_model_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "job.yaml").write_text("model: {based_on: llama3-70b, layers: 2}\n", encoding="utf-8")
    assert answer_of(capsys, "show", tmp_path / "config.json", "--as", "model")["parameters"] == 8_030_261_248
    assert answer_of(capsys, "show", tmp_path / "job.yaml", "--as", "model")["layers"] == 2


def test_show_still_knows_hardware_and_says_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_of(capsys, "show", "h100-dgx")["kind"] == "cluster"
    assert call("show", "lama3-70b") == 3
    assert "did you mean llama3-70b?" in capsys.readouterr().err
    assert call("show", "llama3") == 3
    assert "may be any of 5 models" in capsys.readouterr().err
    assert call("show", "h10-dgx") == 3
    assert "h100-dgx" in capsys.readouterr().err
