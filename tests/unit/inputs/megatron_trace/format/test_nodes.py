"""Real runs whose nodes wrote to a folder each: one run; campaigns taken ex situ stay apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.inputs.megatron_trace.format import Facts, RankTrace, Run, make_op, read_runs, write_runs
from foretrace.program.as_json import to_json
from opened import program_of
from shared_files import shared

FACTS = Facts(world=4, tp=1, pp=2)
STAMP = "20250101120000"
HOST_MS = (5_000_000.0, 900_000_000.0)
"""What the clocks of two hosts show when a step begins: each counts from its start."""


def trace(rank: int, begin_ms: float, *, ex_situ: bool = False) -> RankTrace:
    """A step of a rank of the mesh dp 2, pp 2: stage 0 sends to stage 1, which sends back."""
    stage = rank // 2
    first, second = ("send_forward", "recv_backward") if stage == 0 else ("recv_forward", "send_backward")
    names = ["forward_step", first, second, "backward_step"] if stage == 0 else [first, "forward_step", "backward_step"]
    names += [] if stage == 0 else [second]
    ops = []
    now_ms = begin_ms
    for line, name in enumerate(names, 1):
        if name.endswith("step"):
            now_ms += 10
            described = "simulation" if ex_situ else None
            state = None if ex_situ else "steady"
            ops.append(
                make_op(
                    rank,
                    name,
                    stage=stage,
                    batch=0,
                    state=state,
                    duration_ms=10,
                    timestamp_ms=now_ms,
                    description=described,
                    line=line,
                )
            )
        elif not ex_situ:
            start, now_ms = now_ms, begin_ms + {"send_forward": 11, "recv_forward": 11}.get(name, 32)
            ops.append(
                make_op(
                    rank,
                    name,
                    stage=stage,
                    batch=0,
                    state="steady",
                    duration_ms=now_ms - start,
                    timestamp_ms=now_ms,
                    group="pp",
                    shape=[64, 64],
                    dtype="torch.float16",
                    line=line,
                )
            )
    return RankTrace("", rank, tuple(ops))


def put(
    folder: Path,
    ranks: tuple[int, ...],
    host: int = 0,
    *,
    stamp: str = STAMP,
    later_ms: float = 0.0,
    facts: Facts = FACTS,
    ex_situ: bool = False,
) -> Path:
    """A folder with the traces of some ranks."""
    begin_ms = HOST_MS[host] + later_ms
    write_runs([trace(rank, begin_ms, ex_situ=ex_situ) for rank in ranks], folder, facts, stamp=stamp)
    return folder


def without_stamps(folder: Path) -> Path:
    for path in folder.iterdir():
        path.rename(path.with_name(path.name.replace(f"_{STAMP}", "")))
    return folder


def codes(run: Run) -> list[str]:
    return [diagnostic.code for diagnostic in run.diagnostics]


def test_nodes_are_one_run(tmp_path: Path) -> None:
    one = put(tmp_path / "node1" / "run", (0, 1))
    two = put(tmp_path / "node2" / "run", (2, 3), host=1, stamp="20250101120042")
    for paths in ([one, two], [two, one], [str(tmp_path / "*" / "run")]):
        (run,) = read_runs(paths)
        assert (list(run.ranks), run.facts, run.path) == ([0, 1, 2, 3], FACTS, str(one))
        assert run.paths == (str(one), str(two)) and run.name == "node1/run + node2/run"
        assert codes(run) == ["runs-joined", "runs-found", "runs-found"]
    message = f"2 folders are nodes of one run: ranks 0-1 in {one}; ranks 2-3 in {two}"
    assert run.diagnostics[0].message == message


def test_nodes_give_the_program_of_one_folder(tmp_path: Path) -> None:
    nodes = [put(tmp_path / "node1", (0, 1)), put(tmp_path / "node2", (2, 3), host=1)]
    whole = put(tmp_path / "whole", (0, 1))
    for path in nodes[1].iterdir():
        (whole / path.name).write_bytes(path.read_bytes())
    joined, single = (to_json(program_of(paths)) for paths in (nodes, [whole]))
    differing = {key for key in single if joined[key] != single[key]}
    assert differing <= {"title", "sources", "diagnostics"}


def test_recorded_nodes_give_the_program_of_one_folder(tmp_path: Path) -> None:
    name = "pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024"
    whole = shared("data", "traces", "moe16", name, "real")
    for path in whole.iterdir():
        rank = int(path.stem.partition("rank")[2].partition("_")[0])
        node = tmp_path / name / f"node{rank // 8}"
        node.mkdir(parents=True, exist_ok=True)
        (node / path.name).symlink_to(path)
    joined = to_json(program_of(sorted((tmp_path / name).iterdir())))
    single = to_json(program_of([whole]))
    assert {key for key in single if joined[key] != single[key]} <= {"title", "sources", "diagnostics"}


def test_timestamps_that_overlap_join_files_without_a_time_in_their_names(tmp_path: Path) -> None:
    one = without_stamps(put(tmp_path / "a", (0, 1)))
    two = without_stamps(put(tmp_path / "b", (2, 3), later_ms=1))
    (run,) = read_runs([one, two])
    assert list(run.ranks) == [0, 1, 2, 3]
    apart = without_stamps(put(tmp_path / "c", (2, 3), later_ms=1000))
    assert [list(run.ranks) for run in read_runs([one, apart])] == [[0, 1], [2, 3]]


def test_names_say_as_much_as_they_do(tmp_path: Path) -> None:
    one = put(tmp_path / "a", (0, 1))
    two = put(tmp_path / "b", (2, 3), host=1, facts=Facts())
    (run,) = read_runs([one, two])
    assert (list(run.ranks), run.facts) == ([0, 1, 2, 3], FACTS)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param((1, 2), {"host": 1}, id="a rank in both"),
        pytest.param((2, 3), {"host": 1, "stamp": "20250101120101"}, id="61 seconds later"),
        pytest.param((2, 3), {"stamp": "20250102120000", "later_ms": 86_400_000.0}, id="a day later"),
        pytest.param((2, 3), {"stamp": "20250102120000"}, id="a day later on a host that started a day later"),
        pytest.param((2, 3), {"host": 1, "facts": Facts(world=8, tp=1, pp=2)}, id="another job"),
    ],
)
def test_other_runs_stay_apart(tmp_path: Path, ranks: tuple[int, ...], options: dict[str, object]) -> None:
    one = put(tmp_path / "a", (0, 1))
    two = put(tmp_path / "b", ranks, **options)  # type: ignore[arg-type]
    first, second = sorted(read_runs([one, two]), key=lambda run: run.path)
    assert (list(first.ranks), list(second.ranks)) == ([0, 1], list(ranks))
    assert codes(first) == codes(second) == ["runs-found"] and (first.name, second.name) == ("a", "b")


def test_campaigns_stay_apart(tmp_path: Path) -> None:
    one = put(tmp_path / "a", (0, 1), ex_situ=True)
    two = put(tmp_path / "b", (2, 3), ex_situ=True)
    assert [list(run.ranks) for run in read_runs([one, two])] == [[0, 1], [2, 3]]
    real = put(tmp_path / "c", (2, 3))
    assert [list(run.ranks) for run in read_runs([one, real])] == [[0, 1], [2, 3]]


def test_many_nodes_have_a_short_name(tmp_path: Path) -> None:
    facts = Facts(world=16, tp=1, pp=2)
    folders = [put(tmp_path / f"node{number}", (number,), facts=facts) for number in range(4)]
    assert read_runs(folders)[0].name == "node0 + node1 + node2 + node3"
    folders += [put(tmp_path / f"node{number}", (number,), facts=facts) for number in range(4, 8)]
    (run,) = read_runs(folders)
    assert run.name == "node0 + node1 + node2 + node3 + node4 + 3 more"
    assert run.diagnostics[0].message.endswith("; and 3 more")
