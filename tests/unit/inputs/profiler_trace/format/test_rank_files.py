"""Traces of several ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.files import GivenPath
from foretrace.inputs.profiler_trace.format import looks_like_profile, read_traces
from foretrace.inputs.profiler_trace.format.names import rank_in_name
from kineto_files import document, small_step, write


def of_rank(rank: int) -> object:
    return document(small_step(), distributedInfo={"rank": rank, "world_size": 16})


def test_folders_patterns_and_files_in_order_of_ranks(tmp_path: Path) -> None:
    write(tmp_path, of_rank(10), "host_1.pt.trace.json")
    write(tmp_path, of_rank(2), "host_2.pt.trace.json.gz")
    write(tmp_path, document(small_step()), "rank7.json")
    assert [one.rank for one in read_traces([tmp_path])] == [2, 7, 10]
    assert [one.rank for one in read_traces([str(tmp_path / "*.pt.trace.json*")])] == [2, 10]
    files = [tmp_path / "rank7.json", tmp_path / "host_2.pt.trace.json.gz"]
    assert [one.rank for one in read_traces(files)] == [2, 7]
    assert [one.rank for one in read_traces([files[0], tmp_path])] == [2, 7, 10]  # each but once


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    write(tmp_path, of_rank(0), "a.json")
    write(tmp_path, "{}", "config.json")
    write(tmp_path, "notes", "notes.txt")
    (trace,) = read_traces([tmp_path])
    assert trace.diagnostics[-1].message == "no profiler traces, left out: config.json, notes.txt"


def test_folders_that_a_pattern_matches_count_with_their_files(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"node{rank}").mkdir()
        write(tmp_path / f"node{rank}", of_rank(rank), f"rank{rank}.json")
        write(tmp_path / f"node{rank}", of_rank(rank), ".rank9.json")
    assert [one.rank for one in read_traces([str(tmp_path / "node*")])] == [0, 1]


def test_a_trace_from_a_pipe(tmp_path: Path) -> None:
    data = write(tmp_path, of_rank(3), "a.json.gz").read_bytes()
    given, taken = os.pipe()
    os.write(taken, data)
    os.close(taken)
    path = GivenPath(f"/dev/fd/{given}")
    assert looks_like_profile(path.files[0])
    assert [one.rank for one in read_traces([path])] == [3]
    os.close(given)


def test_two_files_of_a_rank(tmp_path: Path) -> None:
    write(tmp_path, of_rank(3), "a.json")
    write(tmp_path, of_rank(3), "b.json")
    with pytest.raises(InputError, match=r"b\.json: this and .*a\.json are both of rank 3") as caught:
        read_traces([tmp_path])
    assert caught.value.code == "duplicate-name"


def test_ranks_that_are_not_known(tmp_path: Path) -> None:
    one = write(tmp_path, document(small_step()), "a.json")
    other = write(tmp_path, document(small_step()), "b.json")
    assert read_traces([one])[0].rank is None
    with pytest.raises(InputError) as caught:
        read_traces([one, other])
    assert caught.value.code == "missing-field"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_traces([tmp_path])
    assert caught.value.code == "nothing-to-do"
    with pytest.raises(InputError) as caught:
        read_traces([str(tmp_path / "*.json")])
    assert caught.value.code == "file-not-found"
    with pytest.raises(InputError, match="no such file"):
        read_traces([tmp_path / "absent.json"])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank-1.json.gz", 1),
        ("job_Rank_12_trace.json", 12),
        ("trace_3.json", 3),
        ("7.json.gz", 7),
        ("worker.5.pt.trace.json", 5),
        ("report_2.sqlite", 2),
        ("trace.json", None),
        ("tinyllama_mbs1_s512.json.gz", None),
        ("host_1234.1695835535123.pt.trace.json", None),
        ("benchmark_result_2869224_1695835535_trace.json", None),
    ],
)
def test_ranks_in_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
