"""Logs of NCCL_DEBUG=INFO in the shapes that versions of NCCL print them."""

# ruff: noqa: E501  # NCCL prints lines as long as these

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_log.log import NcclLog, parse_log, read_log
from foretrace.cost.network.nccl_log.reader import observe
from foretrace.program.columns import Collective

SETUP_2_8 = """\
n21:21853:22792 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 4, speed 1.200000/1.200000, type SYS/SYS, sameChannels 0
n21:21853:22792 [0] NCCL INFO  0 : NET/0 GPU/0 GPU/1 GPU/2 GPU/3 NET/0
n21:21853:22792 [0] NCCL INFO Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple | CollNet/    LL | CollNet/ LL128 | CollNet/Simple |
n21:21853:22792 [0] NCCL INFO  Max NThreads |            512 |            640 |            512 |            512 |            640 |            256 |            512 |            640 |            512 |
n21:21853:22792 [0] NCCL INFO     Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     6.3/   0.8 |    14.0/   0.0 |    18.0/   3.0 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
n21:21853:22792 [0] NCCL INFO     AllReduce |    90.0/   0.5 |   120.1/   0.0 |   300.0/   1.5 |    63.3/   0.4 |    98.0/   0.0 |   205.6/   1.6 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
n21:21853:22792 [0] NCCL INFO 2 coll channels, 2 p2p channels, 1 p2p channels per peer
n21:21853:22792 [0] NCCL INFO comm 0x14f78c000dc0 rank 0 nranks 16 cudaDev 0 busId 34000 - Init COMPLETE
n21:21853:21853 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 2 datatype 7 op 0 root 0 comm 0x14f78c000dc0 [nranks=16] stream 0x3
n21:21853:21853 [0] NCCL INFO 65536 Bytes -> Algo 0 proto 1 time 37.798233
"""

SETUP_2_21 = """\
NCCL version 2.21.5+cuda12.4
n1:10:20 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 18000 commId 0x1 - Init START
n1:10:20 [0] NCCL INFO NCCL_ALGO set by environment to ring,tree
n1:10:20 [0] NCCL INFO === System : maxBw 48.0 totalBw 370.8 ===
n1:10:20 [0] NCCL INFO               + PCI[48.0] - NIC/19000
n1:10:20 [0] NCCL INFO                             + NET[50.0] - NET/3 (aa24210003bd70c4/1/50.000000)
n1:10:20 [0] NCCL INFO                             + NET[50.0] - NET/2 (aa24210003bd70c5/1/50.000000)
n1:10:20 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 40.000000/40.000000, type NVL/PIX, sameChannels 1
n1:10:20 [0] NCCL INFO comm 0xaa rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n1:10:20 [0] NCCL INFO   Algorithm   |                            Tree                  |                            Ring                  |
n1:10:20 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
n1:10:20 [0] NCCL INFO  Max NThreads |            512 |            640 |            512 |            512 |            640 |            512 |
n1:10:20 [0] NCCL INFO     AllReduce |    45.0/   20.4 |    60.1/  100.2 |   120.0/  110.0 |    33.3/   10.8 |    52.0/   90.0 |   105.6/  170.2 |
n1:10:20 [0] NCCL INFO threadThresholds 8/8/64 | 128/8/64 | 512 | 512
n1:10:20 [0] NCCL INFO 16 coll channels, 16 collnet channels, 8 nvls channels, 16 p2p channels, 2 p2p channels per peer
n1:10:20 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 18000 commId 0x1 - Init COMPLETE
n1:10:10 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo 1 proto 2 time 123.4
"""


def parsed(text: str) -> NcclLog:
    return parse_log(text.encode().splitlines(keepends=True), "x.log")


def test_a_log_of_today() -> None:
    log = parsed(SETUP_2_21)
    (one,) = log.communicators
    assert log.versions == ("2.21.5",)
    assert (one.rank, one.ranks, one.nodes, one.local_ranks) == (0, 16, 2, 8)
    assert one.channels is not None
    assert (one.channels.coll, one.channels.nvls, one.channels.p2p_per_peer) == (16, 8, 2)
    assert [(graph.algorithm, graph.nchannels, graph.speed_inter) for graph in one.graphs] == [("ring", 8, 40.0)]
    assert log.environment == (("NCCL_ALGO", "ring,tree"),)
    assert log.nics == (("2", 50.0), ("3", 50.0))
    expected = {(entry.algorithm, entry.protocol): (entry.latency_us, entry.speed) for entry in one.tuning}
    assert expected["ring", "simple"] == (105.6, 170.2)
    assert expected["tree", "ll"] == (45.0, 20.4)
    assert len(expected) == 6
    (choice,) = one.choices
    assert (choice.collective, choice.size_bytes) == (Collective.ALL_REDUCE, 8388608)
    assert (choice.algorithm, choice.protocol) == ("ring", "simple")


