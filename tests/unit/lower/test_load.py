"""Files by their first bytes: a program, or a workload with what it leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Mesh, ProgramBuilder, save
from foretrace.errors import InputError
from foretrace.lower.choices import Choices
from foretrace.lower.load import file_kind, load
from unit.lower.aicb.workloads import row, text

WORKLOAD = text([row("attention_layer", 100, 80, 60)], tp=1, pp=1, ga=1, all_gpus=2)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    build = ProgramBuilder(Mesh(dp=3))
    build.role("all", range(3)).compute("work", 1e-3)
    save(build.program(), tmp_path / "job.foretrace")
    return tmp_path / "job.foretrace"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.txt").write_text(WORKLOAD, encoding="utf-8")
    return tmp_path / "job.txt"


def test_both_kinds(program: Path, job: Path) -> None:
    assert (file_kind(program), file_kind(job)) == ("program", "aicb")
    assert (load(program).world, load(job).world) == (3, 2)
    assert load(job, Choices(gpus=8)).world == 8


def test_the_name_does_not_make_a_program(program: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "job.txt"
    renamed.write_bytes(program.read_bytes())
    assert load(renamed).world == 3


def test_a_workload_called_a_program_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "wrong.foretrace"
    path.write_text(WORKLOAD, encoding="utf-8")
    with pytest.raises(InputError, match=r"wrong\.foretrace"):
        load(path)


def test_a_program_has_nothing_left_to_choose(program: Path) -> None:
    assert load(program, Choices()).world == 3
    with pytest.raises(InputError, match=r"job\.foretrace: these choices are made already"):
        load(program, Choices(gpus=8))


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            load(path)
