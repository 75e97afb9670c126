"""Loads a model by what a person calls it: a preset's name, a Hugging Face config.json, or the folder with one."""

from __future__ import annotations

from pathlib import Path

from foretrace.basics.errors import Diagnostic
from foretrace.basics.files import AnyFile, may_open
from foretrace.models import presets
from foretrace.models.model import Model


def load_model(name_or_path: AnyFile) -> Model:
    """The model of a name or of a configuration."""
    return read_model(name_or_path)[0]


def read_model(name_or_path: AnyFile) -> tuple[Model, tuple[Diagnostic, ...]]:
    """The model of a name or of a configuration, and what was guessed or left out."""
    if is_configuration(name_or_path):
        from foretrace.models.from_hf import model_from_hf

        return model_from_hf(name_or_path)
    return presets.model(str(name_or_path)), ()


def is_configuration(name_or_path: AnyFile) -> bool:
    """Whether a text means a config.json, by its ending or because it is a folder with one."""
    return str(name_or_path).lower().endswith(".json") or is_file(Path(name_or_path) / "config.json")


def is_file(path: Path) -> bool:
    """Whether there is such a file; what cannot even be a file's name is none."""
    try:
        return may_open(path) and path.is_file()
    except (OSError, ValueError):
        return False
