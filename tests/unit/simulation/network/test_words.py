"""How people ask the network."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError, UsageError
from foretrace.program.columns import Collective
from foretrace.simulation.network.words import (
    MAX_BYTES,
    MAX_RANKS,
    check_ranks,
    check_size,
    name_of,
    read_collective,
    read_ranks,
    read_sizes,
)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("all-reduce", Collective.ALL_REDUCE),
        ("AllReduce", Collective.ALL_REDUCE),
        ("all_reduce_perf", Collective.ALL_REDUCE),
        ("AR", Collective.ALL_REDUCE),
        ("ag", Collective.ALL_GATHER),
        ("Reduce-Scatter", Collective.REDUCE_SCATTER),
        ("all2all", Collective.ALL_TO_ALL),
        ("a2a", Collective.ALL_TO_ALL),
        ("bcast", Collective.BROADCAST),
        ("reduce", Collective.REDUCE),
        ("send", Collective.TRANSFER),
        ("sendrecv", Collective.TRANSFER),
        ("exchange", Collective.EXCHANGE),
        ("barrier", Collective.BARRIER),
    ],
)
def test_names_as_people_type_them(typed: str, meant: Collective) -> None:
    assert read_collective(typed).collective is meant


def test_every_collective_is_read_by_its_own_name() -> None:
    for one in Collective:
        if one is not Collective.NONE:
            assert read_collective(name_of(one)).collective is one


def test_a_wrong_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean all-reduce") as raised:
        read_collective("allredcue")
    assert raised.value.hint is not None and "reduce-scatter" in raised.value.hint
    with pytest.raises(InputError) as raised:
        read_collective("x" * 5000)
    assert raised.value.code == "unknown-collective" and raised.value.message.endswith("is not known")
    with pytest.raises(InputError):
        read_collective("none")


def test_sizes() -> None:
    assert read_sizes(["256MiB"]) == [2**28]
    assert read_sizes(["1MiB,4MB", "8"]) == [2**20, 4_000_000, 8]
    assert read_sizes(["8B..128B"]) == [8, 16, 32, 64, 128]
    assert read_sizes(["1KiB..1MiB:x32"]) == [1024, 32 * 1024, 2**20]
    assert read_sizes(["1KiB:1MiB:x32"]) == read_sizes(["1KiB..1MiB:x32"])  # as a sweep writes it
    assert read_sizes(["8B..100B", "8B"]) == [8, 16, 32, 64]  # each once, none beyond the end


def test_ranks() -> None:
    assert read_ranks("2..16") == [2, 4, 8, 16]
    assert read_ranks("8") == [8]
    assert read_ranks("1..4:x1.1") == [1, 2, 3, 4]  # never the same twice


@pytest.mark.parametrize("text", ["8..2", "1KiB..", "..8", "0..8", "8..16:x1", "1..2..3..4", "1,024", "1..8:x1.001"])
def test_ranges_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        read_ranks(text)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "", "1e400", "7 bananas", "8..x"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises((InputError, UsageError)):
        read_sizes([text])


def test_too_many_values() -> None:
    with pytest.raises(UsageError) as caught:
        read_sizes(["1B..1EiB:x1.02"])
    assert caught.value.code == "out-of-range"


def test_limits() -> None:
    check_size(1)
    check_size(MAX_BYTES)
    check_ranks(1, MAX_RANKS)
    for size in (0, -5, MAX_BYTES + 1, 10**400):
        with pytest.raises(InputError):
            check_size(size)
    for ranks, groups in ((0, 1), (1, 0), (MAX_RANKS, 2), (10**400, 1)):
        with pytest.raises(InputError):
            check_ranks(ranks, groups)
