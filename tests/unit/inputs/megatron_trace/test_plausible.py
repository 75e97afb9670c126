"""Times that cannot be right are reported with their line; real traces are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.megatron_trace.format import Facts
from opened import program_of
from shared_files import shared
from unit.inputs.megatron_trace.rank_files import EXAMPLES, Rank, answer, sub, write

ONE = Facts(world=1, tp=1, pp=1)
TWO = Facts(world=2, tp=2, pp=1)
CODES = ("implausible-time", "implausible-rate")


def run(rank: int = 0, scale: float = 1.0, *, ex_situ: bool = False) -> Rank:
    """Three microbatches; ops take `scale` of their time, and begin when they did."""
    trace = Rank(rank, ex_situ=ex_situ)
    for _ in range(3):
        for name, ms in (("forward_step", 10.0), ("backward_step", 20.0)):
            trace.gap(ms * (1 - scale))
            trace.op(name, ms * scale, subs=[sub(5 * scale, scale)])
    trace.gap(5 * (1 - scale))
    return trace.op("optimizer_step", 5 * scale)


def implausible(folder: Path) -> list[Diagnostic]:
    return [note for note in program_of(folder).diagnostics if note.code in CODES]


def changed(folder: Path, change: Callable[[list[str]], list[str]]) -> Path:
    path = next(folder.glob("*rank0*.txt"))
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    return folder


@pytest.mark.parametrize("ex_situ", [False, True])
def test_usual_times_are_plausible(tmp_path: Path, ex_situ: bool) -> None:
    assert not implausible(write(tmp_path, [run(0, ex_situ=ex_situ), run(1, ex_situ=ex_situ)], TWO))


def test_real_traces_are_plausible() -> None:
    assert not implausible(EXAMPLES / "traces" / "gpt13b_real_rank0.txt")
    assert not implausible(shared("data/traces/dense4/real"))


@pytest.mark.parametrize("ex_situ", [False, True])
def test_durations_in_seconds(tmp_path: Path, ex_situ: bool) -> None:
    notes = implausible(write(tmp_path, [run(0, 1e-3, ex_situ=ex_situ), run(1, 1e-3, ex_situ=ex_situ)], TWO))
    assert "implausible-time" in {note.code for note in notes}
    assert all(".txt:" in str(note.where) for note in notes)


def test_a_transfer_faster_than_any_link(tmp_path: Path) -> None:
    ranks = [
        Rank(rank).op("forward_step", 10, subs=[sub(1, 0.01, shape=[1 << 15, 1 << 14])]).op("backward_step", 20)
        for rank in range(2)
    ]
    (note,) = implausible(write(tmp_path, ranks, TWO))
    assert note.code == "implausible-rate" and str(note.where).endswith(":1")


@pytest.mark.parametrize(("factor", "codes"), [(1, set()), (1000, {"implausible-rate"})])
def test_times_in_microseconds(tmp_path: Path, factor: int, codes: set[str]) -> None:
    ranks = [
        Rank(rank)
        .op("forward_step", 10 * factor, subs=[sub(1 * factor, factor, shape=[1 << 12, 1 << 14])])
        .op("backward_step", 20 * factor)
        for rank in range(2)
    ]
    assert {note.code for note in implausible(write(tmp_path, ranks, TWO))} == codes


def test_one_of_two_ranks_in_microseconds(tmp_path: Path) -> None:
    ranks = [
        Rank(rank).op("forward_step", 10 * scale).op("backward_step", 20 * scale)
        for rank, scale in enumerate((1, 1000))
    ]
    assert {note.code for note in implausible(write(tmp_path, ranks, TWO))} == {"implausible-time"}


def test_computation_faster_than_any_gpu(tmp_path: Path) -> None:
    facts = Facts(world=1, tp=1, pp=1, layers=8)
    for hidden, codes in (("1024", set()), ("262144", {"implausible-rate"})):
        folder = write(tmp_path / f"pp1_tp1_nl8_hs{hidden}_sl8192", [run(ex_situ=True)], facts)
        assert {note.code for note in implausible(folder)} == codes


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[1].replace("timestamp=5000030", "timestamp=4999020"), *lines[2:]],
        lambda lines: [*lines[:-1], lines[-1].replace("timestamp=5000095", "timestamp=5002095")],
        lambda lines: [lines[0], lines[1].replace("duration=20.0", "duration=900.0"), *lines[2:]],
        lambda lines: [lines[0].replace("timestamp=5000006.0", "timestamp=5009006.0"), *lines[1:]],
    ],
    ids=["ended too early", "ended too late", "45 times as long", "communication outside of its op"],
)
def test_one_wrong_time(tmp_path: Path, change: Callable[[list[str]], list[str]]) -> None:
    folder = write(tmp_path, [run()], ONE)
    before = program_of(folder).diagnostics
    notes = implausible(changed(folder, change))
    assert notes and all(note.code == "implausible-time" for note in notes)
    assert all(".txt:" in str(note.where) for note in notes)
    assert not {note.code for note in before} & set(CODES)


def test_a_line_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    folder = write(tmp_path, [run()], ONE)
    before = answer(folder)
    after = answer(changed(folder, lambda lines: [*lines[:3], lines[2], *lines[3:]]))
    assert before.step_time_s == after.step_time_s
    assert [note.where for note in after.diagnostics if note.code == "rows-skipped"] == [
        f"{next(folder.glob('*.txt'))}:4"
    ]


@pytest.mark.parametrize("kept", [lambda at, _: at != 3, lambda _, line: "forward_step" not in line])
def test_a_missing_pass_is_reported(tmp_path: Path, kept: Callable[[int, str], bool]) -> None:
    folder = write(tmp_path, [run()], ONE)
    changed(folder, lambda lines: [line for at, line in enumerate(lines) if kept(at, line)])
    assert "not-recorded" in {note.code for note in program_of(folder).diagnostics}


def test_a_gap_of_years_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path, [run()], ONE)
    changed(folder, lambda lines: [*lines[:-1], lines[-1].replace("timestamp=5000095", "timestamp=900005000095")])
    with pytest.raises(InputError) as caught:
        program_of(folder)
    assert caught.value.code == "out-of-range" and str(caught.value.where).endswith(":7")
