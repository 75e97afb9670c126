"""Hugging Face's config.json: its fields with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.hf_config import read_hf_config

TEXT = """{
  "model_type": "llama",
  "_name_or_path": "owner/my-model",
  "hidden_size": 4096,
  "head_dim": null,
  "use_cache": true,
  "list": [1, "two"],
  "inner": {"heads": 3}
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_fields_and_lines(file: Path) -> None:
    config = read_hf_config(file)
    assert (config.model_type, config.name) == ("llama", "my-model")
    assert config.count("hidden_size") == config.count("n_embd", "hidden_size") == 4096
    assert config.where("hidden_size") == f"{file}:4"
    assert config.flag("use_cache", False)
    assert config.texts("list") == ["1", "two"]
    assert config.texts("nothing") == []
    inner = config.inner("inner")
    assert inner is not None
    assert inner.count("heads") == 3
    assert config.inner("list") is None


def test_null_counts_as_absent(file: Path) -> None:
    config = read_hf_config(file)
    assert "head_dim" not in config
    assert config.count("head_dim", default=7) == 7
    with pytest.raises(InputError) as caught:
        config.count("head_dim")
    assert caught.value.code == "missing-field"


def test_a_folder_is_its_config(file: Path) -> None:
    assert read_hf_config(file.parent).count("hidden_size") == 4096


def test_a_folder_stands_for_its_file_and_is_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "tall-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    config = read_hf_config(folder)
    assert (config.model_type, config.name) == ("llama", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("[1]", "expected an object"),
        ("{", "not valid JSON"),
        ('{"hidden_size": 4}', "field model_type is missing"),
        ('{"model_type": ["a"]}', "model_type"),
        ('{"model_type": "a", "model_type": "b"}', "given twice"),
    ],
)
def test_what_is_no_configuration(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=problem) as refused:
        read_hf_config(path)
    assert str(path) in str(refused.value.where)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the model configuration"):
        read_hf_config(tmp_path / "config.json")
