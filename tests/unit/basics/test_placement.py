"""Where ranks sit: packed by default, or as a file says; what a file may not say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.basics.placement import Placement


def write(folder: Path, text: str | bytes, name: str = "placement.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_packed_ranks_fill_one_host_after_the_other() -> None:
    placement = Placement.packed(10, gpus_per_host=4)
    assert placement.host.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert placement.slot.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert (placement.world, placement.hosts) == (10, 3)
    assert placement.ranks_per_host().tolist() == [4, 4, 2]


def test_groups_within_a_host_are_told_from_those_across() -> None:
    placement = Placement.packed(8, gpus_per_host=4)
    mesh = Mesh(tp=2, dp=2, pp=2)
    assert all(len(set(placement.host[group].tolist())) == 1 for group in mesh.groups("tp"))
    assert all(len(set(placement.host[group].tolist())) == 2 for group in mesh.groups("pp"))


def test_arrays_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Placement.packed(4, 2).host[0] = 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", "hosts:\n  - name: n0\n    ranks: [0, 3]\n  - {name: n1, ranks: 1-2}\n"),
        ("p.yml", "# by rack\n- name: n0\n  ranks: ['0', 3]\n- name: n1\n  ranks: ['1-2']\n"),
        ("p.json", '{\n\t"hosts": [\n\t\t{"name": "n0", "ranks": [0, 3]}, {"name": "n1", "ranks": "1-2"}]}'),
        ("p", '[{"name": "n0", "ranks": [0, 3]}, {"name": "n1", "ranks": [1, 2]}]'),
        ("p", "rank 0=n0 slot=0\nrank 1=n1 slot=0 # spare\n\nrank 3=n0 slot=1\nrank 2=n1 slot=1\n"),
    ],
)
def test_a_file_says_which_ranks_sit_where(tmp_path: Path, name: str, text: str) -> None:
    placement = Placement.load(write(tmp_path, text, name), world=4)
    assert placement.names == ("n0", "n1")
    assert placement.host.tolist() == [0, 1, 1, 0]
    assert placement.slot.tolist() == [0, 0, 1, 1]


def test_ranks_fill_the_slots_of_a_hostfile(tmp_path: Path) -> None:
    path = write(tmp_path, "# cluster\nnode-a slots=2\nnode-b slots = 4\nnode-c slots=4\n", "hostfile")
    placement = Placement.load(path, world=5)
    assert placement.host.tolist() == [0, 0, 1, 1, 1]
    assert placement.names == ("node-a", "node-b")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "is empty"),
        (" \n\n", None, "is empty"),
        ("# nothing\n", None, "only comments"),
        ("---\n", 2, "expected a mapping with hosts"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", None, "is not text"),
        (b"hosts:\xff\xfe", None, "is not text"),
        ("hosts: [{name: n0, ranks: [0, 1", 1, "not valid YAML"),
        ("hosts:\n- name: n0\n  rnks: 0-3\n", 3, 'field "rnks" is not known; did you mean ranks?'),
        ("host:\n- name: n0\n  ranks: 0-3\n", 1, 'field "host" is not known; did you mean hosts?'),
        ("hosts:\n- name: n0\n", 2, "field ranks is missing"),
        ("hosts:\n- name: n0\n  name: n1\n  ranks: 0-3\n", 3, "field name is given twice"),
        ("hosts: 4\n", 1, "expected a list of hosts"),
        ("hosts: []\n", 1, "expected a list of hosts"),
        ("hosts:\n- n0\n", 2, "expected a mapping with name and ranks"),
        ("hosts:\n- name: [n0]\n  ranks: 0-3\n", 2, "expected a host name"),
        ("hosts:\n- name: n0\n  ranks: [0, [1]]\n", 3, "expected a rank or a range"),
        ("hosts:\n- name: n0\n  ranks: 3-0\n", 3, '"3-0" is not a rank or a range'),
        ("hosts:\n- name: n0\n  ranks: [0, -1]\n", 3, '"-1" is not a rank or a range'),
        ("hosts:\n- name: n0\n  ranks: []\n", 2, "host n0 has no ranks"),
        ("hosts:\n- name: n0\n  ranks: 0-999999999\n", 3, "rank 4 is not in a world of 4"),
        ("hosts:\n- name: n0\n  ranks: 0-1\n- name: n0\n  ranks: 2-3\n", 4, "listed twice, first on line 2"),
        ("hosts:\n- {name: n0, ranks: 0-2}\n- {name: n1, ranks: 2-3}\n", 3, "on n0 (line 2) and on n1"),
        ("hosts:\n- {name: n0, ranks: 1}\n", None, "3 of 4 ranks have no host: 0, 2-3"),
        ("[" * 5_000, None, "nested too deep"),
        ("n0 slots=2\n", None, "the hosts have 2 slots for 4 ranks"),
        ("n0 slots=2\nn1\n", 2, '"n1" is not a host and its slots'),
        ("n0 slot=4\n", 1, "did you mean slots?"),
        ("n0 slots=0\n", 1, '"n0 slots=0" is not a host'),
        ("n0 slots=2\nn0 slots=2\n", 2, "listed twice"),
        ("rank 0=n0 slot=0\nrank 1=n0\n", 2, '"rank 1=n0" is not a rank, its host and its slot'),
        ("rank 0=n0 slot=0\nrank 1=n0 slot=0\n", 2, "rank 0 (line 1) and rank 1 share slot 0 of n0"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, line: int | None, problem: str
) -> None:
    path = write(tmp_path, text, "placement")
    with pytest.raises(InputError) as refused:
        Placement.load(path, world=4)
    assert problem in refused.value.message
    assert refused.value.where == (f"{path}:{line}" if line else str(path))
    assert refused.value.hint


def test_a_cut_json_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"hosts": [\n{"name": "n0", "ra', "placement.json")
    with pytest.raises(InputError, match=r"placement\.json:2: not valid JSON"):
        Placement.load(path, world=4)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Placement.load(tmp_path / "missing", world=4)
    assert caught.value.code == "file-not-found"
    with pytest.raises(InputError) as caught:
        Placement.load(tmp_path, world=4)
    assert caught.value.code == "folder-instead-of-file"


def test_worlds_and_shapes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Placement.packed(0, 8)
    assert caught.value.code == "out-of-range"
    with pytest.raises(InputError) as caught:
        Placement.load(tmp_path, world=0)
    assert caught.value.code == "out-of-range"
    with pytest.raises(InputError) as caught:
        Placement(np.zeros(3, np.int32), np.zeros(4, np.int32))
    assert caught.value.code == "bad-placement"


@given(st.integers(1, 200), st.integers(1, 16))
def test_every_packed_rank_has_its_own_slot(world: int, gpus_per_host: int) -> None:
    placement = Placement.packed(world, gpus_per_host)
    assert np.array_equal(placement.host * gpus_per_host + placement.slot, np.arange(world))
    assert placement.ranks_per_host().sum() == world
    assert placement.hosts == len(np.unique(placement.host))


@pytest.mark.parametrize("hosts", [[], [np.nan], [-1], [2**31], [10**12], [0.5], ["a"], [True]])
def test_arrays_that_are_not_hosts_are_refused(hosts: list[object]) -> None:
    with pytest.raises(InputError) as caught:
        Placement(np.array(hosts), np.zeros(len(hosts), dtype=np.int32))
    assert caught.value.code == "bad-placement"