def test_a_log_of_years_ago() -> None:
    (one,) = parsed(SETUP_2_8).communicators
    assert (one.ranks, one.nodes) == (16, None)
    assert one.channels is not None
    assert (one.channels.coll, one.channels.nvls, one.channels.p2p) == (2, None, 2)
    assert one.graphs[0].speed_intra == 1.2
    assert {(entry.collective, entry.algorithm, entry.protocol): entry.latency_us for entry in one.tuning}[
        Collective.BROADCAST, "ring", "simple"
    ] == 18.0
    (choice,) = one.choices
    assert (choice.collective, choice.algorithm, choice.protocol) == (Collective.ALL_REDUCE, "tree", "ll128")


def test_sizes_of_all_gathers_are_one_ranks_share_since_calls_name_their_channels() -> None:
    text = SETUP_2_21 + (
        "n1:10:10 [0] NCCL INFO AllGather: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}\n"
        "n1:10:10 [0] NCCL INFO Broadcast: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}\n"
    )
    choices = {one.collective: one for one in parsed(text).communicators[0].choices}
    assert choices[Collective.ALL_GATHER].size_bytes == 16 * 1048576
    assert choices[Collective.ALL_GATHER].channels == 16
    assert choices[Collective.BROADCAST].size_bytes == 1048576


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "0: ", "2025-01-02 03:04:05.678 ", "[2025-01-02 03:04:05] ", "\x1b[36m(pid=12)\x1b[0m "],
)
def test_prefixes_do_not_matter(prefix: str) -> None:
    text = "".join(prefix + line for line in SETUP_2_21.splitlines(keepends=True))
    assert parsed(text) == parsed(SETUP_2_21)


def test_a_line_within_a_row_of_nccl_tests() -> None:
    row = "[0]       131072         32768     float     sum      -1[0] "
    line = "n1:10:10 [0] NCCL INFO AllReduce: 131072 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}\n"
    choices = parsed(SETUP_2_21 + row + line).communicators[0].choices
    assert (131072, "tree", "ll128") in [(one.size_bytes, one.algorithm, one.protocol) for one in choices]


def test_ranks_that_talk_at_once_are_kept_apart() -> None:
    second = SETUP_2_21.replace("n1:10:", "n1:11:").replace("rank 0", "rank 1").replace("0xaa", "0xbb")
    mixed = [line for pair in zip(SETUP_2_21.splitlines(True), second.splitlines(True), strict=True) for line in pair]
    log = parsed("".join(mixed))
    assert [one.rank for one in log.communicators] == [0, 1]
    assert {one.channels for one in log.communicators} == {parsed(SETUP_2_21).communicators[0].channels}


def test_a_call_of_a_process_with_several_communicators_needs_its_name() -> None:
    other = (
        SETUP_2_21.replace("0xaa", "0xcc")
        .replace("nranks 16", "nranks 8")
        .replace("nRanks 16 nNodes 2", "nRanks 8 nNodes 1")
    )
    call = "n1:10:10 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"
    setup = "".join(line for line in (SETUP_2_21 + other).splitlines(True) if "Bytes ->" not in line)
    assert parsed(setup + call + "\n").unplaced == 1
    log = parsed(setup + call + " comm 0xcc\n")
    assert log.unplaced == 0
    assert [len(one.choices) for one in log.communicators] == [0, 1]


