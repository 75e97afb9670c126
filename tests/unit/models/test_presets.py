"""Presets: the counts their makers publish, and the names people type."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from foretrace.basics.errors import InputError
from foretrace.models import presets
from foretrace.models.parameters import parameters
from shared_files import shared

ROUNDED = "published_parameters is rounded by its makers"
VISION = 871_932_416

# Checkpoints' own counts.
EXACT = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "tinyllama-1.1b": 1_100_048_384,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-neox-20b": 20_554_567_680,
}


def measured_runs() -> list[dict[str, str]]:
    """Reads the table of published runs, which grows: tests state what holds for every row."""
    with shared("data", "runs", "training_steps_dev.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    return rows


@pytest.mark.parametrize("name", EXACT)
def test_counts_of_checkpoints(name: str) -> None:
    assert parameters(presets.model(name)) == EXACT[name]


@pytest.mark.parametrize("name", presets.names())
def test_counts_are_the_published_ones(name: str) -> None:
    model = presets.model(name)
    if model.published_parameters is None:
        assert any("no exact count" in note for note in model.notes)
    elif ROUNDED in model.notes:
        assert parameters(model) == pytest.approx(model.published_parameters, rel=0.03)
    elif name.startswith("llama4"):  # two models, one vision encoder
        assert parameters(model) + VISION == model.published_parameters
    else:
        assert parameters(model) == model.published_parameters


def test_another_vocabulary_of_mixtral_is_another_count() -> None:
    assert parameters(replace(presets.model("mixtral-8x22b"), vocab=32768)) == 140_630_071_296


def test_mpt_has_biases_and_a_position_for_every_token() -> None:
    """llm-foundry publishes a count for each sequence length, to a million: only biases explain them all."""
    checked = set()
    for row in measured_runs():
        if row["model"].startswith("MPT"):
            model = replace(presets.model(row["model"]), positions=int(row["seq_len"]))
            assert abs(parameters(model) / 1e9 - float(row["params_b"])) < 0.00051, row["id"]
            checked.add(model.name)
    assert checked == {name for name in presets.names() if name.startswith("mpt")}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Llama-3-70B", "llama3-70b"),
        ("llama3_70b", "llama3-70b"),
        ("LLAMA3.1_405B", "llama3.1-405b"),
        ("Llama 3.1 8B", "llama3-8b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("llama 405b", "llama3.1-405b"),
        ("Llama-4-Scout-17B-16E", "llama4-scout"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("Qwen2.5-72B-Instruct", "qwen2.5-72b"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("deepseek_v2", "deepseek-v2"),
        ("GPT-OSS-120B", "gpt-oss-120b"),
        ("GPT3-175B", "gpt3-175b"),
        ("GPT 175B", "gpt3-175b"),
        ("GPT 174.6B", "gpt3-175b"),
        ("GPT 22B", "gpt-22b"),
        ("GPT 1T", "gpt-1t"),
        ("MPT 7b", "mpt-7b"),
        ("MPT 125m", "mpt-125m"),
        ("Nemotron-340B", "nemotron4-340b"),
        ("Nemotron-8B", "nemotron3-8b"),
        ("mixtral8x7b", "mixtral-8x7b"),
        ("gpt2", "gpt2"),
    ],
)
def test_names_as_people_type_them(typed: str, meant: str) -> None:
    assert presets.model(typed) is presets.model(meant)
    assert presets.model(typed.upper()).name == meant
    assert presets.is_known(typed)


def test_the_models_of_the_measured_runs_are_all_known() -> None:
    """A row may keep only some layers of a model ("L12") or remark on the run: "(w/o MTP)", "(tokendrop)"."""
    for row in measured_runs():
        name = re.sub(r" (L\d+|\([^()]+\))$", "", row["model"])
        model = presets.model(name)
        assert model.hidden == int(row["hidden"]), row["model"]
        assert model.layers[-1].attention.heads == int(row["heads"]), row["model"]


def test_no_two_presets_share_a_spelling() -> None:
    for name in presets.names():
        for called in (name, *presets.aliases(name)):
            assert presets.model(called).name == name


def test_the_files_are_split_where_yaml_splits_them() -> None:
    folder = Path(presets.__file__).parent / "data"
    whole: dict[str, dict[str, object]] = {}
    for path in sorted(folder.glob("*.yaml")):
        whole |= yaml.safe_load(path.read_text(encoding="utf-8"))
    assert tuple(whole) == presets.names()
    for name, entry in whole.items():
        assert presets.aliases(name) == tuple(entry.get("aliases", ()))  # type: ignore[call-overload]


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_says_where_its_figures_come_from(name: str) -> None:
    model = presets.model(name)
    assert model.title != name
    assert model.sources
    assert all(re.search(r"https://\S+$", source) for source in model.sources)


@pytest.mark.parametrize("name", presets.names())
def test_equal_layers_are_one_object(name: str) -> None:
    layers = presets.model(name).layers
    assert len({id(layer) for layer in layers}) == len(set(layers)) <= 4


@pytest.mark.parametrize(
    ("typed", "problem", "hint"),
    [
        ("llama3", "may be any of 5 models", "llama3-8b llama3-70b llama3.1-405b"),
        ("llama-70b", "may be any of 2 models", "llama2-70b llama3-70b"),
        ("lama3-70b", "did you mean llama3-70b?", "foretrace list models"),
        ("70b", 'no model is called "70b"', "foretrace list models"),
        ("", 'no model is called ""', "foretrace list models"),
        ("x" * 5_000, "no model is called", "foretrace list models"),
    ],
)
def test_names_that_mean_nothing_or_much(typed: str, problem: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        presets.model(typed)
    assert problem in refused.value.message
    assert hint in (refused.value.hint or "")
    assert len(refused.value.message) < 200


def test_an_error_names_where_the_name_stands() -> None:
    with pytest.raises(InputError, match=r"^job\.yaml:3: no model"):
        presets.model("nothing", where="job.yaml:3")


@pytest.mark.parametrize(("typed", "meant"), [("DeepSeekV3", "deepseek-v3"), ("GPTOSS120b", "gpt-oss-120b")])
def test_separators_may_be_missing(typed: str, meant: str) -> None:
    assert presets.model(typed).name == meant
