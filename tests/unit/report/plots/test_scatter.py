"""Plots of measured against predicted."""

from __future__ import annotations

from xml.etree import ElementTree

from foretrace.report.plots.scatter import Point, letters, scatter_svg

POINTS = [
    Point("exact", "first", 1.0, 1.0),
    Point("slow <&>", "second", 10.0, 12.0, (11.0, 13.0)),
    Point("fast", "second", 0.1, 0.08),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_letters_sit_where_they_should() -> None:
    lines = letters(POINTS, width=41, height=21)
    assert len(lines) == 23
    column = {sign: [line.index(sign) for line in lines[:21] if sign in line] for sign in "ab"}
    assert len(column["a"]) == 1
    row = next(number for number, line in enumerate(lines[:21]) if "a" in line)
    assert lines[row][column["a"][0] - 1 : column["a"][0] + 2].count("a") == 1
    rows_of_b = [number for number, line in enumerate(lines[:21]) if "b" in line]
    assert rows_of_b[0] < row < rows_of_b[1]  # the larger one further up
    assert lines[-1].strip().startswith("61.5 ms")


def test_several_groups_in_one_place() -> None:
    assert any("+" in line for line in letters([*POINTS, Point("other", "third", 1.0, 1.0)]))
    assert letters([]) == []


def test_one_point_alone() -> None:
    assert any("a" in line for line in letters([Point("only", "g", 2.0, 2.0)]))


def test_the_svg_is_well_formed_and_says_what_it_shows() -> None:
    root = ElementTree.fromstring(scatter_svg(POINTS, "3 steps & more"))
    titles = [part.text or "" for part in root.iter(f"{SVG}title")]
    assert titles == ["exact: +0.0 %", "slow <&>: +20.0 %", "fast: -20.0 %"]
    words = [part.text or "" for part in root.iter(f"{SVG}text")]
    assert "3 steps & more" in words
    assert "second (2): 20.0 %" in words
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.find(f"{SVG}title") is not None]
    exact = dots[0]
    left, top, side = 76, 48, 560
    assert abs((float(exact.attrib["cx"]) - left) + (float(exact.attrib["cy"]) - top) - side) < 0.2  # on the diagonal


def test_an_empty_plot_is_one_too() -> None:
    assert ElementTree.fromstring(scatter_svg([], "nothing")).tag == f"{SVG}svg"