def test_lines_that_say_nothing_are_counted() -> None:
    log = parsed(SETUP_2_21 + "step 1 loss 2.0\n" * 5)
    assert log.skipped == parsed(SETUP_2_21).skipped + 5
    assert log.lines == SETUP_2_21.count("\n") + 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"hello\nworld\n", "no line of the log is NCCL's"),
        (b"\x00\x01 NCCL version \x00 2.21.5\n", "not text"),
        (b"NCCL version 2.21.5\nn1:1:1 [0] NCCL INFO 99999999999999999999 coll channels, 1 p2p channels, 1 p2p", ""),
    ],
)
def test_broken_logs(data: bytes, message: str) -> None:
    if not message:
        assert parse_log([data], "x.log").communicators == ()
        return
    with pytest.raises(InputError, match=message) as error:
        parse_log(data.splitlines(keepends=True), "x.log")
    assert (error.value.where or "").startswith("x.log")


def test_a_long_log_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    filler = "n1:10:20 [0] NCCL INFO Channel 01/0 : 1[9000] -> 0[1000] via P2P/direct pointer\n" * 1000
    path.write_text(SETUP_2_21 + filler + "x" * 200_000 + "\n" + filler)
    log = read_log(path)
    assert log.communicators == parsed(SETUP_2_21).communicators
    assert log.skipped > 2000


def line(message: str) -> str:
    return f"n1:10:20 [0] NCCL INFO {message}\n"


def test_lines_longer_than_any_of_nccls_are_counted_and_left_out() -> None:
    """Each of them once took 20 s: the time to parse a line must not grow with the square of its length."""
    words = ("a" * 60_000, "NCCL_" * 12_000, "1" * 60_000, "comm 0x" + "a" * 60_000)
    log = parsed(SETUP_2_21 + "".join(line(f"{word} 1 Bytes -> Algo n") for word in words * 10))
    assert log.communicators == parsed(SETUP_2_21).communicators
    assert log.long == 40


@pytest.mark.parametrize("word", ["a" * 7000, "NCCL_A" * 1100, "a:1:1 [1" * 800, "comm 0xa" * 800, "Pattern 1, " * 600])
def test_long_words_within_a_line_of_nccl(word: str) -> None:
    text = "".join(line(f"{word}{end}") for end in (" Bytes -> Algo", " nRanks", " set by", " coll channels") * 20)
    assert parsed(SETUP_2_21 + text).communicators == parsed(SETUP_2_21).communicators


def test_a_long_line_of_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("x" * (3 << 20) + "\n" + SETUP_2_21 + "y" * (2 << 20))
    log = read_log(tmp_path / "x.log")
    assert log.lines == 2 + SETUP_2_21.count("\n")
    assert log.communicators == parsed(SETUP_2_21).communicators


def test_a_column_with_three_names_is_not_used() -> None:
    table = "Latency/AlgBw | Tree/LL/x | Ring/LL |", "AllReduce | 1.0/ 2.0 | 3.0/ 4.0 |"
    (one,) = parsed("".join(map(line, ("comm 0xaa rank 0 nranks 16", *table)))).communicators
    assert [(entry.algorithm, entry.latency_us) for entry in one.tuning] == [("ring", 3.0)]


@pytest.mark.parametrize(
    "message",
    [
        "comm 0xaa rank 0 nRanks 999999999999999 nNodes 2 localRanks 8",
        "999999999999 coll channels, 16 p2p channels, 2 p2p channels per peer",
        "Pattern 4, crossNic 0, nChannels 8, bw 999999999999.0/40.0, type NVL/PIX, sameChannels 1",
        "Pattern 4, crossNic 0, nChannels 8, bw 0.0/0.0, type NVL/PIX, sameChannels 1",
        "Pattern 4, crossNic 0, nChannels 8, bw 40.0/0.0000001, type NVL/PIX, sameChannels 1",
        "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={99999..0}",
        "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={9..0}",
    ],
)
def test_numbers_that_cannot_be_meant_are_refused_with_their_line(message: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(SETUP_2_21 + line(message))
    assert (caught.value.code, caught.value.where) == ("out-of-range", f"x.log:{SETUP_2_21.count(chr(10)) + 1}")


def test_a_log_from_a_pipe_is_opened_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(SETUP_2_21), daemon=True)
    writer.start()
    observed = observe([pipe])
    writer.join()
    assert observed.version == "2.21.5"


def test_a_dump_with_too_many_tags_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(f"<system version='1'>{'<a/>' * 20_001}</system>")
    with pytest.raises(InputError) as caught:
        observe([tmp_path / "x.xml"])
    assert caught.value.code == "input-too-large"
