"""Running the command line as a person does, within a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.cli.main import run


def call(*arguments: str | Path) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stopped:
        run([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def answer_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """The JSON of a command that succeeds; NaN and the like are none."""
    assert call(*arguments, "--json") == 0
    return dict(json.loads(capsys.readouterr().out, parse_constant=_not_a_number))


def _not_a_number(word: str) -> float:
    raise AssertionError(f"{word} in JSON")
