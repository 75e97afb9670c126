"""NCCL_GRAPH_DUMP_FILE: what is read and what is refused."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_log.graph import EXPECTED, Graphs, graphs_of
from foretrace.cost.network.nccl_log.xml import parse_xml

DUMP = b"""<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="17.5" latencyinter="0"
         typeintra="NVL" typeinter="PXN" samechannels="1" future="7">
    <channel>
      <net dev="1"/>
      <gpu dev="0"/>
      <gpu dev="1"/>
      <net dev="1"/>
    </channel>
    <channel>
      <net dev="0"/>
      <gpu dev="1"/>
      <gpu dev="0"/>
      <net dev="0"/>
    </channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL" typeinter="PIX"
         samechannels="1"/>
  <graph id="2" pattern="3" crossnic="0" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL" typeinter="PIX"
         samechannels="1"/>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL" typeinter="PIX"
         samechannels="1"/>
</graphs>
"""


def parse_graphs(data: bytes, name: str) -> Graphs:
    return graphs_of(parse_xml(data, name, EXPECTED), name)


def test_channels_rates_and_paths() -> None:
    ring = parse_graphs(DUMP, "graph.xml").graphs[0]
    assert (ring.algorithm, ring.nchannels, ring.speed_intra, ring.speed_inter) == ("ring", 2, 20.0, 17.5)
    assert (ring.type_intra, ring.type_inter, ring.gpus, ring.leaves_node) == ("NVL", "PXN", 2, True)
    assert ring.channels[1].gpus == (1, 0)
    assert ring.channels[1].nets == (0, 0)


def test_graphs_are_told_apart_by_number_and_pattern() -> None:
    assert [one.algorithm for one in parse_graphs(DUMP, "x").graphs] == ["ring", "tree", "collnet-chain", "nvls"]


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        (b"", "g.xml", "empty"),
        (b"  \n", "g.xml", "empty"),
        (DUMP[:400], "g.xml:14", "no whole XML"),
        (b"\x7fELF\x00\x01", "g.xml:1", "no whole XML"),
        (b"<system version='1'/>", "g.xml:1", "<system> instead of <graphs>"),
        (b"<graphs version='2'/>", "g.xml:1", "version 2"),
        (DUMP.replace(b'nchannels="2"', b'nchannels="3"'), "g.xml:2", "nchannels is 3, but 2 are listed"),
        (DUMP.replace(b'speedintra="20"', b'speedintra="fast"'), "g.xml:2", 'speedintra "fast"'),
        (DUMP.replace(b'speedintra="20"', b'speedintra="nan"'), "g.xml:2", 'speedintra "nan"'),
        (DUMP.replace(b'speedintra="20"', b'speedintra="0"'), "g.xml:2", "carry nothing"),
        (DUMP.replace(b'pattern="4"', b""), "g.xml:2", "<graph> has no pattern"),
        (b"<a>" * 100 + b"</a>" * 100, "g.xml:1", "levels"),
    ],
)
def test_broken_dumps_are_named_with_their_line(data: bytes, where: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_graphs(data, "g.xml")
    assert error.value.where == where
    assert message in error.value.message


def test_entities_do_not_expand() -> None:
    bomb = b'<!DOCTYPE g [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><graphs version="1">&b;</graphs>'
    with pytest.raises(InputError) as caught:
        parse_graphs(bomb, "g.xml")
    assert caught.value.code == "wrong-format"
