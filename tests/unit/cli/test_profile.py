"""`foretrace profile gpu` where it cannot work: one line, never a traceback."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from unit.cli.command_line import call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("profile",), "a profile of what?"),
        (("profile", "cpu", "-o", "x"), '"cpu" cannot be profiled'),
        (("profile", "gpu"), "where is the profile to go?"),
        (("profile", "gpu", "-o", "x", "--minutes", "0"), "--minutes 0"),
        (("profile", "gpu", "-o", "x", "--minutes", "nan"), "--minutes nan"),
    ],
)
def test_usage(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("profile", "gpu", "-o", tmp_path / "gpu.profile") == 3
    assert "needs PyTorch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
