"""How busy links are, as a map."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.readings.links import LinkLoads
from foretrace.report.plots.heatmap import described, heatmap_lines, heatmap_svg
from foretrace.report.plots.link_panels import MAX_ROWS, NOT_IN_SERVICE, carrying, gathered, panels_of

SVG = "{http://www.w3.org/2000/svg}"


def small_fabric(nodes: int, gpus: int = 2) -> Fabric:
    """GPUs with a NIC each, all on one leaf; every link there and back at 100 bytes a second."""
    labels = [f"node {node} GPU {slot}" for node in range(nodes) for slot in range(gpus)]
    labels += [f"node {node} NIC {slot}" for node in range(nodes) for slot in range(gpus)]
    labels.append("leaf 0")
    count = nodes * gpus
    ends = [(gpu, count + gpu) for gpu in range(count)] + [(count + gpu, 2 * count) for gpu in range(count)]
    source, target = np.array([*ends, *((b, a) for a, b in ends)], dtype=np.int64).T
    kind = np.array([Device.GPU] * count + [Device.NIC] * count + [Device.LEAF], dtype=np.int8)
    rate = np.full(len(source), 100.0)
    return Fabric("small", count, gpus, kind, tuple(labels), source, target, rate, np.zeros(len(source)))


def busy(nodes: int = 2) -> LinkLoads:
    """Over two seconds, "dp" fills half of the NIC of node 1 GPU 0 and "tp" a tenth of all that leaves NICs."""
    fabric = small_fabric(nodes)
    count = fabric.gpus
    dp, tp = np.zeros(4 * count), np.zeros(4 * count)
    dp[count + 2] = 100.0
    tp[count : 2 * count] = 20.0
    return LinkLoads(fabric, ("dp", "tp"), np.array([dp, tp]), 2.0)


def test_panels_hold_every_link_once() -> None:
    fabric = small_fabric(3)
    panels = panels_of(fabric)
    assert [(panel.tier, panel.way) for panel in panels] == [
        ("PCIe of the NICs", "out"),
        ("PCIe of the NICs", "in"),
        ("NICs", "out"),
        ("NICs", "in"),
    ]
    held = np.concatenate([panel.link[panel.link >= 0] for panel in panels])
    assert sorted(held.tolist()) == list(range(len(fabric.source)))
    assert panels[2].rows == ("node 0", "node 1", "node 2")
    assert fabric.link_label(int(panels[2].link[1, 0])) == "node 1 NIC 0 - leaf 0"


def two_levels(lost: tuple[str, str] | None) -> Fabric:
    """Three leaves below two spines; links away from the GPUs in order, those back in the opposite order."""
    labels = ("leaf 0", "leaf 1", "leaf 2", "spine 0", "spine 1")
    ends = [(leaf, spine) for leaf in range(3) for spine in (3, 4) if (labels[leaf], labels[spine]) != lost]
    source, target = np.array([*ends, *((b, a) for a, b in reversed(ends))], dtype=np.int64).T
    kind = np.array([Device.LEAF] * 3 + [Device.SPINE] * 2, dtype=np.int8)
    links = len(source)
    return Fabric("two levels", 0, 1, kind, labels, source, target, np.full(links, 100.0), np.zeros(links))


@pytest.mark.parametrize("lost", [None, ("leaf 0", "spine 0"), ("leaf 1", "spine 1")])
def test_both_ways_have_the_same_rows_and_columns(lost: tuple[str, str] | None) -> None:
    """Also where a link is out of service: its place is empty, and the others stay in theirs."""
    fabric = two_levels(lost)
    out, back = panels_of(fabric)
    assert out.rows == back.rows == ("leaf 0", "leaf 1", "leaf 2")
    for row, leaf in enumerate(out.rows):
        for column, spine in enumerate(("spine 0", "spine 1")):
            if (leaf, spine) == lost:
                assert out.link[row, column] == back.link[row, column] == NOT_IN_SERVICE
            else:
                assert fabric.link_label(int(out.link[row, column])) == f"{leaf} - {spine}"
                assert fabric.link_label(int(back.link[row, column])) == f"{spine} - {leaf}"
    loads = LinkLoads(fabric, ("dp",), np.full((1, fabric.links), 50.0), 1.0)
    crosses = [
        element for element in ElementTree.fromstring(heatmap_svg(loads, "")).iter(f"{SVG}text") if element.text == "×"
    ]
    assert len(crosses) == (2 if lost else 0)


def test_many_rows_are_drawn_together_with_the_busiest_of_them() -> None:
    fabric = small_fabric(2 * MAX_ROWS + 1, gpus=1)
    panel = panels_of(fabric)[2]
    value = np.arange(len(fabric.source), dtype=float)
    names, grid = gathered(panel, value)
    assert len(names) <= MAX_ROWS
    assert names[0] == "node 0-2"
    assert grid[0, 0] == value[panel.link[2, 0]]
    assert grid[-1, 0] == value[panel.link[-1, 0]]


def test_rows_that_carry_nothing_are_left_out() -> None:
    fabric = small_fabric(4)
    value = np.zeros(fabric.links)
    out, back = panels_of(fabric)[2:]
    value[out.link[1, 0]], value[back.link[3, 1]] = 1.0, 2.0
    panels, idle = carrying([out, back], value)
    assert idle == 2
    assert [panel.rows for panel in panels] == [("node 1", "node 3")] * 2
    assert panels[1].of(value).tolist() == [[0.0, 0.0], [0.0, 2.0]]


def test_shares_and_the_hottest() -> None:
    loads = busy()
    assert loads.utilisation.max() == pytest.approx(0.6)
    hottest = loads.hottest()
    assert [load.label for load in hottest] == ["node 1 NIC 0 - leaf 0", "node 0 NIC 0 - leaf 0"]
    assert [load.others for load in hottest] == [0, 2]  # the other three are as busy as each other
    assert described(hottest[0]) == "node 1 NIC 0 - leaf 0: 60.0 % (dp 100 B, tp 20 B)"


def test_the_terminal_has_a_row_per_tier_and_the_hottest() -> None:
    lines = ["".join(text for text, _ in line) for line in heatmap_lines(busy())]
    (nics,) = (line for line in lines if line.startswith("  NICs, out"))
    assert nics.split()[2:6] == ["4", "0", "22.5", "%"]
    assert any("node 0 NIC 0 - leaf 0: 10.0 % (tp 20 B), as 2 others" in line for line in lines)
    (idle,) = (line for line in lines if line.startswith("  NICs, in"))
    assert idle.split()[2:4] == ["4", "4"]


def test_the_svg_has_a_cell_per_link_and_frames_the_hottest() -> None:
    loads = busy()
    root = ElementTree.fromstring(heatmap_svg(loads, "links & more"))
    cells = [cell for cell in root.iter(f"{SVG}rect") if cell.find(f"{SVG}title") is not None]
    assert len(cells) == 8  # NICs, both ways; nothing crosses the PCIe of this fabric
    framed = [cell for cell in root.iter(f"{SVG}rect") if cell.attrib.get("fill") == "none"]
    assert len(framed) == 2
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert "links & more" in words and "75 %" in words and "node 1" in words and "all idle" in words
    colours = {cell.attrib["fill"] for cell in cells}
    assert len(colours) == 3  # idle, a tenth, and the hottest


def test_a_network_at_rest() -> None:
    fabric = small_fabric(1)
    rest = LinkLoads(fabric, (), np.zeros((0, fabric.links)), 1.0)
    assert rest.hottest() == []
    assert ElementTree.fromstring(heatmap_svg(rest, "rest")).tag == f"{SVG}svg"
    assert "the hottest" not in "".join(text for line in heatmap_lines(rest) for text, _ in line)
