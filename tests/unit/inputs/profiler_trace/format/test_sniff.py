"""Which files are profiles, by their beginning."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from foretrace.inputs.profiler_trace.format import looks_like_profile
from kineto_files import document, small_step, write
from shared_files import ROOT, shared


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "odd.name"])
def test_profiles(name: str, tmp_path: Path) -> None:
    assert looks_like_profile(write(tmp_path, document(small_step()), name))
    assert looks_like_profile(write(tmp_path, small_step(), name))
    assert looks_like_profile(write(tmp_path, "\ufeff \n" + '{"traceEvents" : [', name))


def test_groups_of_many_ranks_before_the_events(tmp_path: Path) -> None:
    groups = [{"pg_name": str(number), "ranks": list(range(16384))} for number in range(10)]
    content = document(small_step(), deviceProperties=[], distributedInfo={"pg_config": groups})
    assert looks_like_profile(write(tmp_path, content))


def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(100))
    assert looks_like_profile(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        '[{"a": 1}]',
        '{"model_type": "llama", "hidden_size": 4096}',
        '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}',
        "traceEvents: []\nschemaVersion: 1\n",
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8\n",
        '<system version="1"><cpu numaid="0"/></system>',
        "rank:0:forward_step(stage_id=0)",
    ],
)
@pytest.mark.parametrize("name", ["file", "file.json.gz"])
def test_others(text: str, name: str, tmp_path: Path) -> None:
    assert not looks_like_profile(write(tmp_path, text, name))


def test_nothing_is_an_error(tmp_path: Path) -> None:
    assert not looks_like_profile(tmp_path)
    assert not looks_like_profile(tmp_path / "absent")
    assert not looks_like_profile("a\0b")
    path = tmp_path / "broken.gz"
    path.write_bytes(gzip.compress(b"{}")[:3] + b"\xff" * 40)
    assert not looks_like_profile(path)


def test_no_example_or_document_is_taken_for_one() -> None:
    files = [file for folder in ("examples", "docs", "src") for file in (ROOT / folder).rglob("*") if file.is_file()]
    assert len(files) > 100
    assert [file for file in files if looks_like_profile(file)] == []


def test_samples() -> None:
    for path in shared("data", "kineto").glob("*.gz"):
        assert looks_like_profile(path) != path.name.endswith("_et.json.gz"), path.name
    assert not looks_like_profile(shared("data", "h200", "tinyllama_mbs4.table.txt"))
