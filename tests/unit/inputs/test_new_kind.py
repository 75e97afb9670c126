"""A new kind of input is one class and one line in the registry: every command then works on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from foretrace.basics.files import GivenPath
from foretrace.basics.mesh import Mesh
from foretrace.cli.main import run
from foretrace.inputs import registry
from foretrace.inputs.base import Input
from foretrace.inputs.inventory import Inventory
from foretrace.inputs.option_texts import read_count, read_texts
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Program


@dataclass(frozen=True, slots=True)
class CountOptions:
    """How many times the op of a file of seconds is run."""

    microbatches: int | None = None


class SecondsInput(Input):
    """A file with one number: the seconds that a microbatch takes."""

    kind: ClassVar[str] = "seconds"
    noun: ClassVar[str] = "a file of seconds"
    Options: ClassVar[type[Any]] = CountOptions

    def __init__(self, seconds: float, path: str) -> None:
        super().__init__((path,), CountOptions())
        self.seconds = seconds

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        return len(paths) == 1 and paths[0].path.suffix == ".seconds"

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        with paths[0].files[0].open("file of seconds") as stream:
            return cls(float(stream.read()), paths[0].text)

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        return read_texts(texts, {"microbatches": read_count("microbatches")})

    def build_program(self) -> Program:
        build = ProgramBuilder(Mesh(), title="seconds")
        block = build.block("microbatch")
        block.compute("work", self.seconds)
        role = build.role("rank", [0])
        for number in range(self.options.microbatches or 1):
            role.place(block, microbatch=number)
        return build.program()

    def inventory(self) -> Inventory:
        return Inventory("seconds/1", self.kind, "seconds", self.title, contents={"seconds": self.seconds})


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    place = f"{__name__}:SecondsInput"
    monkeypatch.setattr(registry, "KINDS", [place, *registry.KINDS])
    monkeypatch.setattr(registry, "import_module", lambda name: _Here if name == __name__ else _import(name))
    yield


def _import(name: str) -> Any:
    from importlib import import_module

    return import_module(name)


class _Here:
    SecondsInput = SecondsInput


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.seconds"
    path.write_text("0.25")
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    with pytest.raises(SystemExit) as stopped:
        run([*map(str, arguments), "--json"])
    assert stopped.value.code == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def test_inspect(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "inspect", file)["seconds"] == 0.25


def test_simulate_with_its_option(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "simulate", file)["step_time_s"] == 0.25
    assert answer(capsys, "simulate", file, "--microbatches", 4)["step_time_s"] == 1.0


def test_sweep_over_its_option(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "sweep", file, "--over", "microbatches=1,2,4")["points"]
    assert [row["step_time_s"] for row in rows] == [0.25, 0.5, 1.0]


def test_compare_and_perfetto(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compare", file, "--with", "microbatches=2", "--perfetto", tmp_path / "both.pftrace")
    assert found["a"]["step_time_s"] == 0.25
    assert found["b"]["step_time_s"] == 0.5
    assert (tmp_path / "both.pftrace").stat().st_size > 0
    answer(capsys, "simulate", file, "--perfetto", tmp_path / "one.pftrace")
    assert (tmp_path / "one.pftrace").stat().st_size > 0


def test_an_option_it_does_not_have_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(["simulate", str(file), "--tp", "2", "--json"])
    assert stopped.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "option-not-for-input"
