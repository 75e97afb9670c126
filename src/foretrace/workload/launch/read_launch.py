"""Reads the launch script or configuration of any framework: which one it is, and the job that it describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from foretrace.basics.documents import Document
from foretrace.basics.errors import InputError
from foretrace.basics.files import read_whole
from foretrace.basics.limits import check_limit
from foretrace.models.model import Model
from foretrace.workload.launch.arguments import HINT, MAX_BYTES, Arguments, script_arguments, script_of
from foretrace.workload.launch.bridge import bridge_arguments, is_bridge, job_from_bridge
from foretrace.workload.launch.deepspeed import config_of, job_from_deepspeed, json_arguments
from foretrace.workload.launch.megatron import job_from_megatron
from foretrace.workload.launch.rules import LaunchedJob, Reading
from foretrace.workload.launch.torchtitan import SECTIONS, job_from_torchtitan
from foretrace.workload.launch.torchtitan_files import (
    config_file,
    is_torchtitan,
    toml_arguments,
    torchtitan_arguments,
)

_TOML: Final = re.compile(rf"^[ \t]*\[({'|'.join(SECTIONS)})\][ \t]*\r?$", re.MULTILINE)
_MAX_CONFIG: Final = 200_000
"""Characters of a configuration; real ones have a few thousand."""


def read_launch(path: str | Path, model: Model | None = None) -> LaunchedJob:
    """Returns the job of a launch script or configuration, whichever framework it is of.

    Args:
        path: The file. A configuration that its command line names is read too, from where the file stands.
        model: The model, where the file does not describe it.

    Raises:
        InputError: The file cannot be read, or does not say what a job needs.
    """
    arguments, job_from = _arguments(path)
    return job_from(Reading(arguments, model))


def _arguments(path: str | Path) -> tuple[Arguments, Callable[[Reading], LaunchedJob]]:
    text = _text(path)
    name = str(path)
    if Path(path).suffix.lower() == ".toml" or _TOML.search(text):
        return toml_arguments(_config(text, name), name), job_from_torchtitan
    if text.lstrip()[:1] in ("{", "["):
        return json_arguments(_config(text, name), name), job_from_deepspeed
    script = script_of(text, name)
    if is_torchtitan(script):
        arguments = torchtitan_arguments(script)
        named = config_file(arguments)
        if named is None:
            return arguments, job_from_torchtitan
        below = toml_arguments(_beside(path, named), str(Path(path).parent / named))
        return replace(arguments, options=below.options | arguments.options, decided=None), job_from_torchtitan
    if is_bridge(script):
        return bridge_arguments(script), job_from_bridge
    named = config_of(script)
    arguments = script_arguments(script)
    if named is None or "num-layers" in arguments.options:
        return arguments, job_from_megatron
    config = json_arguments(_beside(path, named), str(Path(path).parent / named))
    options = arguments.options | config.options
    return replace(
        config, options=options, diagnostics=(*arguments.diagnostics, *config.diagnostics)
    ), job_from_deepspeed


def _text(path: str | Path) -> str:
    data = read_whole(path, "launch script", HINT, MAX_BYTES)
    return data.decode("utf-8-sig", "replace")


def _beside(path: str | Path, name: str) -> str:
    """Returns the text of a configuration that a script names."""
    place = Path(path).parent / name
    if place.exists() and not place.is_file():
        raise InputError("unreadable-file", "the configuration that the script names is not a file", where=str(place))
    document = Document(str(place), "configuration", "expected the file that the script names", "")
    return _config(document.read(), str(place))


def _config(text: str, path: str) -> str:
    check_limit(len(text), _MAX_CONFIG, "characters in the configuration", path)
    return text
