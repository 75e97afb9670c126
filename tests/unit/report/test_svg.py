"""The canvas of every picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from foretrace.report.design import COLOURS, STYLES, mix
from foretrace.report.svg import Canvas, LinearAxis, LogAxis, PlotArea

SVG = "{http://www.w3.org/2000/svg}"


def parse(canvas: Canvas) -> ElementTree.Element:
    return ElementTree.fromstring(canvas.svg())


def test_what_is_drawn_is_in_the_file_in_order() -> None:
    canvas = Canvas(100, 0, "a < b")
    canvas.line((0, 1), (2.5, 3.125), "red", stroke_width=2)
    canvas.polyline([(0, 0), (1, 1)], "blue")
    with canvas.group(fill="green"):
        canvas.rect(1, 2, 3, 4, "x & y")
        canvas.circle(5, 6, 7, "black")
    canvas.height = 50
    root = parse(canvas)
    assert root.attrib["viewBox"] == "0 0 100 50"
    background, title, line, polyline, group = root
    assert background.attrib == {"width": "100", "height": "50", "fill": "white"}
    assert title.text == "a < b"
    assert line.attrib == {"x1": "0", "y1": "1", "x2": "2.5", "y2": "3.12", "stroke": "red", "stroke-width": "2"}
    assert polyline.attrib["points"] == "0,0 1,1"
    assert group.attrib == {"fill": "green"}
    assert [part.tag.removeprefix(SVG) for part in group] == ["rect", "circle"]
    assert [part.text for part in group.iter(f"{SVG}title")] == ["x & y"]


def test_names_with_control_characters_leave_the_file_well_formed() -> None:
    canvas = Canvas(10, 10, "")
    canvas.text(0, 0, 'kernel\x1b[31m<"int">')
    canvas.rect(0, 0, 1, 1, "\x00\ud800")
    root = parse(canvas)
    assert [part.text for part in root.iter(f"{SVG}text")][1] == 'kernel\N{REPLACEMENT CHARACTER}[31m<"int">'
    assert next(root.iter(f"{SVG}title")).text == "\N{REPLACEMENT CHARACTER}" * 2


@pytest.mark.parametrize(("marker", "tag"), [("dot", "circle"), ("box", "rect"), ("dashes", "line")])
def test_a_legend_returns_where_the_next_goes_on(marker: str, tag: str) -> None:
    canvas = Canvas(10, 10, "")
    below = canvas.legend(0, 20, [("first", "red"), ("second", "blue")], marker)  # type: ignore[arg-type]
    assert canvas.legend(0, below, [], marker) == below > 20  # type: ignore[arg-type]
    root = parse(canvas)
    assert [part.text for part in root.iter(f"{SVG}text")][1:] == ["first", "second"]
    markers = [part for part in root.iter(f"{SVG}{tag}") if part.attrib.get("fill") != "white"]
    assert {"red", "blue"} == {part.attrib.get("fill", part.attrib.get("stroke")) for part in markers}


def test_colours() -> None:
    assert len(COLOURS) == len(set(COLOURS)) == len(STYLES)
    assert mix("#000000", "#ffffff", 0.0) == "#000000"
    assert mix("#000000", "#ff8000", 0.5) == "#804000"


def test_an_area_places_values_between_its_sides() -> None:
    area = PlotArea(100, 50, 200, 300, LogAxis(1, 100), LogAxis(1, 10), inset=10)
    assert [area.x(value) for value in (1, 10, 100)] == [110, 200, 290]
    assert [area.y(value) for value in (1, 10)] == [350, 50]


def test_axes() -> None:
    axis = LogAxis(1.0, 100.0)
    assert axis.of(10.0) == 0.5
    assert axis.of(1e9) == 1.0
    assert axis.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert LogAxis(1e-3, 1e3).ticks() == [1e-3, 1e-2, 0.1, 1, 10, 100, 1e3]
    assert LogAxis(8, 1024).binary_ticks() == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert len(LogAxis(1, 2.0**40).binary_ticks()) <= 10


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 80.0, [0, 10, 20, 30, 40, 50, 60, 70, 80]),
        (9.3, 11.4, [9.5, 10.0, 10.5, 11.0]),
        (0.012, 0.0121, [0.01202, 0.01204, 0.01206, 0.01208, 0.0121]),
        (3.0, 3.0, []),
    ],
)
def test_ticks_of_a_linear_axis_are_round_and_within_it(low: float, high: float, ticks: list[float]) -> None:
    axis = LinearAxis(low, high)
    assert axis.ticks(8)[-len(ticks) :] == pytest.approx(ticks)
    assert len(axis.ticks(8)) <= 9
    assert all(0.0 <= axis.of(tick) <= 1.0 for tick in axis.ticks(8))
