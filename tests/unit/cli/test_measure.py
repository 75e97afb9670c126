"""`foretrace measure gpu` where it cannot work: one line, never a traceback."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from unit.cli.command_line import call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("measure",), "measure what?"),
        (("measure", "cpu", "-o", "x"), '"cpu" cannot be measured'),
        (("measure", "gpu"), "where is the kernel table to go?"),
        (("measure", "gpu", "-o", "x", "--minutes", "0"), "--minutes 0"),
        (("measure", "gpu", "-o", "x", "--minutes", "nan"), "--minutes nan"),
        (("profile", "gpu"), "where is the kernel table to go?"),  # its name in older versions
    ],
)
def test_usage(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("measure", "gpu", "-o", tmp_path / "gpu.profile") == 3
    assert "needs PyTorch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
