"""Schedules by name."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.schedules import make, names


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("1F1B", "1f1b"),
        ("PipeDream-Flush", "1f1b"),
        ("interleaved", "interleaved-1f1b"),
        ("Interleaved1F1B", "interleaved-1f1b"),
        ("looped_bfs", "looped-bfs"),
        ("ZBV", "zb-v"),
        ("ZB H1", "zb-h1"),
        ("InterleavedZeroBubble", "interleaved-zb"),
        ("DualPipeV", "dualpipe-v"),
    ],
)
def test_spelling_is_lenient(spelling: str, name: str) -> None:
    assert make(spelling, 2, 4).name == name


def test_each_name_makes_the_schedule_of_that_name() -> None:
    assert [make(name, 2, 4).name for name in names()] == list(names())


def test_unknown_name_suggests_a_close_one_and_lists_all() -> None:
    with pytest.raises(InputError, match='"dualpip"') as caught:
        make("dualpip", 2, 4)
    assert "did you mean dualpipe?" in str(caught.value)
    assert all(name in str(caught.value) for name in names())


def test_chunks_default_to_what_the_schedule_needs() -> None:
    chunks = {name: make(name, 2, 4).chunks for name in names()}
    assert {name for name, count in chunks.items() if count == 1} == {"gpipe", "1f1b", "zb-h1"}
    assert set(chunks.values()) == {1, 2}


def test_chunks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"1f1b has 1 chunk per stage, not 2  \[invalid-schedule\]\n.*interleaved-1f1b"
    ):
        make("1f1b", 4, 8, chunks=2)
    with pytest.raises(InputError, match="zb-v has 2 chunks per stage, not 3"):
        make("zb-v", 4, 8, chunks=3)
    with pytest.raises(InputError, match="1 or more chunks per stage, not 0"):
        make("looped-bfs", 4, 8, chunks=0)


def test_nothing_to_schedule_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 for stages, not 0") as caught:
        make("1f1b", 0, 8)
    assert caught.value.code == "out-of-range"
    with pytest.raises(InputError, match="at least 1 for microbatches, not 0") as caught:
        make("1f1b", 4, 0)
    assert caught.value.code == "out-of-range"


def test_where_refuses_what_does_not_exist() -> None:
    with pytest.raises(InputError, match="piece 4 does not exist: 1f1b has 0 to 3") as caught:
        make("1f1b", 4, 8).where(0, 4)
    assert caught.value.code == "no-such-rank"
