"""Folders of rank traces: which files are one run, and what their names say."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.format import Facts, read_runs
from foretrace.inputs.megatron_trace.format.names import file_name, folder_facts, trace_name
from foretrace.inputs.megatron_trace.layout import find_job
from shared_files import shared


def put(folder: Path, rank: int, stamp: str | None = None, name: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stamped = f"_{stamp}" if stamp else ""
    path = folder / (name or f"wd4_tp2_pp2_numl40_bs1_GPT2BPETokenizer_rank{rank}{stamped}.txt")
    path.write_text(f"rank:{rank}:forward_step(stage_id=0,batch_id=0,duration=1.0,timestamp=2.0,sub_operations=[])\n")
    return path


@pytest.mark.parametrize(
    ("name", "facts", "rank"),
    [
        (
            "wd4_tp2_pp2_numl40_bs1_GPT2BPETokenizer_rank0_20250321130317",
            Facts(world=4, tp=2, pp=2, layers=40, micro_batch=1),
            0,
        ),
        (
            "wd16_tp1_pp2_exp8_expNum8_l8_bs1_rank13_20250818085829",
            Facts(world=16, tp=1, pp=2, ep=8, experts=8, layers=8, micro_batch=1),
            13,
        ),
        (
            "wd8192_tp8_pp64_exp1_expNumNone_numl96_bs1_rank8064_20250820204412",
            Facts(world=8192, tp=8, pp=64, ep=1, layers=96, micro_batch=1),
            8064,
        ),
        ("my_rank7", Facts(), 7),
        ("trace of the first gpu", Facts(), None),
    ],
)
def test_names_of_files(name: str, facts: Facts, rank: int | None) -> None:
    said = file_name(Path(f"{name}.txt"))
    assert (said.facts, said.rank) == (facts, rank)


def test_names_of_folders() -> None:
    full = Facts(tp=1, pp=2, ep=8, dp=8, experts=8, layers=8, hidden=4096, sequence=1024)
    assert folder_facts("pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024") == full
    assert folder_facts("pp2_tp1_exp8_expn8_dp8_nl8_hs4096_sl1024") == full
    assert folder_facts("pp64_tp8_dp16") == Facts(tp=8, pp=64, dp=16)
    assert folder_facts("tp2_notes") == Facts()


def test_names_that_are_written_are_read() -> None:
    for facts in (
        Facts(world=8, tp=2, pp=4, layers=40, micro_batch=2),
        Facts(world=16, tp=1, pp=2, ep=8, experts=16, layers=8, micro_batch=1),
        Facts(world=8, tp=2, pp=4),
        Facts(),
    ):
        said = file_name(Path(trace_name(facts, 3, "20250818085829")))
        assert (said.facts, said.rank, said.stamp) == (facts, 3, "20250818085829")


def test_a_folder_above_says_more(tmp_path: Path) -> None:
    put(tmp_path / "pp2_tp2_dp1_nl40_hs5120_sl4096" / "scaling_a", 0, "20250321142233")
    (run,) = read_runs([tmp_path / "pp2_tp2_dp1_nl40_hs5120_sl4096" / "scaling_a"])
    assert run.facts == Facts(world=4, tp=2, pp=2, dp=1, layers=40, hidden=5120, sequence=4096, micro_batch=1)
    assert run.name == "scaling_a"


def test_names_that_contradict_each_other(tmp_path: Path) -> None:
    put(tmp_path / "pp4_tp2", 0)
    with pytest.raises(InputError, match=r"says pp = 2, that of its folder pp4_tp2 says 4") as caught:
        read_runs([tmp_path / "pp4_tp2"])
    assert caught.value.code == "conflicting-values"
    put(tmp_path / "pp2_dp8", 0)
    with pytest.raises(InputError, match=r"4 ranks \(wd\) cannot be tp 2 · pp 2 · dp 8") as caught:
        read_runs([tmp_path / "pp2_dp8"])
    assert caught.value.code == "bad-mesh"
    wrong = put(tmp_path / "ranks", 1, name="wd4_tp2_pp2_rank0.txt")
    with pytest.raises(InputError, match="name says rank 0, its lines say rank 1") as caught:
        read_runs([tmp_path / "ranks"])
    assert caught.value.code == "conflicting-values"
    assert caught.value.where == f"{wrong}:1"


def test_a_rank_that_appears_again_begins_a_run(tmp_path: Path) -> None:
    put(tmp_path, 0, "20250321142037")
    for rank, second in enumerate((33, 40, 48, 56)):
        put(tmp_path, rank, f"202503211422{second}")
    first, second_run = read_runs([tmp_path])
    assert (list(first.ranks), list(second_run.ranks)) == ([0], [0, 1, 2, 3])
    assert first.diagnostics[0].message == "2 runs found, by time: rank 0; ranks 0-3"
    assert second_run.diagnostics == ()


def test_ranks_that_start_together_are_a_run(tmp_path: Path) -> None:
    for rank, stamp in ((0, "20250321130317"), (1, "20250321130317"), (2, "20250322130317"), (3, "20250322130317")):
        put(tmp_path, rank, stamp)
    assert [list(run.ranks) for run in read_runs([tmp_path])] == [[0, 1], [2, 3]]
    put(tmp_path / "seconds", 0, "20250321130317")
    put(tmp_path / "seconds", 1, "20250321130317")
    put(tmp_path / "seconds", 2, "20250321130318")
    put(tmp_path / "seconds", 3, "20250321130318")
    assert [list(run.ranks) for run in read_runs([tmp_path / "seconds"])] == [[0, 1, 2, 3]]


def test_other_facts_are_another_run(tmp_path: Path) -> None:
    put(tmp_path, 0, name="wd4_tp2_pp2_rank0_20250321130317.txt")
    put(tmp_path, 1, name="wd4_tp1_pp4_rank1_20250320130317.txt")
    assert [(run.facts.pp, list(run.ranks)) for run in read_runs([tmp_path])] == [(4, [1]), (2, [0])]


def test_renamed_files_work(tmp_path: Path) -> None:
    put(tmp_path, 0, name="a.txt")
    put(tmp_path, 1, name="b.txt")
    (run,) = read_runs([tmp_path])
    assert (run.facts, list(run.ranks)) == (Facts(), [0, 1])
    put(tmp_path, 1, name="c.txt")
    with pytest.raises(
        InputError, match=r"rank 1 is also in b.txt, and no times in their names tell them apart"
    ) as caught:
        read_runs([tmp_path])
    assert caught.value.code == "duplicate-name"


def test_other_files_are_left_out_and_named(tmp_path: Path) -> None:
    put(tmp_path, 0, "20250321130317")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "plot.png").write_bytes(b"\x89PNG")
    (run,) = read_runs([tmp_path])
    assert run.diagnostics[1].message == "not rank traces, left out: notes.txt, plot.png"


def test_files_patterns_and_folders_together(tmp_path: Path) -> None:
    one, two = put(tmp_path / "a", 0, "20250321130317"), put(tmp_path / "a", 1, "20250321130317")
    put(tmp_path / "b", 0, "20250320130317")
    (alone,) = read_runs([one])
    assert (alone.path, alone.name) == (str(one), one.name)
    (both,) = read_runs([one, two, one])
    assert (both.path, list(both.ranks)) == (str(tmp_path / "a"), [0, 1])
    (pattern,) = read_runs([f"{tmp_path}/a/*rank?_*.txt"])
    assert list(pattern.ranks) == [0, 1]
    assert [run.name for run in read_runs([f"{tmp_path}/*"])] == ["b", "a"]


def test_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_runs([])
    assert caught.value.code == "nothing-to-do"
    with pytest.raises(InputError, match="no such file"):
        read_runs([tmp_path / "missing"])
    with pytest.raises(InputError) as caught:
        read_runs([f"{tmp_path}/*.txt"])
    assert caught.value.code == "file-not-found"
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(InputError) as caught:
        read_runs([f"{tmp_path}/*.txt"])
    assert caught.value.code == "nothing-to-do"
    put(tmp_path / "inner", 0)
    with pytest.raises(InputError) as caught:
        read_runs([tmp_path])
    assert caught.value.code == "nothing-to-do"
    assert caught.value.hint == "its folders do: inner"
    with pytest.raises(InputError) as caught:
        read_runs([tmp_path / "a.txt"])
    assert caught.value.code == "bad-syntax"
    with pytest.raises(InputError):
        read_runs(["a\0b"])


@pytest.mark.parametrize(
    ("folder", "ranks", "facts"),
    [
        ("dense4/scaling_a", [[0], [0, 1, 2, 3]], Facts(world=4, tp=2, pp=2, layers=40, micro_batch=1)),
        ("dense8/tp2_pp4_real", [list(range(8))], Facts(world=8, tp=2, pp=4, layers=40, micro_batch=2)),
        (
            "moe16/pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024/real",
            [list(range(16))],
            Facts(16, 1, 2, 8, 8, 8, 8, 4096, 1024, 1),
        ),
        (
            "pp64_tp8_dp16",
            [list(range(0, 8192, 128))],
            Facts(world=8192, tp=8, pp=64, ep=1, dp=16, layers=96, micro_batch=1),
        ),
    ],
)
def test_recorded_folders(folder: str, ranks: list[list[int]], facts: Facts) -> None:
    runs = read_runs([shared("data", "traces", folder)])
    assert [list(run.ranks) for run in runs] == ranks
    assert {run.facts for run in runs} == {facts}
    assert not [trace.diagnostics for run in runs for trace in run.ranks.values() if trace.diagnostics]


def test_a_folder_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = put(tmp_path, 0, "20250321130317").stat().st_size
    put(tmp_path, 1, "20250321130317")
    monkeypatch.setattr("foretrace.inputs.megatron_trace.format.runs.MAX_RUN_BYTES", size + 10)
    with pytest.raises(InputError) as caught:
        read_runs([tmp_path])
    assert caught.value.code == "input-too-large" and "rank1" in str(caught.value.where)
    monkeypatch.setenv("FORETRACE_LIMITS", "2x")
    assert read_runs([tmp_path])


@pytest.mark.parametrize("name", ["wd1000000000000_tp1_pp1_rank0.txt", "wd8000000_tp1_pp1_rank0.txt"])
def test_ranks_of_a_world_that_is_too_large_are_not_listed(tmp_path: Path, name: str) -> None:
    put(tmp_path, 0, name=name)
    with pytest.raises(InputError) as caught:
        find_job(read_runs([tmp_path]), None)
    assert caught.value.code == "too-large" and str(caught.value.where).startswith(str(tmp_path))
