"""SimAI's topology files: read, written back to the byte, and refused with their line where they are broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.hardware.fabric.designs.simai_topology import (
    parse_topology,
    read_topology,
    topology_text,
    write_topology,
)
from shared_files import shared

SMALL = """6 2 1 1 5 H100
4 5\x20
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 400Gbps 0.0005ms 0
3 5 400Gbps 0.0005ms 0
0 5 400Gbps 0.0005ms 0
"""
FILES = ("AlibabaHPN_128g*", "Spectrum-X_128g*", "DCN+SingleToR*", "DCN+DualToR*")


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_is_what_was_read(name: str, tmp_path: Path) -> None:
    path = shared("data", "simai", "topologies", name)
    topology = read_topology(path)
    assert topology_text(topology).encode() == path.read_bytes()
    write_topology(topology, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert (topology.gpus, topology.gpus_per_server, topology.nv_switches, topology.gpu) == (128, 8, 16, "H100")


def test_fields() -> None:
    topology = parse_topology(SMALL, "small")
    assert (topology.gpus, topology.devices, topology.switches, topology.switch_ids) == (4, 6, 1, (4, 5))
    first = topology.links[0]
    assert (first.source, first.target, first.line) == (0, 4, 3)
    assert (first.bytes_per_s, first.latency_s) == (360e9, pytest.approx(25e-9))
    assert topology_text(topology) == SMALL


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "is no first line of a topology file"),
        ("hello\n", 1, '"hello" is no first line'),
        (SMALL.replace("6 2 1 1 5 H100", "6 2 1 1 5"), 1, "is no first line"),
        (SMALL.replace("6 2 1 1 5 H100", "2 2 1 1 5 H100"), 1, "which leaves no GPUs"),
        (SMALL.replace("6 2 1 1 5 H100", "99999999999 2 1 1 5 H100"), 1, "is larger than"),
        (SMALL.replace("6 2 1 1 5 H100", "6 3 1 1 5 H100"), 1, "4 GPUs are no servers of 3"),
        (SMALL.replace("6 2 1 1 5 H100", "6 2 1 1 7 H100"), 1, "says 7 links, there are 5"),
        ("6 2 1 1 5 H100", 2, "the line of switches is missing"),
        (SMALL.replace("4 5 \n", "4 \n"), 2, "says 2 switches, the second lists 1"),
        (SMALL.replace("4 5 \n", "4 x \n"), 2, '"x" is no number of a switch'),
        (SMALL.replace("4 5 \n", "4 4 \n"), 2, "not numbered after the GPUs"),
        (SMALL.replace("2 5 400Gbps 0.0005ms 0", "2 5 400Gbps 0.0005ms"), 5, "has 4 fields, a link has 5"),
        (SMALL.replace("2 5 400", "2 9 400"), 5, "2 and 9 are not two devices"),
        (SMALL.replace("2 5 400", "2 2 400"), 5, "2 and 2 are not two devices"),
        (SMALL.replace("2 5 400Gbps", "2 5 400"), 5, "has no unit"),
        (SMALL.replace("2 5 400Gbps", "2 5 0Gbps"), 5, "rate 0Gbps"),
        (SMALL.replace("2 5 400Gbps", "2 5 5e-324Gbps"), 5, "5e-324Gbps"),
        (SMALL.replace("2 5 400Gbps", "2 5 7.9Mbps"), 5, "rate 7.9Mbps"),
        (SMALL.replace("2 5 400Gbps 0.0005ms 0", "2 5 400Gbps 0.0005ms nan"), 5, "error rate"),
        (SMALL.replace("2 5 400Gbps 0.0005ms 0", "2 5 400Gbps 0.0005ms 0.5"), 5, "error rate"),
        (SMALL.replace("2 5 400", "٢ 5 400"), 5, "are not two devices"),
        (SMALL.replace("2 5 400Gbps 0.0005ms", "2 5 400Gbps 9h"), 5, "latency 9h"),
        (SMALL.replace("2 5 400Gbps 0.0005ms", "2 5 400Gbps soon"), 5, "soon"),
    ],
)
def test_what_is_refused_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_topology(text, "file")
    assert problem in refused.value.message
    assert refused.value.where == f"file:{line}"
    assert refused.value.hint


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_topology(tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as caught:
        read_topology(tmp_path / "bytes")
    assert caught.value.code == "not-text"


@given(st.integers(0, len(SMALL)), st.integers(0, 8), st.text("0123456789 \nGbpsm.-x", max_size=5))
def test_mangled_files_are_read_or_refused(at: int, cut: int, put: str) -> None:
    try:
        topology = parse_topology(SMALL[:at] + put + SMALL[at + cut :], "file")
    except InputError as error:
        assert error.where is not None
        assert error.where.startswith("file:")
    else:
        assert topology.gpus >= 1
