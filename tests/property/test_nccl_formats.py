"""Dumps of NCCL are read as they are written; no log, however broken, is more than an error."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl_log.graph import MIN_SPEED, Channel, Graphs, LoggedGraph, graphs_of
from foretrace.cost.network.nccl_log.log import parse_log
from foretrace.cost.network.nccl_log.system import system_of
from foretrace.cost.network.nccl_log.xml import parse_xml
from foretrace.program.columns import Collective

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8)
speeds = st.floats(MIN_SPEED, 1e6, allow_nan=False)


@st.composite
def channels(draw: st.DrawFn) -> Channel:
    gpus, nets = (tuple(draw(st.lists(st.integers(0, 1 << 40), max_size=3))) for _ in range(2))
    return Channel(gpus, nets)


@st.composite
def graphs(draw: st.DrawFn) -> LoggedGraph:
    listed = tuple(draw(st.lists(channels(), max_size=3)))
    return LoggedGraph(
        id=draw(st.integers(0, 9)),
        pattern=draw(st.integers(0, 9)),
        crossnic=draw(st.integers(0, 2)),
        nchannels=len(listed),
        speed_intra=draw(speeds),
        speed_inter=draw(st.just(0.0) | speeds),
        latency_inter=draw(speeds),
        type_intra=draw(st.sampled_from(("NVL", "PIX", "SYS"))),
        type_inter=draw(texts),
        samechannels=draw(st.integers(0, 1)),
        channels=listed,
    )


def dump(graphs: list[LoggedGraph]) -> bytes:
    """The graphs as NCCL writes them, with an attribute that is not known."""
    lines = ['<graphs version="1">']
    for graph in graphs:
        lines.append(
            f'<graph id="{graph.id}" pattern="{graph.pattern}" crossnic="{graph.crossnic}" '
            f'nchannels="{graph.nchannels}" speedintra="{graph.speed_intra!r}" speedinter="{graph.speed_inter!r}" '
            f'latencyinter="{graph.latency_inter!r}" typeintra={quoteattr(graph.type_intra)} '
            f'typeinter={quoteattr(graph.type_inter)} samechannels="{graph.samechannels}" future="7">'
        )
        for channel in graph.channels:
            stops = (("gpu", channel.gpus), ("net", channel.nets))
            inside = "".join(f'<{tag} dev="{device}"/>' for tag, devices in stops for device in devices)
            lines.append(f"<channel>{inside}</channel>")
        lines.append("</graph>")
    return "\n".join([*lines, "</graphs>", ""]).encode()


@given(st.lists(graphs(), max_size=4))
def test_graphs_are_read_as_they_are_written(written: list[LoggedGraph]) -> None:
    root = parse_xml(dump(written), "graph.xml", "")
    assert graphs_of(root, "graph.xml") == Graphs(1, tuple(written))


@given(st.lists(graphs(), min_size=1, max_size=2), st.data())
def test_a_cut_dump_is_an_error(listed: list[LoggedGraph], data: st.DataObject) -> None:
    written = dump(listed)
    end = data.draw(st.integers(0, len(written.rstrip()) - 1))
    for read in (graphs_of, system_of):
        try:
            read(parse_xml(written[:end], "cut.xml", ""), "cut.xml")
        except InputError as error:
            assert (error.where or "").startswith("cut.xml")
        else:
            raise AssertionError("half a document was read")


pieces = st.sampled_from(
    (
        b"n1:10:20 [0] NCCL INFO ",
        b"comm 0xaa rank 0 nranks 16 ",
        b"nRanks 16 nNodes 2 localRanks 8 ",
        b"16 coll channels, 4 nvls channels, 16 p2p channels, 2 p2p channels per peer",
        b"Pattern 4, crossNic 0, nChannels 8, bw 40.0/40.0, type NVL/PIX, sameChannels 1",
        b"AllReduce: 1024 Bytes -> Algo ",
        b"RING proto LL ",
        b"9 proto 7 time 1",
        b"channel{Lo..Hi}={9..1}",
        b"  Algorithm   | Tree | Ring |",
        b"  Protocol    | LL | LL128 | Simple |",
        b"    AllReduce |  1.0/ 2.0 | x |",
        b"Latency/AlgBw | Tree/ LL |a/b/c|",
        b"Init COMPLETE",
        b"NCCL version 2.21.5",
        b"\n",
        b"\xff\xfe",
    )
)


@given(st.lists(st.one_of(pieces, st.binary(max_size=6)), max_size=40))
def test_whatever_a_log_holds_it_is_read_or_refused(parts: list[bytes]) -> None:
    try:
        log = parse_log(b"".join(parts).splitlines(keepends=True), "x.log")
    except InputError as error:
        assert (error.where or "").startswith("x.log")
        return
    for one in log.communicators:
        for choice in one.choices:
            assert choice.size_bytes >= 0 and choice.calls > 0


words = st.sampled_from(("ring", "Tree", "NVLS", "^", ",", ";", ":", "allreduce", "AllGather", "ll", "LL128", " ", "x"))


@given(st.lists(words, max_size=10).map("".join), st.lists(words, max_size=10).map("".join))
def test_forced_texts_are_understood_or_refused(algorithms: str, protocols: str) -> None:
    try:
        forced = Forced.of(algorithms, protocols)
    except InputError:
        return
    for what, allowed in (*forced.algorithms, *forced.protocols):
        assert isinstance(what, Collective) and allowed
