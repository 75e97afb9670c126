"""Finds the presets that come with the package by name.

Names resolve the way people type them: case, separators, the owner of a repository and words such as "instruct" do not
matter. A name that is part of exactly one preset's (llama 405b) is that preset; an ambiguous one lists the choices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretrace.basics.documents import Document, Preset, presets_of
from foretrace.basics.errors import InputError, did_you_mean, shortened
from foretrace.models.model import Model
from foretrace.models.spec import read_model_spec

_DATA = Path(__file__).parent / "data"
_SAY_NOTHING = {"meta", "instruct", "base", "chat", "hf", "it", "model", "preview", "text"}
"""Words that tell no two presets apart."""
_MAX_CHOICES = 24


def model(name: str, *, where: str | None = None) -> Model:
    """The model that is called so; an error names `where`."""
    return _read(_resolved(name, where))


def names() -> tuple[str, ...]:
    """The names of all presets, in the order of the files."""
    return tuple(_shelf().presets)


def aliases(name: str) -> tuple[str, ...]:
    """Other names of a preset."""
    return _shelf().presets[name].aliases


def is_known(name: str) -> bool:
    """Whether a name means exactly one preset."""
    return len(matches(name)) == 1


@dataclass(frozen=True, slots=True)
class _Shelf:
    """All presets by name, and the name that each spelling means."""

    presets: dict[str, Preset]
    by_key: dict[str, str]


@cache
def _shelf() -> _Shelf:
    presets: dict[str, Preset] = {}
    for path in sorted(_DATA.glob("*.yaml")):
        presets |= presets_of(Document(str(path), "list of models", "", "", shipped=True))
    return _Shelf(presets, {_key(called): preset.name for preset in presets.values() for called in preset.names})


@cache
def _read(name: str) -> Model:
    preset = _shelf().presets[name]
    return read_model_spec(preset.document, preset.node(), model, name=name)


def _resolved(name: str, where: str | None) -> str:
    names = matches(name)
    if len(names) == 1:
        return names[0]
    shown = shortened(name)
    if names:
        listed = " ".join(names[:_MAX_CHOICES]) + (" …" if len(names) > _MAX_CHOICES else "")
        raise InputError(
            "ambiguous-name", f'"{shown}" may be any of {len(names)} models', where=where, hint=f"one of: {listed}"
        )
    raise InputError(
        "unknown-name",
        f'no model is called "{shown}"{did_you_mean(name, _shelf().presets)}',
        where=where,
        hint="see foretrace list models; or give a config.json or a job file (foretrace init)",
    )


def matches(name: str) -> list[str]:
    """The presets a name may mean: the one it is a spelling of, else those whose names have all of its words."""
    shelf = _shelf()
    if _key(name) in shelf.by_key:
        return [shelf.by_key[_key(name)]]
    glued = "".join(_words(name))  # DeepSeekV3 has no separator where the preset's name has one
    same_letters = {preset for key, preset in shelf.by_key.items() if key.replace(" ", "") == glued}
    if glued and len(same_letters) == 1:
        return [*same_letters]
    words = set(_words(name))
    # A family must be there: "70b" alone names nothing.
    if not any(len(word) > 2 and word.isalpha() for word in words):
        return []
    return [
        preset.name for preset in shelf.presets.values() if any(words <= set(_words(called)) for called in preset.names)
    ]


def _key(name: str) -> str:
    return " ".join(_words(name))


def _words(name: str) -> list[str]:
    """The words of a name that say something: "meta-llama/Llama-3.1-405B-Instruct" is llama, 3.1 and 405b."""
    last = name.lower().rstrip("/").rpartition("/")[2]
    # A size keeps its unit (70b, 8x7b, a3b); other numbers part from the letters before them (llama3, v2).
    parts = re.findall(r"\d+x\d+b|a?\d+(?:\.\d+)?[bmt](?![a-z0-9])|\d+(?:\.\d+)?|[a-z]+?(?=a\d+b)|[a-z]+", last)
    return [part for part in parts if part not in _SAY_NOTHING]
