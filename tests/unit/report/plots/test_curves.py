"""Curves on two logarithmic axes."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from foretrace.report.plots.curves import Axes, Curve, Dot, braille, curves_svg

SVG = "{http://www.w3.org/2000/svg}"
AXES = Axes("size & more", "rate", lambda x: f"{x:g} B", lambda y: f"{y:g}")
RISING = Curve("rising", tuple(Dot(2.0**n, 10.0**n, "early" if n < 2 else "late", f"dot {n}") for n in range(5)))
LIMIT = Curve("bound", (Dot(1.0, 1e5), Dot(16.0, 1e5)), limit=True)


def text_of(curves: list[Curve]) -> list[str]:
    return ["".join(text for text, _ in line) for line in braille(curves, AXES, width=30, height=8)]


def test_a_straight_line_is_drawn_as_one() -> None:
    lines = text_of([RISING])
    assert len(lines) == 10
    inked = [[number for number, sign in enumerate(line) if "\u2801" <= sign <= "\u28ff"] for line in lines[:8]]
    assert all(inked)
    starts = [row[0] for row in inked]
    assert starts == sorted(starts, reverse=True)  # the further up, the further to the right
    assert "1 B" in lines[-1] and "16 B" in lines[-1]


def test_one_dot_is_no_curve() -> None:
    assert text_of([Curve("one", (Dot(1.0, 1.0),))]) == []
    assert text_of([]) == []


def test_equal_values_do_not_divide_by_zero() -> None:
    flat = Curve("flat", (Dot(4.0, 3.0), Dot(4.0, 3.0)))
    assert len(text_of([flat])) == 10
    assert ElementTree.fromstring(curves_svg([flat], AXES, "flat")).tag == f"{SVG}svg"


def test_the_svg_of_one_curve_has_a_colour_per_group() -> None:
    root = ElementTree.fromstring(curves_svg([RISING, LIMIT], AXES, "a & b"))
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert {"a & b", "early", "late", "bound", "size & more", "rate"} <= set(words)
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.find(f"{SVG}title") is not None]
    assert len(dots) == 5
    assert len({dot.attrib["fill"] for dot in dots}) == 2
    lines = list(root.iter(f"{SVG}polyline"))
    assert ["stroke-dasharray" in line.attrib for line in lines] == [False, True]
    places = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in dots]
    steps = {(round(b[0] - a[0]), round(b[1] - a[1])) for a, b in pairwise(places)}
    assert len(steps) == 1  # equal factors lie equally far apart


def test_the_svg_of_several_curves_names_them() -> None:
    other = Curve("other", (Dot(1.0, 5.0), Dot(4.0, 50.0)))
    root = ElementTree.fromstring(curves_svg([RISING, other], AXES, "two"))
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert "rising" in words and "other" in words and "early" not in words


def test_a_long_legend_is_cut() -> None:
    many = [Curve(f"curve {n}", (Dot(1.0, n + 1.0), Dot(2.0, n + 2.0))) for n in range(30)]
    words = [element.text for element in ElementTree.fromstring(curves_svg(many, AXES, "many")).iter(f"{SVG}text")]
    assert "and 15 more" in words


def test_an_empty_plot_is_one_too() -> None:
    assert ElementTree.fromstring(curves_svg([], AXES, "nothing")).tag == f"{SVG}svg"
