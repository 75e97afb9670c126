"""Models as people write them: read, refused, and written back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.models.compose import compose_layers
from foretrace.models.model import Layer, Mlp, Model, SelfAttention
from foretrace.models.ranges import format_ranges, parse_ranges
from foretrace.models.write_spec import model_spec
from foretrace.workload.job_file import read_job
from foretrace.workload.write_job import JobDraft, job_text

WHOLE = "hidden: 64\n  layers: 4\n  vocab: 100\n  attention: {heads: 4}\n  mlp: {ffn: 256}"


def read(tmp_path: Path, model: str) -> Model:
    path = tmp_path / "mine.yaml"
    path.write_text(f"model:\n  {model}\n" if "\n" in model else f"model: {model}\n", encoding="utf-8")
    return read_job(path).model


def test_a_mapping_that_says_what_it_must(tmp_path: Path) -> None:
    model = read(tmp_path, WHOLE)
    layer = Layer(SelfAttention(4, 4, 16), Mlp(256, True, "silu"))
    assert model == Model("mine", 64, (layer,) * 4, 100, "rmsnorm", False, title="mine")


def test_a_preset_with_fewer_layers_has_its_first_ones(tmp_path: Path) -> None:
    model = read(tmp_path, "{based_on: DeepSeek V3, layers: 5, mtp: 0}")
    base = presets.model("deepseek-v3")
    assert model.layers == base.layers[:5]
    assert (model.name, model.mtp, model.hidden) == ("deepseek-v3-5-layers", 0, 7168)
    assert model.published_parameters is None


def test_a_preset_with_more_layers_repeats_its_last(tmp_path: Path) -> None:
    model = read(tmp_path, "{based_on: llama3-8b, name: taller, layers: 40, seq_len: 4096}")
    assert model.layers == presets.model("llama3-8b").layers[:1] * 40
    assert (model.name, model.seq_len) == ("taller", 4096)


def test_a_preset_at_another_length_is_the_same_model(tmp_path: Path) -> None:
    base = presets.model("llama3-8b")
    assert read(tmp_path, "{based_on: llama3-8b, seq_len: 4096}") == replace(base, seq_len=4096)


@pytest.mark.parametrize("name", presets.names())
def test_presets_survive_being_written(name: str, tmp_path: Path) -> None:
    model = presets.model(name)
    path = tmp_path / "job.yaml"
    path.write_text(job_text(JobDraft(model_spec(model), {}, None, "a test")), encoding="utf-8")
    back = read_job(path).model
    about = {"title": "", "sources": (), "notes": (), "published_parameters": None}
    assert replace(back, **about) == replace(model, **about)  # type: ignore[arg-type]


def test_layers_that_differ_in_more_cannot_be_written() -> None:
    model = presets.model("llama3-8b")
    other = Layer(SelfAttention(8, 8, 64), Mlp(256, True, "silu"))
    with pytest.raises(ValueError, match="more than a spec can say"):
        model_spec(replace(model, layers=(*model.layers, other)))


@pytest.mark.parametrize(
    ("change", "line", "problem", "hint"),
    [
        (("ffn: 256", "fnn: 256"), 6, '"fnn" is not known; did you mean ffn?', "known: ffn gated"),
        (("hidden: 64", "hiden: 64"), 2, '"hiden" is not known; did you mean hidden?', "known:"),
        (("vocab: 100", "tied: no"), 2, "field vocab is missing", "expected e.g."),
        (("heads: 4", "heads: 5"), 5, "hidden 64 is no multiple of heads 5", "say head_dim"),
        (("heads: 4", "heads: 4, kv_heads: 3"), 5, "heads 4 is no multiple of kv_heads 3", "serves"),
        (("heads: 4", "heads: 0"), 5, "heads 0 cannot be meant", "expected 1 to"),
        (("heads: 4", "heads: 4, kv_lora_rank: 8"), 5, "field nope_dim is missing", "nope_dim"),
        (("heads: 4", "heads: 4, kv_lora_rank: 8, head_dim: 9"), 5, "head_dim does not go with", "latent"),
        (("layers: 4", "layers: 99999999"), 3, "cannot be meant", "2,000"),
        (("mlp: {ffn: 256}", "norm: rmsnorm"), 2, "needs mlp or experts", "mlp"),
        (("ffn: 256", "ffn: 256, activation: swish"), 6, 'activation "swish" is not known', "gelu relu relu2 silu"),
        (("mlp: {ffn: 256}", "experts: {count: 4, topk: 5, ffn: 8}"), 6, "topk 5 is more than the 4", "topk"),
        (("mlp: {ffn: 256}", "experts: {count: 4, topk: 1, ffn: 8}\n  dense_layers: 0"), 7, "need an mlp", "mlp"),
        (("mlp: {ffn: 256}", "mlp: {ffn: 256}\n  no_rope_layers: 9"), 7, "there is no layer 9", "0 to 3"),
    ],
)
def test_mistakes_are_named_with_their_line(
    change: tuple[str, str], line: int, problem: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, WHOLE.replace(*change))
    assert problem in refused.value.message
    assert refused.value.where == f"{tmp_path / 'mine.yaml'}:{line}"
    assert hint in (refused.value.hint or "")


def test_a_base_that_is_not_known_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.yaml:1: no model is called \"lama3-8b\"; did you mean llama3-8b"):
        read(tmp_path, "{based_on: lama3-8b}")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-2", [0, 1, 2]), ("1-7/2", [1, 3, 5, 7]), ("0,4", [0, 4]), ("0-1,5", [0, 1, 5]), ("3", [3])],
)
def test_ranges(text: str, numbers: list[int]) -> None:
    assert sorted(parse_ranges(text, 10)) == numbers
    assert format_ranges(numbers) == text


@pytest.mark.parametrize("text", ["", "a", "2-1", "1-5/0", "-1", "1,,2", "9" * 50])
def test_texts_that_name_no_layers(text: str) -> None:
    with pytest.raises(InputError, match="names no layers") as caught:
        parse_ranges(text, 10)
    assert caught.value.code == "bad-value"


def test_a_layer_without_a_feed_forward_part_is_no_layer() -> None:
    with pytest.raises(ValueError, match="layer 0 has no feed-forward part"):
        compose_layers(2, SelfAttention(4, 4, 16), None)
