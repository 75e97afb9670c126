"""Files by their first bytes: a program, or a workload with what it leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest
from foretrace.lower.choices import Choices
from foretrace.lower.load import file_kind, load

from foretrace import Mesh, ProgramBuilder, save
from foretrace.errors import InputError
from kineto_files import document, small_step, write
from shared_files import ROOT
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


def test_profiles_by_what_is_in_them(tmp_path: Path) -> None:
    trace = write(tmp_path, "\ufeff" + '{"traceEvents": [', "named_so.txt")
    execution = write(tmp_path, '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "et.json.gz")
    assert (file_kind(trace), file_kind(execution)) == ("profile", "execution")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    write(below, document(small_step()), "rank0.json")
    assert file_kind(str(tmp_path / "**" / "rank*.json")) == "profile"
    assert file_kind(below) == "profile"
    (below / "report.nsys-rep").write_bytes(b"QDSTRM")
    assert file_kind(below / "report.nsys-rep") == "profile"


def test_a_model_s_configuration_is_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path, {"model_type": "llama", "hidden_size": 2048}, "config.json")
    with pytest.raises(InputError, match="this is a model's configuration, not a trace") as raised:
        load(path)
    assert raised.value.hint is not None and f"foretrace predict {path}" in raised.value.hint


def test_a_table_says_itself_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match=r"steps: a profiler table does not hold enough for this"):
        load(ROOT / "examples" / "moe_fairseq_profile.txt", Choices(steps=(1,)))
